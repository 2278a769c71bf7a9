"""ONNX files that nobody vouches for: read, checked, and their weights given as arrays.

A model is accepted whole or refused with one ModelError. What is accepted has supported versions, sound graphs with
nodes in order, and tensors whose types, shapes and sizes agree. Weights stay in the mapped files, so that a model takes
little more memory than its graph. Operators are not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dla.compiler.onnx.protos import all_nodes, domain_of
from dla.compiler.onnx.structure import check_functions, check_graph
from dla.compiler.onnx.tensors import Values
from dla.compiler.onnx.wire import without_raw_data
from dla.isa.dtypes import Array
from dla.isa.errors import BackendError, InputError, ModelError
from dla.isa.files import map_file
from dla.isa.names import shown

if TYPE_CHECKING:
    from types import ModuleType

    import onnx

OLDEST_OPSET = 12
_MAX_FILE_BYTES = 2**31 - 1  # of any protobuf


@dataclass(frozen=True)
class Model:
    """A checked model. Take the values of its initialisers from here: those of a file are not in `proto`.

    Tensors in attributes are small as a rule, and whole in `proto`: `array` and onnx.numpy_helper give their values.
    """

    proto: onnx.ModelProto
    values: Values

    def array(self, tensor: onnx.TensorProto) -> Array:
        """The values of a tensor in `proto` (an initialiser of any graph, or an attribute): read-only, of its shape.

        Not copied where the file has them as memory does. Types that NumPy lacks are those of ml_dtypes.
        Raises ModelError where values are not of the tensor's type.
        """
        return self.values.array(tensor)

    def initialisers(self) -> dict[str, Array]:
        """The initialisers of the main graph by name, each as `array` gives it. Raises ModelError."""
        return {tensor.name: self.array(tensor) for tensor in self.proto.graph.initializer}


def package() -> ModuleType:
    """The package `onnx`. Raises BackendError where it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise BackendError(f"reading ONNX models needs the package onnx: {error}",
                           hint="pip install 'dla[onnx]'") from None  # fmt: skip
    return onnx


def load(path: Path) -> Model:
    """The model in the ONNX file `path`; files of external data lie in its folder or below.

    Raises InputError if the file cannot be read, ModelError if it is no sound model, BackendError without onnx.
    """
    package()
    data = map_file(path)
    try:
        return _checked(_parsed(data), Values(data, path.parent))
    except ModelError as error:
        raise ModelError(f"{shown(path)}: {error.message}", hint=error.hint) from None


def from_proto(proto: onnx.ModelProto) -> Model:
    """The model in `proto`, which must not change afterwards (its nodes are sorted here if need be).

    Raises ModelError if it is not sound or has external data, BackendError without onnx, InputError for anything else.
    """
    if not isinstance(proto, package().ModelProto):
        raise InputError(f"a model is a path, an onnx.ModelProto or a graph, not a {type(proto).__name__}")
    return _checked(proto, Values(memoryview(b""), None))


def _parsed(data: memoryview) -> onnx.ModelProto:
    from google.protobuf.message import DecodeError

    if not data:
        raise ModelError("the file is empty")
    if len(data) > _MAX_FILE_BYTES:
        raise ModelError(
            f"it has {len(data):,} bytes, and no ONNX file can have 2 GiB or more",
            hint="keep the weights beside the model: onnx.save(model, path, save_as_external_data=True)",
        )
    if bytes(data[:24]) == b"version https://git-lfs.":
        raise ModelError("it is a Git LFS pointer, not the model itself", hint="git lfs pull")
    try:
        proto: onnx.ModelProto = package().ModelProto()
        proto.ParseFromString(without_raw_data(data, package()))
    except DecodeError as error:
        raise ModelError(f"it is damaged, or no ONNX model: {shown(error)}") from None
    return proto


def _checked(proto: onnx.ModelProto, values: Values) -> Model:
    _check_versions(proto)
    check_graph(proto.graph, values)
    check_functions(proto, values)
    return Model(proto, values)


def _check_versions(proto: onnx.ModelProto) -> None:
    onnx = package()
    if not proto.HasField("ir_version") or not proto.HasField("graph"):
        raise ModelError("it is no ONNX model: it has no IR version or no graph")
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"it has IR version {proto.ir_version}, and onnx {onnx.__version__} knows 1 to {onnx.IR_VERSION}",
            hint="pip install --upgrade onnx, or export the model for an older version",
        )
    opset = _check_opset(proto.opset_import, "it")
    if opset is None and any(domain_of(node.domain) == "" for node in all_nodes(proto.graph.node)):
        raise ModelError("it does not say which version of ONNX's operators it uses (opset_import of domain '')")
    for function in proto.functions:
        _check_opset(function.opset_import, f"its function '{shown(function.name)}'")


def _check_opset(imports: Iterable[onnx.OperatorSetIdProto], what: str) -> int | None:
    """The version of the domain ai.onnx, if it is imported. Raises ModelError where dla does not support it."""
    newest = package().defs.onnx_opset_version()
    versions: dict[str, int] = {}
    for item in imports:
        domain = domain_of(item.domain)
        if versions.setdefault(domain, item.version) != item.version:
            raise ModelError(f"{what} imports two versions of domain '{shown(domain)}'")
    version = versions.get("")
    if version is not None and not OLDEST_OPSET <= version <= newest:
        raise ModelError(
            f"{what} uses opset {version}; dla supports {OLDEST_OPSET} to {newest}",
            hint="onnx.version_converter.convert_version(model, 17) rewrites a model for another opset"
            if version < OLDEST_OPSET
            else "pip install --upgrade onnx, or export the model for an older opset",
        )
    return version
