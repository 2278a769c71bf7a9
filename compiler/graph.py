"""The typed graph that a model is between its front-end and its bytecode.

A node's `op` is a row of the instruction set by its mnemonic, with the row's sub-operation, attributes and input
operands in the row's order (None where absent); or one of the few operators of `compiler.operators` that are no
instruction, such as RESHAPE. Values are assigned once. Passes take a graph and give a graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Dim, Symbol
from dla.isa.dtypes import Array, DType


@dataclass(frozen=True)
class TensorType:
    """Element type and (perhaps symbolic) shape."""

    dtype: DType
    dims: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def elements(self) -> Dim:
        return dims.product(self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.text}[{', '.join(map(str, self.dims))}]"


class Value:
    """One tensor: the output of a node, an input of the graph, or a constant.

    `constant` is its read-only array where it is known. `users` holds each node once for each input that it is.
    """

    __slots__ = ("constant", "name", "producer", "type", "users")

    def __init__(
        self, type_: TensorType, name: str = "", producer: Node | None = None, constant: Array | None = None
    ) -> None:
        self.type = type_
        self.name = name
        self.producer = producer
        self.constant = constant
        self.users: list[Node] = []

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.type.dims

    @property
    def rank(self) -> int:
        return len(self.type.dims)

    def made_by(self, op: str, *subs: str) -> Node | None:
        """The node that makes it, if that is an `op` (and one of `subs`); else None."""
        node = self.producer
        return node if node is not None and node.op == op and (not subs or node.sub in subs) else None

    def __repr__(self) -> str:
        return f"{self.name or 'value'}: {self.type}"


class Node:
    """One operation. `label` is where it came from, for messages and comments; `order` keeps the source's order."""

    __slots__ = ("attributes", "inputs", "label", "op", "order", "outputs", "sub")

    def __init__(
        self, op: str, sub: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any],
        types: Sequence[TensorType], label: str = "", order: float = 0.0,
    ) -> None:  # fmt: skip
        self.op, self.sub = op, sub
        self.inputs = tuple(inputs)
        self.attributes = dict(attributes)
        self.outputs = tuple(Value(t, producer=self) for t in types)
        self.label, self.order = label, order
        for value in self.present:
            value.users.append(self)

    @property
    def name(self) -> str:
        """`OP` or `OP.sub`."""
        return f"{self.op}.{self.sub}" if self.sub else self.op

    @property
    def output(self) -> Value:
        """The first output."""
        return self.outputs[0]

    @property
    def present(self) -> Iterator[Value]:
        """The inputs that are there."""
        return (v for v in self.inputs if v is not None)

    def __repr__(self) -> str:
        return f"{self.name}({self.label})"


@dataclass
class State:
    """A tensor that lives across runs: its value before the run, and the one that it has after it."""

    before: Value
    after: Value


