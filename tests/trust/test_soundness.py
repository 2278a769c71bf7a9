"""What the verifier accepts never faults on a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SOUNDNESS = Path(__file__).parent / "soundness.py"
PROCESSES = 2
ACCEPTED = 10_000


def test_accepted_programs_do_not_fault() -> None:
    """10,000 accepted random programs, with every instruction, end or trap for a reason in their data."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(SOUNDNESS), "--accepted", str(ACCEPTED // PROCESSES), "--seed", str(i)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    outputs = [run.communicate() for run in runs]
    for run, (printed, problem) in zip(runs, outputs, strict=True):
        assert run.returncode == 0, problem
        counts = json.loads(printed)
        assert counts["accepted"] == ACCEPTED // PROCESSES
        assert counts["missing"] == []
        # The programs get as far as their addresses: most run, some trap for one that was not proven.
        assert counts["ran"] > ACCEPTED // PROCESSES // 2
        assert counts["extent"] > 100
        assert {"V-ALIAS", "V-EXTENT", "V-INIT"} <= set(counts["rejected"])
