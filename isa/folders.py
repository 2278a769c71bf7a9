"""Where dla keeps things between runs: builds of the machine, compiled models, and what was measured on the GPU.

What is there may be deleted at any time, and is made again when it is needed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """$DLA_CACHE, or `dla` in $XDG_CACHE_HOME or ~/.cache; it need not exist yet."""
    chosen = os.environ.get("DLA_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dla"


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within, no other process is in the same place: `path` is a folder, or a file that is made for that and stays.

    What cannot be locked is not: whoever writes there afterwards finds out why.
    """
    import fcntl  # not everywhere that programs can be looked at

    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT)
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
