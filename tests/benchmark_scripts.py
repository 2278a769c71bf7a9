"""Scripts in benchmarks/, which are in no package: tests import them by the names that they have for each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "benchmarks"


@contextmanager
def importable() -> Iterator[None]:
    """While this lasts, they are found."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
