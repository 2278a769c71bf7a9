"""Natives that were compiled beforehand: a folder that holds what torch.compile made, and how far it got with each.

Max-autotune takes minutes for a network, most of them on processors, so all networks are compiled at the same time, by
as many processes; whoever times them afterwards, one by one, only loads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speed.row import COMPILED

FOLDER = Path(__file__).parent.parent.parent / "build" / "natives"
FULL = "max-autotune-no-cudagraphs"
"""All that torch.compile does for speed; the CUDA graph around it is ours, as it is for what is not compiled."""
FALLBACK = "default"
"""torch.compile without trying kernels out: what is left where FULL does not end in time."""


def label(mode: str) -> str:
    """What a native is called: only what was tuned in full is the one that bars are against."""
    return COMPILED if mode == FULL else f"compiled (mode {mode}) + CUDA graph"


class Prepared:
    """The folder. Each network has two files: what to load, and a note of mode and seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def cache(self) -> Path:
        """torch.compile's own folder, for those who compile and for those who load.

        Not all that decides how a network is compiled is among its artifacts: that a matrix was worth padding is noted
        here, and where that was measured again, and came out otherwise, nothing that is loaded would fit.
        """
        return self.folder / "inductor"

    def mode(self, row: str, torch: str) -> str | None:
        """The mode that this version of torch compiled the row's native in; None if it did not."""
        path = self._path(row, "json")
        found = json.loads(path.read_text()) if path.exists() else {}
        return found["mode"] if found.get("torch") == torch else None

    def artifacts(self, row: str) -> bytes:
        """What torch.compiler.load_cache_artifacts takes."""
        return self._path(row, "bin").read_bytes()

    def keep(self, row: str, artifacts: bytes, about: Mapping[str, Any]) -> None:
        """Store what was made, then the note, which says that it is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(row, "bin").write_bytes(artifacts)
        self._path(row, "json").write_text(json.dumps(dict(about), indent=1) + "\n")

    def log(self, row: str) -> Path:
        """Where the process that compiles the row's native writes what it says."""
        return self._path(row, "log")

    def _path(self, row: str, suffix: str) -> Path:
        return self.folder / f"{re.sub(r'[^a-z0-9]+', '_', row.lower())}.{suffix}"
