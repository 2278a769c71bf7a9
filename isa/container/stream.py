"""Reading and writing the small tables of a `.dlab` file: integers, names and texts, one after the other."""

from __future__ import annotations

import struct

from dla.isa.errors import ContainerError
from dla.isa.names import MAX_TEXT_BYTES, is_identifier

_NUMBERS = {size: struct.Struct(code) for size, code in ((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q"))}


class Writer:
    """Appends to a byte string. Raises ContainerError for what does not fit."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int, size: int) -> None:
        """An unsigned integer of `size` bytes, little-endian."""
        if not 0 <= value < 1 << 8 * size:
            raise ContainerError(f"the program cannot be written: {value} does not fit in {size} bytes")
        self.data += _NUMBERS[size].pack(value)

    def raw(self, data: bytes) -> None:
        self.data += data

    def name(self, name: str) -> None:
        """An identifier: one byte of length, then ASCII."""
        if not is_identifier(name):
            raise ContainerError(f"the program cannot be written: {name!r:.80} is not an identifier")
        self.number(len(name), 1)
        self.raw(name.encode("ascii"))

    def text(self, text: str) -> None:
        """Any text: two bytes of length, then UTF-8."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise ContainerError("the program cannot be written: a text holds unpaired surrogates") from None
        if len(data) > MAX_TEXT_BYTES:
            raise ContainerError(f"the program cannot be written: a text has {len(data)} bytes of UTF-8; "
                                 f"at most {MAX_TEXT_BYTES} fit")  # fmt: skip
        self.number(len(data), 2)
        self.raw(data)


class Reader:
    """Walks over one section. Raises ContainerError, naming the section, where it ends too early or too late."""

    def __init__(self, data: memoryview, section: str) -> None:
        self._data = data
        self._section = section
        self._position = 0

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._position

    def raw(self, size: int) -> bytes:
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        end = self._position + size
        if end > len(self._data):
            raise self.bad("it is cut short")
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def number(self, size: int) -> int:
        value: int = _NUMBERS[size].unpack(self.raw(size))[0]
        return value

    def count(self, entry_bytes: int, limit: int) -> int:
        """A u32 number of entries, of at least `entry_bytes` bytes each: checked before anything is made of it."""
        count = self.number(4)
        if count > limit or count * entry_bytes > len(self._data) - self._position:
            raise self.bad(f"it claims to have {count} entries")
        return count

    def name(self) -> str:
        name = self.raw(self.number(1)).decode("latin-1")
        if not is_identifier(name):
            raise self.bad("a name is not an identifier")
        return name

    def text(self) -> str:
        size = self.number(2)
        if size > MAX_TEXT_BYTES:
            raise self.bad("a text is too long")
        try:
            return self.raw(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad("a text is not UTF-8") from None

    def end(self) -> None:
        if self._position != len(self._data):
            raise self.bad("bytes are left over")

    def bad(self, what: str) -> ContainerError:
        """The error to raise about this section."""
        return ContainerError(f"the {self._section} section is not valid: {what}")
