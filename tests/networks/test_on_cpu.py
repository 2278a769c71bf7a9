"""Small networks on the kernel itself, compiled for the CPU: instructions that feed each other, hot paths included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import dla
from dla.compiler.graph import Graph
from dla.compiler.models.decoder import DecoderConfig, decoder, generator
from dla.compiler.models.encoder import EncoderConfig, encoder
from dla.compiler.models.resnet import ResNetConfig, resnet
from dla.compiler.models.weights import Weights
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.dtypes import Array, DType
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession

pytestmark = cpu_machine.needs_compiler

BUILDS = pytest.mark.parametrize("hopper", [False, True], ids=["portable", "hopper"])
TOLERANCE = 0.03
"""Largest error, of the largest output: 8 bits of precision, a few layers deep."""


def compared(graph: Graph, inputs: Mapping[str, Array], dims: Mapping[str, int], *, hopper: bool) -> set[int]:
    """Runs a bf16 program on both machines, compares the outputs, and says which paths the device took."""
    program = dla.compile_model(graph).program
    expected: Any = GoldenMachine(accumulate="f32", watch=False).load(program).run(inputs, dims)
    session = CpuSession(program, hopper=hopper)
    found = session.run(inputs, dims)
    for name, array in expected.outputs.items():
        mine = found.outputs[name][tuple(slice(0, n) for n in array.shape)]
        if array.dtype.kind == "i":
            np.testing.assert_array_equal(mine, array)
            continue
        right = np.asarray(array, np.float64)
        error = np.abs(np.asarray(mine, np.float64) - right).max()
        assert error <= TOLERANCE * np.abs(right).max(), name
    return {schedule.path for schedule in session.plan.schedules}


@BUILDS
def test_an_encoder(hopper):
    """BERT's layers: joint q, k and v, attention without a mask, residuals, norms, gelu."""
    config = EncoderConfig(
        vocabulary=50, width=128, layers=2, heads=2, hidden=256, positions=64, batch=2, dtype=DType.BF16
    )
    ids = np.random.default_rng(0).integers(0, 50, (2, 40)).astype(np.int32)
    inputs = {"ids": ids, "mask": np.arange(40) < np.array([[40], [33]])}
    compared(encoder(config, Weights.random(seed=0)), inputs, {}, hopper=hopper)


LLAMA = DecoderConfig(
    vocabulary=96, width=128, layers=2, heads=2, kv_heads=1, hidden=256, context=160, chunk=80, dtype=DType.BF16
)


@BUILDS
def test_a_decoder_reads_a_prompt(hopper):
    """Llama's layers on many tokens: rotations, a cache, grouped heads, gated units."""
    ids = np.random.default_rng(1).integers(0, 96, (1, 70)).astype(np.int32)
    compared(decoder(LLAMA, Weights.random(seed=1)), {"ids": ids}, {"past": 0}, hopper=hopper)


@BUILDS
def test_a_decoder_writes(hopper):
    """Many tokens in one launch: a loop on the machine, one token at a time."""
    ids = np.random.default_rng(2).integers(0, 96, (1, 5)).astype(np.int32)
    graph = generator(LLAMA, Weights.random(seed=2), count=6)
    compared(graph, {"ids": ids}, {"past": 0, "count": 4}, hopper=hopper)


@BUILDS
def test_a_residual_network(hopper):
    """Convolutions of all strides, with residuals; pooling; a head."""
    config = ResNetConfig(depths=(1, 1, 1, 1), width=16, classes=10, size=32, batch=2, dtype=DType.BF16)
    images = np.random.default_rng(3).standard_normal((2, 32, 32, 3)).astype(DType.BF16.numpy)
    compared(resnet(config, Weights.random(seed=3)), {"images": images}, {}, hopper=hopper)
