"""Operands for one instruction: made-up numbers in the layouts that its descriptors say, and parts of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dla.isa import cost, shapes
from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import DType
from dla.isa.program import Instruction
from dla.isa.registers import Register
from dla.isa.table import Role
from dla.profiler.native.given import operands
from dla.profiler.native.library import Library

_AXIS = {"GEMM": "M", "CONV": "N", "POOL": "N", "ATTENTION": "S", "ROPE": "S"}
"""The dim that a part is cut along, by mnemonic; elsewhere the first axis of what the operands have in common."""
_WHOLE = ("FILL", "IOTA", "PAD", "GATHER", "SCATTER", "REDUCE", "SCAN")
"""Rows whose operands have no axis in common, or whose result depends on where in it an element is."""


def settled(instruction: Instruction, sizes: Mapping[int, int]) -> Instruction:
    """`instruction` without registers: dims as in `cost.sized`, offsets left out, scalars that only a run knows as 1.

    An attribute that may be absent (ATTENTION's position) is so where it is a register.
    """
    sized = cost.sized(instruction, sizes)
    still = tuple(d and replace(d, offset=0, offset_register=None, offset_scale=0) for d in sized.operands)
    specs = instruction.row.all_attributes
    attributes = {
        name: 1 if isinstance(value, Register) else value
        for name, value in instruction.attributes.items()
        if not (isinstance(value, Register) and specs[name].optional)
    }
    return replace(sized, operands=still, attributes=attributes)


# -- whole operands


def made_up(instruction: Instruction, library: Library) -> dict[str, Any]:
    """Tensors for every operand of a settled instruction: numbers that it can compute with, and room for outputs."""
    return {name: _tensor(instruction, name, role, d, library) for name, role, d in operands(instruction)}


def _tensor(instruction: Instruction, name: str, role: Role, d: Descriptor, library: Library) -> Any:
    count = d.span // d.dtype.itemsize
    if not count:
        return library.empty(d.bounds, d.dtype)
    flat = _drawn(instruction, name, d, library) if role is Role.IN else library.empty((count,), d.dtype)
    return library.strided(flat, d.bounds, d.strides)


def _drawn(instruction: Instruction, name: str, d: Descriptor, library: Library) -> Any:
    """A row of floats normally distributed, integers small, or indices inside their axis."""
    count, dtype, seed = d.span // d.dtype.itemsize, d.dtype, zlib.crc32(name.encode())
    mnemonic, sub = instruction.row.mnemonic, instruction.sub
    if name == "indices":
        return _indices(instruction, d, library, seed)
    if dtype is DType.BOOL:
        return library.integers(count, DType.U8, 0, 10, seed) != 0  # nine in ten
    if dtype.is_float:
        drawn = library.normal(count, dtype, seed)
        return abs(drawn) if name == "var" or (mnemonic == "COPY" and not _is_signed(instruction)) else drawn
    divisor = mnemonic == "EW" and name == "b" and sub in ("div", "mod", "pow")
    return library.integers(count, dtype, 1 if divisor else 0, 4 if sub == "pow" else 100, seed)


def _is_signed(instruction: Instruction) -> bool:
    """Whether a copy's result can be negative: what libraries make of negative floats in u8 is their own affair."""
    out = instruction.operands[0]
    return out is None or out.dtype.numpy.kind != "u"


def _indices(instruction: Instruction, d: Descriptor, library: Library, seed: int) -> Any:
    """Indices inside the axis of x; in a permuted order, so that as few as possible of a scatter's meet."""
    x = instruction.operand("x")
    axis = instruction.row.with_defaults(instruction.attributes)["axis"]
    size = 1 if x is None else max(1, x.bounds[axis])
    count = d.span // d.dtype.itemsize
    if instruction.row.mnemonic != "SCATTER" or not d.rank:
        return library.integers(count, d.dtype, 0, size, seed)
    order = np.random.default_rng(seed).permutation(size)
    counted = np.arange(d.bounds[axis]).reshape([-1 if k == axis else 1 for k in range(d.rank)])
    flat = np.zeros(count, d.dtype.numpy)
    strides = [stride * d.dtype.itemsize for stride in d.strides]
    np.lib.stride_tricks.as_strided(flat, d.bounds, strides)[...] = order[counted % size]
    return library.tensor(flat)


# -- parts, for checking


def part(instruction: Instruction, tensors: Mapping[str, Any], work: float) -> tuple[Instruction, dict[str, Any]]:
    """The last rows (samples, queries ...) of an instruction's operands: so many that they are about `work` operations.

    What the instruction computes there depends on nothing else, so it is an instruction, too. Rows that have no such
    axis stay whole.
    """
    size = max(cost.flops(instruction), 16 * max((math.prod(t.shape) for t in tensors.values()), default=0))
    label = _AXIS.get(instruction.row.mnemonic, "B0")
    if instruction.row.mnemonic == "SOFTMAX" and instruction.attributes.get("axis", 0) == 0:
        label = "B1"
    places = {name: _labels(instruction, name).index(label) for name, _, _ in operands(instruction)
              if label in _labels(instruction, name)}  # fmt: skip
    if size <= work or instruction.row.mnemonic in _WHOLE or not places:
        return instruction, dict(tensors)
    whole = max(tensors[name].shape[axis] for name, axis in places.items())
    kept = max(1, int(whole * work / size))
    cut = dict(tensors)
    for name, axis in places.items():
        if tensors[name].shape[axis] == whole:
            cut[name] = tensors[name][(slice(None),) * axis + (slice(whole - kept, None),)]
    return _instruction_of(instruction, cut, whole - kept), cut


def _labels(instruction: Instruction, name: str) -> list[str]:
    """What each axis of an operand is called in its row: variadic parts B0, B1 ..., where all are there."""
    row = instruction.row
    bindings = shapes.Bindings({}, {})
    for spec, d in zip(row.operands, instruction.operands, strict=True):
        if d is not None:
            pattern = shapes.parse(spec.shape)
            shapes.unify(pattern, d.dims, bindings, spec.name)
            if spec.name == name:
                full = len(bindings.prefixes[pattern.prefix]) if pattern.prefix else 0
                prefix = [f"{pattern.prefix}{i}" for i in range(full)]
                fixed = [str(f) for f in pattern.fixed]
                names = [*fixed[: pattern.before], *prefix, *fixed[pattern.before :]]
                return names[len(names) - d.rank :] if pattern.broadcasts or pattern.prefix_broadcasts else names
    raise KeyError(name)


def _instruction_of(instruction: Instruction, tensors: Mapping[str, Any], skipped: int) -> Instruction:
    """`instruction` with the shapes of `tensors`, which lack the first `skipped` rows."""
    made = tuple(
        d and replace(d, dims=tuple(tensors[spec.name].shape))
        for spec, d in zip(instruction.row.operands, instruction.operands, strict=True)
    )
    attributes = dict(instruction.attributes)
    if instruction.row.mnemonic == "ATTENTION" and attributes.get("position") is not None:
        attributes["position"] += skipped
    return replace(instruction, operands=made, attributes=attributes)
