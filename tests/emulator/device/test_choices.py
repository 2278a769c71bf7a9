"""What decides between ways to execute an instruction: the model, or what was measured."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import PRODUCT_SCHEDULE
from dla.emulator.device.paths import Schedule, Target
from dla.emulator.device.paths.choices import Measured, fields_of
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.isa.descriptor import Segment

BASES = {segment: 2**30 * segment.value for segment in Segment}
OTHER = Choice(Tile(64, 256), 4)
"""A way that the model does not find cheapest."""


class Known:
    """Choices in which every instruction was measured, with `fields` the quickest."""

    def __init__(self, fields: dict) -> None:
        self.fields = fields
        self.asked: list[str] = []

    def measured(self, key: str) -> Measured:
        self.asked.append(key)
        return Measured(self.fields, 5e-6)


def first(text: str, choices: Known | None = None) -> Schedule:
    """The schedule of the first instruction on an H200."""
    return plan.build(assemble(text), BASES, Target(132, hopper=True), choices).schedules[0]


def product(a: str = "bf16[128, 4096]", out: str = "bf16[128, 4096]", more: str = "", b: str = "b") -> str:
    """A program of one GEMM with a constant b."""
    return (
        f".input a : {a}\n.input b : bf16[4096, 4096]\n.input bias : bf16[4096]\n.output y : {out}\n"
        f"main:\n    GEMM y, a, {b} {more}\n    HALT\n"
    )


CONVOLUTION = """
.input x : f16[1, 14, 14, 256]
.input w : f16[256, 3, 3, 256]
.output y : f16[1, 12, 12, 256]
main:
    CONV y, x, w
    HALT
"""


@pytest.mark.parametrize("text", [product(), CONVOLUTION], ids=["GEMM", "CONV"])
def test_what_was_measured_is_taken_before_what_the_model_says(text):
    """The numbers that the kernel gets are those of the measured way, and the schedule says where they come from."""
    modelled, measured = first(text), first(text, Known(fields_of(OTHER)))
    assert modelled.decision.seconds is None
    assert modelled.decision.choice == modelled.decision.offers[0].choice != OTHER
    assert measured.decision.seconds == 5e-6
    assert measured.decision.choice == OTHER
    numbers = PRODUCT_SCHEDULE.values(measured.detail)
    assert (numbers["tile_rows"], numbers["tile_columns"], numbers["splits"]) == (64, 256, 4)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tile": {"rows": 64, "columns": 512}, "splits": 4}, {**fields_of(OTHER), "stages": 3}, {"tile": 7}],
    ids=str,
)
def test_a_way_that_is_not_offered_is_not_taken(fields):
    """Whatever is found: of another version, of a mistake."""
    assert first(product(), Known(fields)) == first(product())


def key(text: str) -> str:
    """That of the first instruction."""
    known = Known({})
    first(text, known)
    return known.asked[0]


def test_a_key_tells_apart_what_differs_in_speed_and_nothing_else():
    """Shapes, types, layouts, epilogues, constants; but not addresses, nor the values of scalars."""
    texts = [
        product(), product(out="f32[128, 4096]"), product("bf16[127, 4096]", "bf16[127, 4096]"), product(b="b.T"),
        product(more="bias=bias"), product(more="act=gelu"), product(more="alpha=2.0"), product(more="act=mish"),
        product("bf16[n <= 128, 4096]", "bf16[n, 4096]"), product().replace(".input b", ".scratch b"), CONVOLUTION,
        CONVOLUTION.replace("CONV y, x, w", "CONV y, x, w pads=[1, 1, 0, 0]").replace("[1, 12, 12", "[1, 13, 13"),
    ]  # fmt: skip
    assert len({key(text) for text in texts}) == len(texts)
    assert key(product(more="alpha=2.0")) == key(product(more="alpha=3.0"))
    assert key(product()) == key(product().replace(".input a", ".input unused : bf16[512]\n.input a"))
