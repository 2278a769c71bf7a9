"""Natives are compiled side by side and kept for whoever times them: tried here with other commands, without torch."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dla.tests.benchmark_scripts import importable

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def natives() -> Iterator[SimpleNamespace]:
    """benchmarks/compile_natives.py and what it shares with speed.py."""
    with importable():
        names = {"main": "compile_natives", "prepared": "speed.prepared", "row": "speed.row", "table": "speed_table"}
        yield SimpleNamespace(**{name: importlib.import_module(module) for name, module in names.items()})


def command(text: str) -> tuple[str, ...]:
    """A process that runs `text`."""
    return sys.executable, "-c", text


def test_commands_run_side_by_side_and_say_how_they_ended(natives, tmp_path):
    """Two that wait for each other both succeed; one fails; what they print is in their logs."""
    meet = (
        "import sys, time; from pathlib import Path; folder = Path(sys.argv[1]); (folder / sys.argv[2]).touch()\n"
        "while not (folder / sys.argv[3]).exists(): time.sleep(0.01)\n"
        "print('met')"
    )
    commands = {
        "a": (*command(meet), str(tmp_path), "a", "b"),
        "b": (*command(meet), str(tmp_path), "b", "a"),
        "c": command("raise SystemExit('broken')"),
    }
    found = natives.main.run_all(commands, lambda name: tmp_path / f"{name}.log", 60, os.environ)
    assert found["c"] is None
    assert all(0 < found[name] < 60 for name in "ab")
    assert [(tmp_path / f"{name}.log").read_text() for name in "abc"] == ["met\n", "met\n", "broken\n"]


def test_a_command_out_of_time_ends_with_its_own_processes(natives, tmp_path):
    """Nothing that it started runs on."""
    child = f"import time; from pathlib import Path; time.sleep(1.5); Path({str(tmp_path / 'late')!r}).touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    began = time.perf_counter()
    found = natives.main.run_all({"slow": command(parent)}, lambda name: tmp_path / "log", 0.5, os.environ)
    assert found == {"slow": None}
    assert time.perf_counter() - began < 1.5
    time.sleep(1.5)
    assert not (tmp_path / "late").exists()


def test_what_was_compiled_is_found_again_by_the_same_torch(natives, tmp_path):
    """Its mode and its artifacts; another version of torch finds nothing, and neither does another row."""
    prepared = natives.prepared.Prepared(tmp_path / "natives")
    assert prepared.mode("MLP b1", "2.11") is None
    prepared.keep("MLP b1", b"made", {"mode": natives.prepared.FULL, "seconds": 12.5, "torch": "2.11"})
    assert prepared.mode("MLP b1", "2.11") == natives.prepared.FULL
    assert prepared.mode("MLP b1", "2.12") is None
    assert prepared.mode("MLP b64", "2.11") is None
    assert prepared.artifacts("MLP b1") == b"made"
    assert json.loads((tmp_path / "natives" / "mlp_b1.json").read_text())["seconds"] == 12.5


def test_only_what_was_tuned_in_full_is_called_compiled(natives):
    """A bar is against that; what fell back has a name of its own, and no bar."""
    assert natives.prepared.label(natives.prepared.FULL) == natives.row.COMPILED
    assert natives.prepared.label(natives.prepared.FALLBACK) == "compiled (mode default) + CUDA graph"


def test_a_sweep_has_powers_of_two_and_sizes_between_them(natives):
    """From 1 to the largest, each once."""
    assert natives.row.sizes(64) == [1, 2, 4, 8, 16, 17, 32, 33, 64]
    assert natives.row.sizes(8192)[-4:] == [1025, 2048, 4096, 8192]


def test_the_largest_step_of_a_sweep_is_named(natives):
    """Ratios 1, 0.5 and 0.8: the first step halves; native is the faster of two."""
    times = [(1, 10, 10), (2, 20, 10), (4, 20, 16)]
    rows = [
        {"cold_us": {"ours": ours, "x": native, "y": 99}, "sweep": {"title": "work by size", "size": size}}
        for size, ours, native in times
    ]
    (line,) = natives.table.cliffs(rows)
    assert line.startswith("work by size: native / dla is 0.500 at the worst (size 2), ")
    assert line.endswith("changes by a factor of 2.00 at most from one size to the next (1 to 2)")
