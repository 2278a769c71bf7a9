"""The walls of the house: isa <- {assembler, compiler, emulator} <- profiler <- cli."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "isa": {"isa"},
    "assembler": {"assembler", "isa"},
    "compiler": {"compiler", "isa"},
    "emulator": {"emulator", "isa"},
    "profiler": {"profiler", "assembler", "compiler", "emulator", "isa"},
}
FILES = sorted(path for area in MAY_IMPORT for path in (ROOT / area).rglob("*.py"))


def imported(source: str) -> list[tuple[int, str]]:
    """(line, area) of every import of `dla.<area>` in `source`; area is "" for `import dla` itself."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found += [(node.lineno, p[1] if len(p) > 1 else "") for p in parts if p[0] == "dla"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    """A module imports only its own area and those below it; siblings meet at the root alone."""
    area = path.relative_to(ROOT).parts[0]
    wrong = [(line, to) for line, to in imported(path.read_text()) if to not in MAY_IMPORT[area]]
    assert not wrong, f"{area} must not import these (line, area)"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import dla.emulator.api", [(1, "emulator")]),
        ("from dla import emulator", [(1, "emulator")]),
        ("import dla", [(1, "")]),
        ("def f():\n    from dla.assembler.parser import parse", [(2, "assembler")]),
        ("import numpy\nfrom lark import Lark", []),
    ],
)
def test_every_form_of_import_is_seen(source: str, found: list[tuple[int, str]]) -> None:
    """The reader of imports sees each form that Python offers, inside functions too."""
    assert imported(source) == found


MEETING_PLACES = ("cli.py", "onnx_backend.py", "__init__.py")
AT_THE_ROOT = sorted(path for path in ROOT.glob("*.py") if path.name not in MEETING_PLACES)


@pytest.mark.parametrize("path", AT_THE_ROOT, ids=lambda path: path.name)
def test_siblings_meet_in_the_command_line_alone(path: Path) -> None:
    """What cli.py is made of (arguments, console, report) reaches into one area beside isa at most."""
    areas = {to for _, to in imported(path.read_text())} & (MAY_IMPORT.keys() - {"isa"})
    assert len(areas) <= 1
