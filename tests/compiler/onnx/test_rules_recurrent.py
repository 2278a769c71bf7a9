"""Recurrent layers: every attribute, and sequences and batches of symbolic size, against onnxruntime."""

from __future__ import annotations

import pytest
from onnx_bodies import check, compiled

from dla.isa.errors import ModelError

SMALL, FULL = {"B": 1, "S": 1}, {"B": 3, "S": 8}
LSTM = "float[1, 16, 3] w, float[1, 16, 4] r, float[1, 32] b"
GRU = "float[1, 12, 3] w, float[1, 12, 4] r, float[1, 24] b"
BOTH = "float[2, 16, 3] w, float[2, 16, 4] r, float[2, 32] b"

SYMBOLIC = {
    "lstm": f"(float[S, B, 3] x, {LSTM}) => (float y, float h, float c) {{ y, h, c = LSTM (x, w, r, b) }}",
    "lstm from its end": f"""(float[S, B, 3] x, {LSTM}) => (float y, float h) {{
        y, h = LSTM <direction = "reverse", hidden_size = 4> (x, w, r, b) }}""",
    "lstm both ways, with states": f"""(float[S, B, 3] x, {BOTH}, float[2, B, 4] h0, float[2, B, 4] c0)
        => (float y, float h, float c) {{
        y, h, c = LSTM <direction = "bidirectional", hidden_size = 4> (x, w, r, b, , h0, c0) }}""",
    "last state only": f"(float[S, B, 3] x, {LSTM}) => (float h) {{ y, h = LSTM (x, w, r, b) }}",
    "gru": f"""(float[S, B, 3] x, {GRU}) => (float y, float h) {{
        y, h = GRU <hidden_size = 4, linear_before_reset = 1> (x, w, r, b) }}""",
    "gru with the reset before the product": f"""(float[S, B, 3] x, {GRU}, float[1, B, 4] h0) => (float y, float h) {{
        y, h = GRU <hidden_size = 4, direction = "reverse"> (x, w, r, b, , h0) }}""",
    "rnn": """(float[S, B, 3] x, float[1, 4, 3] w, float[1, 4, 4] r) => (float y, float h) {
        y, h = RNN <hidden_size = 4> (x, w, r) }""",
    "two layers both ways": """(float[S, B, 3] x, float[2, 16, 3] w, float[2, 16, 4] r, float[2, 16, 8] w2)
        => (float y) {
        a = LSTM <direction = "bidirectional", hidden_size = 4> (x, w, r)
        b = Transpose <perm = [0, 2, 1, 3]> (a)  shape = Constant <value_ints = [0, 0, -1]> ()
        c = Reshape (b, shape)  y = LSTM <direction = "bidirectional", hidden_size = 4> (c, w2, r) }""",
}  # fmt: skip


@pytest.mark.parametrize("body", SYMBOLIC.values(), ids=SYMBOLIC.keys())
def test_symbolic(body: str) -> None:
    """The program gives what onnxruntime gives, at both sizes."""
    body = body.replace("LSTM (", "LSTM <hidden_size = 4> (")
    check(body, SMALL, FULL, runtime=True)


FIXED = {
    "lengths": f"""(float[5, 2, 3] x, {LSTM}) => (float y, float h, float c) {{
        n = Constant <value = int32[2] {{3, 5}}> ()  y, h, c = LSTM <hidden_size = 4> (x, w, r, b, n) }}""",
    "lengths from the end": f"""(float[5, 2, 3] x, {GRU}) => (float y, float h) {{
        n = Constant <value = int32[2] {{5, 2}}> ()
        y, h = GRU <hidden_size = 4, direction = "reverse"> (x, w, r, b, n) }}""",
    "full lengths": f"""(float[5, 2, 3] x, {GRU}) => (float y) {{
        n = Constant <value = int32[2] {{5, 5}}> ()  y = GRU <hidden_size = 4> (x, w, r, b, n) }}""",
    "peepholes": f"""(float[4, 2, 3] x, {LSTM}, float[1, 12] p) => (float y, float h, float c) {{
        y, h, c = LSTM <hidden_size = 4> (x, w, r, b, , , , p) }}""",
    "coupled gates": f"""(float[4, 2, 3] x, {LSTM}) => (float y, float h, float c) {{
        y, h, c = LSTM <hidden_size = 4, input_forget = 1> (x, w, r, b) }}""",
    "clipped": f"""(float[4, 2, 3] x, {LSTM}) => (float y, float c) {{
        y, h, c = LSTM <hidden_size = 4, clip = 0.5> (x, w, r, b) }}""",
    "other functions": f"""(float[4, 2, 3] x, {LSTM}) => (float y, float c) {{
        y, h, c = LSTM <hidden_size = 4, activations = ["HardSigmoid", "Softsign", "ScaledTanh"],
                        activation_alpha = [0.3, 0.7], activation_beta = [0.4, 0.6]> (x, w, r, b) }}""",
    "gru with other functions": f"""(float[4, 2, 3] x, {GRU}) => (float y) {{
        y = GRU <hidden_size = 4, linear_before_reset = 1, activations = ["HardSigmoid", "Relu"]> (x, w, r, b) }}""",
    "rnn with other functions": """(float[4, 2, 3] x, float[2, 4, 3] w, float[2, 4, 4] r) => (float y) {
        y = RNN <hidden_size = 4, direction = "bidirectional", activations = ["Affine", "LeakyRelu"],
                 activation_alpha = [0.5, 0.2], activation_beta = [0.1]> (x, w, r) }""",
}  # fmt: skip


@pytest.mark.parametrize("body", FIXED.values(), ids=FIXED.keys())
def test_fixed(body: str) -> None:
    """The program gives what onnxruntime gives."""
    check(body, runtime=True)


def test_batch_first() -> None:
    """The layout that has the batch first."""
    check(f"""(float[B, 4, 3] x, {LSTM}, float[B, 1, 4] h0) => (float y, float h, float c) {{
        y, h, c = LSTM <hidden_size = 4, layout = 1> (x, w, r, b, , h0) }}""", {"B": 2})  # fmt: skip


def test_a_step_is_two_instructions() -> None:
    """A product and a cell: nothing is copied within the loop."""
    program = compiled(SYMBOLIC["gru"]).program
    names = [i.name for i in program.instructions]
    inside = names[names.index("LOOP") + 1 : names.index("ENDLOOP")]
    assert inside == ["GEMM", "RNN.gru"]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ('direction = "sideways"', "direction = 'sideways'"),
        ('activations = ["Tanh"]', "1 activations instead of 3"),
        ('activations = ["Sigmoid", "Tanh", "Maxout"]', "activation 'Maxout' is not supported"),
    ],
)
def test_refused(attributes: str, message: str) -> None:
    """What no layer has is one clear error."""
    with pytest.raises(ModelError, match=message):
        compiled(f"(float[S, B, 3] x, {LSTM}) => (float y) {{ y = LSTM <hidden_size = 4, {attributes}> (x, w, r, b) }}")
