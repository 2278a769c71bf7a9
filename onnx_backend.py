"""dla as a backend of ONNX (`onnx.backend.base`): what ONNX's own conformance suite, and tools written for it, call.

    import dla.onnx_backend as backend
    y, = backend.prepare(model, device="CPU").run([x])

"CPU" is the golden machine, "CUDA" the GPU. Types that machines lack are held in similar ones here: f64 in f32, i16 and
u16 in i32, u32 and u64 in i64; outputs have the types that the model declares. Models of operator sets older than dla
compiles are rewritten for one that it does by `onnx.version_converter`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.version_converter  # `import onnx` does not bring it
from onnx.backend.base import Backend, BackendRep, namedtupledict

from dla.compiler.api import compile_model
from dla.compiler.onnx import loader, signature
from dla.compiler.onnx.context import NeedsValue
from dla.compiler.onnx.protos import domain_of
from dla.compiler.onnx.signature import Declared, Symbol
from dla.emulator.api import Machine, gpu_missing
from dla.emulator.backend import Session
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import BackendError, InputError, ModelError
from dla.isa.names import shown

_MACHINES = {"CPU": "golden", "CUDA": "gpu"}
_PRELU_BROADCASTS = 7  # the operator set since which slopes of PRelu are broadcast as all else is
_NARROWER = {"float64": ("f32", float(np.finfo(np.float32).max)), "uint64": ("i64", 2**63 - 1)}
"""Types of inputs that are held in a type whose largest number is smaller; that type and number."""
_MAX_PROGRAMS = 16
"""Programs kept per prepared model: one for each set of shapes, and of values that the compiler must know."""


class DlaBackendRep(BackendRep):
    """A model made ready to run. Programs are compiled when first needed for the shapes that inputs have."""

    def __init__(self, model: onnx.ModelProto, machine: Machine) -> None:
        self._model = model
        self._machine = machine
        self._inputs = signature.inputs(model.graph)
        self._types = [_array_type(output) for output in model.graph.output]
        self._outputs = namedtupledict("Outputs", [output.name for output in model.graph.output])
        self._constants: set[str] = set()  # inputs whose values the compiler had to know
        self._sessions: OrderedDict[Any, Session] = OrderedDict()
        for given in model.graph.input:
            _array_type(given)  # refuses what is no tensor of numbers
        if not any(isinstance(size, Symbol) for given in self._inputs for size in given.dims or (None,)):
            self._try_now()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for `inputs`, a sequence of arrays in the model's order or a mapping by name.

        The result is a named tuple, which takes names as indices, too. Raises InputError for inputs that do not fit,
        ModelError for what cannot be compiled, Trap if the program stops itself.
        """
        arrays = self._arrays(inputs, **kwargs)
        session = self._session(arrays)
        places = session.program.in_segment(Segment.INPUT)
        names = [given.name for given in self._inputs if given.name not in self._constants]
        feed = {
            tensor.name: arrays[name].astype(tensor.descriptor.dtype.numpy)
            for name, tensor in zip(names, places, strict=True)
        }
        results = session.run(feed).outputs.values()
        made: tuple[Any, ...] = self._outputs(*map(_returned, results, self._types))
        return made

    def _arrays(self, inputs: Any) -> dict[str, Array]:
        """The inputs by name, checked. Raises InputError."""
        declared = {given.name: given for given in self._inputs}
        if isinstance(inputs, np.ndarray | np.generic):
            inputs = [inputs]  # as ONNX's reference takes it
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(declared):
                raise InputError(f"the model has {len(declared)} inputs, and {len(inputs)} are given")
            inputs = dict(zip(declared, inputs, strict=True))
        for name in (name for name in (*inputs, *declared) if name not in inputs or name not in declared):
            what = "is missing" if name in declared else "is not the model's"
            raise InputError(f"input {shown(name)} {what}", hint=f"its inputs: {', '.join(map(shown, declared))}")
        arrays = {name: _array(inputs[name], given) for name, given in declared.items()}
        _sizes(self._inputs, arrays)  # refuses sizes that contradict each other
        return arrays

    def _session(self, arrays: Mapping[str, Array]) -> Session:
        """The program for these shapes and constants, loaded."""
        while True:
            key = tuple((a.shape, a.tobytes() if name in self._constants else b"") for name, a in arrays.items())
            if key in self._sessions:
                self._sessions.move_to_end(key)
                return self._sessions[key]
            try:
                made = self._compile(_sizes(self._inputs, arrays), {name: arrays[name] for name in self._constants})
            except NeedsValue as error:
                if error.source not in arrays or error.source in self._constants:
                    raise
                self._constants.add(error.source)
                self._sessions.clear()  # their keys lack the values
                continue
            self._sessions[key] = made
            if len(self._sessions) > _MAX_PROGRAMS:
                self._sessions.popitem(last=False)
            return made

    def _try_now(self) -> None:
        """Compile before the first run, where nothing but inputs' values can be missing. Raises ModelError."""
        names = {given.name for given in self._inputs}
        try:
            session = self._compile({}, {})
        except NeedsValue as error:
            if error.source not in names:
                raise
            self._constants.add(error.source)
        else:
            self._sessions[tuple((given.dims, b"") for given in self._inputs)] = session

    def _compile(self, sizes: Mapping[str, int], values: Mapping[str, Array]) -> Session:
        program = compile_model(self._model, fixed=sizes, values=values, substitute=True).program
        return self._machine.load(program)


