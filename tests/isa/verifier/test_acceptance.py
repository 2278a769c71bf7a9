"""The verifier rejects nothing that people write: lessons, networks and the examples of the manual."""

from __future__ import annotations

from pathlib import Path

import pytest

from dla.assembler import assemble, assemble_file
from dla.isa.container import read_bytes, write_bytes
from dla.isa.instructions import ROWS
from dla.isa.table import Row
from dla.isa.verifier import verify

PROGRAMS = sorted((Path(__file__).parents[3] / "programs").glob("*.dla"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program_is_accepted(path: Path) -> None:
    """Every program in programs/ is accepted, as it was assembled and as a file gives it back."""
    program = assemble_file(path)
    verify(program)
    verify(read_bytes(write_bytes(program)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mnemonic)
def test_example_is_accepted(row: Row) -> None:
    """Every instruction's example is accepted."""
    verify(assemble(row.example))


def test_programs_are_there() -> None:
    """The folder of programs was found."""
    assert len(PROGRAMS) >= 10
