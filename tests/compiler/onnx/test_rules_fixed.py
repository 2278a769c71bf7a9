"""Rules on tensors of fixed size: older operator sets, corners of attributes, types that node tests leave out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx_bodies import check, compiled, compiled_model, inputs_of, mutated, parsed

from dla.emulator.api import Machine
from dla.isa.dtypes import Array
from dla.isa.errors import ModelError, Trap

CONSTANTS = {
    "value": "int8[3] {1, -2, 3}",
    "value_float": "0.5",
    "value_floats": "[0.5, 1.5]",
    "value_int": "7",
    "value_ints": "[7, 8]",
}


@pytest.mark.parametrize(("kind", "text"), CONSTANTS.items(), ids=CONSTANTS.keys())
def test_constants(kind: str, text: str) -> None:
    """Every attribute that a Constant may have its value in."""
    out = {"value": "int8", "value_int": "int64", "value_ints": "int64"}.get(kind, "float")
    check(f"(float[1] x) => ({out} y) {{ y = Constant <{kind} = {text}> () }}")


BODIES = {
    # -- shapes
    "reshape: 0 is a size": """(float[0, 3] x) => (float y) {
        s = Constant <value_ints = [3, 0]> ()  y = Reshape <allowzero = 1> (x, s) }""",
    "squeeze of every 1": "(float[1, 3, 1] x) => (float y) { y = Squeeze (x) }",
    "reversed steps of 2": """(float[7] x) => (float y) {
        a = Constant <value_ints = [5]> ()  b = Constant <value_ints = [0]> ()  s = Constant <value_ints = [-2]> ()
        y = Slice (x, a, b, , s) }""",
    "two axes cut and turned": """(float[4, 5] x) => (float y) {
        a = Constant <value_ints = [10, 1]> ()  b = Constant <value_ints = [-100, -1]> ()
        axes = Constant <value_ints = [-1, 0]> ()  s = Constant <value_ints = [-1, 2]> ()
        y = Slice (x, a, b, axes, s) }""",
    "nothing is left": """(float[4] x) => (float y) {
        a = Constant <value_ints = [3]> ()  b = Constant <value_ints = [1]> ()  y = Slice (x, a, b) }""",
    "tiles of six axes": """(float[1, 2, 1, 1, 1, 2] x) => (float y) {
        r = Constant <value_ints = [2, 2, 1, 3, 1, 2]> ()  y = Tile (x, r) }""",
    "reflected more than once": """(float[3] x) => (float y) {
        p = Constant <value_ints = [5, 7]> ()  y = Pad <mode = "reflect"> (x, p) }""",
    "wrapped more than once": """(float[3, 2] x) => (float y) {
        p = Constant <value_ints = [4, 0, 0, 5]> ()  y = Pad <mode = "wrap"> (x, p) }""",
    "bools padded": """(bool[3] x) => (bool y) {
        p = Constant <value_ints = [1, 2]> ()  v = Constant <value = bool {1}> ()  y = Pad (x, p, v) }""",
    # -- indices
    "indices from the end": """(float[4, 3] x, int64[2, 2] i) => (float y) { y = Gather <axis = 1> (x, i) }""",
    "one slice": "(float[4, 3] x, int32 i) => (float y) { y = Gather (x, i) }",
    "elements from the end": "(float[4, 3] x, int32[2, 3] i) => (float y) { y = GatherElements <axis = 0> (x, i) }",
    "whole coordinates": "(float[4, 3] x, int64[2, 5, 2] i) => (float y) { y = GatherND (x, i) }",
    "last of duplicates": """(float[5] x, int64[9, 1] i, float[9] u) => (float y) { y = ScatterND (x, i, u) }""",
    "rows multiplied": """(float[4, 3, 2] x, int64[2, 3, 1] i, float[2, 3, 3, 2] u) => (float y) {
        y = ScatterND <reduction = "mul"> (x, i, u) }""",
    "integers added": """(int32[5, 4] x, int64[2, 3] i, int32[2, 3] u) => (int32 y) {
        y = ScatterElements <axis = -1, reduction = "add"> (x, i, u) }""",
    "lower triangle of integers": """(int64[2, 4, 3] x) => (int64 y) {
        k = Constant <value_int = -1> ()  y = Trilu <upper = 0> (x, k) }""",
    "chosen slices": """(float[2, 3] x) => (float y) {
        c = Constant <value = bool[3] {1, 0, 1}> ()  y = Compress <axis = 1> (x, c) }""",
    # -- folds
    "integer products": "(int32[3, 4] x) => (int32 y) { y = ReduceProd <keepdims = 0> (x) }",
    "norm of integers": """(int32[3, 4] x) => (int32 y) {
        a = Constant <value_ints = [-1]> ()  y = ReduceL2 (x, a) }""",
    "maximum of nothing": """(float[2, 0] x) => (float y) {
        a = Constant <value_ints = [1]> ()  y = ReduceMax <keepdims = 0> (x, a) }""",
    "minimum of nothing, of integers": """(int32[0, 2] x) => (int32 y) {
        a = Constant <value_ints = [0]> ()  y = ReduceMin (x, a) }""",
    "bytes": "(uint8[3, 4] x) => (uint8 y) { a = Constant <value_ints = [0]> () y = ReduceMax (x, a) }",
    "no axes, nothing folded": """(float[2, 3] x) => (float y) {
        a = Constant <value = int64[0] {}> ()  y = ReduceSum <noop_with_empty_axes = 1> (x, a) }""",
    "no axes, everything folded": """(float[2, 3] x) => (float y) {
        a = Constant <value = int64[0] {}> ()  y = ReduceLogSumExp (x, a) }""",
    "the smallest along the first axis": """(float[5, 2] x) => (float y, int64 i) {
        k = Constant <value_ints = [3]> ()  y, i = TopK <axis = 0, largest = 0> (x, k) }""",
    "products so far": """(float[2, 5] x) => (float y) {
        a = Constant <value_int = -1> ()  y = CumProd <exclusive = 1> (x, a) }""",
    # -- element by element
    "limits of integers": """(int32[9] x) => (int32 y) {
        a = Constant <value = int32 {-1}> ()  y = Clip (x, a) }""",
    "limits that cross": """(float[9] x) => (float y) {
        a = Constant <value = float {1.0}> ()  b = Constant <value = float {-1.0}> ()  y = Clip (x, a, b) }""",
    "slopes per channel": "(float[2, 3, 4] x, float[3, 1] s) => (float y) { y = PRelu (x, s) }",
    "powers of other types": """(float[5] x) => (float y) {
        n = Constant <value = int64[1] {3}> ()  y = Pow (x, n) }""",
    "squares of integers": "(int32[5] x) => (int32 y) { n = Constant <value = float {2.0}> () y = Pow (x, n) }",
    "sign of the dividend": """(int32[9] x) => (int32 y) {
        n = Constant <value = int32 {-2}> ()  y = Mod <fmod = 1> (x, n) }""",
    "one-sided infinities": """(float[2] x) => (bool y, bool z) {
        c = Constant <value_floats = [1.0, 0.0]> ()  i = Reciprocal (c)  y = IsInf <detect_negative = 0> (i)
        z = IsInf <detect_positive = 0> (i) }""",
    "other numbers of selu": "(float[9] x) => (float y) { y = Selu <alpha = 1.5, gamma = 0.5> (x) }",
    "other numbers of hard sigmoid": "(float[9] x) => (float y) { y = HardSigmoid <alpha = 0.3, beta = 0.6> (x) }",
    "bits": """(int32[9] x, int32[9] z) => (int32 y) {
        a = BitwiseAnd (x, z)  o = BitwiseOr (x, z)  n = BitwiseNot (o)  y = BitwiseXor (a, n) }""",
    "numbers and bools": """(int32[9] x) => (int8 y) { b = Cast <to = 9> (x)  y = Cast <to = 3> (b) }""",
    # -- einsum
    "einsum: traces": '(float[2, 3, 3] x) => (float y) { y = Einsum <equation = "bii->b"> (x) }',
    "einsum: no arrow": '(float[2, 3] x, float[3, 4] z) => (float y) { y = Einsum <equation = "ij,jk"> (x, z) }',
    "einsum: three operands": """(float[2, 3] a, float[3, 4] b, float[4, 5] c) => (float y) {
        y = Einsum <equation = "ij, jk, kl -> li"> (a, b, c) }""",
    "einsum: broadcast ellipses": """(float[2, 1, 3] a, float[4, 3, 5] b) => (float y) {
        y = Einsum <equation = "...j,...jk->...k"> (a, b) }""",
    "einsum: outer product": '(float[3] a, float[4] b) => (float y) { y = Einsum <equation = "i,j->ji"> (a, b) }',
    "einsum: integers": '(int32[2, 3] a, int32[3] b) => (int32 y) { y = Einsum <equation = "ij,j->i"> (a, b) }',
    # -- control
    "a loop that ends itself": """(float[3] x) => (float y) {
        n = Constant <value_int = 10> ()  go = Constant <value = bool {1}> ()
        y = Loop (n, go, x) <body = b (int64 i, bool c, float[3] p) => (bool d, float[3] q) {
            three = Constant <value_int = 3> ()  d = Less (i, three)  q = Add (p, x) }> }""",
    "a loop that collects": """(float[3] x) => (float y, float z) {
        n = Constant <value_int = 4> ()  go = Constant <value = bool {1}> ()
        y, z = Loop (n, go, x) <body = b (int64 i, bool c, float[3] p) => (bool d, float[3] q, float[3] r) {
            d = Identity (c)  f = Cast <to = 1> (i)  q = Mul (p, f)  r = Add (p, x) }> }""",
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_bodies(body: str) -> None:
    """The program gives what the reference gives."""
    check(body)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_mutated_bodies_end_in_a_program_or_one_error(body: str) -> None:
    """Whatever does not fit is refused by a ModelError that names the node, and by nothing else."""
    model, rng = parsed(body), random.Random(11)
    for _ in range(8):
        broken = mutated(model, rng)
        try:
            compiled_model(broken)
        except ModelError as error:
            message = str(error)
        else:
            message = ""
        assert "please report" not in message


def run(text: str, opset: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and outputs, for operator sets that the reference does not run."""
    inputs = inputs_of(parsed(text, opset), {}, np.random.default_rng(5))
    return inputs, dict(Machine("golden").run(compiled(text, opset).program, inputs).outputs)


