"""The attribute records that instructions share: sliding windows, paddings, epilogues."""

from __future__ import annotations

from dla.isa.activations import ACTIVATION_CODES
from dla.isa.attributes import F32, Enum, EnumList, IntList, Record

_SIZE = 2**24

WINDOW = Record(
    "window",
    1,
    (
        IntList("strides", 32, "step of the window along each spatial axis", default=(1, 1), low=1, high=_SIZE),
        IntList("dilations", 96, "distance of window elements along each spatial axis", default=(1, 1), low=1,
                high=_SIZE),
        IntList("pads", 160, "rows and columns added before and after: [top, left, bottom, right]",
                length=4, default=(0, 0, 0, 0), high=_SIZE),
        IntList("window", 288, "extent of the window along each spatial axis", default=(1, 1), low=1, high=_SIZE),
    ),
)  # fmt: skip
"""Geometry of CONV and POOL. One-dimensional instructions use the second entry of each pair."""

PADS = Record(
    "pads",
    2,
    (
        IntList("low", 32, "elements added before each axis", length=6, default=(0,) * 6, high=_SIZE),
        IntList("high", 224, "elements added after each axis", length=6, default=(0,) * 6, high=_SIZE),
    ),
)

EPILOGUE = Record(
    "epilogue",
    3,
    (
        EnumList("steps", 32, "what happens to the accumulator before the one rounding, in this order",
                 choices={"bias": 1, "act": 2, "residual": 3, "gate": 4, "clamp": 5}),
        Enum("act", 64, "activation of the `act` step", choices=ACTIVATION_CODES, default="identity"),
        F32("act_alpha", 96, "parameter of the activation; absent: its own, as in ACT",
            default=None, optional=True),
        F32("clamp_low", 128, "lower limit of the `clamp` step", default=0.0),
        F32("clamp_high", 160, "upper limit of the `clamp` step", default=0.0),
    ),
)  # fmt: skip

RECORDS = (WINDOW, PADS, EPILOGUE)
