"""Freeze the corpus of a release: `python tests/corpus/freeze.py tests/corpus/v1`.

Assembles every .dla of the folder, runs it on the golden machine on random inputs, and writes beside it the program
file and an .npz with inputs ("in.x"), named dims ("dim.n"), outputs ("out.y") and states ("state.kv"). To be run once
for a release: what it wrote is never written again, since later versions must accept those very files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from dla.assembler import assemble_file
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.container import load, save
from dla.isa.descriptor import Dynamic, Segment
from dla.isa.dtypes import Array, DType
from dla.isa.program import Program, Tensor
from dla.isa.verifier import verify

EXTERNAL = "external"
"""The program whose weights lie beside it."""


def freeze(source: Path, seed: int) -> None:
    """Write the .dlab and the .npz of one source."""
    target = source.with_suffix(".dlab")
    external = Path(f"{source.stem}.safetensors") if source.stem == EXTERNAL else None
    save(assemble_file(source), target, external=external)
    program = load(target)
    verify(program)
    rng = np.random.default_rng(seed)
    dims = {dim.name: int(rng.integers(1, dim.bound + 1)) for dim in program.dims}
    inputs = {t.name: _random(program, t, dims, rng) for t in program.in_segment(Segment.INPUT)}
    result = GoldenMachine().load(program).run(inputs, dims)
    arrays = {f"in.{name}": array for name, array in inputs.items()}
    arrays |= {f"dim.{name}": np.int64(value) for name, value in dims.items()}
    arrays |= {f"out.{name}": array for name, array in result.outputs.items()}
    arrays |= {f"state.{name}": array for name, array in result.state.items()}
    # npz has no bfloat16: its bits go as u16, which the reader's dtype tells from numbers.
    packed = {n: a.view(np.uint16) if a.dtype == DType.BF16.numpy else a for n, a in arrays.items()}
    np.savez_compressed(source.with_suffix(".npz"), **packed)


def _random(program: Program, tensor: Tensor, dims: dict[str, int], rng: np.random.Generator) -> Array:
    """Values for an input: normal for floats, 0 to 3 for integers, so that they can be indices."""
    values = {dim.register: dims[dim.name] for dim in program.dims}
    shape = [values[d.register] if isinstance(d, Dynamic) else d for d in tensor.descriptor.dims]
    dtype = tensor.descriptor.dtype
    if dtype.is_float:
        return np.asarray(rng.standard_normal(shape), np.float32).astype(dtype.numpy)
    return np.asarray(rng.integers(0, 2 if dtype is DType.BOOL else 4, shape)).astype(dtype.numpy)


if __name__ == "__main__":
    for index, path in enumerate(sorted(Path(sys.argv[1]).glob("*.dla"))):
        freeze(path, index)