class DlaBackend(Backend):
    """The compiler and the machines, as ONNX sees backends."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether "CPU" or "CUDA" (or "CUDA:0") is there."""
        name, _, number = device.partition(":")
        return name in _MACHINES and number in ("", "0") and (name == "CPU" or gpu_missing() is None)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> DlaBackendRep:
        """Make `model` ready to run; `kwargs` are options of the machine.

        It is compiled here where its inputs' shapes are fixed. Raises ModelError, BackendError where there is no such
        device.
        """
        if not cls.supports_device(device):
            reason = gpu_missing() if device in ("CUDA", "CUDA:0") else "dla has 'CPU' and 'CUDA'"
            raise BackendError(f"no device '{shown(device)}': {reason}")
        machine = Machine(_MACHINES[device.partition(":")[0]], **kwargs)
        return DlaBackendRep(_converted(model), machine)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one node for `inputs`, arrays in the order of its inputs that are not empty."""
        names = list(dict.fromkeys(name for name in node.input if name))
        given = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, map(np.asarray, inputs), strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        opset = onnx.helper.make_opsetid(node.domain, int(kwargs.pop("opset_version", 0)) or _newest(node.domain))
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "node", given, outputs), opset_imports=[opset])
        return cls.prepare(onnx.shape_inference.infer_shapes(model), device, **kwargs).run(inputs)


def _newest(domain: str) -> int:
    """The newest version of `domain` that the package onnx knows."""
    return max((s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain), default=1)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` for an operator set that dla compiles. Raises ModelError."""
    versions = [item.version for item in model.opset_import if domain_of(item.domain) == ""]
    if not versions or min(versions) >= loader.OLDEST_OPSET:
        return model
    what = f"its opset {min(versions)} is older than {loader.OLDEST_OPSET}, and onnx.version_converter"
    try:
        if min(versions) < _PRELU_BROADCASTS:
            model = _with_slopes_per_channel(model)
        made = onnx.version_converter.convert_version(model, loader.OLDEST_OPSET)
    except RuntimeError as error:  # of which onnx's own errors are subclasses
        raise ModelError(f"{what} cannot rewrite it: {shown(str(error).strip().splitlines()[-1])}") from error
    for old, new in zip(model.graph.input, made.graph.input, strict=False):
        if old.type.tensor_type.shape != new.type.tensor_type.shape:
            raise ModelError(f"{what} changes the shape of its input {shown(old.name)}")
    return made


