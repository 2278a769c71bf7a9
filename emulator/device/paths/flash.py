"""ATTENTION of 16-bit floats with few queries: room for the partial results of keys that are split over blocks."""

from __future__ import annotations

from dla.emulator.device.layout import PATH_GENERIC
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

FEW_QUERIES, FEW_DEPTH = 16, 512
"""What kernel/attention_few.cuh takes."""
LEAST_KEYS = 64
"""Keys that one block has, at least, where keys are split over blocks."""
PARTIAL_BYTES = 16 * (128 + 4 + 2) * 4
"""Of a partial result: 16 rows of sums, with their maximum and denominator."""


def few_queries(instruction: Instruction, context: Context) -> Schedule | None:
    """Room for the partial results of an ATTENTION that may have few queries, whose keys are then split over blocks."""
    if instruction.row.mnemonic != "ATTENTION":
        return None
    _, q, k, _ = _operands(instruction)
    always_many = q.bounds[2] > FEW_QUERIES and not isinstance(q.dims[2], Dynamic)
    if q.dtype is DType.F32 or always_many or q.bounds[3] > FEW_DEPTH or k.bounds[2] <= LEAST_KEYS:
        return None
    partials = context.target.blocks
    counters = -(-partials // 32) * 32 * 4
    at = context.workspace(counters + partials * PARTIAL_BYTES)
    return Schedule(PATH_GENERIC, (partials, at & 0xFFFFFFFF, at >> 32), "keys split over blocks")


def _operands(instruction: Instruction) -> tuple[Descriptor, Descriptor, Descriptor, Descriptor]:
    out, q, k, v = (d for name in ("out", "q", "k", "v") if (d := instruction.operand(name)) is not None)
    return out, q, k, v
