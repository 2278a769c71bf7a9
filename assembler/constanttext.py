"""Constants as text: literals where they are short and exact, else hexadecimal bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from dla.assembler.attributes import float_text
from dla.assembler.constants import value_of
from dla.assembler.syntax import DeclarationStatement, SyntaxProblem, parse
from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import Array, DType
from dla.isa.program import ConstBlock

MAX_LITERAL_ELEMENTS = 16
_HEX_BYTES_PER_LINE = 48


def bytes_of(blocks: tuple[ConstBlock, ...], offset: int, nbytes: int) -> Array:
    """Bytes offset .. offset + nbytes of the const segment, from sorted blocks; what no block covers is zero."""
    first = max(0, bisect_right(blocks, offset, key=lambda block: block.offset) - 1)
    end = bisect_left(blocks, offset + nbytes, key=lambda block: block.offset)
    overlapping = blocks[first:end]
    if len(overlapping) == 1:
        start = offset - overlapping[0].offset
        if start >= 0 and start + nbytes <= overlapping[0].data.nbytes:
            return np.asarray(overlapping[0].data[start : start + nbytes])
    data = np.zeros(nbytes, np.uint8)
    for block in overlapping:
        low, high = max(offset, block.offset), min(offset + nbytes, block.offset + block.data.nbytes)
        if low < high:
            data[low - offset : high - offset] = block.data[low - block.offset : high - block.offset]
    return data


def source_text(descriptor: Descriptor, data: Array) -> list[str]:
    """The lines that follow a constant's declaration: `= [1, 2]`, or `= hex(` and lines of bytes."""
    literal = _literal(descriptor, data)
    if literal is not None and _reads_back(literal, descriptor, data):
        return [f"= {literal}"]
    lines = [
        f'    "{data[i : i + _HEX_BYTES_PER_LINE].tobytes().hex()}"' for i in range(0, data.size, _HEX_BYTES_PER_LINE)
    ]
    return ["= hex(", *lines, ")"]


def _literal(descriptor: Descriptor, data: Array) -> str | None:
    shape, itemsize = descriptor.bounds, descriptor.dtype.itemsize
    if data.size == 0:
        return "0"
    items = data.reshape(-1, itemsize)
    if np.all(items == items[0]):
        return _number(items[0].copy().view(descriptor.dtype.numpy)[0], descriptor.dtype)
    if descriptor.elements > MAX_LITERAL_ELEMENTS:
        return None
    return _nested(np.ascontiguousarray(data).view(descriptor.dtype.numpy).reshape(shape), descriptor.dtype)


def _nested(array: Array, dtype: DType) -> str:
    if array.ndim == 0:
        return _number(array[()], dtype)
    return "[" + ", ".join(_nested(row, dtype) for row in array) + "]"


def _number(value: Any, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    return float_text(value if dtype is not DType.BF16 else np.float32(value))


def _reads_back(literal: str, descriptor: Descriptor, data: Array) -> bool:
    """Whether the literal gives exactly `data`: NaN payloads, for one, are written as bytes."""
    dims = ", ".join(map(str, descriptor.bounds))
    try:
        body = parse(f".const x : {descriptor.dtype.text}[{dims}] = {literal}").body
        assert isinstance(body, DeclarationStatement)
        assert body.source is not None
        return np.array_equal(value_of(body.source, descriptor.dtype, descriptor.bounds, None), data)
    except SyntaxProblem:
        return False
