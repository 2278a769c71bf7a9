"""What a model asks for: its inputs with their sizes, before anything is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dla.isa.names import identifier

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Symbol:
    """A size that the model leaves open: what the model calls it, and that as an identifier."""

    text: str
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Declared:
    """An input of a model; `dims` is None where it has no shape."""

    name: str
    element_type: int  # onnx.TensorProto.DataType; 0 for what is no tensor
    dims: tuple[int | Symbol, ...] | None


def inputs(graph: onnx.GraphProto) -> tuple[Declared, ...]:
    """The inputs that the caller gives: those that no initialiser has a value for."""
    known = {tensor.name for tensor in graph.initializer}
    return tuple(_declared(given) for given in graph.input if given.name not in known)


def size(dim: Any, name: str, axis: int) -> int | Symbol:
    """The size of axis `axis` of input `name`, from its `TensorShapeProto.Dimension`.

    Exporters call open sizes anything: 'batch', 'batch * seq', or nothing; then they are called after their input.
    """
    if dim.WhichOneof("value") == "dim_value":
        return int(dim.dim_value)
    text = dim.dim_param or f"{name}_dim_{axis}"
    return Symbol(text, identifier(text.replace(".", "_"), "d_"))


def _declared(given: onnx.ValueInfoProto) -> Declared:
    tensor = given.type.tensor_type
    if not tensor.HasField("shape"):
        return Declared(given.name, tensor.elem_type, None)
    sizes = tuple(size(dim, given.name, axis) for axis, dim in enumerate(tensor.shape.dim))
    return Declared(given.name, tensor.elem_type, sizes)
