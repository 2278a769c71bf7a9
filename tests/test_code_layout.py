"""benchmarks/code_layout.py counts lines of code that find no room, of a report that is made up here."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from dla.tests.benchmark_scripts import importable

ROOT = Path(__file__).parent.parent
BEGIN = 0x7F0000400000
"""Where the kernel of the report lies."""


@pytest.fixture(scope="module")
def code_layout() -> Iterator[ModuleType]:
    """The script, which is in no package."""
    with importable():
        yield importlib.import_module("code_layout")


@dataclass
class Launch:
    """A launch in a report: executions by the offset of an instruction."""

    kernel: str
    counts: dict[int, int]

    def name(self) -> str:
        return self.kernel

    def metric_by_name(self, name: str) -> SimpleNamespace:
        assert name == "inst_executed"
        offsets, counts = list(self.counts), list(self.counts.values())
        return SimpleNamespace(
            num_instances=lambda: len(counts),
            as_uint64=counts.__getitem__,
            correlation_ids=lambda: SimpleNamespace(as_uint64=lambda i: BEGIN + offsets[i]),
        )


def report_of(*launches: Launch) -> ModuleType:
    """The module `ncu_report` as far as it is used, with a report of these launches."""
    part = SimpleNamespace(num_actions=lambda: len(launches), action_by_idx=launches.__getitem__)
    module = ModuleType("ncu_report")
    module.load_report = lambda path: SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda i: part)
    return module


def elf_with(name: str, place: int) -> bytes:
    """An ELF file whose only symbol is `name`, at `place` of its section."""
    names, symbol = b"\0" + name.encode() + b"\0", struct.pack("<I2BH2Q", 1, 0, 0, 1, place, 16)
    headings = b"\0.shstrtab\0.strtab\0.symtab\0"
    parts, at, table = [headings, names, symbol], 0x40, b"\0" * 64
    for part, heading in zip(parts, (b".shstrtab", b".strtab", b".symtab"), strict=True):
        table += struct.pack("<2I4Q2I2Q", headings.index(heading), 0, 0, 0, at, len(part), 0, 0, 0, 0)
        at += len(part)
    head = bytearray(b"\x7fELF\x02".ljust(0x40, b"\0"))
    struct.pack_into("<Q", head, 0x28, at)
    struct.pack_into("<3H", head, 0x3A, 64, 4, 1)
    return bytes(head) + b"".join(parts) + table


def test_lines_beyond_those_that_find_room_are_counted(code_layout):
    """Four lines find room at a place; others do not."""
    period = code_layout.PLACES
    assert code_layout.too_many([0, period, 2 * period, 3 * period], 10**6, 0) == 0
    assert code_layout.too_many([i * period for i in range(6)], 10**6, 0) == 2


def test_padding_moves_what_lies_behind_it(code_layout):
    """Lines in front of the padding stay where they are."""
    period = code_layout.PLACES
    lines = [i * period for i in range(6)]
    assert code_layout.too_many(lines, 4 * period, 1) == 0  # two of six move
    assert code_layout.too_many(lines, 4 * period, period) == 2  # all the way round
    assert code_layout.too_many(lines, 0, 1) == 2  # all of them move


def test_a_report_is_judged(code_layout, monkeypatch, tmp_path):
    """Only launches of the machine count, and only what is executed often."""
    apart = code_layout.PLACES * code_layout.LINE
    often = {i * apart + step: code_layout.OFTEN for i in range(6) for step in (0, 16)}
    seldom = {7 * apart: code_layout.OFTEN - 1}
    launches = (Launch("dla_prepare", dict.fromkeys(often, 10**6)), Launch("dla_machine", {**often, **seldom}))
    monkeypatch.setitem(sys.modules, "ncu_report", report_of(*launches))
    report, cubin = tmp_path / "layout.ncu-rep", tmp_path / "machine.cubin"
    report.touch()
    cubin.write_bytes(elf_with(code_layout.PADDED, 4 * apart))
    done = CliRunner().invoke(code_layout.main, ["judge", str(report), str(cubin)], catch_exceptions=False)
    assert done.exit_code == 0
    first, best, *_ = done.output.splitlines()
    assert first == "launch 1: 6 lines, 2 of them beyond 4 at a place"
    assert best == f"PADDING = {code_layout.padding_now() + 8}: 0 instead of 2"


def test_a_line_that_the_padding_shares_with_what_lies_in_front_stays(code_layout, monkeypatch, tmp_path):
    """A line moves if all of it lies behind."""
    apart = code_layout.PLACES * code_layout.LINE
    counts = {i * apart: code_layout.OFTEN for i in range(6)}
    monkeypatch.setitem(sys.modules, "ncu_report", report_of(Launch("dla_machine", counts)))
    report, cubin = tmp_path / "layout.ncu-rep", tmp_path / "machine.cubin"
    report.touch()
    cubin.write_bytes(elf_with(code_layout.PADDED, 4 * apart + 16))  # so only the last of six moves
    done = CliRunner().invoke(code_layout.main, ["judge", str(report), str(cubin)], catch_exceptions=False)
    assert ": 1 instead of 2" in done.output
    assert ": 0 instead of 2" not in done.output


def test_another_file_than_the_kernel_is_refused(code_layout, tmp_path):
    """By name, with what is wrong."""
    report, cubin = tmp_path / "layout.ncu-rep", tmp_path / "machine.cubin"
    report.touch()
    for data in (b"text", elf_with("another", 0)):
        cubin.write_bytes(data)
        done = CliRunner().invoke(code_layout.main, ["judge", str(report), str(cubin)])
        assert done.exit_code == 2
        assert "is not the machine with all its instructions" in done.output


def test_a_missing_reader_is_one_message(code_layout, monkeypatch, tmp_path):
    """Nsight Compute's module is nothing that this package installs."""
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    report, cubin = tmp_path / "layout.ncu-rep", tmp_path / "machine.cubin"
    report.touch()
    cubin.write_bytes(elf_with(code_layout.PADDED, 0))
    done = CliRunner().invoke(code_layout.main, ["judge", str(report), str(cubin)])
    assert done.exit_code == 1
    assert "PYTHONPATH has to name extras/python of Nsight Compute" in done.output


def test_rows_that_there_are_not_are_named(code_layout):
    """A wrong name ends in one line."""
    pytest.importorskip("torch")
    done = CliRunner().invoke(code_layout.main, ["execute", "no such row"])
    assert done.exit_code == 2
    assert "speed.py has no row 'no such row'" in done.output
