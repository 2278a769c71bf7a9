"""V-RANKS: which collectives all ranks are sure to execute alike, and which are refused."""

from __future__ import annotations

import contextlib

import pytest

from dla.assembler import assemble
from dla.isa.errors import VerifyError
from dla.isa.verifier import verify

HEAD = """
.world 4
.group halves [[0, 1], [2, 3]]
.pairs next [[0, 1], [1, 2], [2, 3]]
.input x : f32[n <= 8]
.input flags : i32[2]
.const same : i32[] = 3
.const cut : i32[1] = [0, 1, 2, 3] shard axis=0
.scratch flag : i32[]
.scratch any : i32[]
.scratch wide : f32[8]
.output y : f32[n]
main:
    FILL y, 0
    FILL wide, 0
"""
END = "\n    HALT\n"

REFUSED = {
    "the counter of a loop that ranks leave at different trips": """
    LOOP s0, 4
    CMP.eq p0, s0, RANK
    BR out if=p0
    ENDLOOP
out:
    LOOP s1, s0 max=4
    ALLREDUCE.sum y, x
    ENDLOOP""",
    "a shape by such a counter": """
    LOOP s0, 4
    CMP.eq p0, s0, RANK
    BR out if=p0
    ENDLOOP
out:
    ALLREDUCE.sum wide[0:s0], wide[0:s0]""",
    "a branch on RANK": """
    CMP.eq p0, RANK, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "what the other branch executes": """
    CMP.eq p0, RANK, 0
    BR other unless=p0
    COPY y, x
    BR both
other:
    ALLREDUCE.sum y, x
both:""",
    "a register computed from RANK": """
    ALU.mod s0, RANK, 2
    ALU.add s1, s0, 1
    CMP.gt p0, s1, 1
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "a register written in a branch on RANK": """
    CMP.eq p0, RANK, 0
    BR skip if=p0
    MOV s0, 1
skip:
    CMP.eq p1, s0, 1
    BR end if=p1
    ALLREDUCE.sum y, x
end:""",
    "a loop that counts to RANK": """
    MOV s0, RANK
    LOOP s1, s0 max=4
    ALLREDUCE.sum y, x
    ENDLOOP""",
    "a way out of a loop": """
    LOOP s1, 4
    ALLREDUCE.sum y, x
    CMP.eq p0, s1, RANK
    BR out if=p0
    ENDLOOP
out:""",
    "a value of the second trip": """
    LOOP s1, 4
    CMP.eq p0, s2, 1
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:
    MOV s2, RANK
    ENDLOOP""",
    "data of an input": """
    LOADS s0, flags[0]
    CMP.eq p0, s0, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "a piece of a constant": """
    LOADS s0, cut[0]
    CMP.eq p0, s0, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "a result that only half of the ranks share": """
    ALLREDUCE.max flag, flags[0] group=halves
    LOADS s0, flag
    CMP.eq p0, s0, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "what is sent from rank to rank": """
    PERMUTE flag, flags[0] pairs=next
    LOADS s0, flag
    CMP.eq p0, s0, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "a flag that something else writes, too": """
    COPY flag, flags[0]
    ALLREDUCE.max flag, flag
    LOADS s0, flag
    CMP.eq p0, s0, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "a function called on some ranks": """
    CMP.eq p0, RANK, 0
    BR skip if=p0
    CALL fold
skip:
    HALT
fold:
    ALLREDUCE.sum y, x
    RET
main2:""",
    "after some ranks have ended": """
    CMP.eq p0, RANK, 0
    BR on if=p0
    HALT
on:
    ALLREDUCE.sum y, x""",
    "after a function returned early on some ranks": """
    CALL fold
    HALT
fold:
    CMP.eq p0, RANK, 0
    BR on if=p0
    RET
on:
    ALLREDUCE.sum y, x
    RET
main2:""",
    "a dim that differs": """
    ALU.add s0, RANK, 1
    ALLREDUCE.sum wide[:s0], wide[:s0]""",
    "every kind of collective": """
    CMP.eq p0, RANK, 0
    BR skip if=p0
    PERMUTE y, x pairs=next
skip:""",
}

ACCEPTED = {
    "straight code": """
    ALLREDUCE.sum y, x""",
    "a branch on WORLD": """
    CMP.gt p0, WORLD, 2
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "a branch on a named dim": """
    CMP.gt p0, n, 2
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "other instructions between ranks that part and meet": """
    CMP.eq p0, RANK, 0
    BR skip if=p0
    COPY y, x
skip:
    ALLREDUCE.sum y, y""",
    "a loop around a branch that ranks take differently": """
    LOOP s0, 4
    CMP.eq p0, s0, RANK
    BR skip if=p0
    COPY y, x
skip:
    ALLREDUCE.sum y, y
    ENDLOOP""",
    "a register that holds something else by then": """
    MOV s0, RANK
    MOV s0, 3
    CMP.eq p0, s0, 1
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "data of a constant that all have": """
    LOADS s0, same
    CMP.eq p0, s0, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "a flag that all ranks get": """
    ALLREDUCE.max any, flags[0]
    LOADS s0, any
    LOOP s1, s0 max=10
    ALLREDUCE.sum y, x
    ENDLOOP""",
    "a flag that one rank gives to all": """
    BROADCAST any, flags[0] root=2
    LOADS s0, any
    CMP.eq p0, s0, 0
    BR skip if=p0
    ALLREDUCE.sum y, x
skip:""",
    "places that differ": """
    MOV s0, RANK
    ALLREDUCE.sum y[:1], wide[s0:s0+1]""",
    "an assertion that one rank may fail": """
    CMP.eq p0, RANK, 0
    ASSERT p0
    ALLREDUCE.sum y, x""",
    "an early end of all": """
    CMP.gt p0, WORLD, 2
    BR on if=p0
    HALT
on:
    ALLREDUCE.sum y, x""",
    "an early end that nothing follows": """
    ALLREDUCE.sum y, x
    CMP.eq p0, RANK, 0
    BR on if=p0
    HALT
on:
    COPY y, x""",
}


@pytest.mark.parametrize("case", REFUSED)
def test_collective_that_not_all_ranks_may_execute_alike_is_refused(case: str) -> None:
    """By V-RANKS, and for nothing else."""
    with pytest.raises(VerifyError) as caught:
        verify(assemble(HEAD + REFUSED[case] + END))
    assert {rejection.rule for rejection in caught.value.rejections} == {"V-RANKS"}


@pytest.mark.parametrize("case", ACCEPTED)
def test_collective_that_all_ranks_execute_is_accepted(case: str) -> None:
    """What only looks as if ranks might part."""
    verify(assemble(HEAD + ACCEPTED[case] + END))


@pytest.mark.parametrize("case", REFUSED)
def test_one_rank_parts_with_nobody(case: str) -> None:
    """In a world of one rank there is nothing to refuse."""
    text = (HEAD + REFUSED[case] + END).replace(".world 4", ".world 1").replace("[[0, 1], [2, 3]]", "[[0]]")
    text = text.replace("[[0, 1], [1, 2], [2, 3]]", "[[0, 0]]").replace("[0, 1, 2, 3]", "[0]")
    verify(assemble(text.replace(" root=2", "")))


def test_rejection_names_the_branch() -> None:
    """So that one knows where ranks part."""
    with pytest.raises(VerifyError) as caught:
        verify(assemble(HEAD + REFUSED["a branch on RANK"] + END, file="a.dla"))
    assert str(caught.value) == (
        "error[V-RANKS] at instruction 4 (a.dla:19): ALLREDUCE.sum: not all ranks get here, since BR at a.dla:18 may "
        "go another way on another rank\n"
        "  help: let all ranks execute it; a flag that ALLREDUCE or BROADCAST gives to all ranks may decide, if "
        "nothing else writes its tensor"
    )


HOSTILE = {
    "branches to the end": "".join("    BR end if=p0\n" for _ in range(4000)) + "end:\n",
    "ends in branches": "".join(f"    BR l{i} if=p0\n    HALT\nl{i}:\n" for i in range(2000)),
    "calls and returns": "    CALL f\n" * 2000 + "    HALT\nf:\n" + "    RET\n" * 2000 + "rest:\n",
    "data that go backwards through a loop": "    LOOP s0, 9\n"
    + "".join(f"    COPY chain[{i}:{i + 1}], chain[{i + 1}:{i + 2}]\n" for i in range(2000))
    + "    COPY chain[2000:], x[:1]\n    ENDLOOP\n",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_no_program_keeps_the_verifier_busy_for_long(case: str) -> None:
    """Whatever hostile programs make of branches, calls and data, time grows with their length: no test hangs here."""
    head = HEAD.replace("[n <= 8]", "[8]").replace("[n]", "[8]") + "    CMP.eq p0, RANK, 1\n    FILL chain, 0\n"
    program = assemble(".scratch chain : f32[2001]\n" + head + HOSTILE[case] + "    ALLREDUCE.sum y, x\n    HALT\n")
    with contextlib.suppress(VerifyError):
        verify(program)