def _with_slopes_per_channel(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with slopes [C] of PRelu nodes as [C, 1, ...], which the converter forgets: axis 1 was theirs once."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = onnx.shape_inference.infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*graph.value_info, *graph.input, *graph.output)}
    del made.graph.node[:]
    for number, node in enumerate(model.graph.node):
        rank = ranks.get(node.input[0], 0) if node.op_type == "PRelu" else 0
        if rank > 2:
            slope = f"{node.output[0]}.slope_{number}"
            sizes = onnx.numpy_helper.from_array(np.array([-1] + [1] * (rank - 2)))
            made.graph.node.add().CopyFrom(onnx.helper.make_node("Constant", [], [f"{slope}_shape"], value=sizes))
            made.graph.node.add().CopyFrom(onnx.helper.make_node("Reshape", [node.input[1], f"{slope}_shape"], [slope]))
            node = onnx.helper.make_node("PRelu", [node.input[0], slope], node.output, node.name)
        made.graph.node.add().CopyFrom(node)
    return made


def _array_type(value: onnx.ValueInfoProto) -> np.dtype[Any] | None:
    """The type of an input's or output's arrays, None where the model does not say. Raises ModelError."""
    kind = (value.type.WhichOneof("value") or "tensor_type").removesuffix("_type")
    if kind != "tensor":
        article = "an" if kind == "optional" else "a"
        raise ModelError(f"{shown(value.name)} is {article} {kind}, not a tensor")
    number = value.type.tensor_type.elem_type
    if number == onnx.TensorProto.STRING:
        raise ModelError(f"{shown(value.name)} has element type string, which the machine lacks")
    if number not in onnx.TensorProto.DataType.values():
        raise ModelError(f"{shown(value.name)} has element type {number}, which ONNX lacks")
    return onnx.helper.tensor_dtype_to_np_dtype(number) if number else None


def _array(value: Any, given: Declared) -> Array:
    """What the caller passes for input `given`, as an array of its type. Raises InputError."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(given.element_type)
    array = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value, dtype)
    array = np.asarray(array)
    if array.dtype != dtype:
        raise InputError(f"input {shown(given.name)} must be {dtype}, not {array.dtype}")
    stands_in, largest = _NARROWER.get(array.dtype.name, ("", np.inf))
    if stands_in and array.size and np.max(np.abs(array), where=np.isfinite(array), initial=0) > largest:
        raise InputError(
            f"input {shown(given.name)} has a value beyond {stands_in}, which stands for {array.dtype} here"
        )
    return array


def _sizes(inputs: Sequence[Declared], arrays: Mapping[str, Array]) -> dict[str, int]:
    """The values of the model's symbolic sizes. Raises InputError where shapes contradict the model or each other."""
    sizes: dict[str, int] = {}
    for given in inputs:
        shape = arrays[given.name].shape
        if given.dims is None:
            continue
        pairs = zip(given.dims, shape, strict=False)
        fits = [n == (sizes.setdefault(d.name, n) if isinstance(d, Symbol) else d) for d, n in pairs]
        if len(shape) != len(given.dims) or not all(fits):
            wanted = ", ".join(map(str, given.dims))
            raise InputError(f"input {shown(given.name)} must have shape [{shown(wanted)}], not {list(shape)}")
    return sizes


def _returned(array: Array, dtype: np.dtype[Any] | None) -> Array:
    """An output in the type that the model declares; integers wrap, as those of the declared type do."""
    return array if dtype is None else array.astype(dtype, copy=False)


is_compatible = DlaBackend.is_compatible
prepare = DlaBackend.prepare
run = DlaBackend.run_model
run_model = DlaBackend.run_model
run_node = DlaBackend.run_node
supports_device = DlaBackend.supports_device
