"""Ranks in assembly: `.world`, `.group`, `.pairs`, and constants of which each rank holds a piece."""

from __future__ import annotations

from pathlib import Path

from lark import Token

from dla.assembler.constants import value_of
from dla.assembler.source import suggestion
from dla.assembler.syntax import Cut, DeclarationStatement, Literals, integer, name_of, problem
from dla.assembler.views import Scope
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.names import is_identifier
from dla.isa.ranks import MAX_WORLD, RankGroup, RankPairs, Shard, group_problem, pairs_problem, sizes_of


def declare_world(scope: Scope, ranks: Token) -> None:
    """`.world 4`. Raises SyntaxProblem."""
    if scope.world:
        raise problem(ranks, "the program has a world already", f"it has {scope.world} ranks")
    if not 1 <= integer(ranks) <= MAX_WORLD:
        raise problem(ranks, f"a world has 1 to {MAX_WORLD} ranks")
    scope.world = integer(ranks)


def declare_group(scope: Scope, name: Token, lists: Literals) -> None:
    """`.group tp [[0, 1], [2, 3]]`. Raises SyntaxProblem."""
    _check_new(scope, name, "group", scope.groups)
    group = RankGroup(name_of(name), _lists(lists))
    found = group_problem(group, scope.world)
    if found is not None:
        raise problem(lists.at, f"group {group.name} {found}", "each rank is in one of its lists: [[0, 1], [2, 3]]")
    scope.groups[group.name] = group


def declare_pairs(scope: Scope, name: Token, lists: Literals) -> None:
    """`.pairs next [[0, 1], [1, 2]]`. Raises SyntaxProblem."""
    _check_new(scope, name, "pairs", scope.pairs)
    listed = _lists(lists)
    if any(len(pair) != 2 for pair in listed):
        raise problem(lists.at, "a pair has two ranks: from, to", "write [[0, 1], [1, 2]]")
    pairs = RankPairs(name_of(name), tuple((pair[0], pair[1]) for pair in listed))
    found = pairs_problem(pairs, scope.world)
    if found is not None:
        raise problem(lists.at, f"{pairs.name} {found}", "write [from, to] for each rank that sends, in order")
    scope.pairs[pairs.name] = pairs


def _check_new(scope: Scope, name: Token, what: str, known: dict[str, RankGroup] | dict[str, RankPairs]) -> None:
    if not scope.world:
        raise problem(name, "how many ranks there are is not known yet", "write `.world 4` above")
    if not is_identifier(name_of(name)):
        raise problem(name, f"a name of {what} is letters, digits, _ and .")
    if name_of(name) in known:
        raise problem(name, f"{name_of(name)} is declared twice", "give it another name")


def _lists(given: Literals) -> tuple[tuple[int, ...], ...]:
    """Lists of ranks, as they are written. Raises SyntaxProblem."""
    found = []
    for item in given.items:
        if not isinstance(item, Literals):
            raise problem(item, "a list of ranks is needed here", "write [[0, 1], [2, 3]]")
        nested = next((one for one in item.items if isinstance(one, Literals)), None)
        if nested is not None:
            raise problem(nested.at, "a rank is a number", "write [[0, 1], [2, 3]]")
        found.append(tuple(integer(token) for token in item.items))
    return tuple(found)


def table_index(scope: Scope, table: str, name: Token) -> int:
    """The index + 1 of the group, or pairs, called `name`. Raises SyntaxProblem."""
    names = list(scope.groups if table == "groups" else scope.pairs)
    if name_of(name) not in names:
        what = "group" if table == "groups" else "pairs"
        hint = suggestion(name_of(name), names) or f"declare it: .{what} {name_of(name)} [[0, 1], [2, 3]]"
        if not is_identifier(name_of(name)):
            hint = "name a .group, or leave group= out for all ranks" if what == "group" else "name .pairs"
        raise problem(name, f"there is no .{what} {name_of(name)}", hint)
    return names.index(name_of(name)) + 1


def shard_of(scope: Scope, statement: DeclarationStatement, piece: Descriptor, folder: Path | None) -> Shard:
    """A constant that is cut; `piece` is what one rank holds. Raises SyntaxProblem."""
    cut, source = statement.cut, statement.source
    assert cut is not None
    if piece.segment is not Segment.CONST or source is None:
        raise problem(cut.at, "only a .const with a value is cut", "give each rank its own .input or .state")
    if source.kind == "external":
        raise problem(source.at, "an external constant cannot be cut", "write from, so that the program holds it")
    if not scope.world:
        raise problem(cut.at, "how many ranks there are is not known yet", "write `.world 4` above")
    axis, group = _arguments(scope, cut, piece.rank)
    sizes = sizes_of(tuple(scope.groups.values()), group, scope.world)
    if len(sizes) != 1:
        raise problem(cut.at, "a constant is cut into equal pieces, and the lists of this group are not equally long",
                      "cut it for a group of equal lists")  # fmt: skip
    (count,) = sizes
    whole = tuple(n * count if k == axis else n for k, n in enumerate(piece.bounds))
    # Fused projections are cut inside an axis of what a file holds: by heads, say.
    data = value_of(source, piece.dtype, whole, folder, any_shape=True)
    return Shard(name_of(statement.name), axis, group, data)


def _arguments(scope: Scope, cut: Cut, rank: int) -> tuple[int, int]:
    """The axis, and the group as an index + 1."""
    given: dict[str, int] = {}
    for keyword in cut.keywords:
        name, value = str(keyword.name), keyword.value
        if name not in ("axis", "group") or name in given or not isinstance(value, Token):
            raise problem(keyword.name, "shard takes axis=, and group= where it is not all ranks", "write shard axis=0")
        given[name] = integer(value) if name == "axis" else table_index(scope, "groups", value)
    axis = given.get("axis")
    if rank == 0:
        raise problem(cut.at, "a scalar has no axis to be cut along",
                      "give it the axis of ranks: f32[1] = [1, 2] shard axis=0, or leave shard out")  # fmt: skip
    if axis is None or not -rank <= axis < rank:
        raise problem(cut.at, f"shard needs an axis from {-rank} to {rank - 1}", "write shard axis=0")
    return axis % rank, given.get("group", 0)
