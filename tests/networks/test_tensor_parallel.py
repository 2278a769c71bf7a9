"""Exported Transformers with their weights cut for two ranks: both get what torch gives, with two ALLREDUCE a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dla.emulator.api import Machine
from dla.isa.descriptor import Segment
from networks.catalogue import Case
from networks.test_compile import TOLERANCE, compiled

if TYPE_CHECKING:
    from networks.conftest import Exported

RANKS = 2
CASES = {
    Case("bert_sdpa", "torchscript", "bert.small", {"attention": "sdpa"}): 4,
    Case("minilm", "torchscript", "bert.small_minilm"): 2,  # three heads: attention is whole
    Case("gpt2_is_causal", "torchscript", "gpt2.small", {"attention": "is_causal"}): 4,
    Case("gpt2_cache_buffer", "torchscript", "gpt2.small_cache", {"attention": "buffer"}): 4,
    Case("llama_is_causal", "torchscript", "llama.small", {"attention": "is_causal"}): 4,
    Case("llama_cache_compared", "torchscript", "llama.small_cache", {"attention": "compared"}): 4,
    Case("vit_multihead", "torchscript", "vit.small", {"attention": "multihead"}): 4,
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_give_what_torch_gives(case: Case, exported: Callable[[Case], Exported]) -> None:
    """At every size; keys and values that come in and go out are those of each rank's heads."""
    network = exported(case)
    found = compiled(network, tensor_parallel=RANKS)
    names = [instruction.name for instruction in found.program.instructions]
    assert (found.program.world, names.count("ALLREDUCE.sum")) == (RANKS, CASES[case])
    places = dict(zip(found.graph.inputs, found.program.in_segment(Segment.INPUT), strict=True))
    for run in network.runs:
        given = {places[n].name: _by_heads(run.inputs[n]) if "past" in n else run.inputs[n] for n in places}
        result = Machine("golden").run(found.program, given)
        for name, got in zip(found.graph.outputs, result.outputs.values(), strict=True):
            expected = run.expected[name]
            wanted = _by_heads(expected) if "present" in name else np.stack([expected] * RANKS)
            scale = float(np.max(np.abs(expected), initial=1.0))
            np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=name)


def _by_heads(cache: np.ndarray) -> np.ndarray:
    """[B, H, S, D] -> [rank, B, H / ranks, S, D]."""
    return np.stack(np.split(cache, RANKS, axis=1))
