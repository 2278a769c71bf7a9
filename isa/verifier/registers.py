"""Which registers an instruction writes, told from its row's attributes."""

from __future__ import annotations

from dla.isa.instructions import ROWS
from dla.isa.program import Instruction
from dla.isa.registers import Register
from dla.isa.scalar_attributes import Reg

_WRITING = {
    row.mnemonic: tuple(a.name for a in row.all_attributes.values() if isinstance(a, Reg) and a.writable)
    for row in ROWS
}
"""Names of the attributes that name registers written, by mnemonic."""


def written(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that `instruction` writes."""
    names = _WRITING[instruction.row.mnemonic]
    values = (instruction.attributes.get(name) for name in names)
    return tuple(value for value in values if isinstance(value, Register))
