"""Ranks in lockstep: every collective gives every rank, bit for bit, what its definition says; traps; state; shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.api import Machine
from dla.isa.dtypes import BY_TEXT, Array, DType, convert
from dla.isa.errors import InputError, TimeoutTrap, Trap

TYPES = ("f32", "f16", "bf16", "i32")
SHAPES = ((0,), (1,), (3,), (7,), (2, 5), (3, 0, 2))
FOLDS = ("sum", "mean", "max", "min", "prod")
OPERATIONS = (
    *(f"ALLREDUCE.{sub}" for sub in FOLDS), "ALLGATHER", *(f"REDUCESCATTER.{sub}" for sub in FOLDS), "ALLTOALL",
    "BROADCAST", "PERMUTE",
)  # fmt: skip
SAME_SHAPE = ("ALLREDUCE", "BROADCAST", "PERMUTE")
Lists = list[list[int]]


def groups(world: int, *, uneven: bool) -> Iterator[Lists]:
    """All ranks; each by itself; neighbours and every other one, where they are as many; one rank apart."""
    yield [list(range(world))]
    if world > 1:
        yield [[rank] for rank in range(world)]
    if world > 2 and world % 2 == 0:
        half = world // 2
        yield [list(range(half)), list(range(half, world))]
        yield [list(range(0, world, 2)), list(range(1, world, 2))]
    if world > 2 and uneven:
        yield [[0], list(range(1, world))]


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Numbers whose products stay finite, a few of them NaN; integers from the whole range."""
    if not dtype.is_float:
        return rng.integers(-(2**31), 2**31, shape).astype(np.int32)
    drawn = rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)
    return convert(np.where(rng.random(shape) < 0.02, np.nan, drawn), dtype)


def fold(sub: str, arrays: list[Array], dtype: DType) -> Array:
    """`arrays` from the left, element by element, in Python numbers, rounded once."""
    found = np.empty(arrays[0].shape, np.float64 if dtype.is_float else np.int64)
    for at in np.ndindex(found.shape):
        numbers = [float(a[at]) if dtype.is_float else int(a[at]) for a in arrays]
        result = numbers[0]
        for one in numbers[1:]:
            if sub in ("sum", "mean"):
                result = result + one
            elif sub == "prod":
                result = result * one
            elif result != result or one != one:  # NaN
                result = np.nan
            else:
                result = max(result, one) if sub == "max" else min(result, one)
        if sub == "mean":
            result = result / len(numbers)
        found[at] = result if dtype.is_float else (result + 2**63) % 2**64 - 2**63
    return convert(found, dtype)


def expected(operation: str, brought: list[Array], lists: Lists, pairs: Lists, root: int) -> list[Array]:
    """What each rank gets."""
    mnemonic, _, sub = operation.partition(".")
    dtype = next(d for d in BY_TEXT.values() if d.numpy == brought[0].dtype)
    found = []
    for rank in range(len(brought)):
        ranks = next(one for one in lists if rank in one)
        place = ranks.index(rank)
        theirs = [brought[other] for other in ranks]
        match mnemonic:
            case "ALLREDUCE":
                found.append(fold(sub, theirs, dtype))
            case "REDUCESCATTER":
                found.append(fold(sub, [x[place] for x in theirs], dtype))
            case "ALLGATHER":
                found.append(np.stack(theirs))
            case "ALLTOALL":
                found.append(np.stack([x[place] for x in theirs]))
            case "BROADCAST":
                found.append(theirs[root])
            case _:
                sender = next((a for a, b in pairs if b == rank), None)
                found.append(np.zeros_like(brought[0]) if sender is None else brought[sender])
    return found


