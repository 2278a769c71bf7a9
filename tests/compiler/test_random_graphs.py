"""Random graphs, compiled with all passes, with none and with some, give what the graph means."""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np
import pytest
from random_graphs import is_near, random_case

from dla.compiler.passes import PASSES
from dla.compiler.pipeline import compile_graph
from dla.emulator.golden.machine import GoldenMachine

SEEDS = 320
_PARTS = 4  # tests that share the seeds


def wrong_results(seed: int, skip: Collection[str] = (), shuffle: int | None = None) -> list[str]:
    """Names of the results and states that the program of a random graph gets wrong."""
    case = random_case(seed)
    program = compile_graph(case.graph, skip=skip).program
    session = GoldenMachine(shuffle=shuffle).load(program)
    session.set_state(case.states)
    result = session.run(case.inputs)
    found = {**result.outputs, **{f"state {name}": value for name, value in result.state.items()}}
    return [name for name, value in case.expected.items() if not is_near(value, found[name])]


@pytest.mark.parametrize("part", range(_PARTS))
def test_programs_of_random_graphs_compute_what_the_graphs_mean(part):
    """In program order or shuffled; the machine watches for reads of memory that nothing was written to."""
    with np.errstate(all="ignore"):
        for seed in range(part, SEEDS, _PARTS):
            rng = random.Random(seed)
            some = [name for name in PASSES if rng.random() < 0.3]
            for skip in ((), [name for name in PASSES if name != "dead"], some):
                shuffle = rng.randrange(100) if rng.random() < 0.5 else None
                assert wrong_results(seed, skip, shuffle) == [], f"seed {seed}, without {skip}, shuffled by {shuffle}"


def test_random_graphs_hold_what_compilers_get_wrong():
    """Loops, states, values that are outputs twice, inputs that are outputs, and symbolic parts of a CONCAT."""
    graphs = [random_case(seed).graph for seed in range(200)]
    operators = {node.op for graph in graphs for node in graph.nodes}
    assert operators >= {"RECURRENT", "WRITE", "CONCAT", "SCATTER", "ATTENTION", "CONV", "GEMM", "RESHAPE", "ROPE"}
    assert any(graph.states for graph in graphs)
    assert any(len(graph.outputs) > len({id(v) for v in graph.outputs.values()}) for graph in graphs)
    assert any(value.producer is None for graph in graphs for value in graph.outputs.values())
