"""Graph -> instructions: nodes that are rows become one instruction each, views become descriptors.

What takes work is *where* results go. A node writes straight into its consumer's memory where that is possible: into
its part of a CONCAT, into an output of the program (through reshapes and transposes of it), or over an input that
nobody reads afterwards. Everything else gets scratch memory, which `compiler.memory` then lays out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr, Symbol
from dla.compiler.graph import Graph, Node, TensorType, Value
from dla.compiler.lower.drafts import Draft, Lowered, placed
from dla.compiler.lower.matrices import flattened, is_weight
from dla.compiler.lower.packing import repacked
from dla.compiler.lower.pieces import piece
from dla.compiler.lower.places import Targets, name_of, parts
from dla.compiler.lower.recurrent import filled_starts, recurrent
from dla.compiler.lower.registers import Registers
from dla.compiler.lower.sharing import in_the_way
from dla.compiler.lower.storage import Storage, View, whole
from dla.compiler.operators import GRAPH_ONLY, VIEWS, root, row_of
from dla.compiler.transpose import transposed
from dla.isa import descriptor as isa
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import ModelError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction
from dla.isa.table import Alias, Role, Row

COPY = BY_MNEMONIC["COPY"]
_NEVER = 1 << 60


def lower(graph: Graph) -> Lowered:
    """The instructions of `graph`. Raises ModelError for what has no form as descriptors."""
    return Lowering(graph).run()


class Lowering:
    """The state of lowering one graph. Composites and repacking have their own modules, and use its public methods."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.drafts: list[Draft] = []
        self.registers = Registers(graph.symbols, self._emit_scalar)
        self.label = ""
        self._storages: list[Storage] = []
        self._held: dict[str, Storage] = {}  # of inputs and states
        self._views: dict[int, View] = {}
        self.pieces: dict[tuple[object, ...], View] = {}  # of constants that ranks share
        for name, value in graph.inputs.items():
            self._hold(Segment.INPUT, name, value)
        for name, state in graph.states.items():
            self._hold(Segment.STATE, name, state.before)
        self._targets = Targets(graph, self.storage, self._views)
        self._carried: dict[int, Node | None] = {}  # by id, states of loops: the node that may change one where it lies
        self.starts = filled_starts(graph)
        self._last = _last_uses(graph)
        self._node = 0

    def run(self) -> Lowered:
        """Lower everything."""
        for position, node in enumerate(self.graph.nodes):
            self._node, self.label = position, node.label
            self._lower(node)
        self._finish()
        self.label = ""
        self.emit(BY_MNEMONIC["HALT"])
        held = self._held | {name: view.storage for name, view in self._targets.outputs.items()}
        return Lowered(self.drafts, self.registers, self._storages, held, self.graph.world)

    # -- for composites

    def view(self, value: Value) -> View:
        """Where `value` lies."""
        if value.constant is not None and id(value) not in self._views:
            self._views[id(value)] = self.constant(value, value.constant)
        return self._views[id(value)]

    def constant(self, value: Value, array: Array, cut: int | None = None) -> View:
        """Memory for a constant. Weights of tensor cores' products lie column by column, other tensors row by row.

        With `cut`, `value` is one rank's piece of `array`, along that axis.
        """
        if not is_weight(value):
            storage = self.storage(Segment.CONST, value.type, value.name)
            storage.array, storage.cut = array, cut
            return whole(storage)
        turned = TensorType(value.dtype, (*value.dims[:-2], value.dims[-1], value.dims[-2]))
        storage = self.storage(Segment.CONST, turned, value.name)
        storage.array = transposed(array)
        last = len(value.dims) - 1
        storage.cut = {last: last - 1, last - 1: last}.get(cut, cut) if cut is not None else None
        return whole(storage).transpose((*range(last - 1), last, last - 1))

    def result(self, value: Value, view: View | None = None) -> View:
        """Where `value` is to be written: `view`, or a place of its own."""
        if view is None:
            view = self._targets.views.get(id(value))
        if view is None:
            view = self.fresh(value)
        self._views[id(value)] = view
        return view

    def fresh(self, value: Value) -> View:
        """New scratch memory of `value`'s type."""
        storage = self.storage(Segment.SCRATCH, value.type, name_of(value))
        storage.owner = id(value)
        return whole(storage)

    def emit(
        self, row: Row, operands: Sequence[View | None] = (), *, sub: str = "", **attributes: Any
    ) -> None:  # fmt: skip
        """One more instruction. Symbolic attributes go into registers; inputs that lie in the way are copied first."""
        given = list(operands)
        for position in in_the_way(self.registers, row, operands):
            view = given[position]
            assert view is not None, "what is in the way is there"
            type_ = TensorType(view.storage.dtype, view.dims)
            apart = whole(self.storage(Segment.SCRATCH, type_, view.storage.name))
            self.copy(apart, view)
            given[position] = apart
        resolved = {k: self.registers.holding(v) if isinstance(v, Expr) else v for k, v in attributes.items()}
        # Before the instruction's own index is known: sizes that depend on a loop's counter are computed here.
        places = tuple(None if view is None else placed(self.registers, view) for view in given)
        for view in given:
            if view is not None:
                if len(view.dims) > isa.MAX_RANK:
                    raise ModelError(f"{self.label or row.mnemonic}: a tensor of rank {len(view.dims)}; the machine's "
                                     f"have at most {isa.MAX_RANK} axes")  # fmt: skip
                view.storage.touch(len(self.drafts))
        self.drafts.append(Draft(row, sub, places, resolved, self.label))

    def settle(self, value: Value, view: View) -> None:
        """Let `value` be what lies in `view`, and copy it where it must be written, if it must be elsewhere."""
        target = self._targets.views.get(id(value))
        if target is not None:
            self.copy(target, view)
        self._views[id(value)] = view if target is None else target

    def target(self, value: Value) -> View | None:
        """Where `value` is to be written, if that is known already."""
        return self._targets.views.get(id(value))

    def is_needed(self, value: Value) -> bool:
        """Whether anything reads `value`, or it is a result."""
        return bool(value.users) or self.graph.is_result(value)

    def body(
        self, graph: Graph, inputs: Sequence[View], targets: Mapping[int, View], carried: Mapping[int, Node | None]
    ) -> None:  # fmt: skip
        """Lower the nodes of `graph`, whose inputs lie in the given views; some values are to be written to targets.

        The `carried` inputs, by id, need not be what they were when all is done, and may be changed by the given node
        where they lie; the others are read again by the next step.
        """
        self._views |= {id(v): view for v, view in zip(graph.inputs.values(), inputs, strict=True)}
        self._carried |= carried
        self._last |= _last_uses(graph)
        self._last |= {id(v): _NEVER for v in graph.inputs.values() if id(v) not in self._carried}
        self._targets.views |= targets
        self._targets.inside(graph, [v for v in graph.inputs.values() if carried.get(id(v)) is not None])
        outer = self._node, self.label
        for self._node, node in enumerate(graph.nodes):
            self.label = node.label
            self._lower(node)
        self._node, self.label = outer

    def copy(self, to: View, x: View) -> None:
        """COPY, unless it would copy to where x is already."""
        if to.canonical != x.canonical:
            self.emit(COPY, [to, x])

    @contextmanager
    def loop(self, counter: str | Symbol, count: Dim) -> Iterator[Dim]:
        """What is emitted inside runs `count` times, with the counter (0, 1, ...) as the given dim.

        `counter` is its symbol, or a name for a new one. Nothing that the body computes from it is known after it.
        """
        most = dims.bound(count)
        if isinstance(counter, str):
            counter = Symbol(f"{counter}#{len(self.drafts)}", max(0, most - 1))
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
        storage = self.storage(segment, value.type, name)
        self._held[name] = storage
        self._views[id(value)] = whole(storage)

    def storage(self, segment: Segment, type_: TensorType, name: str) -> Storage:
        """New memory of a type."""
        storage = Storage(segment, type_.dtype, type_.dims, name)
        self._storages.append(storage)
        return storage

    def _finish(self) -> None:
        """Copy what lies elsewhere into outputs and states."""
        self.label = "output"
        for value, place in self._targets.to_copy:
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
            if id(node) not in self.starts:
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
        return found if found is not None else repacked(self, node, view)

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
            if optional and not self.is_needed(value):
                views[name] = None
                continue
            place = self._targets.views.get(id(value))
            if place is None and position == 0 and not _is_for_products_and_others(node):
                place = self._in_place(row, read, value)
            views[name] = self.result(value, place)
        if row.mnemonic == "GEMM":
            views = flattened(views) or views
            made_by = None if read["a"] is None else root(read["a"]).producer
            if made_by is not None and _is_for_products_and_others(made_by):
                self.view(next(iter(made_by.present))).storage.touch(len(self.drafts))
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
        view = self.view(value)
        alone = view.storage.segment is Segment.SCRATCH and view.storage.owner == id(root(value))
        return alone and view.is_whole and self.last_use(value)

    def may_change(self, value: Value, node: Node) -> bool:
        """Whether `node`, which is being lowered, may write over the memory of `value`: nobody reads that later.

        It is scratch memory of its own, or a state's, of the program or of a loop; and each element has its place.
        """
        if value.constant is not None or self.view(value).is_repeated or not self.last_use(value):
            return False
        if id(root(value)) in self._carried:
            return self._carried[id(root(value))] is node
        return self.view(value).storage.segment is Segment.STATE or self.dying(value)

    def last_use(self, value: Value) -> bool:
        """Whether nobody reads `value` or a view of it after the node being lowered."""
        return self._last[id(root(value))] <= self._node

    def _emit_scalar(self, instruction: Instruction) -> None:
        self.drafts.append(Draft(instruction.row, instruction.sub, (), dict(instruction.attributes), self.label))


