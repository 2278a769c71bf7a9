"""The same network elsewhere: an ONNX model on onnxruntime, a PyTorch module eager, in a CUDA graph, and compiled."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np

from dla.emulator.binding import bind
from dla.emulator.compare import Reference, reference
from dla.emulator.onnxruntime_backend import Original
from dla.emulator.result import Result
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array, convert
from dla.isa.errors import InputError
from dla.isa.names import shown
from dla.isa.program import Program
from dla.isa.summary import summarise
from dla.profiler.profile import Whole

MOST_FLOPS = 2e11
"""Of programs whose results are compared: the reference runs five times, in f64 on the host."""


class Judge:
    """Whether outputs are those of a program on these inputs, by the bounds that `dla compare` has."""

    def __init__(
        self, program: Program, inputs: Mapping[str, Any], dims: Mapping[str, int], state: Mapping[str, Any]
    ) -> None:  # fmt: skip
        self.program, self.inputs, self.dims = program, inputs, dims
        self._state = state
        self._reference: Reference | None = None

    def __call__(self, outputs: Mapping[str, Array]) -> bool | None:
        """None where the program is too large to be computed for this."""
        if summarise(self.program).total.flops > MOST_FLOPS:
            return None
        if outputs.keys() != {t.name for t in self.program.in_segment(Segment.OUTPUT)}:
            return False
        if self._reference is None:
            self._reference = reference(self.program, self.inputs, self.dims, self._state)
        oracle = self._reference.oracle
        result = Result(outputs, oracle.state, {}, "another", 0.0, oracle.dims)
        return all(comparison.ok for comparison in self._reference.compare(result))


def of_onnxruntime(load: Callable[[], Original], judge: Judge, repeat: int) -> Whole:
    """The original model. The time until the first result has `load()` in.

    Raises BackendError where onnxruntime is missing or does not take the model.
    """
    began = time.perf_counter()
    original = load()
    result = original.run(judge.inputs, judge.dims)
    first = time.perf_counter() - began
    taken = [original.run(judge.inputs, judge.dims).elapsed for _ in range(repeat)]
    on_gpu = original.provider == "CUDAExecutionProvider"
    note = "inputs and outputs are copied from and to the host" if on_gpu else ""
    name = f"onnxruntime, {'CUDA' if on_gpu else 'CPU'}"
    return Whole(name, statistics.median(taken), first, judge(result.outputs), note)


# -- PyTorch


class _Loader(SourceFileLoader):
    """Leaves no bytecode beside other people's files."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0) -> None:
        """Keep nothing."""


