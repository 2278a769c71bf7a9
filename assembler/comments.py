"""Where comments stand, so that the disassembler can put each one back."""

from __future__ import annotations

HEADER = "header"  # above everything; index 0
ABOVE_TENSOR = "above tensor"  # index of the tensor
BESIDE_TENSOR = "beside tensor"
ABOVE_LABEL = "above label"  # index of the instruction that the label names
ABOVE = "above"  # index of the instruction
BESIDE = "beside"
END = "end"  # after the last instruction; index 0
