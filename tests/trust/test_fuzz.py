"""No damaged file does anything but be refused, or be another sound program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dla.isa.container import save
from dla.isa.descriptor import Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import MAX_INSTRUCTIONS, MAX_TENSORS, Debug, Instruction, Program, Tensor
from dla.isa.registers import s

FUZZ = Path(__file__).parent / "fuzz.py"
PROCESSES = 2
MIB = 2**20


def results(*arguments: list[str]) -> list[dict[str, Any]]:
    """The counts that fuzz.py prints for each list of arguments, side by side."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(FUZZ), *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for given in arguments
    ]
    outputs = [run.communicate() for run in runs]
    for run, (_, problem) in zip(runs, outputs, strict=True):
        assert run.returncode == 0, problem
    return [json.loads(printed) for printed, _ in outputs]


def test_damage_ends_in_an_error_or_a_sound_program() -> None:
    """Whatever is done to a file, reading, verifying and running it raise nothing but DlaError, and take no memory.

    Every truncation, every bit flip, an eighth of the flips with repaired hash, 50,000 mutations.
    """
    damaged = [["--flips", f"{i}/{PROCESSES}", "--mutations", "25000", "--seed", str(i)] for i in range(PROCESSES)]
    both = results(*damaged, ["--flips", "0/8", "--repair"])
    counts = {key: sum(each.get(key, 0) for each in both) for key in {k for each in both for k in each}}
    checked = sum(counts.get(k, 0) for k in ("refused", "rejected", "accepted", "unbound", "trapped", "ran"))
    assert checked > 5 * 1024 * 8 + 50_000
    assert counts["refused"] > 100_000
    # The damage reaches behind the hash: into the verifier and onto the machine.
    assert counts["rejected"] > 1000
    assert counts["ran"] > 1000
    assert counts["trapped"] > 100
    # No process grows by more than the file's size and 64 MiB.
    assert max(each["memory_growth"] for each in both) <= max(each["largest_file"] for each in both) + 64 * MIB


HOSTILE = """
import resource, sys
from dla.isa.container import read_bytes
from dla.isa.verifier import verify
with open(sys.argv[1], "rb") as file:
    data = file.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
verify(read_bytes(data))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - len(data))
"""


def test_largest_program_stays_within_its_memory(tmp_path: Path) -> None:
    """The largest file with nothing twice in it grows the process by its size and 64 MiB at most."""
    code = [
        Instruction(BY_MNEMONIC["ALU"], "add", (), {"dst": s(i % 30), "a": s(3), "b": i})
        for i in range(MAX_INSTRUCTIONS - 1)
    ] + [Instruction(BY_MNEMONIC["HALT"])]
    tensors = [Tensor(f"t{i}", contiguous(Segment.SCRATCH, DType.F32, (1,), i * 4)) for i in range(MAX_TENSORS)]
    indices = range(MAX_INSTRUCTIONS)
    debug = Debug("a.dla", tuple(indices), tuple((f"l{i}", i) for i in indices), tuple(("", i, "") for i in indices))
    path = tmp_path / "hostile.dlab"
    save(Program("t", tuple(code), tuple(tensors), (), dict.fromkeys(Segment, 2**30), debug=debug), path)
    ran = subprocess.run([sys.executable, "-c", HOSTILE, str(path)], capture_output=True, text=True, check=True)
    assert int(ran.stdout) <= 64 * MIB