def factory(spec: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """What `--torch FILE.py:NAME` names: a function that gives a module and example inputs for it.

    The file is executed. Raises InputError where there is no such file or name, or executing it fails.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name:
        raise InputError(f"--torch {shown(spec)} names no function", hint="write --torch FILE.py:NAME")
    if not Path(file).is_file():
        raise InputError(f"--torch: there is no file '{shown(file)}'")
    if Path(file).suffix != ".py":
        raise InputError(f"--torch: '{shown(file)}' is no Python file", hint="its name ends in .py")
    loader = _Loader(f"_dla_profiled_{Path(file).stem}", file)
    found = importlib.util.spec_from_loader(loader.name, loader)
    assert found is not None, "there is a loader"
    module = importlib.util.module_from_spec(found)
    sys.modules[loader.name] = module  # what it defines can be found again, by dataclasses and by torch.compile
    _executed(file, lambda: loader.exec_module(module))
    made = getattr(module, name, None)
    if not callable(made):
        raise InputError(f"--torch: '{shown(file)}' has no function {shown(name)}")

    def build() -> tuple[Any, tuple[Any, ...]]:
        result = _executed(spec, made)
        if not (isinstance(result, tuple) and len(result) == 2 and callable(result[0])):
            raise InputError(f"--torch: {shown(name)} does not give (module, example inputs)")
        network, given = result
        return network, tuple(given) if isinstance(given, tuple | list) else (given,)

    return build


def _executed(what: str, action: Callable[[], Any]) -> Any:
    """What `action`, a user's code, gives. Raises InputError for whatever it raises."""
    try:
        return action()
    except Exception as error:  # a user's code may raise anything
        raise InputError(f"--torch: {shown(what)} failed: {type(error).__name__}: {shown(error)}") from error


def of_torch(
    build: Callable[[], tuple[Any, tuple[Any, ...]]], judge: Judge, repeat: int, machine: str
) -> tuple[Whole, ...]:  # fmt: skip
    """A PyTorch module eager, and beside the "gpu" machine in a CUDA graph and compiled, too.

    It gets the program's inputs where the example's shapes are theirs: its outputs are compared then. Raises InputError
    where the module fails.
    """
    import torch

    from dla.profiler.native.pytorch.clock import clock_for

    timer = clock_for(machine)
    network, example = build()
    if isinstance(network, torch.nn.Module):
        network = network.to(timer.device).eval()
    given, ours = _given(judge, example, timer.device)

    def judged(made: Any) -> bool | None:
        return judge(_outputs(judge.program, made)) if ours else None

    def eager() -> Any:
        with torch.inference_mode():
            return network(*given)

    def until_first(action: Callable[[], Any]) -> tuple[Any, float]:
        began = time.perf_counter()
        made = action()
        if timer.device == "cuda":
            torch.cuda.synchronize()
        return made, time.perf_counter() - began

    made, first = until_first(lambda: _executed("the module", eager))
    taken = [timer.once(eager, cold=True) for _ in range(repeat)]
    note = "" if ours else "on its own example inputs"
    where = "" if timer.device == "cuda" else ", CPU"
    wholes = [Whole(f"PyTorch{where}, eager", statistics.median(taken), first, judged(made), note)]
    if timer.device == "cpu":
        missing = "needs a GPU"
        return (*wholes, *(Whole(f"PyTorch, {how}", None, None, None, missing) for how in ("CUDA graph", "compiled")))
    compiled: Any = torch.compile(network, mode="max-autotune-no-cudagraphs")

    def optimised() -> Any:
        with torch.inference_mode():
            return compiled(*given)

    for name, action in (("CUDA graph", eager), ("torch.compile(max-autotune), CUDA graph", optimised)):
        wholes.append(_captured(f"PyTorch, {name}", action, timer, until_first, judged, repeat))
    return tuple(wholes)


def _captured(
    name: str, action: Callable[[], Any], timer: Any, until_first: Callable[[Callable[[], Any]], tuple[Any, float]],
    judged: Callable[[Any], bool | None], repeat: int,
) -> Whole:  # fmt: skip
    """`action` in a CUDA graph; the time until the first result has compiling and capturing in."""
    try:
        graph, first = until_first(lambda: timer.prepared(action))
    except RuntimeError as error:  # what cannot be compiled, or captured
        return Whole(name, None, None, None, shown((str(error).splitlines() or [type(error).__name__])[0]))
    taken = [timer.once(graph, cold=True) for _ in range(repeat)]
    return Whole(name, statistics.median(taken), first, judged(action()))


def _given(judge: Judge, example: tuple[Any, ...], device: str) -> tuple[tuple[Any, ...], bool]:
    """What to call the module with, and whether that is the program's inputs."""
    import torch

    from dla.profiler.native.pytorch.convert import from_numpy

    bound = bind(judge.program, judge.inputs, judge.dims).arrays
    ours = [from_numpy(bound[t.name], device) for t in judge.program.in_segment(Segment.INPUT)]
    alike = len(ours) == len(example) and all(
        isinstance(b, torch.Tensor) and a.shape == b.shape and a.is_floating_point() == b.is_floating_point()
        for a, b in zip(ours, example, strict=True)
    )
    if alike:
        return tuple(a.to(b.dtype) for a, b in zip(ours, example, strict=True)), True
    return tuple(e.to(device) if isinstance(e, torch.Tensor) else e for e in example), False


def _outputs(program: Program, made: Any) -> dict[str, Array]:
    """What a module gave, as the program's outputs: in order, in the program's types."""
    import torch

    from dla.profiler.native.pytorch.convert import to_numpy

    values = (
        list(made.values()) if isinstance(made, Mapping) else list(made) if isinstance(made, tuple | list) else [made]
    )
    tensors = [to_numpy(v) for v in values if isinstance(v, torch.Tensor)]
    outputs = program.in_segment(Segment.OUTPUT)
    return {t.name: convert(np.asarray(a), t.descriptor.dtype) for t, a in zip(outputs, tensors, strict=False)}
