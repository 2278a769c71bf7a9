"""Compiling is a function of the model: whatever order hashes give to sets, the bytes are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from networks.catalogue import NETWORKS, Case

if TYPE_CHECKING:
    from networks.conftest import Exported

COMPILE = """
import hashlib, sys
import dla
from dla.isa.container import write_bytes
for path in sys.argv[1:]:
    bounds = {"batch": 2} | ({"sequence": 12} if "llama" in path else {})
    print(hashlib.sha256(write_bytes(dla.compile_model(path, bounds=bounds).program)).hexdigest())
"""


def test_processes_give_the_same_bytes(exported: Callable[[Case], Exported]) -> None:
    """Of a network with branches that join and of one with a mask, positions and tables."""
    cases = [c for c in NETWORKS if str(c) in ("shufflenet-torchscript", "llama_triangle-torchscript")]
    paths = [str(exported(case).path) for case in cases]
    found = [digests(paths, seed) for seed in ("1", "2")]
    assert len(found[0]) == len(paths) == 2
    assert found[0] == found[1]


def digests(paths: list[str], seed: str) -> list[str]:
    """Of each compiled file, by a process with this seed of hashes."""
    command = [sys.executable, "-c", COMPILE, *paths]
    environment = os.environ | {"PYTHONHASHSEED": seed}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
