"""The epilogue of GEMM and CONV: up to four steps on the accumulator, before the one rounding to the output type."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.activations import QUESTIONS, activate
from dla.isa.dtypes import FLOATS, Array
from dla.isa.table import Constraint, Operand, Role, Site


def operands(shape: str) -> tuple[Operand, ...]:
    """The operands that epilogue steps read; each broadcasts to the result's `shape`."""

    def read_by(step: str, doc: str) -> Operand:
        return Operand(step, Role.IN, f"~{shape}", FLOATS, doc, step=step, may_be_output=True)

    return (
        read_by("bias", "added by the `bias` step"),
        read_by("residual", "added by the `residual` step"),
        read_by("gate", "multiplied in by the `gate` step"),
    )


def constraint(number: int) -> Constraint:
    """The rule that the steps of one epilogue differ and its limits are in order."""
    return Constraint(
        number, "epilogue steps differ from each other, isnan, isinf and not are no epilogue activations, and clamp "
                "has low <= high", _steps_valid,
    )  # fmt: skip


def _steps_valid(site: Site) -> bool:
    steps = site.attributes["steps"]
    if len(set(steps)) != len(steps) or site.attributes["act"] in (*QUESTIONS, "not"):
        return False
    if ("act" in steps) != (site.attributes["act"] != "identity"):
        return False
    return "clamp" not in steps or site.attributes["clamp_low"] <= site.attributes["clamp_high"]


def apply(
    accumulator: Array, *, steps: tuple[str, ...], bias: Array | None, residual: Array | None, gate: Array | None,
    act: str, act_alpha: float | None, clamp_low: float, clamp_high: float,
) -> Array:  # fmt: skip
    """`accumulator` (accumulator type, any shape) after `steps` in order; operands broadcast to it."""
    x = accumulator
    for step in steps:
        if step == "bias":
            x = x + bias
        elif step == "residual":
            x = x + residual
        elif step == "gate":
            x = x * gate
        elif step == "act":
            x = activate(act, x, act_alpha)
        else:
            x = np.where(np.isnan(x), x, np.clip(x, clamp_low, clamp_high))
    return np.asarray(x)


def act_slack(act: str, alpha: float | None, x: Array, error: Array) -> tuple[Array, Array]:
    """Activation `act` of x, and how far it may be off where x is off by `error`: see `slack`."""
    after = activate(act, x, alpha)
    moved = [np.abs(activate(act, x + step, alpha) - after) for step in (error, -error)]
    return after, np.asarray(np.fmax(np.fmax(*moved), 1.25 * error) + np.abs(after) * 2.0**-19 + 2.0**-20)


def slack(error: Array, value: Array, **epilogue: Any) -> Array:
    """How an error of `error` in the accumulator `value` may grow through the steps, plus the steps' own roundings.

    Additions keep it, a gate scales it, an activation multiplies it by at most 1.25 (the largest slope of those that
    epilogues use: gelu 1.13, silu 1.10, mish 1.09) or, for exp and other steep functions, by the measured slope.
    """
    x, e = value, np.asarray(error)
    keep = {"bias": epilogue["bias"], "residual": epilogue["residual"], "gate": epilogue["gate"]}
    others = {k: epilogue[k] for k in ("act", "act_alpha", "clamp_low", "clamp_high")}
    for step in epilogue["steps"]:
        if step == "act":
            after, e = act_slack(epilogue["act"], epilogue["act_alpha"], x, e)
        else:
            after = apply(x, steps=(step,), **keep, **others)
        if step == "gate":
            e = e * np.abs(keep["gate"])
        e = e + np.abs(after) * 2.0**-23
        x = after
    return e