def assert_same(got: Array, wanted: Array) -> None:
    """Equal in type, shape and every bit, but for those of NaN."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    wide = wanted.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), np.isnan(wide))
    bits = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(bits)[~np.isnan(wide)], wanted.view(bits)[~np.isnan(wide)])


def text(
    operation: str, lists: Lists, pairs: Lists, root: int, dtype: str, shape: tuple[int, ...], *, in_place: bool
) -> str:
    """A program of one collective."""
    mnemonic, world = operation.partition(".")[0], sum(map(len, lists))
    parts = [len(lists[0]), *shape]
    x = parts if mnemonic in ("REDUCESCATTER", "ALLTOALL") else list(shape)
    y = parts if mnemonic in ("ALLGATHER", "ALLTOALL") else list(shape)
    words = f" root={root}" if mnemonic == "BROADCAST" and root else ""
    words += " pairs=p" if mnemonic == "PERMUTE" else " group=g" if len(lists) > 1 else ""
    lines = [f".world {world}", f".group g {lists}", f".pairs p {pairs}"]
    lines += [f".state x : {dtype}{x}"] if in_place else [f".input x : {dtype}{x}", f".output y : {dtype}{y}"]
    return "\n".join([*lines, "main:", f"    {operation} {'x, x' if in_place else 'y, x'}{words}", "    HALT", ""])


def cases(world: int, operation: str) -> Iterator[tuple[Lists, Lists, int]]:
    """Groups, pairs and roots for one operation."""
    if operation == "PERMUTE":
        ring = [[rank, (rank + 1) % world] for rank in range(world)]
        for pairs in (ring, ring[:-1] or ring, [[world - 1, 0]], [[rank, rank] for rank in range(world)]):
            yield [list(range(world))], pairs, 0
        return
    mnemonic = operation.partition(".")[0]
    for lists in groups(world, uneven=mnemonic in SAME_SHAPE):
        roots = {0, min(map(len, lists)) - 1} if mnemonic == "BROADCAST" else {0}
        yield from ((lists, [[0, 0]], root) for root in roots)


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_rank_gets_what_the_definition_says(operation: str, world: int) -> None:
    """For every type, group and size, in place and not, bit for bit; without elements, too."""
    rng = np.random.default_rng(world)
    mnemonic = operation.partition(".")[0]
    for dtype in TYPES:
        if operation.endswith(".mean") and dtype == "i32":
            continue
        for lists, pairs, root in cases(world, operation):
            shape = SHAPES[rng.integers(len(SHAPES))]
            parts = (len(lists[0]),) if mnemonic in ("REDUCESCATTER", "ALLTOALL") else ()
            brought = [values(rng, (*parts, *shape), BY_TEXT[dtype]) for _ in range(world)]
            wanted = expected(operation, brought, lists, pairs, root)
            for in_place in (False, True) if mnemonic not in ("ALLGATHER", "REDUCESCATTER") else (False,):
                program = assemble(text(operation, lists, pairs, root, dtype, shape, in_place=in_place))
                given = {f"x.rank{rank}": x for rank, x in enumerate(brought)} if world > 1 else {"x": brought[0]}
                if in_place:
                    result = Machine("golden").run(program, {}, state=given)
                else:
                    result = Machine("golden").run(program, given)
                for rank, one in enumerate(result.ranks or (result,)):
                    got = one.state["x"] if in_place else one["y"]
                    assert_same(got, wanted[rank])


@pytest.mark.parametrize("shape", SHAPES)
def test_every_size(shape: tuple[int, ...]) -> None:
    """Sizes below the number of ranks, none a multiple of it, and none at all, over four ranks."""
    rng = np.random.default_rng(1)
    for operation in OPERATIONS:
        pairs, lists = [[0, 2], [1, 0], [3, 3]], [[0, 1, 2, 3]]
        parts = (4,) if operation.partition(".")[0] in ("REDUCESCATTER", "ALLTOALL") else ()
        brought = [values(rng, (*parts, *shape), DType.F32) for _ in range(4)]
        program = assemble(text(operation, lists, pairs, 0, "f32", shape, in_place=False))
        got = Machine("golden").run(program, {"x": np.stack(brought)})["y"]
        assert_same(got, np.stack(expected(operation, brought, lists, pairs, 0)))


def test_a_fold_in_f32_rounds_after_every_rank() -> None:
    """2**24 + 1 + 1 in f32 from the left is 2**24; in f64 it is 2**24 + 2."""
    program = assemble(text("ALLREDUCE.sum", [[0, 1, 2]], [[0, 0]], 0, "f32", (1,), in_place=False))
    x = np.array([[2**24], [1], [1]], np.float32)
    assert Machine("golden").run(program, {"x": x})["y"][0, 0] == 2**24 + 2
    assert Machine("golden", accumulate="f32").run(program, {"x": x})["y"][0, 0] == 2**24


ANY_WORLD = """
.input x : f32[n <= 8]
.output total : f32[n]
.output all : f32[ranks <= 8, n]
.output who : i64[2]
main:
    ALLREDUCE.sum total, x
    ALLGATHER all, x
    FILL who[0:1], RANK
    FILL who[1:2], WORLD
    HALT
