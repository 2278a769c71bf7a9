"""Comparison of whole runs: right machines pass, wrong ones do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dla
from dla.emulator.compare import OutputComparison, compare, reference
from dla.isa.dtypes import Array
from dla.isa.program import Program

NET = """
.program net
.input  x  : {dtype}[16, 32]
.input  w1 : {dtype}[32, 64]
.input  w2 : {dtype}[64, 10]
.scratch h : {dtype}[16, 64]
.scratch z : {dtype}[16, 10]
.state  seen : f32[16, 10]
.output p  : {dtype}[16, 10]
.output best : i32[16]
.output copy : {dtype}[16, 32]
main:
    GEMM h, x, w1 act=gelu
    GEMM z, h, w2
    SOFTMAX p, z axis=-1
    COPY seen, z
    REDUCE.argmax best, p axes=[1]
    COPY copy, x
    HALT
"""


def case(dtype: str, seed: int = 0) -> tuple[Program, dict[str, Array]]:
    """A small network and random inputs."""
    program = dla.assemble(NET.format(dtype=dtype))
    generator = np.random.default_rng(seed)
    inputs = {
        t.name: (generator.standard_normal(t.descriptor.bounds) * 0.3).astype(t.descriptor.dtype.numpy)
        for t in program.tensors
        if t.segment.text == "input"
    }
    return program, inputs


def by_name(comparisons: list[OutputComparison]) -> dict[str, OutputComparison]:
    """Comparisons by tensor name."""
    return {c.name: c for c in comparisons}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_rounds_to_f32_passes(dtype: str, seed: int) -> None:
    """The golden machine in f32 is a correct machine: every output and state tensor is within the bound."""
    program, inputs = case(dtype, seed)
    result = dla.Machine("golden", accumulate="f32").run(program, inputs)
    found = by_name(compare(program, inputs, result))
    assert list(found) == ["p", "best", "copy", "seen"]
    assert all(c.ok for c in found.values()), found
    assert found["p"].max_ratio < 1
    assert found["p"].elements == 160


def test_a_narrower_intermediate_is_noticed() -> None:
    """A machine that computes an f32 network in f16 in between is outside the bound."""
    program, inputs = case("f32")
    text = NET.format(dtype="f32")
    text = text.replace(".scratch h : f32[16, 64]", ".scratch h : f16[16, 64]\n.scratch wide : f32[16, 64]")
    half = dla.assemble(text.replace("GEMM z, h, w2", "COPY wide, h\n    GEMM z, wide, w2"))
    found = by_name(compare(program, inputs, dla.Machine("golden").run(half, inputs)))
    assert not found["p"].ok
    assert found["p"].max_ratio > 2
    assert found["p"].over > 10


@pytest.mark.parametrize("name", ["p", "copy", "seen"])
def test_one_wrong_element_is_noticed(name: str) -> None:
    """A change of one element by one part in a thousand is over the bound of f32 outputs and state."""
    program, inputs = case("f32")
    result = dla.Machine("golden").run(program, inputs)
    tensors = {**result.outputs, **result.state}
    wrong = tensors[name].copy()
    at = np.unravel_index(np.argmax(np.abs(wrong)), wrong.shape)
    wrong[at] *= 1.001
    side = "outputs" if name in result.outputs else "state"
    changed = replace(result, **{side: {**getattr(result, side), name: wrong}})
    found = by_name(compare(program, inputs, changed))
    assert (found[name].over, found[name].ok) == (1, False)
    assert all(c.ok for other, c in found.items() if other != name)


def test_copies_of_inputs_have_no_tolerance() -> None:
    """An output that is only moved must be equal to the last bit."""
    program, inputs = case("f32")
    result = dla.Machine("golden").run(program, inputs)
    nudged = result["copy"].copy()
    nudged[0, 0] = np.nextafter(nudged[0, 0], np.float32(9))
    found = by_name(compare(program, inputs, replace(result, outputs={**result.outputs, "copy": nudged})))
    assert found["copy"].over == 1


def test_integers_must_be_equal_where_nothing_is_close() -> None:
    """A wrong class is an error."""
    program, inputs = case("f32")
    result = dla.Machine("golden").run(program, inputs)
    wrong = (result["best"] + np.arange(16) // 15) % 10
    found = by_name(
        compare(program, inputs, replace(result, outputs={**result.outputs, "best": wrong.astype(np.int32)}))
    )
    assert (found["best"].over, found["best"].ties, found["best"].ok) == (1, 0, False)


def test_ties_of_floats_are_counted_apart() -> None:
    """Where rounding alone decides an argmax, either answer is right, and says so."""
    text = """
