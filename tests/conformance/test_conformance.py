"""What passed of ONNX's conformance suite still passes, and the scoreboards and their page tell the truth.

A scoreboard is of one version of onnx: with another one, tests that need it are skipped with that reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra `dev`)")

from conformance import page, suite  # noqa: E402  (they need onnx)

CHUNKS = 8  # of the tests of nodes, for the processes of a test run
TARGETS = {"node": 1000, "simple": 6, "pytorch-converted": 80, "pytorch-operator": 30}


def board(backend: str) -> dict[str, Any]:
    """The committed scoreboard of a backend."""
    return json.loads((Path(__file__).parent / f"{backend}.json").read_text())


def of_this_version(found: dict[str, Any]) -> dict[str, Any]:
    """The tests in a scoreboard; skips where it is of another version of onnx."""
    made_with = found["versions"]["onnx"]
    if made_with != onnx.__version__:
        pytest.skip(f"the scoreboard is of onnx {made_with}, and {onnx.__version__} is installed: `make conformance`")
    return found["tests"]


def chunks() -> list[Any]:
    """(kind, chunk, number of chunks) with the number of tests in its id."""
    found = []
    for kind, tests in board("golden")["tests"].items():
        count = CHUNKS if kind == "node" else 1
        sizes = [len(tests["passed"][k::count]) for k in range(count)]
        found += [pytest.param(kind, k, count, id=f"{kind}-{k + 1}of{count}-{n}_tests") for k, n in enumerate(sizes)]
    return found


def broken(backend: str, kind: str, names: list[str]) -> dict[str, str]:
    """Those of the cases that do not pass, and why."""
    reasons = {name: suite.failure(suite.case(kind, name), backend) for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


@pytest.mark.parametrize(("kind", "chunk", "count"), chunks())
def test_what_passed_on_golden_still_passes(kind: str, chunk: int, count: int) -> None:
    """Each test that the scoreboard calls passed, in chunks."""
    passed = of_this_version(board("golden"))[kind]["passed"]
    assert broken("golden", kind, passed[chunk::count]) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", suite.KINDS)
def test_what_passed_on_the_gpu_still_passes(kind: str) -> None:
    """The same of the other scoreboard."""
    assert broken("gpu", kind, of_this_version(board("gpu"))[kind]["passed"]) == {}


@pytest.mark.parametrize("backend", [found["backend"] for found in page.boards()])
def test_the_scoreboard_has_every_test_of_the_suite(backend: str) -> None:
    """Each test is in it once: passed, or with a reason."""
    tests = of_this_version(board(backend))
    for kind in suite.KINDS:
        listed = [*tests[kind]["passed"], *tests[kind]["failed"]]
        assert sorted(listed) == suite.names(kind)
        assert all(tests[kind]["failed"].values())


@pytest.mark.parametrize("backend", [found["backend"] for found in page.boards()])
def test_as_many_pass_as_are_promised(backend: str) -> None:
    """The targets that dla set itself."""
    tests = board(backend)["tests"]
    assert {kind: len(tests[kind]["passed"]) >= least for kind, least in TARGETS.items()} == dict.fromkeys(
        TARGETS, True
    )


def test_the_page_is_of_the_scoreboards() -> None:
    """Writing it again changes nothing."""
    assert page.PAGE.read_text() == page.text(page.boards())


@pytest.mark.parametrize(
    ("reason", "title"),
    [
        ("x is a sequence, not a tensor", "Inputs and outputs of programs are tensors"),
        ("input x has element type float8e5m2, which the machine lacks", "Element type float8e5m2"),
        ("operators that are not supported: Det (node a); Unique (node b, c)", "Operators Det, Unique"),
        ("node a/b (Det): operator Det is not supported", "Operator Det"),
        ("values differ: Mismatched elements: 1 / 2", "Values beyond the suite's tolerance"),
        ("anything else", "Other reasons"),
    ],
)
def test_reasons_are_grouped(reason: str, title: str) -> None:
    """What fails alike is listed together."""
    assert page.group(reason) == title
