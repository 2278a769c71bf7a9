"""Which bytes of scratch memory are in use when."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.isa.lifetimes import Usage, usage
from dla.isa.program import Program

HEAD = """\
.program p
.input  x : f32[64]
.output y : f32[64]
"""


def program(text: str) -> Program:
    """A program with input x and output y, both f32 [64]: 256 bytes."""
    return assemble(HEAD + text)


def used(text: str) -> Usage:
    """The use of scratch memory by that program."""
    return usage(program(text))


def lives(found: Usage) -> list[tuple[str, int, int, int, int]]:
    """(name, offset, bytes, first, last) of each piece."""
    return [(life.name, life.offset, life.nbytes, life.first, life.last) for life in found.lifetimes]


def test_a_tensor_is_in_use_from_its_write_to_its_last_read() -> None:
    """During both, so what an instruction reads and what it writes are in use together."""
    found = used("""\
.scratch a : f32[64]
.scratch b : f32[64]
main:
    EW.add a, x, x
    EW.add b, x, a
    EW.add y, b, x
    HALT
""")
    assert lives(found) == [("a", 0, 256, 0, 1), ("b", 256, 256, 1, 2)]
    assert found.in_use == [256, 512, 256, 0]
    assert (found.size, found.lower_bound, found.peak) == (512, 512, 1)


def test_memory_may_be_used_again() -> None:
    """The second tensor at an address has a life of its own, and the name of the second declaration."""
    found = used("""\
.scratch a : f32[64]
.scratch b : f32[64]
.scratch c : f32[64] @ 0
main:
    EW.add a, x, x
    EW.add b, x, a
    EW.add a, b, x
    EW.add y, a, x
    HALT
""")
    assert lives(found) == [("a", 0, 256, 0, 1), ("b", 256, 256, 1, 2), ("c", 0, 256, 2, 3)]


def test_what_changes_in_place_lives_on() -> None:
    """An accumulator is one tensor, however often it is written."""
    found = used("""\
.scratch a : f32[64]
main:
    EW.add a, x, x
    EW.add a, a, x
    EW.add y, a, x
    HALT
""")
    assert lives(found) == [("a", 0, 256, 0, 2)]


def test_what_nobody_reads_is_in_use_while_it_is_written() -> None:
    """It needs its memory for that moment."""
    found = used("""\
.scratch a : f32[64]
main:
    EW.add a, x, x
    EW.add y, x, x
    HALT
""")
    assert (lives(found), found.in_use) == ([("a", 0, 256, 0, 0)], [256, 0, 0])


def test_columns_are_told_apart() -> None:
    """Two halves of a matrix, written one after the other: only the first is in use before the second is written."""
    found = used("""\
.scratch m : f32[8, 8]
main:
    EW.add m[:, :4], x[:32].reshape(8, 4), x[32:].reshape(8, 4)
    EW.mul m[:, 4:], x[:32].reshape(8, 4), x[32:].reshape(8, 4)
    EW.add y.reshape(8, 8), m, m
    HALT
""")
    assert found.in_use == [128, 256, 256, 0]
    assert [(life.nbytes, life.first, life.last) for life in found.lifetimes] == [(128, 0, 2), (128, 1, 2)]


def test_a_loop_keeps_what_its_next_turn_reads() -> None:
    """A sum is in use all through the loop; what each turn writes before it reads is not."""
    found = used("""\
.scratch total : f32[64]
.scratch part  : f32[64]
main:
    FILL    total, 0
    LOOP    s0, 4
    EW.mul  part, x, x
    EW.add  total, total, part
    NOP
    ENDLOOP
    EW.add  y, total, x
    HALT
""")
    assert found.in_use == [256, 256, 512, 512, 256, 256, 256, 0]
    assert lives(found) == [("total", 0, 256, 0, 6), ("part", 256, 256, 2, 3)]


def test_a_branch_may_skip_the_write() -> None:
    """What was written before a branch stays in use beside it, because the reader may see it."""
    found = used("""\
.scratch a : f32[64]
main:
    FILL   a, 0
    CMP.lt p0, s0, 1
    BR     done if=p0
    EW.add a, x, x
done:
    EW.add y, a, x
    HALT
""")
    assert found.in_use == [256, 256, 256, 256, 256, 0]


def test_a_function_uses_what_its_callers_need() -> None:
    """Between a call and the return, what is read after the call is in use."""
    found = used("""\
.scratch a : f32[64]
.scratch b : f32[64]
main:
    EW.add a, x, x
    CALL   double
    EW.add y, a, b
    HALT
double:
    EW.add b, x, x
    RET
""")
    assert found.in_use == [256, 256, 512, 0, 512, 512]


def test_an_address_in_a_register_may_be_anywhere_in_its_tensor() -> None:
    """The write may be to all of the tensor; of that, what is read later stays in use."""
    found = used("""\
.scratch rows : f32[4, 64]
main:
    NOP
    LOOP   s0, 4
    EW.add rows[s0], x, x
    ENDLOOP
    EW.add y, rows[1], rows[2]
    HALT
""")
    assert found.in_use == [0, 0, 1024, 512, 512, 0]


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_shares_add_up_to_what_is_in_use(rows: int) -> None:
    """The picture loses no byte, however coarse it is."""
    found = used("""\
.scratch a : f32[64]
.scratch b : f32[64]
main:
    EW.add a, x, x
    EW.add b, x, a
    EW.add y, b, x
    HALT
""")
    shares = found.shares(rows, [(0, 1), (1, 2), (2, 4)])
    assert shares.shape == (rows, 3)
    np.testing.assert_allclose(shares.mean(axis=0) * found.size, [256, 512, 128])


def test_coarse_pieces_never_say_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the table would be too large, pieces are taken together: what is in use stays in use."""
    text = "".join(f".scratch t{i} : f32[64]\n" for i in range(40)) + "main:\n    EW.add t0, x, x\n"
    text += "".join(f"    EW.add t{i}, t{i - 1}, x\n" for i in range(1, 40)) + "    EW.add y, t39, x\n    HALT\n"
    exact = used(text)
    monkeypatch.setattr("dla.isa.lifetimes._MAX_TABLE", 42 * 8)
    coarse = used(text)
    assert exact.lower_bound == 512
    assert len(coarse.edges) <= 9
    assert all(a <= b for a, b in zip(exact.in_use, coarse.in_use, strict=True))
    assert coarse.lower_bound < coarse.size


def test_without_scratch_memory_nothing_is_in_use() -> None:
    """An empty segment has no pieces."""
    found = used("main:\n    EW.add y, x, x\n    HALT\n")
    assert (found.size, found.lower_bound, found.in_use, found.lifetimes) == (0, 0, [0, 0], ())
