"""Llama's blocks cut for several GPUs beside whole ones on one: what that gains, and what share of it collectives take.

A pass goes through all blocks; the program makes as many passes as it is told, each of what the one before gave, so
that what launching several GPUs costs can be told from what passes cost. `ranks.py` runs this and writes the results.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

import dla
from dla.compiler.builder import GraphBuilder, Values
from dla.compiler.dims import Dim
from dla.compiler.graph import Graph
from dla.compiler.models.attention import Cache, cache_shape, rotation
from dla.compiler.models.decoder import DecoderConfig, block
from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Weights
from dla.compiler.passes import PASSES
from dla.compiler.passes.rewrite import rewrite
from dla.compiler.pipeline import Compiled
from dla.isa.dtypes import Array, DType

FEW, MANY = 1, 17
"""Passes of the runs whose difference in time is measured."""
ROUNDS = 11
WARM_UP = 2
"""Runs that do not count."""


@dataclass(frozen=True)
class Case:
    """Blocks of which a pass reads the next `chunk` tokens of each of `batch` sequences, after `past` others."""

    name: str
    config: DecoderConfig
    past: int = 0


LLAMA = DecoderConfig(
    width=4096, layers=2, heads=32, kv_heads=8, hidden=14336, context=1024, chunk=1, theta=500000.0, dtype=DType.BF16,
)  # fmt: skip
"""The sizes of Llama-3-8B. Its weights, 0.9 GB in two blocks, leave nothing in a cache for the next pass."""
CASES = (
    Case("decode", LLAMA, past=512),
    Case("decode", replace(LLAMA, batch=16), past=512),
    Case("prefill", replace(LLAMA, context=1, chunk=2048)),
)


def blocks(config: DecoderConfig, weights: Weights) -> Graph:
    """X [batch, chunk, width] through all blocks, as often as the dim `passes` says (from 1 on): y of that shape.

    If a `context` is there, the dim `past` says how many positions of it are in the caches, the program's state.
    """
    m = Layers("blocks", weights, config.dtype)
    past = m.symbol("past", config.context - 1) if config.context > 1 else 0
    count = m.symbol("passes", 2 * MANY)
    positions = config.context - 1 + config.chunk
    x = m.input("x", config.dtype, (config.batch, config.chunk, config.width))
    shape = cache_shape(config.of_heads, config.batch, positions)
    names = [f"cache{layer}" for layer in range(config.layers)]
    caches = [m.state(name, config.dtype, shape) for name in names]
    rotary = rotation(m, config.of_heads.width, positions, theta=config.theta)

    def once(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
        assert isinstance(b, Layers), "Layers make Layers for their steps"
        x, *caches = held
        here, after = rotary.at(b, past, config.chunk), []
        for layer, rows in enumerate(caches):
            with b.scope(str(layer)):
                x, rows = block(b, config, x, Cache(rows, past), here)
                after.append(rows)
        return [x, *after], []

    held, _ = once(m, 0, [x, *caches], [])  # outside of the loop: the caches are cut for what is written there
    _, (y, *after) = m.repeat(once, count - 1, held)
    for name, rows in zip(names, after, strict=True):
        m.set_state(name, rows)
    m.output("y", y)
    return m.finish()


def without_collectives(compiled: Compiled) -> dla.Program:
    """The program with each ALLREDUCE left out, the rest as it is: for its time alone, what it computes is wrong."""
    steps = [rewrite(graph, {"ALLREDUCE": [lambda node, b: node.inputs[0]]}) for graph in compiled.graph.with_steps()]
    return dla.compile_model(steps[-1], skip=tuple(PASSES)).program


def seconds(sessions: Mapping[str, Any], inputs: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, float]:
    """Of one pass among others, by session: medians of runs that take turns."""
    taken: dict[tuple[str, int], list[float]] = {(name, count): [] for name in sessions for count in (FEW, MANY)}
    for _ in range(ROUNDS + WARM_UP):
        for (name, count), times in taken.items():
            times.append(sessions[name].run(inputs, {**dims, "passes": count}).elapsed)
    median = {key: statistics.median(times[WARM_UP:]) for key, times in taken.items()}
    return {name: (median[name, MANY] - median[name, FEW]) / (MANY - FEW) for name in sessions}


def of_ranks(caches: Mapping[str, Array], ranks: int) -> dict[str, Array]:
    """Caches [batch, rows, values and keys of all heads] -> [rank, batch, rows, values and keys of its heads]."""
    heads = {name: cache.reshape(*cache.shape[:2], 2, ranks, -1) for name, cache in caches.items()}
    return {name: np.moveaxis(cache, 3, 0).reshape(ranks, *cache.shape[:2], -1) for name, cache in heads.items()}


def row(case: Case, one: Any, together: Any, ranks: int, weights: Weights) -> dict[str, Any]:
    """One case: seconds of a block on the machine `one` and on `ranks` ranks of `together`, and how right those are.

    `collectives` is the share of the ranks' time that is gone where collectives are left out. `error` is the largest
    error of what the ranks compute, as a share of twice that of one; beside one that computes in f32. `alike` says
    whether all ranks have the same bits.
    """
    config, dims = case.config, {"past": case.past} if case.past else {}
    rng = np.random.default_rng(0)
    x = rng.standard_normal((config.batch, config.chunk, config.width), np.float32).astype(ml_dtypes.bfloat16)
    shape = cache_shape(config.of_heads, config.batch, config.context - 1 + config.chunk)
    caches = {
        f"cache{layer}": rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
        for layer in range(config.layers)
    }
    once = {**dims, "passes": 1}

    wide = one.load(dla.compile_model(blocks(replace(config, dtype=DType.F32), weights)).program)
    wide.set_state({name: cache.astype(np.float32) for name, cache in caches.items()})
    exact = wide.run({"x": x.astype(np.float32)}, once)["y"]
    del wide  # and its weights

    compiled = dla.compile_model(blocks(config, weights), tensor_parallel=ranks)
    sessions = {
        "one": one.load(dla.compile_model(blocks(config, weights)).program),
        "ranks": together.load(compiled.program),
        "silent": together.load(without_collectives(compiled)),
    }
    sessions["one"].set_state(caches)
    sessions["ranks"].set_state(of_ranks(caches, ranks))
    native, got = (sessions[name].run({"x": x}, once)["y"].astype(np.float32) for name in ("one", "ranks"))
    error = float(np.abs(got - exact).max() / (2 * np.abs(native - exact).max()))
    taken = seconds(sessions, {"x": x}, dims)
    return {
        "work": case.name, "batch": config.batch, "tokens": config.chunk, "past": case.past, "ranks": ranks,
        "one_seconds": taken["one"] / config.layers, "seconds": taken["ranks"] / config.layers,
        "speed_up": taken["one"] / taken["ranks"], "collectives": 1 - taken["silent"] / taken["ranks"],
        "error": error, "alike": all(np.array_equal(rank, got[0]) for rank in got),
    }  # fmt: skip


def rows(one: Any, together: Any, ranks: int) -> Iterator[dict[str, Any]]:
    """Each case, as it is measured; their weights are made once."""
    weights = Weights.random(0, {}, dtype=DType.BF16)
    for case in CASES:
        yield row(case, one, together, ranks, weights)
        gc.collect()  # sessions hold on to GPU memory