def test_older_attributes() -> None:
    """What newer operator sets give as inputs, older ones gave as attributes."""
    given, made = run(
        """(float[4, 6] x) => (float a, float b, float c, float d, float e, float f) {
        a = Slice <starts = [1, -2], ends = [3, 100]> (x)
        b = Pad <pads = [0, 1, 0, 2], value = 0.5> (x)
        c = Clip <min = -0.5, max = 0.5> (x)
        d = ReduceSum <axes = [1], keepdims = 0> (x)
        e, e2 = Split <axis = 1> (x)
        f, i = TopK <axis = 1, k = 2> (x) }""",
        9,
    )
    x = given["x"]
    np.testing.assert_array_equal(made["a"], x[1:3, -2:])
    np.testing.assert_array_equal(made["b"], np.pad(x, ((0, 0), (1, 2)), constant_values=0.5))
    np.testing.assert_array_equal(made["c"], x.clip(-0.5, 0.5))
    np.testing.assert_allclose(made["d"], x.sum(1), rtol=1e-6)
    np.testing.assert_array_equal(made["e"], x[:, :3])
    np.testing.assert_array_equal(made["f"], -np.sort(-x, 1)[:, :2])


def test_older_broadcasts() -> None:
    """Before operator set 7 an attribute said where the second operand belongs."""
    given, made = run(
        "(float[2, 3, 4] x, float[3] b) => (float y) { y = Add <broadcast = 1, axis = 1> (x, b) }", 6
    )  # fmt: skip
    np.testing.assert_array_equal(made["y"], given["x"] + given["b"][:, None])


