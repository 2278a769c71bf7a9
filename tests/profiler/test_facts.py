"""A profile as facts."""

from __future__ import annotations

import json
from typing import Any

import made_profiles as made
import numpy as np
import pytest

from dla.assembler import assemble
from dla.profiler import run
from dla.profiler.facts import facts


@pytest.mark.parametrize("make", [made.chain, made.loop, made.resnet, made.hostile, made.nothing])
def test_facts_are_json(make: Any) -> None:
    """Plain types only, and no number that JSON has not: reading gives what was written."""
    found = facts(make())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_keys_are_stable() -> None:
    """Programs read these; units are in their names."""
    found = facts(made.resnet())
    assert list(found) == [
        "program", "machine", "device", "dims", "wall_us", "runs_us", "traced_us", "overhead_us", "launch_us",
        "roof_us", "utilisation", "multiprocessors", "blocks", "spans", "lost_spans", "ceilings", "natives",
        "instructions", "kinds", "critical_path", "segments_bytes", "wholes", "trap",
    ]  # fmt: skip
    assert list(found["instructions"][0]) == [
        "index", "name", "text", "location", "operands", "attributes", "way", "calls", "time_us", "share", "active_us",
        "spent_us", "working_us", "waiting_us", "utilisation", "flops", "bytes", "flops_per_byte", "flops_per_s",
        "bytes_per_s", "roof_us", "of_roof", "native", "why_no_native",
    ]  # fmt: skip
    assert list(found["kinds"][0]) == [
        "name", "written", "calls", "time_us", "share", "spent_us", "working_us", "waiting_us", "utilisation", "flops",
        "bytes", "flops_per_byte", "flops_per_s", "bytes_per_s", "roof_us", "of_roof",
    ]  # fmt: skip
    assert list(found["instructions"][0]["native"]) == [
        "kernel", "cold_us", "warm_us", "of_native", "agrees", "error",
    ]  # fmt: skip
    assert list(found["wholes"][0]) == ["name", "time_us", "of_native", "first_us", "agrees", "note"]


def test_every_instruction_is_there() -> None:
    """Also those that never ran, in program order."""
    profile = made.loop()
    found = facts(profile)["instructions"]
    assert [one["index"] for one in found] == list(range(7))
    assert [one["calls"] for one in found] == [1, 0, 5, 5, 0, 1, 0]
    assert found[2]["time_us"] == pytest.approx(profile.figures[2].time * 1e6)
    assert found[6]["active_us"] is None


def test_operands_have_the_dims_of_the_run() -> None:
    """Layouts and attributes, defaults included: enough to time the same work without this package."""
    text = ".program p\n.input x : f32[n <= 8, 4]\n.output y : f32[4, n]\nmain:\n    COPY y, x.T\n    HALT\n"
    profile = run.profile(assemble(text), {"x": np.zeros((3, 4), np.float32)}, backend="golden", repeat=1)
    copy, halt = facts(profile)["instructions"]
    assert copy["operands"]["x"] == {"dtype": "f32", "shape": [4, 3], "strides": [1, 4]}
    assert (halt["operands"], halt["attributes"]) == ({}, {})
    product = facts(made.chain())["instructions"][0]
    assert (product["attributes"]["steps"], product["attributes"]["alpha"]) == (["act"], 1.0)


def test_the_critical_path_is_the_run() -> None:
    """Step after step without a gap."""
    steps = facts(made.chain())["critical_path"]
    assert [s["begin_ns"] for s in steps[1:]] == [s["end_ns"] for s in steps[:-1]]
    assert (steps[0]["instruction"], steps[1]["instruction"]) == (None, 0)
