"""Which products are cut, and what every rank then has of each value.

Products with constant weights begin as cut by their columns. Each operation says what that makes of its result, until
a product over the cut axis ends it: its weights are cut by rows, and an ALLREDUCE adds up. What an operation cannot do
on parts sends the plan back: the products that the parts come from are left whole, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dla.compiler.graph import Body, Graph, Node, Value
from dla.compiler.operators import VIEWS, source
from dla.compiler.passes.match import constant_array
from dla.compiler.passes.tensor_parallel.rules import RULES
from dla.compiler.passes.tensor_parallel.split import Refused, Split, name_of, origins_of
from dla.isa.names import shown

_ON_THE_WAY = (*VIEWS, "CONCAT", "WRITE", "ROPE")
_FARTHEST = 64  # nodes that are looked at for the cause of a refusal


class _Again(Exception):
    """The plan has changed for what the node at position `at` reads or makes; it goes on from there."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass
class Plan:
    """What is cut. Splits are by the value's id; `pieces` are constants that nodes read: by (node's id, input)."""

    world: int
    held: dict[int, Split] = field(default_factory=dict)  # of states and inputs
    splits: dict[int, Split] = field(default_factory=dict)  # of everything else
    pieces: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # -> axis, segments
    added: dict[int, None] = field(default_factory=dict)  # products whose results ranks add up: ids, in order
    whole: list[tuple[str, str]] = field(default_factory=list)  # the names of products that are not cut, and why

    def of(self, value: Value | None) -> Split | None:
        """How `value` is split; None where each rank has all of it."""
        return None if value is None else self.held.get(id(value)) or self.splits.get(id(value))


def plan(graph: Graph, world: int) -> Plan:
    """What to cut of `graph` for so many ranks."""
    return Planner(graph, world).run()


