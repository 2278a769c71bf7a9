"""Nodes that are no instruction are refused where they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import symbol
from dla.compiler.graph import Value
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

N = symbol("N", 4)
Make = Callable[[GraphBuilder, Value], Any]

REFUSED: dict[str, tuple[Make, str]] = {
    "types": (lambda b, x: b.softmax(b.cast(x, DType.I32)), "SOFTMAX.*out is i32, but must be one of f32"),
    "shapes": (lambda b, x: b.norm("rms", x, b.fill((5,), 1, DType.F32)), r"NORM.rms: gain is \[5\]"),
    "constraints": (lambda b, x: b.norm("rms", x, eps=-1.0), "NORM.rms: must hold: eps is not negative"),
    "attributes": (lambda b, x: b.norm("rms", x, eps=float("nan")), "NORM.rms: eps must be a finite number"),
    "constant dims": (lambda b, x: b.rope(x, *[b.fill((3, N), 1, DType.F32)] * 2), "dim R must be a constant"),
    "operands": (lambda b, x: b.emit("GATHER", [x, None], axis=0), "GATHER: input 1 is missing"),
    "negative sizes": (lambda b, x: b.part(x, 1, 0, -1), "sizes must be from 0"),
    "huge sizes": (lambda b, x: b.fill((2**41,), 0, DType.F32), "sizes must be from 0"),
    "slices": (lambda b, x: b.slice(x, {1: 1}, {1: 2}, {1: 3}), "has not 2 elements from 1 on in steps of 3"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(make: Make, message: str) -> None:
    """One clear error, which names the row and what does not fit."""
    b = GraphBuilder()
    with pytest.raises(ModelError, match=message):
        make(b, b.input("x", DType.F32, (3, 4)))


def test_symbolic_sizes_are_told_apart() -> None:
    """Sizes are equal where their expressions are."""
    b, m = GraphBuilder(), symbol("M", 4)
    x = b.input("x", DType.F32, (N, m + 1))
    assert b.matmul(x, b.input("w", DType.F32, (m + 1, 2))).dims == (N, 2)
    with pytest.raises(ModelError, match="inner dims differ"):
        b.matmul(x, b.input("v", DType.F32, (N + 1, 2)))


def test_more_axes_than_the_machine_has_are_left_to_passes() -> None:
    """A pass may do away with them; if not, lowering refuses."""
    b = GraphBuilder()
    x = b.input("x", DType.F32, (1,) * 7)
    assert b.act("relu", x).rank == 7
    assert b.constant(np.ones(3), DType.F32).rank == 1