def test_negative_pads() -> None:
    """They cut, and the others are added to what is left."""
    text = "(float[4, 5] x) => (float y) { p = Constant <value_ints = [-1, 2, 3, -2]> ()  y = Pad (x, p) }"
    given, made = run(text, 21)
    np.testing.assert_array_equal(made["y"], np.pad(given["x"][1:, :-2], ((0, 3), (2, 0))))


def test_a_scan_from_the_end() -> None:
    """Slices are taken from the last to the first, and what comes of them is put along another axis."""
    given, made = run(
        """(float[2] s, float[4, 2] x) => (float y, float z) {
        y, z = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
                     body = b (float[2] p, float[2] e) => (float[2] q, float[2] r) {
            q = Add (p, e)  r = Identity (q) }> (s, x) }""",
        21,
    )
    sums = given["s"] + np.cumsum(given["x"][::-1], 0)
    np.testing.assert_allclose(made["y"], sums[-1], rtol=1e-5)
    np.testing.assert_allclose(made["z"], sums.T, rtol=1e-5)


def test_older_hardmax() -> None:
    """Before operator set 13 one element of all axes from `axis` on is 1."""
    given, made = run("(float[2, 3, 4] x) => (float y) { y = Hardmax (x) }", 12)
    rows = given["x"].reshape(2, 12)
    np.testing.assert_array_equal(made["y"].reshape(2, 12), rows == rows.max(1, keepdims=True))


def test_half_precision_squares_stay_in_range() -> None:
    """300 * 300 is no f16; the norm of (300, 400) is."""
    program = compiled("(float16[2] x) => (float16 y) { y = ReduceL2 (x) }").program
    found = Machine("golden").run(program, {"x": np.array([300, 400], np.float16)}).outputs
    np.testing.assert_array_equal(next(iter(found.values())), np.array([500], np.float16))


def test_indices_beyond_the_end_trap() -> None:
    """They are not taken modulo the size."""
    program = compiled("(float[4] x, int64[1] i) => (float y) { y = Gather (x, i) }").program
    with pytest.raises(Trap, match="index"):
        Machine("golden").run(program, {"x": np.zeros(4, np.float32), "i": np.array([4])})


