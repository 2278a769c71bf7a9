"""The const segment in a `.dlab` file: blocks of bytes, laid out so that a memory map serves as the segment.

    const map    u32 count: u64 offset in the segment, u64 size
    const data   the blocks, in order; each at the first position that equals its offset modulo 256

Blocks that almost touch (less than 256 bytes between, and no constant there that lies elsewhere) are written as one,
filled with zeros, so that how a program was built does not show in its bytes. What no block covers is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dla.isa.container.stream import Reader, Writer
from dla.isa.errors import ContainerError
from dla.isa.files import Chunk
from dla.isa.program import MAX_TENSORS, TENSOR_ALIGNMENT, ConstBlock

Run = tuple[int, int, list[Chunk]]
"""Offset in the segment, size in bytes, and the bytes in pieces."""


def runs(blocks: Sequence[ConstBlock], elsewhere: Sequence[int]) -> list[Run]:
    """The maximal runs of bytes that `blocks` make. Raises ContainerError if they are unsorted or overlap.

    `elsewhere` are the offsets of constants that are external or cut into shards.
    """
    result: list[Run] = []
    starts = iter(sorted(elsewhere))
    next_start = next(starts, None)
    for block in blocks:
        if block.data.nbytes == 0:
            continue
        data = np.ascontiguousarray(block.data).data.cast("B")
        end = sum(result[-1][:2]) if result else 0
        if block.offset < end:
            raise ContainerError(f"the program cannot be written: constants overlap at byte {block.offset}")
        while next_start is not None and next_start < end:
            next_start = next(starts, None)
        apart = next_start is not None and next_start < block.offset
        if result and not apart and block.offset - end < TENSOR_ALIGNMENT:
            start, _, pieces = result[-1]
            gap = [bytes(block.offset - end)] if block.offset > end else []
            result[-1] = (start, block.offset + len(data) - start, [*pieces, *gap, data])
        else:
            result.append((block.offset, len(data), [data]))
    return result


def encode(all_runs: Sequence[Run]) -> tuple[bytes, list[Chunk]]:
    """The const map section, and the pieces of the const data section."""
    w = Writer()
    w.number(len(all_runs), 4)
    data: list[Chunk] = []
    for (offset, size, pieces), gap in zip(all_runs, _gaps([r[:2] for r in all_runs]), strict=True):
        w.number(offset, 8)
        w.number(size, 8)
        data += [bytes(gap), *pieces]
    return bytes(w.data), data


def _gaps(spans: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Zero bytes before each (offset, size) span in the const data section."""
    position = 0
    for offset, size in spans:
        gap = (offset - position) % TENSOR_ALIGNMENT
        position += gap + size
        yield gap


def decode(table: memoryview, data: memoryview, elsewhere: Sequence[int]) -> tuple[ConstBlock, ...]:
    """The blocks, as read-only views of `data`. Raises ContainerError unless `encode` would give this back."""
    r = Reader(table, "const map")
    spans = [(r.number(8), r.number(8)) for _ in range(r.count(16, MAX_TENSORS))]
    r.end()
    blocks, position = [], 0
    for (offset, size), gap in zip(spans, _gaps(spans), strict=True):
        start = position + gap
        if size == 0 or size > len(data) - start:
            raise r.bad("a block lies outside the const data section")
        if any(data[position:start]):
            raise ContainerError("the file is damaged: bytes between constants are not zero")
        position = start + size
        blocks.append(ConstBlock(offset, np.frombuffer(data[start:position], np.uint8)))
    if position != len(data):
        raise r.bad("it does not cover the const data section")
    if [run[:2] for run in runs(blocks, elsewhere)] != spans:
        raise r.bad("its blocks are not in canonical form")
    return tuple(blocks)
