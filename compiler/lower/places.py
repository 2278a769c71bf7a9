"""Where values are to be written: straight into what will hold them, as far as that is known before lowering.

A value goes into an output of the program, into the part of a state that it replaces, into its part of a CONCAT, or
into the order that a reshape of it needs; transposes and reshapes on the way are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dla.compiler.dims import Dim
from dla.compiler.graph import Graph, Node, TensorType, Value
from dla.compiler.lower.storage import Storage, View, whole
from dla.compiler.operators import VIEWS, root, row_of, source
from dla.compiler.shapes import inverse
from dla.isa.descriptor import Segment
from dla.isa.table import Alias

NewStorage = Callable[[Segment, TensorType, str], Storage]


class Targets:
    """Views in which values must be written, by the value's id.

    Storages are made by `new`; `held` has the views of inputs and states.
    """

    def __init__(self, graph: Graph, new: NewStorage, held: Mapping[int, View]) -> None:
        self.views: dict[int, View] = {}
        self.outputs: dict[str, View] = {}
        self.to_copy: list[tuple[Value, View]] = []  # outputs that have to be copied to their place at the end
        self._graph, self._new, self._held = graph, new, held
        self._fixed = {id(s.after) for s in graph.states.values()}
        self._place_outputs()
        self._place_all([s.before for s in graph.states.values()])

    def inside(self, graph: Graph, carried: Sequence[Value]) -> None:
        """Find places for values of a loop's step, whose `carried` inputs are written over."""
        outer = self._graph, self._fixed
        self._graph, self._fixed = graph, {id(v) for v in graph.outputs.values()}
        self._place_all(carried)
        self._graph, self._fixed = outer

    def _place_all(self, states: Sequence[Value]) -> None:
        self._place_written(states)
        self._place_parts()
        self._place_reshaped()

    def _place_outputs(self) -> None:
        """Let outputs be written where they belong."""
        for name, value in self._graph.outputs.items():
            self.outputs[name] = whole(self._new(Segment.OUTPUT, value.type, name))
            if not self._aim(value, self.outputs[name]):
                self.to_copy.append((value, self.outputs[name]))

    def _place_written(self, states: Sequence[Value]) -> None:
        """Let what is written over a part of a state be computed there, if nothing else reads the state's old value.

        What is written over may be the state in another shape.
        """
        for state in states:
            view: View | None = self._held[id(state)]
            node = self._graph.only_user(state)
            while node is not None and node.op == "RESHAPE" and view is not None:
                view, node = view.reshape(node.attributes["shape"]), self._graph.only_user(node.output)
            if node is None or view is None or node.op != "WRITE" or root(source(node, 0)) is not state:
                continue
            part = source(node, 1)
            if self._is_alone(part):
                self._aim(part, view.slice(node.attributes["starts"], part.dims, [1] * part.rank))

    def _place_parts(self) -> None:
        """Let parts of a CONCAT be written into it, the last CONCAT first, so that nested ones are one buffer."""
        for node in reversed(self._graph.nodes):
            if node.op != "CONCAT":
                continue
            if id(node.output) not in self.views:
                self.views[id(node.output)] = whole(self._new(Segment.SCRATCH, node.output.type, name_of(node.output)))
            target = self.views[id(node.output)]
            before = self._changed_in_part(node, target)
            if before is not None:
                self._aim(before, target)
            for value, place in parts(node, target):
                self._aim(value, place)

    def _changed_in_part(self, node: Node, target: View) -> Value | None:
        """The value that a CONCAT is again, but for parts that are changed where they lie: it may be written there.

        Such is the product of a layer's values, keys and queries, of which the latter two are turned by ROPE.
        """
        whole_of: Value | None = None
        for value, place in parts(node, target):
            cut = self._cut(value, place)
            if cut is None or (whole_of is not None and source(cut) is not whole_of):
                return None
            whole_of = source(cut)
            starts, sizes = (cut.attributes[name] for name in ("starts", "sizes"))
            same = target.slice(starts, sizes, cut.attributes["steps"]).canonical == place.canonical
            if not same or self._graph.only_user(cut.output) is None:
                return None
        if whole_of is None or whole_of.type != node.output.type or len(whole_of.users) != len(node.inputs):
            return None
        return whole_of if self._can_aim(whole_of) else None

    def _cut(self, value: Value, place: View) -> Node | None:
        """The SLICE that `value`, which belongs at `place`, is; or that it is after a row which may write in place."""
        found = value.made_by("SLICE")
        if found is not None:
            return found
        node, at = value.producer, place
        while node is not None and node.op in ("RESHAPE", "TRANSPOSE"):
            back = _undone(node, at)
            if back is None:
                return None
            at, node = back, source(node).producer
        row = None if node is None else row_of(node.op)
        if node is None or row is None or row.alias is not Alias.SAME or node.output.dtype is not source(node).dtype:
            return None
        views, x = [], source(node)
        while x.producer is not None and x.producer.op in ("RESHAPE", "TRANSPOSE"):
            views.append(x.producer)
            x = source(x.producer)
        seen: View | None = place
        if x.dims != value.dims or not all(self._graph.only_user(v) for v in (x, *(n.output for n in views))):
            return None
        for step in reversed(views):
            seen = None if seen is None else _seen(step, seen)
        return x.made_by("SLICE") if seen is not None and seen.canonical == at.canonical else None

    def _place_reshaped(self) -> None:
        """Where a reshape could not be a view of its source's own memory, let the source be written in its order."""
        for node in reversed(self._graph.nodes):
            if node.op == "RESHAPE" and not _is_view(node) and self._can_aim(node.output):
                self._aim(node.output, whole(self._new(Segment.SCRATCH, node.output.type, name_of(node.output))))

    def _can_aim(self, value: Value) -> bool:
        """Whether what makes `value`, by way of reshapes and transposes, may still be given a place."""
        node = value.producer
        while node is not None and node.op in ("RESHAPE", "TRANSPOSE"):
            (value,) = node.present
            node = value.producer
        free = node is not None and node.op not in (*VIEWS, "WRITE")
        return free and id(value) not in self.views and id(value) not in self._fixed

    def _is_alone(self, value: Value) -> bool:
        """Whether one node alone reads `value`, and what it is a view of: its memory may change after that node."""
        while self._graph.only_user(value) is not None:
            node = value.producer
            if node is None or node.op not in VIEWS:
                return True
            (value,) = node.present
        return False

    def _aim(self, value: Value, place: View) -> bool:
        """Let `value` be written to `place` when it is computed; False if it cannot be."""
        if not self._can_aim(value):
            return False
        node = value.producer
        while node is not None and node.op in ("RESHAPE", "TRANSPOSE"):
            (value,) = node.present
            back = _undone(node, place)
            if back is None:
                return False
            place, node = back, value.producer
        self.views[id(value)] = place
        return True


def name_of(value: Value) -> str:
    """A name for the memory of `value`: its own, or that of the (first) node of the source that makes it."""
    label = value.producer.label if value.producer is not None else ""
    return value.name or label.split(" + ")[0].strip("/")


def parts(node: Node, target: View) -> list[tuple[Value, View]]:
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
        view = _seen(step, view)
        if view is None:
            return step is not node  # that one is in the way, and is asked itself
    return True


def _seen(node: Node, view: View) -> View | None:
    """The output of a RESHAPE or TRANSPOSE whose input lies at `view`; None where strides cannot say it."""
    perm = node.attributes.get("perm")
    return view.reshape(node.attributes["shape"]) if perm is None else view.transpose(perm)


def _undone(node: Node, place: View) -> View | None:
    """Where the input of a RESHAPE or TRANSPOSE has to lie for its output to lie at `place`."""
    if node.op == "RESHAPE":
        (value,) = node.present
        return place.reshape(value.dims)
    return place.transpose(inverse(node.attributes["perm"]))