.program tie
.input x : f32[1, 64]
.input w : f32[64, 2]
.scratch z : f32[1, 2]
.output best : i32[1]
main:
    GEMM z, x, w
    REDUCE.argmax best, z axes=[1]
    HALT
"""
    program = dla.assemble(text)
    column = np.random.default_rng(0).standard_normal((64, 1)).astype(np.float32)
    inputs = {"x": column.T.copy(), "w": np.concatenate([column, column], axis=1)}
    result = dla.Machine("golden").run(program, inputs)
    other = replace(result, outputs={"best": 1 - result["best"]})
    (found,) = compare(program, inputs, other)
    assert (found.over, found.ties, found.ok) == (0, 1, True)


def test_a_result_of_another_shape_is_not_compared() -> None:
    """Another size or type is a problem of its own."""
    program, inputs = case("f32")
    result = dla.Machine("golden").run(program, inputs)
    found = by_name(compare(program, inputs, replace(result, outputs={**result.outputs, "p": result["p"][:1]})))
    assert not found["p"].ok
    assert found["p"].problem == "it is f32[1, 10], the oracle's f32[16, 10]"


def test_nan_in_both_is_equal_and_in_one_is_not() -> None:
    """NaN inputs make NaN outputs everywhere; a machine that gives a number there is wrong."""
    program, inputs = case("f32")
    inputs["x"][0, 0] = np.nan
    result = dla.Machine("golden", accumulate="f32").run(program, inputs)
    assert all(c.ok for c in compare(program, inputs, result))
    wrong = np.nan_to_num(result["p"], nan=0.5)
    found = by_name(compare(program, inputs, replace(result, outputs={**result.outputs, "p": wrong})))
    assert found["p"].over == 10


def test_state_before_the_run_counts() -> None:
    """The oracle starts from the same state as the run it is compared with."""
    text = ".program t\n.state s : f32[2]\n.output y : f32[2]\nmain:\nEW.add s, s, 1\nCOPY y, s\nHALT\n"
    program = dla.assemble(text)
    state = {"s": np.array([5, 6], np.float32)}
    result = dla.Machine("golden").run(program, {}, state=state)
    assert all(c.ok for c in compare(program, {}, result, state=state))
    assert not any(c.ok for c in compare(program, {}, result))


def test_references_are_reproducible() -> None:
    """The same seed gives the same bound; the samples do differ from the oracle."""
    program, inputs = case("f32")
    one, two = reference(program, inputs, seed=3), reference(program, inputs, seed=3)
    assert [s["p"].tobytes() for s in one.samples] == [s["p"].tobytes() for s in two.samples]
    assert len(one.samples) == 4
    assert all((s["p"] != one.oracle["p"]).any() for s in one.samples)


def test_zero_size_outputs_compare() -> None:
    """Nothing to compare is no error."""
    program = dla.assemble(".program t\n.input x : f32[n <= 4]\n.output y : f32[n]\nmain:\nEW.add y, x, x\nHALT\n")
    inputs = {"x": np.zeros(0, np.float32)}
    (found,) = compare(program, inputs, dla.Machine("golden").run(program, inputs))
    assert found.ok
    assert found.elements == 0