def _is_for_products_and_others(node: Node) -> bool:
    """Whether `node` is a normalisation of which there are several readers, such as a product and a residual.

    A product can do it for all of them, as long as what is normalised is still there.
    """
    return node.op == "NORM" and len(node.output.users) > 1


def _last_uses(graph: Graph) -> dict[int, int]:
    """For each value that is no view, by id, the position of the last node that reads it or a view of it."""
    last: dict[int, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.outputs:
            last.setdefault(id(root(value)), position)
        for value in node.present:
            last[id(root(value))] = position
    for value in graph.results:
        last[id(root(value))] = _NEVER
    return last


def _concat(lowering: Lowering, node: Node) -> None:
    target = lowering.result(node.output)
    for value, place in parts(node, target):
        lowering.copy(place, lowering.view(value))


def _write(lowering: Lowering, node: Node) -> None:
    """In place over a state, or over memory that nobody reads any more; else over a copy."""
    base, part = node.inputs
    assert base is not None
    assert part is not None
    view, free = lowering.view(base), lowering.may_change(base, node)
    target = lowering.result(node.output, view if free else None)
    if free:
        target.storage.owner = id(node.output)
    lowering.copy(target, view)
    lowering.copy(target.slice(node.attributes["starts"], part.dims, [1] * part.rank), lowering.view(part))


_COMPOSITES: dict[str, Callable[[Lowering, Node], None]] = {
    "CONCAT": _concat,
    "RECURRENT": recurrent,
    "SHARD": piece,
    "WRITE": _write,
}