"""


@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_program_without_a_world_runs_on_any_number_of_ranks(world: int) -> None:
    """RANK and WORLD tell each where it is; a dim that counts ranks is given."""
    x = np.arange(3 * world, dtype=np.float32).reshape(world, 3)
    given = x if world > 1 else x[0]
    result = Machine("golden", ranks=world).run(assemble(ANY_WORLD), {"x": given}, {"ranks": world})
    for rank, one in enumerate(result.ranks or (result,)):
        np.testing.assert_array_equal(one["total"], x.sum(axis=0))
        np.testing.assert_array_equal(one["all"], x)
        assert one["who"].tolist() == [rank, world]


def test_a_dim_that_does_not_count_the_ranks_traps() -> None:
    """It is known when the program runs, and no sooner."""
    with pytest.raises(
        Trap, match=r"on rank 0 at instruction 1 .*: out has 2 parts, and the group has 3 ranks"
    ) as caught:
        Machine("golden", ranks=3).run(assemble(ANY_WORLD), {"x": np.zeros((3, 2), np.float32)}, {"ranks": 2})
    assert caught.value.category == "extent"


TRAPPING = """
.world 3
.input fail : i32[]
.input x : f32[2]
.state seen : f32[2]
.output y : f32[2]
main:
    EW.add seen, seen, x
    ALLREDUCE.sum y, x
    LOADS s0, fail
    CMP.eq p0, s0, 0
    ASSERT p0 code=7 "told to"
    ALLREDUCE.sum y, y
    HALT
"""


def test_a_rank_that_traps_ends_the_run_of_all() -> None:
    """The error names it, no rank's state changes, and the next run is right."""
    session = Machine("golden").load(assemble(TRAPPING, file="t.dla"))
    x = np.ones((3, 2), np.float32)
    with pytest.raises(Trap) as caught:
        session.run({"x": x, "fail": np.array([0, 0, 1], np.int32)})
    assert str(caught.value) == "trap[assert] on rank 2 at instruction 4 (t.dla:12): assertion failed, code 7: told to"
    assert (caught.value.rank, caught.value.instruction) == (2, 4)
    np.testing.assert_array_equal(session.state["seen"], np.zeros((3, 2), np.float32))
    result = session.run({"x": x, "fail": np.zeros(3, np.int32)})
    np.testing.assert_array_equal(result["y"], np.full((3, 2), 9, np.float32))
    np.testing.assert_array_equal(session.state["seen"], x)


def test_a_trap_in_what_a_rank_brings_names_the_rank_and_the_instruction() -> None:
    """Memory that this rank alone has not written."""
    program = assemble("""
.world 2
.scratch a : f32[2]
.output y : f32[2]
main:
    CMP.eq p0, RANK, 0
    BR skip unless=p0
    FILL a, 1
skip:
    ALLREDUCE.sum y, a
    HALT
""")
    with pytest.raises(Trap) as caught:
        Machine("golden").run(program, {})
    assert (caught.value.category, caught.value.rank, caught.value.instruction) == ("uninitialised", 1, 3)


def test_an_output_that_one_rank_did_not_write_names_the_rank() -> None:
    """Then there are no outputs at all."""
    program = assemble("""
.world 2
.output y : f32[2]
main:
    CMP.eq p0, RANK, 0
    BR skip if=p0
    FILL y, 1
skip:
    HALT
""")
    with pytest.raises(Trap, match="on rank 0: output 'y' at HALT: parts of it were never written"):
        Machine("golden").run(program, {})


