"""Where values are to be written: straight into what will hold them, as far as that is known before lowering.

A value goes into an output of the program, into the part of a state that it replaces, into its part of a CONCAT, or
into the order that a reshape of it needs; transposes and reshapes on the way are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dla.compiler.dims import Dim
from dla.compiler.graph import Graph, Node, TensorType, Value
from dla.compiler.lower.storage import Storage, View, whole
from dla.compiler.operators import VIEWS
from dla.compiler.shapes import inverse
from dla.isa.descriptor import Segment

NewStorage = Callable[[Segment, TensorType, str], Storage]


class Targets:
    """Views in which values must be written, by the value's id.

    Storages are made by `new`; `held` has the views of inputs and states.
    """

    def __init__(self, graph: Graph, new: NewStorage, held: Mapping[int, View]) -> None:
        self.views: dict[int, View] = {}
        self.outputs: dict[str, View] = {}
        self.to_copy: list[tuple[Value, View]] = []  # outputs that have to be copied to their place at the end
        self._graph = graph
        self._states = {id(s.after) for s in graph.states.values()}
        self._place_outputs(new)
        self._place_written(held)
        self._place_parts(new)
        self._place_reshaped(new)

    def _place_outputs(self, new: NewStorage) -> None:
        """Let outputs be written where they belong."""
        for name, value in self._graph.outputs.items():
            self.outputs[name] = whole(new(Segment.OUTPUT, value.type, name))
            if not self._aim(value, self.outputs[name]):
                self.to_copy.append((value, self.outputs[name]))

    def _place_written(self, held: Mapping[int, View]) -> None:
        """Let what is written over a part of a state be computed there, if nothing else reads the state's old value."""
        for state in self._graph.states.values():
            node = self._graph.only_user(state.before)
            if node is not None and node.op == "WRITE" and node.inputs[0] is state.before:
                part = node.inputs[1]
                assert part is not None, "WRITE has two inputs"
                if not self._is_alone(part):
                    continue
                place = held[id(state.before)].slice(node.attributes["starts"], part.dims, [1] * part.rank)
                self._aim(part, place)

    def _place_parts(self, new: NewStorage) -> None:
        """Let parts of a CONCAT be written into it, the last CONCAT first, so that nested ones are one buffer."""
        for node in reversed(self._graph.nodes):
            if node.op != "CONCAT":
                continue
            if id(node.output) not in self.views:
                self.views[id(node.output)] = whole(new(Segment.SCRATCH, node.output.type, name_of(node.output)))
            for value, place in parts(node, self.views[id(node.output)]):
                self._aim(value, place)

    def _place_reshaped(self, new: NewStorage) -> None:
        """Where a reshape could not be a view of its source's own memory, let the source be written in its order."""
        for node in reversed(self._graph.nodes):
            if node.op == "RESHAPE" and not _is_view(node) and self._can_aim(node.output):
                self._aim(node.output, whole(new(Segment.SCRATCH, node.output.type, name_of(node.output))))

    def _can_aim(self, value: Value) -> bool:
        """Whether what makes `value`, by way of reshapes and transposes, may still be given a place."""
        node = value.producer
        while node is not None and node.op in ("RESHAPE", "TRANSPOSE"):
            (value,) = node.present
            node = value.producer
        free = node is not None and node.op not in (*VIEWS, "WRITE")
        return free and id(value) not in self.views and id(value) not in self._states

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
        perm = step.attributes.get("perm")
        view = view.transpose(perm) if perm is not None else view.reshape(step.attributes["shape"])
        if view is None:
            return step is not node  # that one is in the way, and is asked itself
    return True


def _undone(node: Node, place: View) -> View | None:
    """Where the input of a RESHAPE or TRANSPOSE has to lie for its output to lie at `place`."""
    if node.op == "RESHAPE":
        (value,) = node.present
        return place.reshape(value.dims)
    return place.transpose(inverse(node.attributes["perm"]))
