"""One step of measuring a full network, as a process: `python full_network_steps.py STEP THREADS MODEL.onnx ...`.

The last line of standard output is a JSON object of what was found.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dla
from dla.emulator.api import gpu_missing
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Segment

REPETITIONS = 5
Facts = dict[str, Any]


def export(path: Path, builder: str, options: str) -> Facts:
    """Build the network with torch, random weights in it, and write it to `path`, its example inputs beside it."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from networks.export import export as to_onnx
    from networks.network import leaves

    family, function = builder.split(".")
    network = getattr(importlib.import_module(f"networks.{family}"), function)(**json.loads(options))
    names = {"input_names": network.input_names, "output_names": network.output_names}
    to_onnx(network.model, network.inputs, path, dynamic=network.dynamic, **names)
    tensors = dict(zip(network.input_names, leaves(network.inputs), strict=True))
    sizes = {dim: tensors[name].shape[axis] for name, axes in network.dynamic.items() for axis, dim in axes.items()}
    inputs = {f"in/{name}": tensor.numpy() for name, tensor in tensors.items()}
    np.savez(path.with_suffix(".npz"), **inputs, **{f"size/{dim}": n for dim, n in sizes.items()})
    return {}


def compile_(path: Path) -> Facts:
    """Read, compile, verify and write.

    compile_seconds: from the file's path to the verified program; compile_cpu_seconds: of all threads. memory_bytes:
    by how much the most memory in use, while compiling and writing, exceeds that after importing dla and onnx; pages
    of the model's file that are mapped and were read count, too. weights_bytes: of the model's constants.
    """
    import onnx  # noqa: F401  # what importing takes is not what compiling takes

    from dla.compiler.onnx import importer, loader  # noqa: F401

    _, sizes = example(path)
    before = most_memory()
    (compiled, seconds, cpu) = timed(lambda: dla.compile_model(path, bounds=sizes))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        file = Path(folder) / "network.dlab"
        (_, write_seconds, _) = timed(lambda: dla.save(compiled.program, file))
        memory = most_memory() - before
        with file.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
    weights = sum(array.nbytes for array in loader.load(path).initialisers().values())
    instructions = compiled.program.instructions
    attention = [k for k, instruction in enumerate(instructions) if instruction.row.mnemonic == "ATTENTION"]
    distances = [after - first for first, after in itertools.pairwise(attention)]
    return {
        "sizes": sizes,
        "sha256": digest,
        "compile_seconds": seconds,
        "compile_cpu_seconds": cpu,
        "write_seconds": write_seconds,
        "weights_bytes": weights,
        "memory_bytes": memory,
        "instructions": len(instructions),
        "per_layer": max(distances, default=None),  # from one attention to the next
        "arena_bytes": compiled.memory.size,
        "lower_bound_bytes": compiled.memory.lower_bound,
    }


def execute(path: Path) -> Facts:
    """Run on the golden machine (f32 accumulators), on the GPU where there is one, and by onnxruntime.

    golden_seconds, golden_cpu_seconds, gpu_seconds, onnxruntime_seconds: medians, inputs on the host to outputs on the
    host. error: the largest difference from onnxruntime's outputs, relative to the largest number in that output.
    """
    inputs, sizes = example(path)
    compiled = dla.compile_model(path, bounds=sizes)
    places = dict(zip(compiled.graph.inputs, compiled.program.in_segment(Segment.INPUT), strict=True))
    bound = {places[name].name: array for name, array in inputs.items()}
    reference, facts = _onnxruntime(path, inputs)
    machines: list[tuple[str, Any]] = [("golden", GoldenMachine(accumulate="f32"))]
    if gpu_missing() is None:
        machines.append(("gpu", dla.Machine("gpu")))
    for name, machine in machines:
        session = machine.load(compiled.program)
        outputs = list(session.run(bound).outputs.values())
        times = [timed(lambda session=session: session.run(bound)) for _ in range(REPETITIONS)]
        facts[f"{name}_seconds"] = statistics.median(seconds for _, seconds, _ in times)
        if name == "golden":
            facts["golden_cpu_seconds"] = statistics.median(cpu for _, _, cpu in times)
        prefix = "" if name == "golden" else f"{name}_"
        pairs = list(zip(outputs, reference, strict=True))
        facts[f"{prefix}error"] = max(float(np.max(np.abs(y - x)) / np.max(np.abs(x))) for y, x in pairs)
        facts[f"{prefix}same_argmax"] = bool((pairs[0][0].argmax(-1) == pairs[0][1].argmax(-1)).all())
    return facts


def _onnxruntime(path: Path, inputs: dict[str, Any]) -> tuple[list[Any], Facts]:
    """Its outputs and its time, on as many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = int(sys.argv[2])
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
    times = [timed(lambda: session.run(None, inputs)) for _ in range(REPETITIONS)]
    return outputs, {"onnxruntime_seconds": statistics.median(seconds for _, seconds, _ in times)}


def example(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The inputs, and the sizes of symbolic dims, that the model was exported with."""
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs = {key.removeprefix("in/"): arrays[key] for key in arrays if key.startswith("in/")}
        sizes = {key.removeprefix("size/"): int(arrays[key]) for key in arrays if key.startswith("size/")}
    return inputs, sizes


def timed(action: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result of `action`, and the seconds and processor seconds (of all threads) that it took."""
    began, cpu = time.perf_counter(), time.process_time()
    result = action()
    return result, time.perf_counter() - began, time.process_time() - cpu


def most_memory() -> int:
    """The most bytes of memory that this process has had in use.

    By the kernel's own account of this program: getrusage would count what the process that started it had, too.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Run the step that the arguments name."""
    step, threads, model, *rest = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    steps: dict[str, Callable[..., Facts]] = {"export": export, "compile": compile_, "execute": execute}
    print(json.dumps(steps[step](Path(model), *rest)))


if __name__ == "__main__":
    main()
