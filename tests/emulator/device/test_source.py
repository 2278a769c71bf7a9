"""The CUDA source that is put together from the kernel folder and the table."""

from __future__ import annotations

import re
import shutil

import pytest

from dla.emulator.device import generate, source
from dla.isa.instructions import ROWS
from dla.isa.scalar_attributes import ScalarValue


def test_source_is_one_text_without_local_includes():
    """Every include of the kernel folder is in place once, so a compile cache keyed on the text cannot go stale."""
    text = source.source()
    assert '#include "' not in text
    assert "#pragma once" not in text
    assert text.count("dla_machine(const __grid_constant__ Launches launches)") == 1


def test_every_kernel_file_is_part_of_the_machine():
    """No file lies in the kernel folder that the machine does not include."""
    named = set(re.findall(r'^#line 1 "([^"]+)"', source.source(), re.MULTILINE))
    assert {str(path.relative_to(source.KERNEL_FOLDER)) for path in source.KERNEL_FOLDER.rglob("*.cu*")} <= named


def test_every_row_has_an_argument_view_with_its_operands_and_attributes():
    """The views follow the table: one struct per row, one accessor per operand and attribute."""
    views = generate.views()
    for row in ROWS:
        body = views[views.index(f"struct {generate.pascal(row.mnemonic)}Args {{") :].split("\n};")[0]
        names = [o.name for o in row.operands] + list(row.all_attributes)
        for name in names:
            assert re.search(rf"\b{generate.identifier(name)}\(", body), f"{row.mnemonic}.{name}"


def test_at_most_two_scalar_operands_fit_a_decoded_instruction():
    """Work.scalars has room for two."""
    for row in ROWS:
        assert sum(isinstance(a, ScalarValue) for a in row.attributes) <= 2


def test_a_row_without_a_handler_fails_the_build(tmp_path, monkeypatch):
    """Forgetting the CUDA half of an instruction is an error that names the missing file."""
    shutil.copytree(source.KERNEL_FOLDER, tmp_path / "kernel")
    (tmp_path / "kernel" / "gemm.cuh").unlink()
    monkeypatch.setattr(source, "KERNEL_FOLDER", tmp_path / "kernel")
    source.source.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"gemm\.cuh"):
        source.source()
    source.source.cache_clear()


@pytest.mark.parametrize(("nvrtc", "quickly"), [((12, 8), False), ((12, 9), True), ((13, 0), True)])
def test_only_the_checked_build_is_compiled_quickly_by_who_can(nvrtc, quickly):
    """Its thousands of checks take an assembler that optimises over all functions hours."""
    assert ("--Ofast-compile=min" in source.options(checked=True, nvrtc=nvrtc)) == quickly
    assert "--Ofast-compile=min" not in source.options(traced=True, nvrtc=nvrtc)
