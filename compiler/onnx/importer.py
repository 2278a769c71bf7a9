"""An ONNX model -> a graph: names become values, node by node, in the order of the file.

Nodes whose operator has a rule (`compiler.onnx.rules`) become what the rule says; those that the model or ONNX itself
defines as functions are replaced by the function's body. Shape arithmetic is computed here and now (`onnx.host`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Graph, Value
from dla.compiler.onnx import host, signature
from dla.compiler.onnx.context import Context, Item, Services, dims_of, materialise, narrow
from dla.compiler.onnx.known import Known, Tensors, objects
from dla.compiler.onnx.protos import all_nodes, domain_of, key_of, key_of_function
from dla.compiler.onnx.rules import RULES
from dla.compiler.onnx.schemas import body_of, check_node, defaults_of, has_body
from dla.isa.dtypes import BY_NUMPY, Array, DType
from dla.isa.errors import ModelError
from dla.isa.names import shown

MOST_NODES = 2**16
"""Nodes of a model, each counted as often as loops repeat it: more than a program has instructions."""
NEWEST = onnx.defs.onnx_opset_version()
_ELEMENT_TYPES: dict[int, DType] = {
    onnx.TensorProto.FLOAT: DType.F32, onnx.TensorProto.FLOAT16: DType.F16, onnx.TensorProto.BFLOAT16: DType.BF16,
    onnx.TensorProto.INT8: DType.I8, onnx.TensorProto.UINT8: DType.U8, onnx.TensorProto.INT32: DType.I32,
    onnx.TensorProto.INT64: DType.I64, onnx.TensorProto.BOOL: DType.BOOL,
}  # fmt: skip
_SUBSTITUTES: dict[int, DType] = {
    onnx.TensorProto.DOUBLE: DType.F32, onnx.TensorProto.INT16: DType.I32, onnx.TensorProto.UINT16: DType.I32,
    onnx.TensorProto.UINT32: DType.I64, onnx.TensorProto.UINT64: DType.I64,
}  # fmt: skip
"""Types that the machine lacks, and those that may stand in for them where the caller agrees."""


@dataclass(frozen=True)
class Options:
    """How symbolic sizes and types become concrete.

    `bounds` gives the largest value of each symbolic dim, `fixed` its only one. `values` are inputs whose values the
    compiler may use (they are then no inputs of the program). With `substitute`, types that the machine lacks are held
    in similar ones: f64 as f32, i16 and u16 as i32, u32 and u64 as i64. Integers then do not wrap where those of the
    model's types would.
    """

    bounds: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, Dim] = field(default_factory=dict)
    values: Mapping[str, Array] = field(default_factory=dict)
    substitute: bool = False


def import_model(
    model: onnx.ModelProto, initialisers: Mapping[str, Array], options: Options,
    array: Callable[[onnx.TensorProto], Array] = onnx.numpy_helper.to_array,
) -> Graph:  # fmt: skip
    """The graph of `model`, whose weights are `initialisers`; `array` gives the values of other tensors in it.

    Raises ModelError, naming all unsupported operators.
    """
    importer = Importer(model, options, array)
    return importer.run(initialisers)


class Importer:
    """The state of importing one model."""

    def __init__(
        self, model: onnx.ModelProto, options: Options, array: Callable[[onnx.TensorProto], Array]
    ) -> None:  # fmt: skip
        self._model = model
        self._options = options
        self._values_of = array
        self._opsets = {domain_of(o.domain): o.version for o in model.opset_import}
        self._functions = {key_of_function(f): f for f in model.functions}
        self._symbols: dict[str, Dim] = {}
        self._imported = 0
        self._substitutes: set[DType] = set()
        name = model.graph.name  # bytes, where it is no text
        self.b = GraphBuilder(name if name and isinstance(name, str) else "model")

    def run(self, initialisers: Mapping[str, Array]) -> Graph:
        """Import everything."""
        graph = self._model.graph
        self._refuse_unsupported(graph.node)
        names: dict[str, Item | None] = {"": None}
        for name, array in initialisers.items():
            names[name] = self.b.constant(self._storable(array, name), name=name)
        self._inputs(graph, names, initialisers)
        self.nodes(graph.node, names, self._opsets, "")
        for output in graph.output:
            item = names.get(output.name)
            if item is None:
                raise ModelError(f"output {shown(output.name)} is not computed by any node")
            self.b.output(output.name, materialise(self.b, item))
        return self.b.graph

    def element_type(self, number: int, what: str = "a tensor") -> DType:
        """The machine's type for ONNX's `number`. Raises ModelError."""
        if number in _ELEMENT_TYPES:
            return _ELEMENT_TYPES[number]
        if number in _SUBSTITUTES and self._options.substitute:
            self._substitutes.add(_SUBSTITUTES[number])
            return _SUBSTITUTES[number]
        name = (
            onnx.TensorProto.DataType.Name(number).lower() if number in onnx.TensorProto.DataType.values() else number
        )
        hint = f"--substitute-types holds it as {_SUBSTITUTES[number].text}" if number in _SUBSTITUTES else None
        raise ModelError(f"{what} has element type {name}, which the machine lacks", hint=hint)

    # -- inputs

    def _inputs(self, graph: onnx.GraphProto, names: dict[str, Item | None], initialisers: Mapping[str, Array]) -> None:
        unbounded: dict[str, None] = {}
        found: list[tuple[str, DType, list[Dim]]] = []
        for given in graph.input:
            if given.name in initialisers:
                continue
            if given.name in self._options.values:
                names[given.name] = self.b.constant(self._storable(self._options.values[given.name], given.name))
                continue
            kind = given.type.WhichOneof("value")
            if kind != "tensor_type":
                raise ModelError(
                    f"input {shown(given.name)} is a {(kind or 'value').removesuffix('_type')}, not a tensor"
                )
            tensor = given.type.tensor_type
            if not tensor.HasField("shape"):
                raise ModelError(
                    f"input {shown(given.name)} has no shape", hint="run onnx.shape_inference on the model"
                )
            shape = [self._dim(d, given.name, k, unbounded) for k, d in enumerate(tensor.shape.dim)]
            found.append((given.name, self.element_type(tensor.elem_type, f"input {shown(given.name)}"), shape))
        if unbounded:
            first = next(iter(unbounded))
            raise ModelError(
                f"these dims have no bound: {', '.join(map(shown, unbounded))}",
                hint=f"--bound {first}=64 for at most 64, --fix {first}=1 for exactly 1"
                + ("; and so for each" if len(unbounded) > 1 else ""),
            )
        for name, dtype, shape in found:
            names[name] = self.b.input(name, dtype, shape)

    def _dim(self, dim: Any, name: str, axis: int, unbounded: dict[str, None]) -> Dim:
        size = signature.size(dim, name, axis)
        if isinstance(size, int):
            return size
        for key in (size.text, size.name):
            if key in self._options.fixed:
                return self._options.fixed[key]
            if key in self._options.bounds:
                return self._symbols.setdefault(size.name, dims.symbol(size.name, self._options.bounds[key]))
        unbounded[size.name] = None
        return 1

    def _storable(self, array: Array, name: str) -> Array:
        """A constant in a type that the machine has. Raises ModelError."""
        if array.dtype in BY_NUMPY:
            return array
        number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        dtype = self.element_type(number, f"constant {shown(name)}")
        with np.errstate(over="ignore"):
            return array.astype(dtype.numpy)

    # -- nodes

    def nodes(
        self, nodes: Sequence[onnx.NodeProto], names: dict[str, Item | None], opsets: Mapping[str, int], prefix: str
    ) -> None:
        """Import `nodes` in order; `names` holds what is known so far, and gets their outputs."""
        self._imported += len(nodes)
        if self._imported > MOST_NODES:
            raise ModelError(f"with its loops and functions written out it has more than {MOST_NODES:,} nodes")
        for number, node in enumerate(nodes):
            label = prefix + (node.name or f"{node.op_type}_{number}")
            if not prefix:
                self.b.order = float(number)
            self.b.label = label
            try:
                self._node(node, names, opsets, label)
            except ModelError as error:
                if not error.message.startswith("node "):
                    error.message = f"node {shown(label)} ({shown(node.op_type)}): {error.message}"
                raise

    def _node(self, node: onnx.NodeProto, names: dict[str, Item | None], opsets: Mapping[str, int], label: str) -> None:
        missing = [n for n in node.input if n and n not in names]
        if missing:
            raise ModelError(f"its input {shown(missing[0])} is not computed by any node before it")
        domain = domain_of(node.domain)
        version = opsets.get(domain, 1)
        function = self._functions.get(key_of(node))
        if function is None:
            check_node(node, version)
        attributes = {a.name: self._attribute(a) for a in node.attribute}
        context = Context(
            self.b, node.op_type, [names[n] for n in node.input], attributes, list(node.output), version,
            Services(self.element_type, self._array, partial(self._body, names, opsets, label), self._substitutes),
        )  # fmt: skip
        results: Sequence[Item | None] | None = self._on_host(context)
        if results is None:
            rule = RULES.get(_named(domain, node.op_type))
            if function is None and rule is not None:
                made = rule(context)
                results = made if isinstance(made, tuple) else (made,)
            else:
                body = function or body_of(node, version, [_type_of(item) for item in context.inputs])
                results = self._expanded(body, node, context, label)
        for name, item in zip(node.output, results, strict=False):
            if name and item is not None:
                if isinstance(item, Value) and not item.name:
                    item.name = name
                names[name] = item

    def _on_host(self, context: Context) -> tuple[Item, ...] | None:
        """The result of shape arithmetic, if this node is that."""
        if context.op in ("Shape", "Size") and isinstance(context.inputs[0], Value | Known):
            return (self._item(_shape(context), DType.I64),)
        rule = host.RULES.get(context.op)
        known = [item for item in context.inputs if isinstance(item, Known)]
        if rule is None or not known:
            return None
        arrays = [_integers(item) for item in context.inputs]
        if any(a is None and item is not None for item, a in zip(context.inputs, arrays, strict=True)):
            return None
        try:
            result = rule(context, arrays)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise ModelError(f"its shape arithmetic fails: {error}") from error
        if result is None:
            return None
        dtype = context.element_type(context.required("to")) if context.op == "Cast" else known[0].dtype
        made = [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]
        host.check(made)
        return tuple(self._item(r, DType.BOOL if r.dtype == np.bool_ else dtype) for r in made)

    def _item(self, array: Array, dtype: DType) -> Item:
        found = narrow(np.asarray(array), dtype)
        return found if isinstance(found, Known) else self.b.constant(found)

    def _attribute(self, attribute: onnx.AttributeProto) -> Any:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, onnx.TensorProto):
            return self._array(value, attribute.name)
        if isinstance(value, Sequence) and value and isinstance(value[0], bytes):
            return [v.decode("utf-8", "replace") for v in value]
        return value

    def _array(self, tensor: onnx.TensorProto, what: str) -> Array:
        return self._storable(self._values_of(tensor), what)

    def _body(
        self, outer: Mapping[str, Item | None], opsets: Mapping[str, int], label: str, graph: onnx.GraphProto,
        inputs: Sequence[Item],
    ) -> list[Item]:  # fmt: skip
        """The outputs of a subgraph for its `inputs`; it sees the names of the graph around it."""
        if len(graph.input) != len(inputs):
            raise ModelError(f"a subgraph has {len(graph.input)} inputs instead of {len(inputs)}")
        names = dict(outer)
        names |= {t.name: self.b.constant(self._array(t, f"constant {shown(t.name)}")) for t in graph.initializer}
        names |= dict(zip((i.name for i in graph.input), inputs, strict=True))
        self.nodes(graph.node, names, opsets, label + "/")
        found = [names.get(o.name) for o in graph.output]
        if None in found:
            raise ModelError(f"output {shown(graph.output[found.index(None)].name)} of a subgraph is not computed")
        return [item for item in found if item is not None]

    # -- functions

    def _expanded(
        self, function: onnx.FunctionProto, node: onnx.NodeProto, context: Context, label: str
    ) -> tuple[Item | None, ...]:
        """The outputs of `function`, whose body's nodes are imported in place of `node`."""
        names: dict[str, Item | None] = {"": None}
        names |= dict.fromkeys(function.input)
        names |= dict(zip(function.input, context.inputs, strict=False))
        given = {a.name: a for a in (*defaults_of(node, context.opset), *function.attribute_proto, *node.attribute)}
        body = [_with_attributes(inner, given) for inner in function.node]
        # A body that ONNX makes for a node may name the operator's own domain only.
        own = {domain_of(o.domain): o.version for o in function.opset_import}
        opsets = {"": NEWEST} | self._opsets | own
        self.nodes(body, names, opsets, label + "/")
        return tuple(names.get(name) for name in function.output)

    def _refuse_unsupported(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Raise ModelError with every operator that has neither a rule nor a body."""
        missing: dict[str, list[str]] = {}
        for number, node in enumerate(all_nodes(nodes)):
            domain = domain_of(node.domain)
            operator = _named(domain, node.op_type)
            known = operator in RULES or key_of(node) in self._functions
            if known or node.op_type in ("Shape", "Size") or has_body(node, self._opsets.get(domain, 1)):
                continue
            missing.setdefault(operator, []).append(node.name or f"{node.op_type}_{number}")
        if missing:
            found = "; ".join(
                f"{shown(op)} (node {', '.join(shown(n) for n in labels[:3])}{', ...' if len(labels) > 3 else ''})"
                for op, labels in sorted(missing.items())
            )
            raise ModelError(f"operators that are not supported: {found}")


def _integers(item: Item | None) -> Array | None:
    """What is known of an input's integers: an object array."""
    if isinstance(item, Known):
        return item.array
    array = item.constant if isinstance(item, Value) else None
    small = array is not None and array.size <= host.LARGEST and array.dtype.kind in "iub"
    return objects(array) if small else None


def _shape(context: Context) -> Array:
    """The result of Shape or Size."""
    item = context.inputs[0]
    shape = objects(np.array(item.array.shape, np.int64)) if isinstance(item, Known) else dims_of(context[0])
    if context.op == "Size":
        return np.array(dims.product(shape), object)
    return shape[slice(context.attribute("start", 0), context.attribute("end"))]


def _named(domain: str, op: str) -> str:
    """An operator as RULES and messages name it."""
    return f"{domain}::{op}" if domain else op


def _type_of(item: Item | None) -> onnx.TypeProto:
    """The ONNX type of a value, for bodies that depend on it."""
    if item is None:
        return onnx.TypeProto()
    if isinstance(item, Tensors):
        return onnx.helper.make_sequence_type_proto(_type_of(item.parts[0] if item.parts else None))
    number = next(k for k, v in _ELEMENT_TYPES.items() if v is item.dtype)
    shape = item.array.shape if isinstance(item, Known) else [d if isinstance(d, int) else str(d) for d in item.dims]
    return onnx.helper.make_tensor_type_proto(number, shape)


def _with_attributes(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A node of a function's body with references to the function's attributes replaced by their values."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            result.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            copied = result.attribute.add()
            copied.CopyFrom(given[attribute.ref_attr_name])
            copied.name = attribute.name
            copied.ref_attr_name = ""
    return result
