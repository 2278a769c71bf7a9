"""The compiler as a Python program sees it: a model in any form becomes a program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph
from dla.compiler.onnx import loader, signature
from dla.compiler.pipeline import Compiled, Explain, Progress, compile_graph
from dla.isa.descriptor import MAX_DIM
from dla.isa.dtypes import BY_TEXT, FLOATS, Array, DType
from dla.isa.errors import InputError
from dla.isa.math_mode import MODES
from dla.isa.names import shown
from dla.isa.ranks import MAX_WORLD

if TYPE_CHECKING:
    import onnx


def compile_model(
    model: str | Path | Graph | GraphBuilder | onnx.ModelProto,
    *,
    bounds: Mapping[str, int] | None = None,
    fixed: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    dtype: str | DType | None = None,
    math: str = "exact",
    tensor_parallel: int = 1,
    substitute: bool = False,
    skip: Collection[str] = (),
    explain: Explain | None = None,
    progress: Progress = lambda step: None,
) -> Compiled:
    """Compile a model: the path of an ONNX file, an `onnx.ModelProto`, or a graph that was built (which is used up).

    `bounds` gives the largest value of each symbolic dim of an ONNX model, `fixed` its only one; `values` are inputs
    that are constants from now on. `dtype` is the float type to compute in, "f32", "f16" or "bf16" (None: as the model
    says), and `math` how products of f32 are made, "exact" or "tf32". `tensor_parallel` is the number of ranks
    that share the weights of a Transformer's layers. With `substitute`, f64 is held as f32, i16 and
    u16 as i32, u32 and u64 as i64. `skip` names passes to leave out; `explain` is called with the name of each pass
    and its graph, `progress` with what is done next.

        compiled = dla.compile_model("model.onnx", bounds={"batch": 64})
        dla.save(compiled.program, "model.dlab")

    Raises ModelError for what cannot be compiled, InputError for options that do not fit, BackendError if the model
    is ONNX and the package onnx is missing.
    """
    compute = _compute_type(dtype)
    if math not in MODES:
        raise InputError(f"products are made in a mode of {', '.join(MODES)}, not in {math}")
    if type(tensor_parallel) is not int or not 0 < tensor_parallel <= MAX_WORLD:
        raise InputError(f"weights are cut for 1 to {MAX_WORLD} ranks, not for {shown(tensor_parallel)}")
    source = ""
    if isinstance(model, GraphBuilder):
        model = model.finish()
    if isinstance(model, Graph):
        if bounds or fixed or values:
            raise InputError("bounds, fixed and values are for ONNX models", hint="a graph has its sizes already")
    else:
        source = Path(model).name if isinstance(model, str | Path) else ""
        model = _imported(model, bounds or {}, fixed or {}, values or {}, substitute, progress)
    return compile_graph(model, dtype=compute, math=math, tensor_parallel=tensor_parallel, skip=skip, explain=explain,
                         progress=progress, source=source)  # fmt: skip


def _compute_type(dtype: str | DType | None) -> DType | None:
    found = BY_TEXT.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and (found is None or found not in FLOATS):
        given = found.text if isinstance(found, DType) else dtype
        raise InputError(f"networks are computed in {', '.join(d.text for d in FLOATS)}, not in {given}")
    return found


def _imported(
    model: str | Path | onnx.ModelProto, bounds: Mapping[str, int], fixed: Mapping[str, int], values: Mapping[str, Any],
    substitute: bool, progress: Progress,
) -> Graph:  # fmt: skip
    """The graph of an ONNX model."""
    progress("reading the model")
    loaded = loader.load(Path(model)) if isinstance(model, str | Path) else loader.from_proto(model)
    from dla.compiler.onnx.importer import Options, import_model  # needs the package, which the loader asked for

    declared = signature.inputs(loaded.proto.graph)
    _check_sizes(declared, bounds, fixed)
    arrays = {name: np.asarray(value) for name, value in values.items()}
    _check_values(declared, arrays, fixed)
    progress("importing")
    options = Options(bounds, fixed, arrays, substitute)
    return import_model(loaded.proto, loaded.initialisers(), options, loaded.array)


def _check_sizes(
    inputs: Sequence[signature.Declared], bounds: Mapping[str, int], fixed: Mapping[str, int]
) -> None:  # fmt: skip
    """Raise InputError unless every size is given to a symbol that the inputs have, and once."""
    known = {d.name: d for given in inputs for d in given.dims or () if isinstance(d, signature.Symbol)}
    names = {text: name for name, d in known.items() for text in (name, d.text)}
    for name, size in (*bounds.items(), *fixed.items()):
        if name not in names:
            hint = f"its symbolic dims: {', '.join(map(shown, known)) or 'none'}"
            raise InputError(f"the model has no symbolic dim '{shown(name)}'", hint=hint)
        if not isinstance(size, SupportsIndex) or not 0 <= size <= MAX_DIM:
            raise InputError(f"dim '{shown(name)}' cannot be {size!r}: sizes are from 0 to 2**40")
    both = {names[name] for name in bounds} & {names[name] for name in fixed}
    for name in sorted(both):
        raise InputError(f"dim '{shown(name)}' has a bound and is fixed", hint="give one of the two")


def _check_values(inputs: Sequence[signature.Declared], values: Mapping[str, Array], fixed: Mapping[str, int]) -> None:
    """Raise InputError unless every value is given to an input, and has its type and shape."""
    from onnx.helper import tensor_dtype_to_np_dtype

    known = {given.name: given for given in inputs}
    for name, array in values.items():
        if name not in known:
            hint = f"its inputs: {', '.join(map(shown, known)) or 'none'}"
            raise InputError(f"the model has no input '{shown(name)}'", hint=hint)
        number, shape = known[name].element_type, known[name].dims
        if number and array.dtype != (dtype := tensor_dtype_to_np_dtype(number)):
            raise InputError(f"input '{shown(name)}' must be {dtype}, not {array.dtype}")
        if shape is None:
            continue
        sizes = [fixed.get(d.text, fixed.get(d.name, d)) if isinstance(d, signature.Symbol) else d for d in shape]
        fits = [isinstance(d, signature.Symbol) or d == n for d, n in zip(sizes, array.shape, strict=False)]
        if len(shape) != array.ndim or not all(fits):
            wanted = ", ".join(map(str, sizes))
            raise InputError(f"input '{shown(name)}' must have shape [{shown(wanted)}], not {list(array.shape)}")