@dataclass
class Graph:
    """A model. `nodes` are in an order in which each comes after those whose values it reads."""

    name: str
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    sizes: set[Symbol] = field(default_factory=set)  # which the caller sets, whether or not an input has them
    world: int = 0  # ranks that it is for, each with its own part of some tensors; 0: it does not know of ranks
    notes: tuple[str, ...] = ()  # what a pass has to say of what it left as it was

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols that are set when the program runs: those of inputs' and states' shapes, and `sizes`, by name."""
        held = [*self.inputs.values(), *(s.before for s in self.states.values())]
        return tuple(sorted(dims.symbols(d for v in held for d in v.dims) | self.sizes, key=lambda s: s.name))

    @property
    def results(self) -> Iterator[Value]:
        """What must be there at the end: outputs, and states, also those that do not change."""
        yield from self.outputs.values()
        yield from (s.after for s in self.states.values())

    def with_steps(self) -> Iterator[Graph]:
        """This graph after those of the steps of its loops."""
        for body in [v for node in self.nodes for v in node.attributes.values() if isinstance(v, Body)]:
            yield from body.graph.with_steps()
        yield self

    def is_result(self, value: Value) -> bool:
        """Whether `value` itself is an output or the new value of a state."""
        return value in self.outputs.values() or value in [s.after for s in self.states.values()]

    def only_user(self, value: Value) -> Node | None:
        """The node that alone reads `value`, once; None if there are more, or it is a result."""
        return value.users[0] if len(value.users) == 1 and not self.is_result(value) else None

    def replace(self, old: Value, new: Value) -> None:
        """Let everything that reads `old` read `new`."""
        if old is new:
            return
        if not new.name:
            new.name = old.name
        for user in old.users:
            user.inputs = tuple(new if v is old else v for v in user.inputs)
            new.users.append(user)
        old.users = []
        if self.is_result(old):
            self.outputs = {name: new if v is old else v for name, v in self.outputs.items()}
            for state in self.states.values():
                if state.after is old:
                    state.after = new

    def set_input(self, node: Node, index: int, value: Value | None) -> None:
        """Change one input of `node`."""
        old = node.inputs[index]
        if old is not None:
            old.users.remove(node)
        if value is not None:
            value.users.append(node)
        node.inputs = (*node.inputs[:index], value, *node.inputs[index + 1 :])

    def sweep(self) -> int:
        """Drop the nodes that no result needs, and put the others in order. Returns how many were dropped.

        The order is that of the source as far as data flow allows it (Kahn's algorithm with a heap).
        """
        needed = self._needed()
        waiting = {id(n): len({id(v.producer) for v in n.present if v.producer is not None}) for n in needed}
        ready = [(n.order, i, n) for i, n in enumerate(needed) if waiting[id(n)] == 0]
        heapq.heapify(ready)
        position = {id(n): i for i, n in enumerate(needed)}
        ordered: list[Node] = []
        while ready:
            _, _, node = heapq.heappop(ready)
            ordered.append(node)
            followers = {id(u): u for out in node.outputs for u in out.users}
            for key, user in followers.items():
                if key in waiting:
                    waiting[key] -= 1
                    if waiting[key] == 0:
                        heapq.heappush(ready, (user.order, position[key], user))
        dropped = len(self.nodes) - len(ordered)
        self.nodes = ordered
        return dropped

    def _needed(self) -> list[Node]:
        """The nodes that results need, in the order of `nodes` and then of discovery; others stop being users."""
        keep: dict[int, Node] = {}
        stack = [v.producer for v in self.results if v.producer is not None]
        while stack:
            node = stack.pop()
            if id(node) not in keep:
                keep[id(node)] = node
                stack += [v.producer for v in node.present if v.producer is not None]
        held = (*self.inputs.values(), *(s.before for s in self.states.values()))
        values = (*held, *(v for n in keep.values() for v in (*n.present, *n.outputs)))
        dropped = {id(n) for n in self.nodes if id(n) not in keep}
        for value in {id(v): v for v in values}.values():  # each once: some have as many users as there are nodes
            # Graphs may share constants, so those may have users elsewhere.
            shared = value.constant is not None
            value.users = [u for u in value.users if id(u) in keep or (shared and id(u) not in dropped)]
        known = [n for n in self.nodes if id(n) in keep]
        seen = {id(n) for n in known}
        return known + [n for n in keep.values() if id(n) not in seen]

    def constants(self) -> list[Value]:
        """The constants that nodes or results read, each once, in order of first use."""
        found: dict[int, Value] = {}
        for value in (*(v for n in self.nodes for v in n.present), *self.results):
            if value.constant is not None:
                found.setdefault(id(value), value)
        return list(found.values())

    def __str__(self) -> str:
        return text(self)


@dataclass(frozen=True, eq=False)
class Body:
    """One step of RECURRENT, as a graph.

    Its inputs are, in order: the step's slice of each of the node's first `sequences` inputs, cut along their first
    axis; the `states` as they are before the step; the node's other inputs. Its outputs are the states after the step,
    and then what the node stacks along a new first axis. Sizes in it may depend on `counter`, the number of the slice.
    """

    graph: Graph
    sequences: int
    states: int
    counter: Symbol

    def __str__(self) -> str:
        return f"{len(self.graph.nodes)} nodes"


def text(graph: Graph) -> str:
    """The graph as people read it: one node a line, `%n` for values without a name of their own."""
    names: dict[int, str] = {}

    def called(value: Value | None) -> str:
        if value is None:
            return "_"
        if value.constant is not None:
            small = value.constant.size == 1
            return (
                f"{value.constant.reshape(-1)[0]}" if small else f"const {value.name} {value.type}".replace("  ", " ")
            )
        return names.setdefault(id(value), f"%{len(names)}")

    for name, value in graph.inputs.items():
        names[id(value)] = name
    for name, state in graph.states.items():
        names[id(state.before)] = name
    lines = [f"graph {graph.name}" + (f", one of {graph.world} ranks" if graph.world else "")]
    lines += [f"  symbol {s.name} <= {s.bound}" for s in graph.symbols]
    lines += [f"  input  {name}: {value.type}" for name, value in graph.inputs.items()]
    lines += [f"  state  {name}: {state.before.type}" for name, state in graph.states.items()]
    for node in graph.nodes:
        made = ", ".join(f"{called(v)}: {v.type}" for v in node.outputs)
        read = ", ".join(called(v) for v in node.inputs)
        attributes = " ".join(f"{k}={_shown(v)}" for k, v in node.attributes.items())
        comment = f"    ; {node.label}" if node.label else ""
        lines.append(f"  {made} = {node.name}({read}) {attributes}".rstrip() + comment)
        for body in node.attributes.values():
            if isinstance(body, Body):
                lines += [f"    {line}" for line in text(body.graph).splitlines()]
    lines += [f"  output {name} = {called(value)}" for name, value in graph.outputs.items()]
    changed = ((name, s) for name, s in graph.states.items() if s.after is not s.before)
    lines += [f"  state  {name} <- {called(state.after)}" for name, state in changed]
    lines += [f"  ; {note}" for note in graph.notes]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return (
        "[" + ", ".join(map(str, value)) + "]"
        if isinstance(value, Iterable) and not isinstance(value, str)
        else str(value)
    )
