"""The device machine on its stand: timed by events of the GPU, its ceilings measured with CuPy or PyTorch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, cast

from dla.emulator.api import Machine
from dla.emulator.backend import TracedSession
from dla.emulator.device.build import import_cupy
from dla.emulator.device.layout import PATHS
from dla.isa.program import Program
from dla.profiler import surroundings
from dla.profiler.profile import Ceilings
from dla.profiler.stand import Timer, has_state

FLUSH_BYTES = 2**28
"""Several times the second-level cache of any GPU at hand."""
COPIED_BYTES = 2**30
SIDE = 8192
"""Of the matrices whose product is the ceiling."""
_ROUNDS = 5


class DeviceStand:
    """One GPU, the one that CuPy uses. `load` makes sessions, and `cupy` times; tests give others."""

    name = "gpu"

    def __init__(
        self, progress: Callable[[str], None], cupy: Any = None, load: Callable[..., Any] | None = None
    ) -> None:  # fmt: skip
        self._progress = progress
        self._cupy = cupy or import_cupy()
        self._load: Callable[..., Any] = load or (lambda program, **options: Machine("gpu", **options).load(program))

    def traced(self, program: Program) -> TracedSession:
        """On the traced build of the machine."""
        return cast(TracedSession, self._load(program, traced=True, progress=self._progress))

    def timer(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int],
        state: Mapping[str, Any],
        *,
        cold: bool,
    ) -> Timer:
        """One launch between two events, on the build that does not record. Raises the Trap of a run with its time."""
        runtime, cuda = self._cupy.cuda.runtime, self._cupy.cuda
        session = self._load(program, progress=self._progress)
        start = {**session.state, **state} if has_state(program) else {}
        launch = session.launch(inputs, dims)
        stream, (began, ended) = cuda.Stream(non_blocking=True), (cuda.Event(), cuda.Event())
        flush = self._cupy.empty(FLUSH_BYTES if cold else 0, dtype="uint8")

        def once() -> float:
            if start:
                session.set_state(start)
            if cold:  # it also keeps the GPU busy while the host enqueues the launch
                runtime.memsetAsync(flush.data.ptr, 0, flush.nbytes, stream.ptr)
            began.record(stream)
            launch.enqueue(stream)
            ended.record(stream)
            launch.check()
            return float(cuda.get_elapsed_time(began, ended)) / 1e3

        return once

    def ceilings(self) -> Ceilings:
        """Of a copy of a gigabyte, and of large products by cuBLAS."""
        cupy = self._cupy
        source = cupy.ones(COPIED_BYTES, dtype="uint8")
        target = cupy.empty_like(source)
        copied = 2 * COPIED_BYTES / self._fastest(lambda: cupy.copyto(target, source))
        return Ceilings(copied, _torch_products(self._fastest) or self._products())

    def _products(self) -> dict[str, float]:
        def product(dtype: str) -> float:
            a = self._cupy.random.standard_normal((SIDE, SIDE)).astype(dtype)
            return 2 * SIDE**3 / self._fastest(lambda: self._cupy.matmul(a, a))

        return {"f16": product("float16"), "f32": product("float32")}

    def _fastest(self, action: Callable[[], object]) -> float:
        """Seconds of the fastest of several executions on the current stream."""
        cuda = self._cupy.cuda
        action()
        taken = []
        for _ in range(_ROUNDS):
            began, ended = cuda.Event(), cuda.Event()
            began.record()
            action()
            ended.record()
            ended.synchronize()
            taken.append(float(cuda.get_elapsed_time(began, ended)) / 1e3)
        return min(taken)

    def device(self) -> dict[str, str]:
        """The GPU, its driver and clocks, and the packages."""
        cuda = self._cupy.cuda
        name = cuda.runtime.getDeviceProperties(cuda.Device().id)["name"].decode(errors="replace")
        packages = ("numpy", "torch", "cupy-cuda12x", "cupy-cuda13x")
        return {"name": name, **surroundings.driver(), **surroundings.clocks(), **surroundings.versions(packages),
                **surroundings.commit()}  # fmt: skip

    def ways(self, session: TracedSession) -> dict[int, str]:
        """Paths and tile shapes, in the plan's words; of an instruction in several parts, those of all of them."""
        plan = cast(Any, session).plan
        words: defaultdict[int, list[str]] = defaultdict(list)
        for index, origin in enumerate(plan.origins):
            chosen = plan.schedules[index]
            if index in plan.fused:
                words[origin].append("fused: done by " + " ".join(map(str, plan.fused[index])))
            elif plan.executed.instructions[index].row.operands:
                words[origin].append(f"{PATHS[chosen.path]} {chosen.summary}".strip())
        return {origin: "; ".join(dict.fromkeys(parts)) for origin, parts in words.items()}


def _torch_products(fastest: Callable[[Callable[[], object]], float]) -> dict[str, float]:
    """The ceilings of products where PyTorch is there and sees the GPU: it knows bf16 and tf32. Else nothing."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    kinds = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "f32": torch.float32}
    before = torch.backends.cuda.matmul.allow_tf32
    found = {}
    for name, dtype in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a = torch.randn(SIDE, SIDE, device="cuda").to(dtype)
        found[name] = 2 * SIDE**3 / fastest(lambda a=a: torch.mm(a, a))  # type: ignore[misc]  # bound now
    torch.backends.cuda.matmul.allow_tf32 = before
    return found
