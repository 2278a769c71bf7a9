"""RECURRENT as a LOOP: memory for its states and results, and its step's nodes inside.

A state that is also a result of each step, such as the hidden state of an LSTM, lies in the rows of one buffer that has
a row more than there are steps: each step reads one row and writes the next, so nothing is copied. Other states have
one place, which a step overwrites: at once where nothing reads the old value any more, else by a COPY at its end. That
place is the first value's own where nobody else reads it; rows lie behind the first value where a CONCAT wants them so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr, Symbol
from dla.compiler.graph import Body, Graph, Node, TensorType, Value
from dla.compiler.lower.storage import View
from dla.compiler.operators import VIEWS, root, row_of, source, steps_of
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.table import Alias

if TYPE_CHECKING:
    from dla.compiler.lower.lowering import Lowering

FILL = BY_MNEMONIC["FILL"]


@dataclass(frozen=True)
class _State:
    """Where a state lies: in one place, or in a row for each step, with one more for its first value."""

    view: View
    in_rows: bool
    reverse: bool

    def before(self, step: Dim) -> View:
        """Where it is before the step that reads slice `step`."""
        return _row(self.view, step + 1 if self.reverse else step) if self.in_rows else self.view

    def after(self, step: Dim) -> View:
        """Where it is after the step that reads slice `step`."""
        return _row(self.view, step if self.reverse else step + 1) if self.in_rows else self.view

    def first(self, steps: Dim) -> View:
        """Where it is before all steps."""
        return self.before(steps - 1 if self.reverse else 0)

    def last(self, steps: Dim) -> View:
        """Where it is after all steps."""
        return self.after(0 if self.reverse else steps - 1)

    def stacked(self, steps: Dim) -> View:
        """Its values after each step."""
        return dataclasses.replace(self.view, dims=(steps, *self.view.dims[1:]), offset=self.after(0).offset)


@dataclass(frozen=True)
class _Write:
    """A value of the step, where it belongs, and the state that lies there before the step, if one does."""

    value: Value
    place: View
    over: Value | None


def recurrent(lowering: Lowering, node: Node) -> None:
    """Lower one RECURRENT."""
    body: Body = node.attributes["body"]
    given, made = list(node.present), list(body.graph.outputs.values())
    sequences, others = given[: body.sequences], given[body.sequences + body.states :]
    after, results = made[: body.states], made[body.states :]
    steps, reverse = steps_of(node), bool(node.attributes["reverse"])
    wanted = [(value, out) for value, out in zip(results, node.outputs, strict=False) if lowering.is_needed(out)]
    states = [
        _begun(lowering, node, start, next((out for value, out in wanted if value is new), None))
        for start, new in zip(given[body.sequences :], after, strict=False)
    ]
    held = list(body.graph.inputs.values())[body.sequences :][: body.states]
    carried = {
        id(v): _changed_by(v, new) for v, new, state in zip(held, after, states, strict=True) if not state.in_rows
    }
    in_rows = {id(new): state for new, state in zip(after, states, strict=True) if state.in_rows}
    wholes = [(value, lowering.result(out)) for value, out in wanted if id(value) not in in_rows]
    with lowering.loop(body.counter, steps) as counter:
        last = dims.maximum(steps - 1 - counter, 0)
        backward = Symbol(f"backward#{len(lowering.drafts)}", dims.bound(last))
        step = lowering.registers.call(backward, last) if reverse and isinstance(last, Expr) else counter
        places = [_row(lowering.view(v), step) for v in sequences] + [s.before(step) for s in states]
        writes = [
            _Write(v, s.after(step), None if s.in_rows else old) for v, s, old in zip(after, states, held, strict=True)
        ]
        writes += [_Write(v, _row(view, step), None) for v, view in wholes]
        lowering.body(body.graph, [*places, *(lowering.view(v) for v in others)], _targets(body, writes), carried)
        _finish_step(lowering, writes)
        if step is not counter:
            lowering.registers.leave(backward)
    for value, out in wanted:
        if id(value) in in_rows:
            lowering.settle(out, in_rows[id(value)].stacked(steps))
    for state, out in zip(states, node.outputs[len(results) :], strict=True):
        lowering.settle(out, state.last(steps))


def _begun(lowering: Lowering, node: Node, start: Value, rows: Value | None) -> _State:
    """Memory for a state of `node`, with `start` in it; `rows` are its values after each step, where one wants them."""
    steps, reverse = steps_of(node), bool(node.attributes["reverse"])
    fill = start.producer if start.producer is not None and id(start.producer) in lowering.starts else None
    found = _found(lowering, node, start, rows) if fill is None else None
    if found is not None:
        return _State(found, rows is not None, reverse)
    shape = start.dims if rows is None else (steps + 1, *start.dims)
    view = lowering.fresh(Value(TensorType(start.dtype, shape), start.name))
    view.storage.owner = 0
    state = _State(view, rows is not None, reverse)
    if fill is not None:
        lowering.emit(FILL, [state.first(steps)], value=fill.attributes["value"])
    else:
        lowering.copy(state.first(steps), lowering.view(start))
    return state


def _found(lowering: Lowering, node: Node, start: Value, rows: Value | None) -> View | None:
    """Where the state of `node` that begins as `start` can lie so that it begins where `start` lies already.

    That is the place of `start` itself, where nobody else reads it; or that of `rows` with a row before them, where
    both are parts of one CONCAT.
    """
    if rows is None:
        if sum(root(v) is root(start) for v in node.present) > 1 or not lowering.may_change(start, node):
            return None
        view = lowering.view(start)
        view.storage.owner = 0
        return view
    target = lowering.target(rows)
    if target is None or start.constant is not None or node.attributes["reverse"]:
        return None
    first = lowering.view(start)
    if _row(target, -1).canonical != first.canonical:
        return None
    return View(target.storage, (1 + target.dims[0], *target.dims[1:]), target.strides, first.offset)


def filled_starts(graph: Graph) -> set[int]:
    """Ids of the FILLs that are nothing but first values of states: each state is then filled where it lies."""
    fills = [n for n in graph.nodes if n.op == "FILL" and not graph.is_result(n.output)]
    return {id(n) for n in fills if all(_starts_with(user, n.output) for user in n.output.users)}


def _starts_with(user: Node, value: Value) -> bool:
    """Whether `value` is only the first value of states of `user`."""
    if user.op != "RECURRENT":
        return False
    body: Body = user.attributes["body"]
    states = range(body.sequences, body.sequences + body.states)
    return all(position in states for position, v in enumerate(user.inputs) if v is value)


def _targets(body: Body, writes: Sequence[_Write]) -> dict[int, View]:
    """By value, where a node may write it at once; each value's first place."""
    found: dict[int, View] = {}
    for write in writes:
        node = write.value.producer
        if node is None or row_of(node.op) is None or id(write.value) in found:
            continue
        if write.over is None or _may_overwrite(body, node, write.value, write.over):
            found[id(write.value)] = write.place
    return found


