"""Losses and optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dla.compiler.onnx.context import Context

RULES: dict[str, Callable[[Context], Any]] = {}
