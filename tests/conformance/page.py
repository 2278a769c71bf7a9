"""docs/conformance.md, made from the scoreboards: totals, and everything that does not pass by name and reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent.parent / "docs" / "conformance.md"
SCORES = Path(__file__).parent
BACKENDS = ("golden", "gpu")
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

INTRODUCTION = """\
# Conformance with ONNX

How many tests of ONNX's own suite (`onnx.backend.test`) pass through `dla.onnx_backend`, which compiles each model and
runs the program: on the golden machine in f64 accumulation, and on a GPU. Tolerances are the suite's own, and so is the
comparison of outputs. `make conformance` runs the suite and writes this page; the tests of dla hold what passes.

Types that machines lack are held in similar ones here: f64 in f32, i16 and u16 in i32, u32 and u64 in i64. Models of
operator sets older than 12 are rewritten for 12 by `onnx.version_converter`.
"""

_BEYOND = "Values beyond the suite's tolerance"
_OTHER = "Other reasons"
_VARIED = (_BEYOND, _OTHER)
_GROUPS = (
    (r"is an? (sequence|optional|map|sparse_tensor), not a tensor", "Inputs and outputs of programs are tensors"),
    (r"element type (\w+), which the machine lacks", "Element type {0}"),
    (r"a tensor of rank \d+; the machine's have at most 6 axes", "More than 6 axes"),
    (r"^values differ", _BEYOND),
    (r" is random$|Random\w+\) is not supported|RandomUniformLike", "Random numbers"),
)
"""Patterns of reasons, and what tests with such a reason are listed under."""

_EXACT_ZERO = " (0 is exact; the suite expects 1.9e-7, the rounding error of its own transform in f32)"
_NOTES = {"test_dft_inverse": _EXACT_ZERO, "test_dft_inverse_opset19": _EXACT_ZERO}


def boards(folder: Path = SCORES) -> list[dict[str, Any]]:
    """The scoreboards that there are, golden first."""
    paths = [folder / f"{backend}.json" for backend in BACKENDS]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """The page. What fails on golden is not repeated where it fails on another backend, too."""
    parts = [INTRODUCTION, *(_totals(board) for board in found)]
    listed: dict[str, str] = {}
    for board in found:
        failed = {n: reason for kind in KINDS for n, reason in board["tests"][kind]["failed"].items()}
        parts.append(f"## What {'passes on golden and not' if listed else 'does not pass'} on {board['backend']}\n")
        parts += _groups({name: reason for name, reason in failed.items() if name not in listed})
        better = "\n".join(f"`{name}`" for name in sorted(listed.keys() - failed.keys()))
        if better:
            parts += ["These pass here, and not on golden:\n", better + "\n"]
        listed |= failed
    return "\n".join(parts)


def _groups(failed: Mapping[str, str]) -> list[str]:
    """Tests by what their reasons have in common, most frequent first."""
    grouped: dict[str, dict[str, str]] = {}
    for name, reason in failed.items():
        grouped.setdefault(group(reason), {})[name] = reason
    order = sorted(grouped, key=lambda title: (title == _OTHER, -len(grouped[title]), title))
    return [_listed(title, grouped[title]) for title in order]


def group(reason: str) -> str:
    """What a test that fails for `reason` is listed under."""
    for pattern, title in _GROUPS:
        match = re.search(pattern, reason)
        if match:
            return title.format(*match.groups())
    operators = re.findall(r"([\w.:]+) \(node ", reason) if reason.startswith("operators that are not") else []
    operators += re.findall(r": operator ([\w.:]+) is not supported", reason)
    if operators:
        return f"Operator{'s' if len(operators) > 1 else ''} {', '.join(operators)}"
    return _OTHER


def _totals(board: Mapping[str, Any]) -> str:
    """One table: how many pass of each kind."""
    versions = ", ".join(f"{name} {version}" for name, version in board["versions"].items())
    lines = [f"## {board['backend'].capitalize() if board['backend'] != 'gpu' else 'GPU'}\n",
             f"{board['device']}; {versions}.\n", "| kind | pass | of | share |", "|---|---:|---:|---:|"]  # fmt: skip
    for kind in KINDS:
        tests = board["tests"][kind]
        passed, total = len(tests["passed"]), len(tests["passed"]) + len(tests["failed"])
        lines.append(f"| {kind} | {passed:,} | {total:,} | {100 * passed / total:.1f} % |")
    return "\n".join(lines) + "\n"


def _listed(title: str, tests: Mapping[str, str]) -> str:
    """One group: names, with each one's reason where the title does not say it."""
    notes = {name: f"{tests[name]}{_NOTES.get(name, '')}" for name in sorted(tests)}
    lines = [f"- `{name}`: {note}" if title in _VARIED else f"`{name}`" for name, note in notes.items()]
    return f"### {title}: {len(tests)}\n\n" + "\n".join(lines) + "\n"
