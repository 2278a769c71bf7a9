"""One ONNX node as its rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim, Expr
from dla.compiler.graph import Value
from dla.compiler.onnx.known import Known, Tensors, is_symbolic
from dla.compiler.shapes import axis_of
from dla.isa.dtypes import Array, DType
from dla.isa.errors import ModelError
from dla.isa.names import shown

Item = Value | Known | Tensors
"""What a name of the ONNX graph stands for: a tensor, integers known while importing, or a sequence of tensors."""


class NeedsValue(ModelError):
    """The compiler must know the values of a tensor that it does not know; `source` is its name."""

    def __init__(self, what: str, source: str) -> None:
        super().__init__(
            f"the compiler must know its {what}, not only the program when it runs",
            hint=f"if input {shown(source)} decides, give its value: --value {shown(source)}=FILE.npy"
            if source
            else "symbolic sizes decide: fix them with --fix NAME=SIZE",
        )
        self.source = source


@dataclass(frozen=True)
class Services:
    """What rules need of the importer."""

    element_type: Callable[[int], DType]  # for ONNX's number of a type
    array: Callable[[onnx.TensorProto, str], Array]  # in a type of the machine; the string is what it is
    body: Callable[[onnx.GraphProto, Sequence[Item]], list[Item]]  # outputs of a subgraph for its inputs
    substitutes: Collection[DType]  # types that some tensor has in place of one that the machine lacks


class Context:
    """Inputs, attributes and operator-set version of one node, and the builder of the graph that it goes into."""

    def __init__(
        self, builder: GraphBuilder, op: str, inputs: Sequence[Item | None], attributes: Mapping[str, Any],
        outputs: Sequence[str], opset: int, importer: Services,
    ) -> None:  # fmt: skip
        self.b = builder
        self.op = op
        self.inputs = inputs
        self.attributes = attributes
        self.outputs = outputs  # names; "" where nobody asks
        self.opset = opset
        self.element_type = importer.element_type
        self.array = importer.array
        self.body = importer.body
        self.substitutes = importer.substitutes

    @property
    def count(self) -> int:
        """Number of inputs, without absent ones at the end."""
        return len(self.inputs)

    def has(self, index: int) -> bool:
        """Whether input `index` is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def wants(self, index: int) -> bool:
        """Whether output `index` is asked for."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def __getitem__(self, index: int) -> Value:
        """Input `index` as a tensor. Raises ModelError if it is absent."""
        found = self.inputs[index] if self.has(index) else None
        if found is None:
            raise ModelError(f"input {index} is missing")
        return materialise(self.b, found)

    def optional(self, index: int) -> Value | None:
        """Input `index` as a tensor, or None where it is absent."""
        return self[index] if self.has(index) else None

    def values(self) -> list[Value]:
        """All inputs as tensors."""
        return [self[k] for k in range(self.count)]

    def known(self, index: int, what: str) -> Array:
        """Input `index` as an array known while importing; integers may be symbolic (an object array).

        Raises ModelError where it depends on data: `what` says what it is.
        """
        found = self.inputs[index] if self.has(index) else None
        if isinstance(found, Known):
            return found.array
        if isinstance(found, Tensors):
            raise ModelError(_NO_TENSOR)
        if found is not None and found.constant is not None:
            return found.constant
        if found is None:
            raise ModelError(f"input {index}, its {what}, is missing")
        raise NeedsValue(what, _source(found))

    def sizes(self, index: int, what: str) -> list[Dim]:
        """Input `index`, a known vector of integers, as a list of (perhaps symbolic) dims."""
        found = np.atleast_1d(self.known(index, what)).reshape(-1)
        if found.dtype.kind == "f" and not np.all(np.abs(found) < 2.0**63):
            raise ModelError(f"its {what} are not integers of 64 bits")
        return [x if isinstance(x, Expr) else int(x) for x in found]

    def integers(self, index: int, what: str) -> list[int]:
        """Input `index`, a known vector of plain integers. Raises ModelError where one is symbolic."""
        found = self.sizes(index, what)
        plain = [x for x in found if isinstance(x, int)]
        if len(plain) != len(found):
            raise ModelError(f"its {what} depend on symbolic sizes", hint="fix these dims: --fix NAME=SIZE")
        return plain

    def scalar(self, index: int, what: str) -> Any:
        """Input `index`, a known tensor of one element, as a Python number."""
        found = self.known(index, what).reshape(-1)
        if len(found) != 1:
            raise ModelError(f"its {what} must be one number")
        return found[0] if isinstance(found[0], Expr) else found[0].item() if hasattr(found[0], "item") else found[0]

    def size(self, index: int, what: str) -> Dim:
        """Input `index`, a known tensor of one integer, as a (perhaps symbolic) dim."""
        found = self.sizes(index, what)
        if len(found) != 1:
            raise ModelError(f"its {what} must be one number")
        return found[0]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute: number, list, str or array; or `default`."""
        found = self.attributes.get(name, default)
        if default is not None and isinstance(found, int | float) != isinstance(default, int | float):
            raise ModelError(f"attribute '{name}' is not {'a' if isinstance(default, int | float) else 'no'} number")
        return found

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise ModelError(f"attribute '{name}' is missing")
        return self.attributes[name]

    def axis(self, axis: int, rank: int) -> int:
        """`axis`, which may count from the end, as a position. Raises ModelError."""
        return axis_of(axis, rank)

    def axes(self, index: int, name: str = "axes") -> list[int] | None:
        """Axes from input `index` (newer operator sets) or from the attribute `name`; None where there are none."""
        if self.has(index):
            return self.integers(index, name)
        given = self.attribute(name)
        return None if given is None else [int(a) for a in given]


def _source(value: Value) -> str:
    """The name of the graph's input that `value` is computed from, of integers if there is one; "" if there is none."""
    stack, seen, found = [value], set[int](), []
    while stack:
        at = stack.pop()
        if at.producer is not None and id(at) not in seen:
            seen.add(id(at))
            stack += at.producer.present
        elif at.producer is None and at.constant is None:
            found.append(at)
    found.sort(key=lambda v: v.dtype.is_float)
    return found[0].name if found else ""


_NO_TENSOR = "a sequence of tensors stands where one tensor must be"


def materialise(b: GraphBuilder, item: Item) -> Value:
    """`item` as a tensor: itself, a constant, or sizes written by the program when it runs.

    Raises ModelError for sequences.
    """
    if isinstance(item, Value):
        return item
    if isinstance(item, Tensors):
        raise ModelError(_NO_TENSOR)
    if not is_symbolic(item.array):
        return b.constant(item.array.astype(item.dtype.numpy))
    parts = [b.fill((1,), x, item.dtype) for x in item.array.reshape(-1)]
    return b.reshape(b.concat(parts, 0), item.array.shape)


def dims_of(value: Value) -> Array:
    """The shape of `value` as an array of dims."""
    return np.array(value.dims, object)


def narrow(array: Array, dtype: DType) -> Item | Array:
    """A Known for symbolic integers, else a plain array of `dtype`."""
    return Known(array, dtype) if is_symbolic(array) else array.astype(dtype.numpy)
