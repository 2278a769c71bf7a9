"""Protobuf's wire format, as much of it as a trace needs: single messages, and many of one shape at once by NumPy.

Where many messages are written at once, every number takes the same width: a varint may end in groups of zeros. So the
n messages are the n rows of one array of bytes, and a length is known before the content is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from dla.isa.dtypes import Array

_VARINT, _FIXED64, _BYTES = 0, 1, 2
LENGTH_BYTES = 2
"""Width of the length of a message within many: such messages are shorter than 2**14 bytes."""

Part = bytes | tuple[Array, int]
"""A part of n messages: bytes that all share, or a number of each, as a varint of so many bytes."""


def varint(value: int) -> bytes:
    """`value` in groups of 7 bits, lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    """An integer or enumeration that is not negative."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed(field: int, value: int) -> bytes:
    """A fixed64."""
    return varint(field << 3 | _FIXED64) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    """A double."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def string(field: int, value: str) -> bytes:
    """A text."""
    return message(field, value.encode())


def message(field: int, *content: bytes) -> bytes:
    """A message, or bytes."""
    body = b"".join(content)
    return varint(field << 3 | _BYTES) + varint(len(body)) + body


def width(most: int) -> int:
    """Bytes that the varint of a number up to `most` takes."""
    return len(varint(most))


def numbers(field: int, values: Array, size: int) -> list[Part]:
    """An integer of each message, `size` bytes wide."""
    return [varint(field << 3 | _VARINT), (values, size)]


def messages(field: int, content: Sequence[Part]) -> list[Part]:
    """A message in each message; `content` is what `numbers`, `messages` and the functions for single ones give."""
    length = sum(len(part) if isinstance(part, bytes) else part[1] for part in content)
    assert length < 1 << 7 * LENGTH_BYTES, "LENGTH_BYTES hold the length"
    return [varint(field << 3 | _BYTES) + padded(length, LENGTH_BYTES), *content]


def padded(value: int, size: int) -> bytes:
    """The varint of `value`, `size` bytes wide."""
    groups = [value >> 7 * i & 0x7F for i in range(size)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def rows(content: Sequence[Part], count: int) -> Array:
    """The bytes of `count` messages: u8[count, length]."""
    found = np.empty((count, sum(len(part) if isinstance(part, bytes) else part[1] for part in content)), np.uint8)
    at = 0
    for part in content:
        if isinstance(part, bytes):
            found[:, at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
            continue
        values, size = part
        for group in range(size):
            more = 0x80 if group + 1 < size else 0
            found[:, at] = values >> 7 * group & 0x7F | more
            at += 1
    return found
