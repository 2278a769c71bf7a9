"""Folds on the device: the bits of the golden machine, for every type."""

from __future__ import annotations

import numpy as np
import pytest

from dla.emulator.device.collectives import folded
from dla.isa.dtypes import Array, DType, convert
from dla.isa.instructions.allreduce import fold

CARRIERS = {DType.F32: np.uint32, DType.F16: np.uint16, DType.BF16: np.uint16, DType.I32: np.uint32}


def bits(dtype: DType, seed: int) -> Array:
    """Any bits at all: NaN, infinities, subnormal numbers and zeros of both signs among them."""
    drawn = np.random.default_rng(seed).integers(0, 2**32, 20_000, np.uint32).astype(CARRIERS[dtype])
    special = [0, 1 << 8 * drawn.itemsize - 1, 1, 0x7F80 if dtype is DType.BF16 else 0x7C00]
    return np.concatenate([np.roll(np.repeat(np.array(special, drawn.dtype), 8), seed), drawn])


def wide(brought: Array, dtype: DType) -> Array:
    """As semantics gets it from a machine that accumulates in f32."""
    elements = brought.view(dtype.numpy)
    return elements.astype(np.float32 if dtype.is_float else np.int64)


@pytest.mark.parametrize("members", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize("sub", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.filterwarnings("ignore:invalid value|overflow encountered:RuntimeWarning")
def test_a_fold_has_the_bits_of_the_golden_machine(sub: str, dtype: DType, members: int) -> None:
    """But for those of NaN."""
    if sub == "mean" and not dtype.is_float:
        return
    brought = [bits(dtype, seed) for seed in range(members)]
    got = folded(sub, dtype, brought)
    assert got.dtype == CARRIERS[dtype]
    wanted = convert(np.asarray(fold(sub, np.stack([wide(one, dtype) for one in brought]))), dtype)
    nan = np.isnan(wanted.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.view(dtype.numpy).astype(np.float64)), nan)
    np.testing.assert_array_equal(got[~nan], wanted.view(got.dtype)[~nan])