def _may_overwrite(body: Body, node: Node, value: Value, state: Value) -> bool:
    """Whether `node` may write `value` over `state`: nothing reads that later, and `node` only element by element."""
    read = [n for n in body.graph.nodes if n.op not in VIEWS and any(root(v) is state for v in n.present)]
    if any(root(v) is state for v in body.graph.outputs.values()):
        return False
    if not read:
        return True
    last = max(body.graph.nodes.index(n) for n in read)
    if last > body.graph.nodes.index(node):
        return False
    row = row_of(node.op)
    direct = all(v is state for v in node.present if root(v) is state)
    same = value.type == state.type and row is not None and row.alias is Alias.SAME
    return node not in read or (direct and same)


def _changed_by(state: Value, after: Value) -> Node | None:
    """The node that makes, of the state as it is before the step, part after part what it is after it, if one does.

    Only that may change the state where it lies: of another value, the memory is the new state's too early.
    """
    node = root(after).producer
    while node is not None:
        if node.op == "WRITE":
            before = source(node, 0)
        elif node.op == "RECURRENT":
            body: Body = node.attributes["body"]
            position = next(k for k, v in enumerate(reversed(node.outputs)) if v is root(after))
            if position >= body.states:
                return None
            before = source(node, body.sequences + body.states - 1 - position)
        else:
            return None
        if root(before) is state:
            return node
        after, node = before, root(before).producer
    return None


def _finish_step(lowering: Lowering, writes: Sequence[_Write]) -> None:
    """Copy what no node wrote to its place. What lies where another state is copied to is saved first."""
    pending = [w for w in writes if lowering.view(w.value).canonical != w.place.canonical]
    changing = [w for w in pending if w.over is not None]
    moved = []
    for write in pending:
        view, base = lowering.view(write.value), root(write.value)
        there = any(view.storage is other.place.storage for other in changing if other is not write)
        if there or any(base is other.over for other in writes):
            saved = lowering.fresh(write.value)
            lowering.copy(saved, view)
            view = saved
        moved.append((write.place, view))
    for place, view in moved:
        lowering.copy(place, view)


def _row(view: View, index: Dim) -> View:
    """Element `index` along the first axis."""
    return View(view.storage, view.dims[1:], view.strides[1:], index * view.strides[0] + view.offset)
