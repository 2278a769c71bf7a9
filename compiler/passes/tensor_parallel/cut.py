"""The graph of one rank: a plan carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Body, Graph, Node, State, TensorType, Value
from dla.compiler.operators import source
from dla.compiler.passes.tensor_parallel.plan import Plan
from dla.compiler.passes.tensor_parallel.split import Split, local, share
from dla.isa.names import shown

_OF_EPILOGUE = ("steps", "act", "act_alpha", "clamp_low", "clamp_high", "beta")


def carried_out(graph: Graph, plan: Plan) -> Graph:
    """`graph` as each of the plan's ranks computes it. Its constants are shared with `graph`."""
    new = Graph(graph.name, sizes=set(graph.sizes), world=plan.world)
    cutter = _Cutter(new, plan)
    for name, value in graph.inputs.items():
        new.inputs[name] = cutter.held(name, value)
    for name, state in graph.states.items():
        before = cutter.held(name, state.before)
        new.states[name] = State(before, before)
    cutter.nodes(graph)
    for name, value in graph.outputs.items():
        new.outputs[name] = cutter.value(value)
    for name, state in graph.states.items():
        new.states[name].after = cutter.value(state.after)
    held = {**graph.inputs, **{name: state.before for name, state in graph.states.items()}}
    cut = {name: split for name, value in held.items() if (split := plan.of(value))}
    new.notes = (
        *(f"{shown(name)}: a part for each rank, along axis {split.axis}" for name, split in cut.items()),
        *(f"{name} is whole: {reason}" for name, reason in plan.whole),
    )
    return new


class _Cutter:
    """Makes one graph anew."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self._graph, self._plan = graph, plan
        self._b = GraphBuilder(graph=graph)
        self._new: dict[int, Value] = {}
        self._pieces: dict[tuple[int, int, tuple[int, ...]], Value] = {}

    def held(self, name: str, value: Value) -> Value:
        """One rank's part of an input or a state."""
        made = Value(self._type(value), name)
        self._new[id(value)] = made
        return made

    def value(self, value: Value) -> Value:
        """What a value of the whole graph is in this one."""
        return value if value.constant is not None else self._new[id(value)]

    def nodes(self, graph: Graph) -> None:
        """Make the nodes of `graph` again."""
        for node in graph.nodes:
            self._b.label, self._b.order = node.label, node.order
            made = self._added(node) if id(node) in self._plan.added else self._again(node)
            for old, new in zip(node.outputs, made, strict=True):
                new.name = old.name
                self._new[id(old)] = new

    def _type(self, value: Value) -> TensorType:
        return TensorType(value.dtype, local(value.dims, self._plan.of(value), self._plan.world))

    def _input(self, node: Node, position: int) -> Value | None:
        value = node.inputs[position]
        piece = self._plan.pieces.get((id(node), position))
        if value is None or piece is None:
            return None if value is None else self.value(value)
        return self._piece(value, *piece)

    def _piece(self, value: Value, axis: int, segments: tuple[int, ...]) -> Value:
        """One rank's part of a constant, or of a transposed one: that lies as the file has it."""
        turn = value.made_by("TRANSPOSE")
        if turn is not None:
            perm = turn.attributes["perm"]
            return self._b.transpose(self._piece(source(turn), perm[axis], segments), perm)
        key = id(value), axis, segments
        if key not in self._pieces:
            self._pieces[key] = self._b.emit("SHARD", [value], axis=axis, segments=segments, ranks=self._plan.world)
            self._pieces[key].name = value.name
        return self._pieces[key]

    def _again(self, node: Node) -> Sequence[Value]:
        """The node on one rank's parts."""
        inputs = [self._input(node, k) for k in range(len(node.inputs))]
        types = [self._type(v) for v in node.outputs]
        made = Node(node.op, node.sub, inputs, self._attributes(node), types, node.label, node.order)
        self._graph.nodes.append(made)
        return made.outputs

    def _attributes(self, node: Node) -> Mapping[str, Any]:
        """Sizes and positions along an axis that is cut are shares of what they were."""
        given, world = dict(node.attributes), self._plan.world
        body = given.get("body")
        if isinstance(body, Body):
            given["body"] = self._body(body)
        split = self._plan.of(source(node)) if node.inputs else None
        if node.op in ("RESHAPE", "EXPAND"):
            given["shape"] = self._type(node.output).dims
        elif node.op == "SLICE":
            given["starts"] = _shared(given["starts"], split, world)
            given["sizes"] = self._type(node.output).dims
        elif node.op == "WRITE":
            given["starts"] = _shared(given["starts"], split, world)
        return given

    def _body(self, body: Body) -> Body:
        """The step of a loop."""
        new = Graph(body.graph.name, sizes=set(body.graph.sizes))
        inside = _Cutter(new, self._plan)
        for name, value in body.graph.inputs.items():
            new.inputs[name] = inside.held(name, value)
        inside.nodes(body.graph)
        for name, value in body.graph.outputs.items():
            new.outputs[name] = inside.value(value)
        new.sweep()  # views of whole weights, of which there are pieces now
        return Body(new, body.sequences, body.states, body.counter)

    def _added(self, node: Node) -> Sequence[Value]:
        """A product over the axis that is cut: each rank's sum, all of them added up, and then the epilogue, once."""
        b, given, dtype = self._b, node.attributes, node.output.dtype
        plain = {k: v for k, v in given.items() if k not in _OF_EPILOGUE}
        inputs = [self._input(node, 0), self._input(node, 1), None, None, None, None]
        part = b.emit("GEMM", inputs, dtype=dtype, **plain)
        x = b.emit("ALLREDUCE", [part], sub="sum")
        _, _, c, bias, residual, gate = (None if v is None else self.value(v) for v in node.inputs)
        if c is not None:
            x = b.add(x, self._like(b.mul(c, given.get("beta", 1.0)) if given.get("beta", 1.0) != 1.0 else c, x))
        for step in given.get("steps", ()):
            if step == "act":
                x = b.act(given["act"], x, given.get("act_alpha"))
            elif step == "clamp":
                x = b.ew("min", b.ew("max", x, given["clamp_low"]), given["clamp_high"])
            else:
                operand = {"bias": bias, "residual": residual, "gate": gate}[step]
                assert operand is not None, "a step has its operand"
                x = b.ew("mul" if step == "gate" else "add", x, self._like(operand, x))
        return [x]

    def _like(self, operand: Value, x: Value) -> Value:
        """An operand in the type of x, as an epilogue takes any."""
        return self._b.cast(operand, x.dtype)


def _shared(positions: Sequence[Any], split: Split | None, world: int) -> tuple[Any, ...]:
    """Positions, of which that along the axis that is cut is one rank's."""
    return tuple(share(p, world) if split is not None and k == split.axis else p for k, p in enumerate(positions))
