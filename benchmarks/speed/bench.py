"""Where rows run: tensors, runs of the machine, native graphs, and their times.

On a GPU everything lies on one stream and is timed by events. Without one, the golden machine stands in and times mean
nothing: that is for trying rows out at small sizes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

import dla
from dla.isa.descriptor import Segment
from dla.isa.program import Program
from speed import compiling
from speed.prepared import FULL, Prepared, label
from speed.row import Action

FLUSH_BYTES = 2**28
"""Several times the second-level cache of any GPU at hand."""
HEAD_START_CYCLES = 400_000
"""Of waiting on the GPU before each timed action, so that the host has enqueued all of it: about 0.2 ms."""
ROUNDS, QUICK_ROUNDS = 31, 7
BUDGET_SECONDS = 0.4
"""That the repetitions of one action may take together."""
RERUNS = 20
"""Runs that give the same bits, or a row is wrong."""

_RAW = {torch.bfloat16: torch.int16}
_NUMPY = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}


@dataclass
class Bench:
    """`quick` measures less often; `compile_mode` is torch.compile's, None to leave compiled natives out.

    `natives` has them compiled beforehand, each in the mode that it got to. `only` names the rows that the machine's
    kernel has, none for all of them: what the others cost the rest.
    """

    quick: bool = False
    compile_mode: str | None = FULL
    natives: Prepared | None = None
    only: frozenset[str] = frozenset()
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

    def __post_init__(self) -> None:
        self._seed = 0
        self._stream = torch.cuda.Stream() if self.device == "cuda" else None
        self._flush = torch.empty(FLUSH_BYTES if self.device == "cuda" else 16, dtype=torch.uint8, device=self.device)

    @functools.cached_property
    def machine(self) -> Any:
        """The machine; its kernel is built when the first program is loaded."""
        options = {"only": self.only} if self.only else {}
        return dla.Machine("gpu", **options) if self.device == "cuda" else dla.Machine("golden")

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Everything inside is on the bench's stream, and without gradients."""
        with torch.inference_mode(), torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            yield

    # ---- data

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Normally distributed numbers, other ones each time and the same ones in each process."""
        self._seed += 1
        generator = torch.Generator(self.device).manual_seed(self._seed)
        made = torch.empty(shape, dtype=torch.float32, device=self.device).normal_(0, scale, generator=generator)
        return made.to(dtype)

    def on_device(self, array: np.ndarray) -> torch.Tensor:
        """A NumPy array, which may be bf16, as a tensor."""
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).to(self.device).view(torch.bfloat16)
        return torch.from_numpy(array).to(self.device)

    # ---- the machine

    def ours(
        self, program: Program, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int] | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> Ours:  # fmt: skip
        """The program with inputs on the device, ready to be enqueued."""
        session = self.machine.load(program)
        if state:
            session.set_state({name: to_numpy(tensor) for name, tensor in state.items()})
        if self.device == "cuda":
            return _OnGpu(session, inputs, dims)
        return _OnCpu(session, inputs, dims)

    # ---- native

    def graph(self, action: Action) -> Action:
        """`action`, captured into a CUDA graph."""
        if self.device != "cuda":
            return action
        for _ in range(3):
            action()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            action()
        return graph.replay

    def load_native(self, row: str) -> None:
        """Let `compiled` find what was compiled for this row beforehand; it leaves out what was not."""
        if self.natives is not None:
            self.compile_mode = self.natives.mode(row, torch.__version__)
            if self.compile_mode is not None:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.natives.cache)
                compiling.load(self.natives.artifacts(row))

    def compiled(self, function: Callable[..., Any], *given: Any) -> Mapping[str, Action]:
        """`function(*given)` in a CUDA graph, and compiled in a CUDA graph (the latter unless it is left out)."""
        natives = {"CUDA graph": self.graph(lambda: function(*given))}
        if self.compile_mode is not None:
            made = compiling.optimised(function, self.compile_mode) if self.device == "cuda" else function
            natives[label(self.compile_mode)] = self.graph(lambda: made(*given))
        return natives

    # ---- time

    def times(self, actions: Mapping[str, Action], *, cold: bool, most: int = ROUNDS) -> dict[str, float]:
        """Median seconds of each action, taken in turns; `cold`: with nothing of use in the second-level cache.

        `most`: turns, at most.
        """
        for action in actions.values():
            action()  # once for whatever is only done once
            action()
        estimate = max(self._time(action, cold=cold) for action in actions.values())
        rounds = int(min(QUICK_ROUNDS if self.quick else most, max(5, BUDGET_SECONDS / (estimate + 3e-4))))
        taken: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(rounds):
            for name, action in actions.items():
                taken[name].append(self._time(action, cold=cold))
        return {name: statistics.median(times) for name, times in taken.items()}

    def _time(self, action: Action, *, cold: bool) -> float:
        if self.device != "cuda":
            began = time.perf_counter()
            action()
            return time.perf_counter() - began
        if cold:
            self._flush.zero_()
        else:
            action()
        torch.cuda._sleep(HEAD_START_CYCLES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


class Ours:
    """A program with its inputs: calling it enqueues a run; `output` is a tensor of what it computed last."""

    def __call__(self) -> None:
        raise NotImplementedError

    def output(self, name: str, shape: Sequence[int] | None = None) -> torch.Tensor:
        """The output called `name`, at `shape`, at its bounds where None."""
        raise NotImplementedError

    def check(self) -> None:
        """Wait; raises Trap if a run trapped."""


class _OnGpu(Ours):
    def __init__(self, session: Any, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int] | None) -> None:
        blank = {name: np.zeros(tensor.shape, _numpy(tensor.dtype)) for name, tensor in inputs.items()}
        self._launch = session.launch(blank, dims)
        for name, tensor in inputs.items():
            place = _tensor(self._launch.inputs[name], tensor.dtype)
            place[tuple(slice(n) for n in tensor.shape)].copy_(tensor)
        torch.cuda.synchronize()
        self._dtypes = {t.name: t.descriptor.dtype for t in session.program.in_segment(Segment.OUTPUT)}

    def __call__(self) -> None:
        self._launch.enqueue(torch.cuda.current_stream())

    def output(self, name: str, shape: Sequence[int] | None = None) -> torch.Tensor:
        kind = torch.bfloat16 if self._dtypes[name] is dla.DType.BF16 else None
        whole = _tensor(self._launch.outputs[name], kind)
        return whole if shape is None else whole[tuple(slice(n) for n in shape)]

    def check(self) -> None:
        self._launch.check()


class _OnCpu(Ours):
    def __init__(self, session: Any, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int] | None) -> None:
        arrays = {name: to_numpy(tensor) for name, tensor in inputs.items()}
        self._run: Callable[[], dla.Result] = lambda: session.run(arrays, dims)
        self._result: dla.Result | None = None

    def __call__(self) -> None:
        self._result = self._run()

    def output(self, name: str, shape: Sequence[int] | None = None) -> torch.Tensor:
        assert self._result is not None
        array = self._result[name]
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy of `tensor` on the host; bf16 as ml_dtypes has it."""
    raw = _RAW.get(tensor.dtype)
    host = (tensor if raw is None else tensor.contiguous().view(raw)).cpu().numpy()
    return host if raw is None else host.view(_NUMPY[tensor.dtype])


def _numpy(dtype: torch.dtype) -> np.dtype[Any]:
    return _NUMPY.get(dtype) or torch.empty(0, dtype=dtype).numpy().dtype


def _tensor(view: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """A CuPy view as a tensor on the same memory; with bf16, whose bits CuPy holds as u16."""
    if dtype is torch.bfloat16:
        return torch.from_dlpack(view.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(view)
