"""Binaries of GPUs, which are ELF files of 64 bits: their sections and symbols, and one change to a relocation."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HEADER = struct.Struct("<2I4Q2I2Q")  # of a section
_SYMBOL = struct.Struct("<I2BH2Q")
_RELOCATION = struct.Struct("<3Q")
_ABSOLUTE = 2
"""R_CUDA_64: the relocation that puts a symbol's address into 64 bits."""


@dataclass(frozen=True)
class Section:
    """A section's name, and where its contents lie in the file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Symbol:
    """A symbol: its number in the table, its place in its section and its size in bytes."""

    number: int
    name: str
    place: int
    size: int


class Elf:
    """The file that `data` is. Raises ValueError where it is none."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            if data[:5] != b"\x7fELF\x02":
                raise ValueError("no ELF file of 64 bits")
            (table,), (size, count, names) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<3H", data, 0x3A)
            headers = [_HEADER.unpack_from(data, table + i * size) for i in range(count)]
            texts = headers[names][4]
            found = [Section(self._text(texts + fields[0]), fields[4], fields[5]) for fields in headers]
        except (struct.error, IndexError) as error:
            raise ValueError(f"a damaged ELF file: {error}") from error
        self.sections = {section.name: section for section in found}

    def contents(self, name: str) -> bytes:
        """The bytes of a section. Raises KeyError if there is none of that name."""
        section = self.sections[name]
        return self.data[section.offset : section.offset + section.size]

    def symbol(self, name: str) -> Symbol:
        """The symbol of that name. Raises KeyError if there is none."""
        texts = self.sections[".strtab"].offset
        for number, fields in enumerate(_SYMBOL.iter_unpack(self.contents(".symtab"))):
            if self._text(texts + fields[0]) == name:
                return Symbol(number, name, *fields[4:])
        raise KeyError(name)

    def pointing(self, pointer: str, to: str) -> bytes:
        """The file where the global variable `pointer` holds the address of the symbol `to`.

        Raises KeyError where there is no such symbol, or the variable was not initialised with an address.
        """
        place, target = self.symbol(pointer).place, self.symbol(to).number
        section = self.sections[".rela.nv.global.init"]
        changed = bytearray(self.data)
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            where, _, addend = _RELOCATION.unpack_from(changed, at)
            if where == place:
                _RELOCATION.pack_into(changed, at, where, target << 32 | _ABSOLUTE, addend)
                return bytes(changed)
        raise KeyError(pointer)

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()
