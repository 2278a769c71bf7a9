"""Where dla keeps things between runs: builds of the machine, compiled models, and what was measured on the GPU.

What is there may be deleted at any time, and is made again when it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$DLA_CACHE, or `dla` in $XDG_CACHE_HOME or ~/.cache; it need not exist yet."""
    chosen = os.environ.get("DLA_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dla"
