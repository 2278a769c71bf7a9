"""Sequences of tensors: what is put together and taken apart again while importing."""

from __future__ import annotations

import pytest
from onnx_bodies import check, compiled

from dla.isa.errors import ModelError

SPLIT = "p = Constant <value_ints = [2, 3]> ()  s = SplitToSequence <axis = 1> (x, p)"
TWO = "s = SequenceConstruct (x, z)"
BODIES = {
    "of one size, the last is smaller": """(float[5, 2] x) => (float y) { p = Constant <value_int = 2> ()
        s = SplitToSequence (x, p)  i = Constant <value_int = -1> ()  y = SequenceAt (s, i) }""",
    "of given sizes": f"(float[2, 5] x) => (float y) {{ {SPLIT}  y = ConcatFromSequence <axis = 1> (s) }}",
    "without the axis": """(float[3, 2] x) => (float y) { s = SplitToSequence <axis = 0, keepdims = 0> (x)
        y = ConcatFromSequence <axis = 1, new_axis = 1> (s) }""",
    "how many": "(float[3, 2] x) => (int64 y) { s = SplitToSequence (x)  y = SequenceLength (s) }",
    "shapes, too": """(float[B, 4] x) => (int64 y) { d = Shape (x)  e = SequenceEmpty <dtype = 7> ()
        s = SequenceInsert (e, d)  t = SequenceInsert (s, d)  y = ConcatFromSequence <axis = 0> (t) }""",
    "put in front": f"""(float[2] x, float[2] z) => (float y) {{ {TWO}  i = Constant <value_int = -2> ()
        t = SequenceInsert (s, z, i)  y = ConcatFromSequence <axis = 0> (t) }}""",
    "the last one away": f"""(float[2] x, float[3] z) => (float y) {{ {TWO}  t = SequenceErase (s)
        y = ConcatFromSequence <axis = 0> (t) }}""",
    "of every batch": f"""(float[B, 5] x) => (float y) {{ {SPLIT}  i = Constant <value_int = 1> ()
        y = SequenceAt (s, i) }}""",
}  # fmt: skip


@pytest.mark.parametrize("text", BODIES.values(), ids=BODIES.keys())
def test_sequences(text: str) -> None:
    """What comes out is what ONNX's reference says, and nothing of a sequence is left."""
    check(text, {"B": 2}, {"B": 3})


REFUSED = {
    f"(float[2] x, float[2] z) => (float y) {{ {TWO}  i = Constant <value_int = 2> ()  y = SequenceAt (s, i) }}":
        "position 2 of a sequence of 2",
    f"(float[2] x, float[2] z) => (float y) {{ {TWO}  y = Relu (s) }}": "where one tensor must be",
    f"(float[2] x, float[2] z) => (seq(float) s) {{ {TWO} }}": "where one tensor must be",
    f"(float[2] x, float[2] z, int64 i) => (float y) {{ {TWO}  y = SequenceAt (s, i) }}": "input i decides",
    "(float[2] x, int64 i) => (float y) { y = SequenceAt (x, i) }": "no sequence",
    "(float[2] x) => (float y) { s = SequenceEmpty ()  y = ConcatFromSequence <axis = 0> (s) }": "of an empty sequence",
    "(float[2] x) => (int64 y) { s = SequenceEmpty () t = SequenceErase (s) y = SequenceLength (t) }": "empty seq",
    f"(float[2] x, float[2] z) => (int64 y) {{ {TWO}  t = SequenceConstruct (s)  y = SequenceLength (t) }}":
        "made of tensors",
    "(float[B] x) => (int64 y) { s = SplitToSequence (x)  y = SequenceLength (s) }": "fix this dim",
    "(float[4] x) => (int64 y) { p = Constant <value_ints = [1, 2]> ()  s = SplitToSequence (x, p) "
    "y = SequenceLength (s) }": "do not make up axis 0",
    "(float[1000000] x) => (int64 y) { s = SplitToSequence (x)  y = SequenceLength (s) }": "in parts of 1",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=map(str, range(len(REFUSED))))
def test_refused(text: str, message: str) -> None:
    """A sequence that is not known, and what is none."""
    with pytest.raises(ModelError, match=message):
        compiled(text)