def test_constant_indices_cost_nothing() -> None:
    """Indices that are known not to be negative are used as they are."""
    text = "(float[4, 2] x) => (float y) { i = Constant <value_ints = [3, 0]> () y = Gather (x, i) }"
    assert [n.op for n in compiled(text).graph.nodes] == ["GATHER"]


REFUSED = {
    "(float[4] x) => (float y) { s = Constant <value_ints = [-1, 3]> () y = Reshape (x, s) }": "no whole number",
    "(float[4] x) => (float y) { s = Constant <value_ints = [-1, -1]> () y = Reshape (x, s) }": "more than one -1",
    "(float[4] x) => (float y) { s = Constant <value_ints = [4, 0]> () y = Reshape (x, s) }": "dim 1 of",
    "(float[4, 2] x) => (float y) { a = Constant <value_ints = [0]> () y = Squeeze (x, a) }": "has not size 1",
    "(float[4] x) => (float y) { a = Constant <value_ints = [3]> () y = Unsqueeze (x, a) }": "axis 3",
    "(float[4, 2] x) => (float y) { y = Transpose <perm = [0, 0]> (x) }": "no order of the axes",
    "(float[4, 4] x, int64[4] n) => (float y) { y = ReverseSequence <time_axis = 0, batch_axis = 0> (x, n) }":
        "no order of the axes",
    "(float lowest) => (float y) { n = Constant <value_int = 8> () r = Constant <value_int = 0> () "
    "f = Constant <value_float = 9.0> () y = MelWeightMatrix (n, n, r, f, f) }": "from 9.0 to 9.0 Hz .* at 0 Hz",
    "(float[4] x, float[5] z) => (float y) { y = Add (x, z) }": "do not broadcast",
    "(float[4] x, int64[1] i) => (float y) { y = GatherND <batch_dims = 1> (x, i) }": "batch dims",
    "(float[4] x) => (float y) { y = ReduceSum <axes = [2]> (x) }": "axis 2 does not exist",
    "(float[4] x) => (float y, int64 i) { k = Constant <value_ints = [5]> () y, i = TopK (x, k) }": "5 elements",
    "(float[4] x) => (float y) { y, z = Split <split = [1, 2]> (x) }": "do not make up axis 0",
    "(float[4] x, int64[1] s) => (float y) { y = Expand (x, s) }": "input s decides",
    "(float[4] x, float[2] z) => (float y) { y = Einsum <equation = \"i,i->\"> (x, z) }": "sizes 4 and 2",
    "(float[4] x) => (float y) { y = Einsum <equation = \"i,j->ij\"> (x) }": "2 operands, the node 1",
    "(float[1, 1, 4, 4] x) => (float y) { s = Constant <value_floats = [1.0]> () y = Resize (x, , s) }": "4 axes",
    "(float[4] x, bool c) => (float y) { y = If (c) <then_branch = a () => (float p) { p = Relu (x) }, "
    "else_branch = b () => (float q) { q = Neg (x) }> }": "input c decides",
    "(float[4] x) => (float y) { n = Constant <value_int = 2000> () y = Loop (n, , x) "
    "<body = b (int64 i, bool c, float[4] p) => (bool d, float[4] q) { d = Identity (c) q = Neg (p) }> }":
        "more than 1000 steps",
    "(float[S] x) => (float y) { a = Constant <value_ints = [-3]> () z = Shape (x) n = Add (z, a) "
    "y = Slice (x, n, z) }": "negative for some sizes",
    "(double[4] x) => (double y) { y = Relu (x) }": "float64|double",
    "(float[4] x) => (float8e4m3fn y) { y = Cast <to = 17> (x) }": "float8e4m3fn",
}  # fmt: skip


@pytest.mark.parametrize(("body", "message"), REFUSED.items(), ids=map(str, range(len(REFUSED))))
def test_refused(body: str, message: str) -> None:
    """What cannot be compiled is refused, with a reason and the node."""
    older = "axes = [2]" in body or "<split" in body
    with pytest.raises(ModelError, match=message):
        compiled(body, 11 if older else 21)


def test_all_unsupported_operators_are_named_at_once() -> None:
    """Also those within branches; each with the nodes that it is in."""
    text = """(float[4] x, bool c) => (float y) {
        a, i, j, k = Unique (x)  b = Det (a)
        y = If (c) <then_branch = t () => (float p) { p = NonMaxSuppression (x, x) },
                    else_branch = e () => (float q) { q = Neg (b) }> }"""
    with pytest.raises(ModelError) as caught:
        compiled(text)
    assert all(f"{name} (node {name}_" in str(caught.value) for name in ("Det", "NonMaxSuppression", "Unique"))
