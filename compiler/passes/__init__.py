"""The passes, in the order in which they run. Each is a file, takes a graph, and gives a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dla.compiler.passes import dead, fold, layout

PASSES: dict[str, Callable[..., Any]] = {
    "dead": dead.run,
    "fold": fold.run,
    "layout": layout.run,
}