class Planner:
    """A plan in the making. Rules ask it what fits, and change it."""

    def __init__(self, graph: Graph, world: int) -> None:
        self._graph, self.world = graph, world
        self._whole: dict[int, str] = {}  # why a product is not cut by columns
        self.columns: dict[int, tuple[int, ...]] = {}  # products that are cut by columns: segments of these
        self._names: dict[int, str] = {}
        self._position: dict[int, int] = {}  # of nodes in the graph; of those of a loop's step, that of the loop
        self._marks: list[tuple[int, int, int]] = []  # how much of the plan there was in front of each node
        for at, node in enumerate(graph.nodes):
            self._place(node, at)
        for node in (node for part in graph.with_steps() for node in part.nodes if node.op == "GEMM"):
            self._consider(node)
        self.plan = Plan(world)

    def _place(self, node: Node, at: int) -> None:
        self._position[id(node)] = at
        for body in [v for v in node.attributes.values() if isinstance(v, Body)]:
            for inner in body.graph.nodes:
                self._place(inner, at)

    def _consider(self, node: Node) -> None:
        """Let a product with constant weights be cut by columns, if they divide."""
        columns, weight = node.output.dims[-1], source(node, 1)
        if weight.rank != 2 or constant_array(weight) is None or not isinstance(columns, int):
            return
        self._names[id(node)] = name_of(node)
        if columns % self.world == 0:
            self.columns[id(node)] = (columns,)
        else:
            self._whole[id(node)] = f"its {columns} columns do not divide by {self.world}"

    def run(self) -> Plan:
        """The plan, once nothing stands against it."""
        begin: int | None = 0
        while begin is not None:
            try:
                self._from(begin)
            except _Again as again:
                begin = again.at
            except Refused as refused:
                begin = self._without(refused)
            else:
                begin = None
        left = (product for product in self._whole if product not in self.plan.added)
        ordered = sorted(left, key=self._position.__getitem__)
        self.plan.whole = list(dict.fromkeys((self._names[product], self._whole[product]) for product in ordered))
        return self.plan

    def _without(self, refused: Refused) -> int:
        """Leave whole what is to blame. Returns the first node that this changes something for."""
        blamed = refused.origins & self.columns.keys()
        assert blamed, "whatever is cut is so for a product that is"
        for product in sorted(blamed, key=self._position.__getitem__):
            del self.columns[product]
            self._whole[product] = refused.reason.replace(f" ({self._names[product]})", "")
        return self._changed(blamed)

    def _changed(self, products: Iterable[int]) -> int:
        """Forget states and inputs that are cut for these products. Returns the first node that this is felt at."""
        products = set(products)
        loose = {key for key, split in self.plan.held.items() if split.origins & products}
        for key in loose:  # found again, as is right now
            del self.plan.held[key]
        given = (*self._graph.inputs.values(), *(s.before for s in self._graph.states.values()))
        return min([self._position[p] for p in products] + [self._first(v) for v in given if id(v) in loose])

    def _first(self, value: Value) -> int:
        """The first node that reads an input or a state."""
        return min((self._position[id(user)] for user in value.users), default=0)

    def _from(self, begin: int) -> None:
        """Plan from the node at `begin` on; what was planned before it stands."""
        plan = self.plan
        if begin < len(self._marks):
            parts: tuple[dict[Any, Any], ...] = plan.splits, plan.pieces, plan.added
            for planned, count in zip(parts, self._marks[begin], strict=True):
                while len(planned) > count:
                    planned.popitem()  # the last that was put in
            del self._marks[begin:]
        for node in self._graph.nodes[begin:]:
            self._marks.append((len(plan.splits), len(plan.pieces), len(plan.added)))
            self.node(node)
        self._results()

    # -- graphs

    def _results(self) -> None:
        for name, state in self._graph.states.items():
            self.stays(name, self.plan.of(state.before), self.plan.of(state.after))
        for name, value in self._graph.outputs.items():
            split = self.plan.of(value)
            if split is not None and not self._goes_round(value):
                raise Refused(f"the output '{shown(name)}' would be cut", split.origins)

    def _goes_round(self, value: Value) -> bool:
        """Whether an output is an input that is cut, with more rows: a cache that the caller holds."""
        node = value.producer
        if node is None or node.op != "CONCAT":
            return False
        return any(source(node) is v and id(v) in self.plan.held for v in self._graph.inputs.values())

    def node(self, node: Node) -> None:
        """Plan one node."""
        given = [self.plan.of(v) for v in node.inputs]
        found: Sequence[Split | None] = ()
        if any(given) or node.op in ("GEMM", "RECURRENT"):
            rule = RULES.get(node.op)
            if rule is None:
                raise self.refusal(node, "it does not work on parts", given)
            found = rule(self, node, given)
        for value, split in zip(node.outputs, found, strict=False):
            if split is not None:
                self.plan.splits[id(value)] = split

    def stays(self, name: str, before: Split | None, after: Split | None) -> None:
        """Refuse a state that is cut otherwise after a run, or a turn, than before it."""
        same = before is after if before is None or after is None else before.like(after) and after.foreign is None
        if not same:
            raise Refused(f"the state '{shown(name)}' would not stay cut alike", origins_of((before, after)))

    def refusal(self, node: Node, reason: str, given: Sequence[Split | None]) -> Refused:
        """What to raise where `node` cannot work on parts."""
        # Whatever it is that does not fit, the cause may be heads that do not divide.
        reason = uneven_heads(node, self.world) or reason
        return Refused(f"{node.name}{f' ({name_of(node)})' if node.label else ''}: {reason}", origins_of(given))

    # -- operands that broadcast

    def fits(self, node: Node, position: int, from_end: int, segments: tuple[int, ...]) -> bool:
        """Whether an input goes with a result that is cut along an axis; constants are cut to do so."""
        value = node.inputs[position]
        if value is None or value.rank < from_end or value.dims[-from_end] == 1:
            return self.plan.of(value) is None
        split = self.plan.of(value)
        axis = value.rank - from_end
        if split is not None:
            return split.is_plain and (split.axis, split.segments) == (axis, segments)
        size = value.dims[axis]
        if constant_array(value) is None or not isinstance(size, int) or size % sum(segments):
            return False
        self.plan.pieces[id(node), position] = axis, segments * (size // sum(segments))
        return True

    def together(
        self, node: Node, given: Sequence[Split | None], positions: Sequence[int], last: int = 0
    ) -> Split:  # fmt: skip
        """The split of a result that inputs at `positions` broadcast to; the `last` axes cannot be cut."""
        rank = node.output.rank
        splits = [(k, s) for k in positions if (s := given[k]) is not None]
        if len(splits) != sum(s is not None for s in given):
            raise self.refusal(node, "an operand of another kind is cut", given)
        position, first = splits[0]
        x = source(node, position)
        from_end = x.rank - first.axis
        if from_end <= last:
            raise self.refusal(node, "it works along the axis that is cut", given)
        if not first.is_plain or node.output.dims[-from_end] != x.dims[first.axis]:
            raise self.refusal(node, "its parts do not lie alike", given)
        for k in positions:
            if not self.fits(node, k, from_end, first.segments):
                raise self.refusal(node, "an operand is not cut, or elsewhere", given)
        known = [s.traces for _, s in splits if s.traces]
        traces = tuple(sum(found, ()) for found in zip(*known, strict=True)) if len(known) == len(splits) else ()
        return Split(rank - from_end, first.segments, origins_of(given), traces)

    # -- changes of the plan

    def cut_at(self, split: Split, places: Sequence[int]) -> None:
        """Cut the columns of the products that `split` comes from at these places of its axis, too, and begin again.

        Does nothing where that is so already, or cannot be.
        """
        wanted: dict[int, set[int]] = {}
        begin = 0
        for size, traces in zip(split.segments, split.traces, strict=False):
            for trace in traces:
                inside = {trace.first + (p - begin) * trace.unit for p in places if begin < p < begin + size}
                wanted.setdefault(trace.product, set()).update(inside)
            begin += size
        changed: list[int] = []
        for product, columns in wanted.items():
            segments = self.columns[product]
            ends = {sum(segments[:k]) for k in range(len(segments) + 1)}
            found = tuple(b - a for a, b in pairwise(sorted(ends | columns)))
            if found != segments and all(size % self.world == 0 for size in found):
                self.columns[product] = found
                changed.append(product)
        if changed:
            raise _Again(self._changed(changed))

    def hold(self, value: Value, split: Split, after: Value) -> None:
        """Let a state be cut, or an input that `after`, an output, goes on with; and begin again.

        Does nothing where `value` is something else.
        """
        held = {id(s.before) for s in self._graph.states.values()}
        if any(after is v for v in self._graph.outputs.values()):
            held |= {id(v) for v in self._graph.inputs.values()}
        if id(value) in held and id(value) not in self.plan.held:
            self.plan.held[id(value)] = Split(split.axis, split.segments, split.origins | {id(value)})
            raise _Again(self._first(value))


def uneven_heads(node: Node, world: int) -> str | None:
    """What keeps the ATTENTION that reads views of `node`'s results, or is `node`, from being cut by heads."""
    waiting, seen = [node], {id(node)}
    while waiting:
        found = waiting.pop()
        if found.op == "ATTENTION":
            for k, what in ((1, "heads of keys and values"), (0, "heads")):
                count = source(found, k).dims[1]
                if isinstance(count, int) and count % world:
                    return f"its {count} {what} do not divide by {world}"
            return None
        if found.op in _ON_THE_WAY and len(seen) < _FARTHEST:
            users = [user for value in found.outputs for user in value.users if id(user) not in seen]
            seen |= {id(user) for user in users}
            waiting += users
    return None
