"""What each rank gets of the tensors that a caller gives, and how many ranks there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.api import Machine
from dla.emulator.compare import compare
from dla.emulator.ranks import bind_ranks, distinct_names, split, tensor_of, world_of
from dla.isa.descriptor import Segment
from dla.isa.errors import InputError

PROGRAM = assemble("""
.world 2
.input x : f32[n <= 4]
.input `x.rank7` : f32[]
.state s : i32[2]
.output y : f32[n]
main:
    ALLREDUCE.sum y, x
    COPY s, s
    HALT
""")
ANY = assemble(".output y : i32[]\nmain:\n    FILL y, RANK\n    HALT\n")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = np.float32(1)


def divided(values: dict[str, Any]) -> list[dict[str, list[float]]]:
    """`split` for two ranks, as lists."""
    return [{n: np.asarray(a).tolist() for n, a in one.items()} for one in split(PROGRAM, Segment.INPUT, values, 2)]


def test_a_tensor_with_a_leading_axis_of_ranks_is_divided() -> None:
    """Each rank gets its own."""
    assert divided({"x": X}) == [{"x": [0, 1, 2]}, {"x": [3, 4, 5]}]


def test_a_tensor_without_that_axis_is_the_same_for_all() -> None:
    """As are nested lists and numbers."""
    assert divided({"x": X[0], "x.rank7": 1}) == [{"x": [0, 1, 2], "x.rank7": 1}] * 2


def test_tensors_of_single_ranks_are_named_so() -> None:
    """Unless a tensor of the program has that very name."""
    given = {"x.rank0": X[0], "x.rank1": X[1], "x.rank7": ONE}
    assert divided(given) == [{"x": [0, 1, 2], "x.rank7": 1}, {"x": [3, 4, 5], "x.rank7": 1}]
    assert tensor_of("x.rank3", {"x": 0}) == ("x", 3)
    assert tensor_of("x.rank3", {"x": 0, "x.rank3": 0}) == ("x.rank3", None)
    assert tensor_of("x.rank", {"x": 0}) == ("x.rank", None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"x": np.zeros((3, 4), np.float32)}, "input 'x' is given for 3 ranks, and there are 2"),
        ({"x.rank0": X[0]}, "input 'x' is given for some ranks, but not for rank 1"),
        ({"x.rank2": X[0]}, "'x.rank2' is for rank 2, which is not there"),
        ({"x": X, "x.rank1": X[0]}, "'x' is given twice for rank 1"),
        ({"z": X}, "the program has no such tensor: 'z'"),
        ({"z.rank0": X}, "the program has no such tensor: 'z.rank0'"),
    ],
)
def test_what_fits_no_rank_is_refused(values: dict[str, Any], message: str) -> None:
    """With what is wrong."""
    with pytest.raises(InputError) as caught:
        split(PROGRAM, Segment.INPUT, values, 2)
    assert caught.value.message == message


def test_a_wrong_type_or_shape_names_the_rank() -> None:
    """Types and other dims are looked at rank by rank."""
    with pytest.raises(InputError, match="rank 1: input 'x' must be f32, not f16"):
        bind_ranks(PROGRAM, [{"x": X[0], "x.rank7": ONE}, {"x": X[0].astype(np.float16), "x.rank7": ONE}])
    with pytest.raises(InputError, match=r"rank 0: missing input 'x\.rank7'"):
        bind_ranks(PROGRAM, [{"x": X[0]}, {"x": X[1]}])
    with pytest.raises(InputError, match="dim 'n' is 3 on rank 0 and 2 on rank 1"):
        bind_ranks(PROGRAM, [{"x": X[0], "x.rank7": ONE}, {"x": X[0, :2], "x.rank7": ONE}])


def test_the_number_of_ranks_is_what_is_asked_for_or_declared_or_one() -> None:
    """And these do not contradict each other."""
    assert (world_of(ANY, None), world_of(ANY, 5), world_of(PROGRAM, None), world_of(PROGRAM, 2)) == (1, 5, 2, 2)
    with pytest.raises(InputError, match="the program is for 2 ranks, not for 3"):
        world_of(PROGRAM, 3)
    for wrong in (0, -1, True, 2**16, "2"):
        with pytest.raises(InputError, match="a world has 1 to 65535 ranks"):
            world_of(ANY, wrong)  # type: ignore[arg-type]


def test_the_golden_machine_keeps_to_what_one_process_can_hold() -> None:
    """A small file that declares many ranks asks for nothing."""
    with pytest.raises(InputError, match="at most 1024 ranks, and these are 60000"):
        Machine("golden", ranks=60000).load(ANY)


def test_one_rank_has_no_axis() -> None:
    """A world of one is an ordinary run, declared or not."""
    assert Machine("golden", ranks=1).run(ANY, {})["y"].shape == ()
    assert Machine("golden", ranks=1).run(ANY, {}).ranks == ()
    assert Machine("golden", ranks=3).run(ANY, {})["y"].tolist() == [0, 1, 2]


def test_state_has_an_axis_of_ranks() -> None:
    """What is set for all, or for each; a mistake changes nothing on any rank."""
    session = Machine("golden").load(PROGRAM)
    session.set_state({"s": np.array([1, 2], np.int32)})
    assert session.state["s"].tolist() == [[1, 2], [1, 2]]
    session.set_state({"s": np.array([[1, 2], [3, 4]], np.int32)})
    assert session.state["s"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InputError, match="state 's' must be i32"):
        session.set_state({"s.rank0": np.array([5, 6], np.int32), "s.rank1": np.zeros(2, np.float32)})
    assert session.state["s"].tolist() == [[1, 2], [3, 4]]


def test_what_works_on_one_rank_only_says_so() -> None:
    """Profiles, and comparisons of machines."""
    with pytest.raises(InputError, match="only one can be profiled"):
        Machine("golden").load(PROGRAM).trace({})  # type: ignore[attr-defined]
    result = Machine("golden").run(PROGRAM, {"x": X, "x.rank7": ONE})
    with pytest.raises(InputError, match="machines are compared on one rank"):
        compare(PROGRAM, {"x": X}, result)


def test_uneven_outputs_are_not_called_as_other_tensors() -> None:
    """Said before the run, and only where a collision can be: on that many ranks, and where sizes may differ."""
    text = """
.world 2
.output y : f32[{size} <= 4]
.{segment} `y.rank{rank}` : f32[1]
main:
    FILL `y.rank{rank}`, 2
    ALU.add s0, RANK, 1
    FILL y, 1
    HALT
"""
    for segment in ("output", "state"):
        program = assemble(text.format(size="s0", segment=segment, rank=1))
        with pytest.raises(InputError, match=r"that of rank 1 is then called 'y\.rank1', as another tensor is"):
            Machine("golden").load(program)
        distinct_names(program, 1)
    for size, rank in (("s0", 2), ("n", 1)):
        distinct_names(assemble(text.format(size=size, segment="output", rank=rank)), 2)
