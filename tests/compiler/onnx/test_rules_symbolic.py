"""Rules on tensors of symbolic size: one program, run at several sizes."""

from __future__ import annotations

import pytest
from onnx_bodies import check

SMALL, FULL = {"B": 1, "S": 3, "P": 2}, {"B": 3, "S": 8, "P": 5}

BODIES = {
    "reshape keeps and infers": """(float[B, S, 6] x) => (float y) {
        shape = Constant <value_ints = [0, -1, 2, 3]> ()  y = Reshape (x, shape) }""",
    "reshape by arithmetic on shapes": """(float[B, S, 6] x) => (float y) {
        b = Shape <start = 0, end = 1> (x)  s = Shape <start = 1, end = 2> (x)
        two = Constant <value_ints = [2]> ()  three = Constant <value_ints = [3]> ()
        rows = Mul (b, s)  shape = Concat <axis = 0> (rows, two, three)  y = Reshape (x, shape) }""",
    "reshape as exporters write it": """(float[B, S, 6] x) => (float y) {
        all = Shape (x)  zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()
        b = Gather (all, zero)  s = Gather (all, one)  at = Constant <value_ints = [0]> ()
        b1 = Unsqueeze (b, at)  s1 = Unsqueeze (s, at)  heads = Constant <value_ints = [2, 3]> ()
        shape = Concat <axis = 0> (b1, s1, heads)  h = Reshape (x, shape)  y = Transpose <perm = [0, 2, 1, 3]> (h) }""",
    "flatten": "(float[B, 2, 3] x) => (float y) { y = Flatten <axis = -2> (x) }",
    "shifted parts fit each other": """(float[S, 2] x) => (float y) {
        zero = Constant <value_ints = [0]> ()  one = Constant <value_ints = [1]> ()
        last = Constant <value_ints = [-1]> ()  most = Constant <value_ints = [9223372036854775807]> ()
        a = Slice (x, one, most, zero)  b = Slice (x, zero, last, zero)  y = Sub (a, b) }""",
    "the end of an axis": """(float[B, S] x) => (float y) {
        from = Constant <value_ints = [-2]> ()  to = Constant <value_ints = [100]> ()
        axis = Constant <value_ints = [1]> ()  y = Slice (x, from, to, axis) }""",
    "every second": """(float[S, 3] x) => (float y) {
        from = Constant <value_ints = [0]> ()  to = Constant <value_ints = [100]> ()
        axis = Constant <value_ints = [0]> ()  step = Constant <value_ints = [2]> ()
        y = Slice (x, from, to, axis, step) }""",
    "reversed": """(float[B, S] x) => (float y) {
        from = Constant <value_ints = [-1]> ()  to = Constant <value_ints = [-9223372036854775807]> ()
        axis = Constant <value_ints = [1]> ()  step = Constant <value_ints = [-1]> ()
        y = Slice (x, from, to, axis, step) }""",
    "a table up to the length": """(float[B, S, 2] x) => (float y) {
        table = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]> ()
        zero = Constant <value_ints = [0]> ()  one = Constant <value_ints = [1]> ()
        length = Shape <start = 1, end = 2> (x)
        part = Slice (table, zero, length, zero)  column = Unsqueeze (part, one)  y = Mul (x, column) }""",
    "expand to another's shape": """(float[B, 1, 2] x, float[B, S, 1] like) => (float y) {
        shape = Shape (like)  y = Expand (x, shape) }""",
    "positions after a past": """(float[B, P] past, float[B, S] x) => (float y, int64 at) {
        y = Concat <axis = 1> (past, x)
        p = Shape <start = 1, end = 2> (past)  t = Shape <start = 1, end = 2> (y)
        none = Constant <value_ints = [0]> ()  p0 = Squeeze (p, none)  t0 = Squeeze (t, none)
        one = Constant <value_int = 1> ()  at = Range (p0, t0, one) }""",
    "odd numbers below": """(float[S] x) => (int64 y) {
        n = Size (x)  one = Constant <value_int = 1> ()  two = Constant <value_int = 2> ()
        y = Range (one, n, two) }""",
    "tiles": """(float[1, S, 2] x, float[B] like) => (float y) {
        b = Shape (like)  twice = Constant <value_ints = [1, 2]> ()  r = Concat <axis = 0> (b, twice)
        y = Tile (x, r) }""",
    "zeros in the shape of": """(float[B, S] x) => (float y) {
        shape = Shape (x)  zeros = ConstantOfShape <value = float[1] {0.5}> (shape)  y = Add (x, zeros) }""",
    "causal mask": """(float[S, S] x) => (float y) {
        shape = Shape (x)  ones = ConstantOfShape <value = float[1] {-1000.0}> (shape)
        k = Constant <value_int = 1> ()  mask = Trilu <upper = 1> (ones, k)  y = Add (x, mask) }""",
    "causal mask by comparison": """(float[S, S] x) => (float y) {
        shape = Shape <start = 0, end = 1> (x)  zero = Constant <value_ints = [0]> ()
        none = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()  n = Squeeze (shape, zero)  row = Range (none, n, one)
        right = Constant <value_ints = [1]> ()  column = Unsqueeze (row, right)
        future = Greater (row, column)  low = Constant <value_float = -1000.0> ()  y = Where (future, low, x) }""",
    "diagonal": "(float[S, 4] x) => (float y) { y = EyeLike <k = 1> (x) }",
    "padded with a number": """(float[B, S] x) => (float y) {
        pads = Constant <value_ints = [0, 2, 1, 3]> ()  v = Constant <value_float = 7.0> ()  y = Pad (x, pads, v) }""",
    "padded with its edges": """(float[B, S, 2] x) => (float y) {
        pads = Constant <value_ints = [1, 2, 3, 1]> ()  v = Constant <value_float = 0.0> ()
        axes = Constant <value_ints = [1, 2]> ()  y = Pad <mode = "edge"> (x, pads, v, axes) }""",
    "picked elements": """(float[B, S, 2] x, int64[B, 1, 2] at) => (float y) {
        y = GatherElements <axis = 1> (x, at) }""",
    "picked tokens": "(float[5, 3] table, int64[B, S] ids) => (float y) { y = Gather (table, ids) }",
    "picked by coordinates": """(float[B, S, 2] x, int64[B, 4, 1] at) => (float y) {
        y = GatherND <batch_dims = 1> (x, at) }""",
    "written at coordinates": """(float[S, 2] x, int64[3, 1] at, float[3, 2] u) => (float y) {
        y = ScatterND <reduction = "add"> (x, at, u) }""",
    "written elements": """(float[B, S] x, int64[B, 2] at, float[B, 2] u) => (float y) {
        y = ScatterElements <axis = 1, reduction = "max"> (x, at, u) }""",
    "mean of pooled tokens": """(float[B, S, 4] x) => (float y) {
        axis = Constant <value_ints = [1]> () y = ReduceMean (x, axis) }""",
    "mean of integers": """(int32[B, S] x) => (int32 y) {
        axis = Constant <value_ints = [1]> () y = ReduceMean (x, axis) }""",
    "last of the largest": "(int32[B, S] x) => (int64 y) { y = ArgMax <axis = 1, select_last_index = 1> (x) }",
    "running sum": "(float[B, S] x) => (float y) { a = Constant <value_int = 1> () y = CumSum <reverse = 1> (x, a) }",
    "one hot": """(int64[B, S] x) => (float y) {
        depth = Constant <value_int = 4> ()  v = Constant <value_floats = [0.0, 1.0]> ()
        y = OneHot <axis = 1> (x, depth, v) }""",
    "best two": """(float[B, S] x) => (float y, int64 i) {
        k = Constant <value_ints = [2]> ()  y, i = TopK <axis = -1> (x, k) }""",
    "split in uneven parts": """(float[B, 5] x) => (float y, float z) {
        y, z = Split <axis = 1, num_outputs = 2> (x) }""",
    "a part of symbolic size": """(float[B, P] a, float[B, S] b) => (float y, float z) {
        c = Concat <axis = 1> (a, b)  p = Shape <start = 1, end = 2> (a)  s = Shape <start = 1, end = 2> (b)
        sizes = Concat <axis = 0> (p, s)  y, z = Split <axis = 1> (c, sizes) }""",
    "depth to space of a batch": "(float[B, 8, 2, 3] x) => (float y) { y = DepthToSpace <blocksize = 2> (x) }",
    "reversed sequences": """(float[S, B, 2] x, float[B] like) => (float y) {
        n = Shape (like)  one = Constant <value = int64[1] {2}> ()  lengths = Expand (one, n)
        y = ReverseSequence <time_axis = 0, batch_axis = 1> (x, lengths) }""",
    "einsum of a projection": """(float[B, S, 4] x, float[4, 5] w) => (float y) {
        y = Einsum <equation = "bsd,de->bse"> (x, w) }""",
    "einsum of scores": """(float[B, S, 2, 4] q, float[B, P, 2, 4] k) => (float y) {
        y = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k) }""",
    "resized images of a batch": """(float[B, 2, 3, 4] x) => (float y) {
        scales = Constant <value_floats = [1.0, 1.0, 2.0, 1.5]> ()
        y = Resize <mode = "linear"> (x, , scales) }""",
    "a branch chosen by shape": """(float[B, S] x) => (float y) {
        n = Size (x)  zero = Constant <value_int = -1> ()  some = Greater (n, zero)
        y = If (some) <then_branch = a () => (float[B, S] p) { p = Relu (x) },
                       else_branch = b () => (float[B, S] q) { q = Neg (x) }> }""",
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_bodies(body: str) -> None:
    """The program gives what the reference gives, at both sizes."""
    check(body, SMALL, FULL)
