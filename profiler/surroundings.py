"""In which surroundings something is measured: processor, packages, driver, clocks, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import dla.isa
from dla.emulator.doctor import driver_version

_PATIENCE = 10.0
"""Seconds that a program which is asked may take."""


def processor() -> str:
    """The processor's name, and how many of them there are."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    return f"{found.group(1) if found else platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Python's version, and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def driver() -> dict[str, str]:
    """The NVIDIA driver, where there is one."""
    version = driver_version()
    return {} if version is None else {"driver": version}


def clocks() -> dict[str, str]:
    """The GPU's clocks and its power limit, as nvidia-smi tells them; nothing where it does not."""
    fields = {"clocks.sm": "sm clock", "clocks.max.sm": "highest sm clock", "clocks.mem": "memory clock",
              "power.limit": "power limit"}  # fmt: skip
    told = _output(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
    values = [value.strip() for value in (told.splitlines() or [""])[0].split(",")]
    return dict(zip(fields.values(), values, strict=True)) if len(values) == len(fields) else {}


def commit() -> dict[str, str]:
    """The commit of this package, `+` after it where files differ; nothing where it is installed and no clone."""
    root = Path(dla.isa.__file__).parent.parent
    if not (root / ".git").exists():
        return {}
    described = _output(["git", "-C", str(root), "describe", "--always", "--dirty=+"]).strip()
    return {"commit": described} if described else {}


def _output(command: Sequence[str]) -> str:
    """What a program prints; nothing where it is not there, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
