"""Epilogues in PyTorch: what no product does by itself is done by other kernels behind it."""

from __future__ import annotations

import torch

from dla.profiler.native.pytorch.activations import FUNCTIONS
from dla.profiler.native.pytorch.given import Given


def row_bias(given: Given, width: int) -> torch.Tensor | None:
    """The bias as one row of `width` elements, where the epilogue begins with one and products can take it so."""
    steps, bias = given.attributes["steps"], given.get("bias")
    if not steps or steps[0] != "bias" or bias is None:
        return None
    alike = all(n == 1 for n in bias.shape[:-1]) and bias.shape[-1:] == (width,)
    return bias.reshape(width) if alike and bias.dtype == given.out.dtype else None


def apply(given: Given, x: torch.Tensor, steps: tuple[str, ...]) -> torch.Tensor:
    """The product `x` after `steps`, one kernel each."""
    for step in steps:
        x = _step(given, x, step)
    return x


def _step(given: Given, x: torch.Tensor, step: str) -> torch.Tensor:
    attributes = given.attributes
    match step:
        case "act":
            return FUNCTIONS[attributes["act"]](x, attributes["act_alpha"])
        case "clamp":
            return x.clamp(attributes["clamp_low"], attributes["clamp_high"])
        case "gate":
            return x * given["gate"]
        case _:  # bias, residual
            return x + given[step]


def names(given: Given, steps: tuple[str, ...]) -> str:
    """What to call the kernels of `steps`: ", + bias, gelu"."""
    words = {"bias": "+ bias", "residual": "+ residual", "gate": "* gate", "act": given.attributes["act"]}
    return "".join(f", {words.get(step, step)}" for step in steps)
