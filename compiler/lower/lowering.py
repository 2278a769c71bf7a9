"""Graph -> instructions: nodes that are rows become one instruction each, views become descriptors.

What takes work is *where* results go. A node writes straight into its consumer's memory where that is possible: into
its part of a CONCAT, into an output of the program (through reshapes and transposes of it), or over an input that
nobody reads afterwards. Everything else gets scratch memory, which `compiler.memory` then lays out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr, Symbol
from dla.compiler.graph import Graph, Node, Value
from dla.compiler.lower.recurrent import recurrent
from dla.compiler.lower.registers import Registers
from dla.compiler.lower.storage import Storage, View, strides_of, whole
from dla.compiler.operators import GRAPH_ONLY, VIEWS, row_of
from dla.isa import descriptor as isa
from dla.isa.descriptor import Segment
from dla.isa.errors import ModelError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction
from dla.isa.table import Alias, Role, Row

COPY = BY_MNEMONIC["COPY"]
_NEVER = 1 << 60


@dataclass(frozen=True)
class Place:
    """A view with its sizes in registers: its element 0 is `number + register * factor` after its storage's first."""

    view: View
    dims: tuple[isa.Dim, ...]
    number: int
    register: int | None = None
    factor: int = 0


@dataclass
class Draft:
    """An instruction whose operands have no addresses yet."""

    row: Row
    sub: str = ""
    operands: tuple[Place | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass
class Lowered:
    """A graph as drafts, and everything that they need."""

    drafts: list[Draft]
    registers: Registers
    storages: list[Storage]
    held: dict[str, Storage]  # inputs, outputs and states, by name


def lower(graph: Graph) -> Lowered:
    """The instructions of `graph`. Raises ModelError for what has no form as descriptors."""
    return Lowering(graph).run()


class Lowering:
    """The state of lowering one graph. Rules for composites (`lower.rules`) use `view`, `fresh`, `emit` and `loop`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.drafts: list[Draft] = []
        self.registers = Registers(graph.symbols, self._emit_scalar)
        self.label = ""
        self._storages: list[Storage] = []
        self._held: dict[str, Storage] = {}
        self._views: dict[int, View] = {}
        self._targets: dict[int, View] = {}  # by value: where it must be written
        self._last = _last_uses(graph)
        self._node = 0

    def run(self) -> Lowered:
        """Lower everything."""
        for name, value in self.graph.inputs.items():
            self._hold(Segment.INPUT, name, value)
        for name, state in self.graph.states.items():
            self._hold(Segment.STATE, name, state.before)
        pending = self._place_outputs()
        self._place_parts()
        self._place_reshaped()
        for position, node in enumerate(self.graph.nodes):
            self._node, self.label = position, node.label
            self._lower(node)
        self._finish(pending)
        self.label = ""
        self.emit(BY_MNEMONIC["HALT"])
        return Lowered(self.drafts, self.registers, self._storages, self._held)

    # -- for rules

    def view(self, value: Value) -> View:
        """Where `value` lies."""
        if value.constant is not None and id(value) not in self._views:
            storage = self._storage(Segment.CONST, value, value.name)
            storage.array = value.constant
            self._views[id(value)] = whole(storage)
        return self._views[id(value)]

    def result(self, value: Value, view: View | None = None) -> View:
        """Where `value` is to be written: `view`, or a place of its own."""
        if view is None:
            view = self._targets.get(id(value))
        if view is None:
            view = self.fresh(value)
        self._views[id(value)] = view
        return view

    def fresh(self, value: Value) -> View:
        """New scratch memory of `value`'s type."""
        storage = self._storage(Segment.SCRATCH, value, value.name)
        storage.owner = id(value)
        return whole(storage)

    def emit(
        self, row: Row, operands: Sequence[View | None] = (), *, sub: str = "", **attributes: Any
    ) -> None:  # fmt: skip
        """One more instruction. Symbolic attributes go into registers."""
        resolved = {k: self.registers.holding(v) if isinstance(v, Expr) else v for k, v in attributes.items()}
        # Before the instruction's own index is known: sizes that depend on a loop's counter are computed here.
        places = tuple(None if view is None else placed(self.registers, view) for view in operands)
        for view in operands:
            if view is not None:
                if len(view.dims) > isa.MAX_RANK:
                    raise ModelError(f"{self.label or row.mnemonic}: a tensor of rank {len(view.dims)}; the machine's "
                                     f"have at most {isa.MAX_RANK} axes")  # fmt: skip
                view.storage.touch(len(self.drafts))
        self.drafts.append(Draft(row, sub, places, resolved, self.label))

    def settle(self, value: Value, view: View) -> None:
        """Let `value` be what lies in `view`, and copy it where it must be written, if it must be elsewhere."""
        target = self._targets.get(id(value))
        if target is not None:
            self.copy(target, view)
        self._views[id(value)] = view if target is None else target

    def is_needed(self, value: Value) -> bool:
        """Whether anything reads `value`."""
        return bool(value.users) or self.graph.is_result(value)

    def body(self, graph: Graph, inputs: Sequence[View], targets: Mapping[int, View]) -> None:
        """Lower the nodes of `graph`, whose inputs lie in the given views; some values are to be written to targets."""
        self._views |= {id(v): view for v, view in zip(graph.inputs.values(), inputs, strict=True)}
        self._targets |= targets
        self._last |= _last_uses(graph)
        outer = self._node
        for self._node, node in enumerate(graph.nodes):
            self._lower(node)
        self._node = outer

    def copy(self, to: View, x: View) -> None:
        """COPY, unless it would copy to where x is already."""
        if to.canonical != x.canonical:
            self.emit(COPY, [to, x])

    @contextmanager
    def loop(self, name: str, count: Dim) -> Iterator[Dim]:
        """What is emitted inside runs `count` times, with the counter (0, 1, ...) as the given dim.

        Nothing that the body computes from the counter is known after it.
        """
        most = dims.bound(count)
        counter = Symbol(f"{name}#{len(self.drafts)}", max(0, most - 1))
        limit = {"max": most} if isinstance(count, Expr) else {}
        register = self.registers.enter(counter)
        held = self.registers.holding(count) if isinstance(count, Expr) else count
        begin = len(self.drafts)
        self.drafts.append(
            Draft(BY_MNEMONIC["LOOP"], "", (), {"counter": register, "count": held, **limit}, self.label)
        )
        yield Expr((((counter,), 1),))
        self.drafts[begin].attributes["end"] = len(self.drafts)
        self.drafts.append(Draft(BY_MNEMONIC["ENDLOOP"], "", (), {"begin": begin}, self.label))
        self.registers.leave(counter)
        self._keep_alive(begin)

    def _keep_alive(self, begin: int) -> None:
        """Keep what the loop of the drafts from `begin` on touches alive during all of it."""
        touched = {id(p.view.storage): p.view.storage for d in self.drafts[begin:] for p in d.operands if p is not None}
        for storage in touched.values():
            storage.touch(begin)
            storage.touch(len(self.drafts) - 1)

    # -- places

    def _hold(self, segment: Segment, name: str, value: Value) -> None:
        storage = self._storage(segment, value, name)
        self._held[name] = storage
        self._views[id(value)] = whole(storage)

    def _storage(self, segment: Segment, value: Value, name: str) -> Storage:
        storage = Storage(segment, value.dtype, value.dims, name)
        self._storages.append(storage)
        return storage

    def _place_outputs(self) -> list[tuple[Value, View]]:
        """Let outputs be written where they belong. Returns those that have to be copied there at the end."""
        pending = []
        for name, value in self.graph.outputs.items():
            storage = self._storage(Segment.OUTPUT, value, name)
            self._held[name] = storage
            if not self._aim(value, whole(storage)):
                pending.append((value, whole(storage)))
        return pending

    def _place_parts(self) -> None:
        """Let parts of a CONCAT be written into it, the last CONCAT first, so that nested ones are one buffer."""
        for node in reversed(self.graph.nodes):
            if node.op != "CONCAT":
                continue
            if id(node.output) not in self._targets:
                self._targets[id(node.output)] = self.fresh(node.output)
            target = self._targets[id(node.output)]
            target.storage.owner = 0
            for value, place in _parts(node, target):
                self._aim(value, place)

    def _place_reshaped(self) -> None:
        """Where a reshape could not be a view of its source's own memory, let the source be written in its order."""
        for node in reversed(self.graph.nodes):
            if node.op == "RESHAPE" and not _is_view(node):
                storage = self._storage(Segment.SCRATCH, node.output, node.output.name)
                if not self._aim(node.output, whole(storage)):
                    self._storages.pop()

    def _aim(self, value: Value, place: View) -> bool:
        """Let `value` be written to `place` when it is computed; False if it cannot be."""
        node = value.producer
        while node is not None and node.op in ("RESHAPE", "TRANSPOSE"):
            (value,) = node.present
            back = _undone(node, place)
            if back is None:
                return False
            place, node = back, value.producer
        if node is None or node.op in (*VIEWS, "WRITE") or id(value) in self._targets:
            return False
        if id(value) in {id(s.after) for s in self.graph.states.values()}:
            return False
        self._targets[id(value)] = place
        return True

    def _finish(self, pending: Sequence[tuple[Value, View]]) -> None:
        """Copy what lies elsewhere into outputs and states."""
        self.label = "output"
        for value, place in pending:
            self.copy(place, self.view(value))
        self.label = "state"
        changed = [(self._views[id(s.before)], s.after) for s in self.graph.states.values() if s.after is not s.before]
        moved = []
        for place, value in changed:
            view = self.view(value)
            if view.storage.segment is Segment.STATE and view != place:
                copied = self.fresh(value)  # another state, which may be overwritten first
                self.copy(copied, view)
                view = copied
            moved.append((place, view))
        for place, view in moved:
            self.copy(place, view)

    def _lower(self, node: Node) -> None:
        if node.op in VIEWS:
            self._views[id(node.output)] = self._viewed(node)
        elif row_of(node.op) is not None:
            self._row(node)
        else:
            _COMPOSITES[node.op](self, node)

    # -- views

    def _viewed(self, node: Node) -> View:
        (value,) = node.present
        view, given = self.view(value), node.attributes
        if node.op == "TRANSPOSE":
            return view.transpose(given["perm"])
        if node.op == "EXPAND":
            return view.expand(given["shape"])
        if node.op == "SLICE":
            return view.slice(given["starts"], given["sizes"], given["steps"])
        found = view.reshape(given["shape"])
        if found is None:
            packed = self.fresh(value)
            found = packed.reshape(given["shape"])
            if found is not None:
                self.copy(packed, view)
        return found if found is not None else self._repacked(node, view)

    def _repacked(self, node: Node, view: View) -> View:
        """A reshape that regroups rows of symbolic length: packed without gaps row by row, and unpacked again."""
        value = node.output
        storage = Storage(Segment.SCRATCH, value.dtype, (value.type.elements,), value.name)
        self._storages.append(storage)
        packed = whole(storage)
        for place, rows in self._rows(view, packed):
            self.copy(place, rows)
        found = packed.reshape(value.dims)
        if found is None:
            found = self.fresh(value)
            for place, rows in self._rows(found, packed):
                self.copy(rows, place)
        return found

    def _rows(self, view: View, packed: View) -> Iterator[tuple[View, View]]:
        """(piece of `packed`, the same elements of `view`), inside loops over the axes that must be counted.

        From the last symbolic axis on, elements lie as far apart in both, so that is one piece.
        """
        shape = view.dims
        inner = max((k for k, d in enumerate(shape) if isinstance(d, Expr)), default=0)
        size = dims.product(shape[inner:])
        with ExitStack() as loops:
            at: Dim = 0
            for axis in range(inner):
                index = 0 if shape[axis] == 1 else loops.enter_context(self.loop(f"row{axis}", shape[axis]))
                view = dataclasses.replace(view, offset=view.offset + index * view.strides[axis])
                at = at * shape[axis] + index
            piece = View(packed.storage, shape[inner:], strides_of(shape[inner:]), at * size)
            yield piece, View(view.storage, shape[inner:], view.strides[inner:], view.offset)

    # -- instructions

    def _row(self, node: Node) -> None:
        row = row_of(node.op)
        assert row is not None
        inputs = iter(node.inputs)
        read = {o.name: next(inputs) for o in row.operands if o.role is Role.IN}
        views = {name: None if v is None else self.view(v) for name, v in read.items()}
        outputs = dict(zip((o.name for o in row.operands if o.role is Role.OUT), node.outputs, strict=False))
        for position, (name, value) in enumerate(outputs.items()):
            optional = next(o for o in row.operands if o.name == name).optional
            if optional and not value.users and not self.graph.is_result(value):
                views[name] = None
                continue
            place = self._targets.get(id(value))
            if place is None and position == 0:
                place = self._in_place(row, read, value)
            views[name] = self.result(value, place)
        if row.mnemonic == "GEMM":
            views = flattened(views) or views
        attributes = {k: v for k, v in node.attributes.items() if k not in GRAPH_ONLY}
        attributes = {k: v for k, v in attributes.items() if v != row.all_attributes[k].default}
        self.emit(row, [views.get(o.name) for o in row.operands], sub=node.sub, **attributes)

    def _in_place(self, row: Row, read: Mapping[str, Value | None], value: Value) -> View | None:
        """An input's memory that the row may overwrite and nobody reads any more."""
        for operand in row.inputs:
            source = read[operand.name]
            if source is None or not (row.alias is Alias.SAME or operand.may_be_output):
                continue
            if source.dims != value.dims or source.dtype is not value.dtype:
                continue
            if self.dying(source) and sum(v is source for v in read.values()) == 1:
                view = self.view(source)
                if all(other is None or other is source or self.view(other).storage is not view.storage
                       for other in read.values()):  # fmt: skip
                    view.storage.owner = id(value)
                    return view
        return None

    def dying(self, value: Value) -> bool:
        """Whether `value` has scratch memory of its own that is not read after the node being lowered."""
        if value.constant is not None:
            return False
        view, root = self.view(value), _root(value)
        alone = view.storage.segment is Segment.SCRATCH and view.storage.owner == id(root)
        return alone and view.is_whole and self.last_use(value)

    def last_use(self, value: Value) -> bool:
        """Whether nobody reads `value` or a view of it after the node being lowered."""
        return self._last[id(_root(value))] <= self._node

    def _emit_scalar(self, instruction: Instruction) -> None:
        self.drafts.append(Draft(instruction.row, instruction.sub, (), dict(instruction.attributes), self.label))


def placed(registers: Registers, view: View) -> Place:
    """`view` with registers for its symbolic sizes and offset."""
    sizes = tuple(
        isa.Dynamic(registers.holding(d).index, dims.bound(d)) if isinstance(d, Expr) else d for d in view.dims
    )
    if isinstance(view.offset, int):
        return Place(view, sizes, view.offset)
    # Descriptors have no negative numbers, so a difference of sizes is computed as a whole.
    constant = sum(factor for monomial, factor in view.offset.terms if not monomial)
    if any(factor < 0 for _, factor in view.offset.terms):
        constant = 0
    rest = view.offset - constant
    assert isinstance(rest, Expr), "only a constant was taken away"
    factor = math.gcd(*(factor for _, factor in rest.terms))
    base = dims.divide(rest, factor)
    assert isinstance(base, Expr), "the factor divides every term"
    return Place(view, sizes, constant, registers.holding(base).index, factor)


def flattened(views: Mapping[str, View | None]) -> dict[str, View | None] | None:
    """The operands of a GEMM with one right matrix for the whole batch as those of one large product, if views allow.

    [B..., M, K] @ [K, N] is [B * M, K] @ [K, N]: fewer and fuller tiles.
    """
    out, a, b = views["out"], views["a"], views["b"]
    if out is None or a is None or b is None or len(b.dims) != 2 or len(out.dims) < 3 or len(a.dims) != len(out.dims):
        return None
    rows = dims.product(out.dims[:-1])
    flat: dict[str, View | None] = {}
    for name, view in views.items():
        if view is None or name == "b" or len(view.dims) < 2:
            flat[name] = view
            continue
        if view.dims[:-1] == out.dims[:-1]:
            shape = (rows, view.dims[-1])
        elif all(d == 1 for d in view.dims[:-1]):
            shape = (1, view.dims[-1])
        else:
            return None
        flat[name] = view.reshape(shape)
        if flat[name] is None:
            return None
    return flat


def _root(value: Value) -> Value:
    """The value of which `value` is a view (perhaps itself)."""
    while value.producer is not None and value.producer.op in VIEWS:
        (value,) = value.producer.present
    return value


def _last_uses(graph: Graph) -> dict[int, int]:
    """For each value that is no view, by id, the position of the last node that reads it or a view of it."""
    last: dict[int, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.outputs:
            last.setdefault(id(_root(value)), position)
        for value in node.present:
            last[id(_root(value))] = position
    for value in graph.results:
        last[id(_root(value))] = _NEVER
    return last


def _is_view(node: Node) -> bool:
    """Whether a RESHAPE is a view where what it reshapes lies in memory of its own, row-major."""
    chain = [node]
    while chain[-1].inputs[0] is not None and chain[-1].inputs[0].producer is not None:
        source = chain[-1].inputs[0].producer
        if source.op not in ("RESHAPE", "TRANSPOSE"):
            break
        chain.append(source)
    (root,) = chain[-1].present
    view: View | None = whole(Storage(Segment.SCRATCH, root.dtype, root.dims))
    for step in reversed(chain):
        assert view is not None
        perm = step.attributes.get("perm")
        view = view.transpose(perm) if perm is not None else view.reshape(step.attributes["shape"])
        if view is None:
            return step is not node  # that one is in the way, and is asked itself
    return True


def _parts(node: Node, target: View) -> list[tuple[Value, View]]:
    """The inputs of a CONCAT, each with its part of the result. One that occurs twice keeps its first place."""
    axis, position = node.attributes["axis"], 0
    parts: list[tuple[Value, View]] = []
    at: Dim = position
    for value in node.present:
        starts: list[Dim] = [0] * value.rank
        starts[axis] = at
        parts.append((value, target.slice(starts, value.dims, [1] * value.rank)))
        at = at + value.dims[axis]
    return parts


def _undone(node: Node, place: View) -> View | None:
    """Where the input of a RESHAPE or TRANSPOSE has to lie for its output to lie at `place`."""
    if node.op == "RESHAPE":
        (value,) = node.present
        return place.reshape(value.dims)
    perm = node.attributes["perm"]
    return place.transpose([perm.index(k) for k in range(len(perm))])


def _concat(lowering: Lowering, node: Node) -> None:
    target = lowering.result(node.output)
    for value, place in _parts(node, target):
        lowering.copy(place, lowering.view(value))


def _write(lowering: Lowering, node: Node) -> None:
    """In place over a state, or over memory that nobody reads any more; else over a copy."""
    base, part = node.inputs
    assert base is not None
    assert part is not None
    view = lowering.view(base)
    free = lowering.dying(base) or (view.storage.segment is Segment.STATE and lowering.last_use(base))
    target = lowering.result(node.output, view if free else None)
    if free:
        target.storage.owner = id(node.output)
    lowering.copy(target, view)
    lowering.copy(target.slice(node.attributes["starts"], part.dims, [1] * part.rank), lowering.view(part))


_COMPOSITES: dict[str, Callable[[Lowering, Node], None]] = {
    "CONCAT": _concat,
    "RECURRENT": recurrent,
    "WRITE": _write,
}