def test_a_time_limit_ends_all_ranks() -> None:
    """As one run."""
    program = assemble(
        ".world 2\n.output y : i32[]\nmain:\n    LOOP s0, 1000000\n    FILL y, s0\n    ENDLOOP\n    HALT\n"
    )
    with pytest.raises(TimeoutTrap):
        Machine("golden", timeout=0.01).run(program, {})


def test_named_dims_are_the_same_on_all_ranks() -> None:
    """Unequal shapes are refused before anything runs."""
    given = {"x.rank0": np.zeros(3, np.float32), "x.rank1": np.zeros(2, np.float32)}
    with pytest.raises(InputError, match="dim 'n' is 3 on rank 0 and 2 on rank 1"):
        Machine("golden", ranks=2).run(assemble(ANY_WORLD), given, {"ranks": 2})


def test_outputs_of_unequal_sizes_come_one_by_one() -> None:
    """Where a register that differs holds a dim, there is no array of all ranks."""
    program = assemble(".world 2\n.output y : f32[s0 <= 4]\nmain:\n    ALU.add s0, RANK, 1\n    FILL y, 1\n    HALT\n")
    result = Machine("golden").run(program, {})
    assert {name: array.shape for name, array in result.outputs.items()} == {"y.rank0": (1,), "y.rank1": (2,)}
    assert [one["y"].shape for one in result.ranks] == [(1,), (2,)]


def test_each_rank_has_its_piece_of_a_constant() -> None:
    """Along either axis, for all ranks and for groups."""
    program = assemble("""
.world 4
.group tp [[0, 1], [2, 3]]
.const before : f32[2] = [7, 8]
.const rows : i32[1, 2] = [[1, 2], [3, 4], [5, 6], [7, 8]] shard axis=0
.const columns : f16[2, 2] = [[1, 2, 3, 4], [5, 6, 7, 8]] shard axis=-1 group=tp
.const after : f32[2] = [9, 10]
.output r : i32[1, 2]
.output c : f16[2, 2]
.output rest : f32[4]
main:
    COPY r, rows
    COPY c, columns
    COPY rest[:2], before
    COPY rest[2:], after
    HALT
""")
    result = Machine("golden").run(program, {})
    assert result["r"].tolist() == [[[1, 2]], [[3, 4]], [[5, 6]], [[7, 8]]]
    assert result["c"].tolist() == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]] * 2
    assert result["rest"].tolist() == [[7, 8, 9, 10]] * 4


@pytest.mark.parametrize("seed", range(5))
def test_shuffled_orders_change_nothing(seed: int) -> None:
    """Collectives keep their order, whatever each rank does in between."""
    program = assemble("""
.world 3
.pairs ring [[0, 1], [1, 2], [2, 0]]
.input x : f32[4]
.scratch a : f32[4]
.scratch b : f32[4]
.output y : f32[4]
.output z : f32[4]
main:
    CMP.eq p0, RANK, 1
    BR skip if=p0
    EW.add a, x, x
    EW.mul b, x, x
    COPY a, x
skip:
    FILL a, 2
    PERMUTE b, x pairs=ring
    ALLREDUCE.sum y, x
    EW.add z, b, a
    ALLREDUCE.max z, z
    HALT
""")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    plain = Machine("golden").run(program, {"x": x})
    shuffled = Machine("golden", shuffle=seed).run(program, {"x": x})
    for name in "yz":
        np.testing.assert_array_equal(shuffled[name], plain[name], strict=True)


def test_trace_says_which_rank_executes() -> None:
    """Every instruction of every rank is told."""
    told = []
    program = assemble(".world 2\n.input x : f32[]\n.output y : f32[]\nmain:\n    ALLREDUCE.sum y, x\n    HALT\n")
    Machine("golden", trace=told.append).run(program, {"x": np.float32(1)})
    assert [(one.rank, one.name) for one in told] == [
        (0, "ALLREDUCE.sum"),
        (1, "ALLREDUCE.sum"),
        (0, "HALT"),
        (1, "HALT"),
    ]
