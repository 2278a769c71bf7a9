"""Products, convolutions, pools, normalisations, attention and quantisation: what ONNX's node tests leave out."""

from __future__ import annotations

import pytest
from onnx_bodies import check, compiled

from dla.isa.errors import ModelError

SMALL, FULL = {"B": 1, "S": 2, "P": 1}, {"B": 3, "S": 8, "P": 5}

SYMBOLIC = {
    "matrix by vector": "(float[B, S, 4] x, float[4] v) => (float y) { y = MatMul (x, v) }",
    "vector by matrix": "(float[S] v, float[B, S, 4] x) => (float y) { y = MatMul (v, x) }",
    "vector by vector": "(float[S] v, float[S] w) => (float y) { y = MatMul (v, w) }",
    "batches that broadcast": "(float[B, 1, S, 4] x, float[3, 4, 2] w) => (float y) { y = MatMul (x, w) }",
    "matrices of integers": "(int64[B, S, 4] x, int64[4, 3] w) => (int64 y) { y = MatMul (x, w) }",
    "gemm": """(float[4, B] x, float[3, 4] w, float[B, 1] c) => (float y) {
        y = Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0> (x, w, c) }""",
    "gemm with a scaled bias": """(float[B, 4] x, float[4, 3] w) => (float y) {
        c = Constant <value_floats = [1.0, 2.0, 3.0]> ()  y = Gemm <beta = 0.5> (x, w, c) }""",
    "gemm without its bias": """(float[B, 4] x, float[4, 3] w, float[3] c) => (float y) {
        y = Gemm <beta = 0.0> (x, w, c) }""",
    "gemm of integers": """(int32[B, 4] x, int32[4, 3] w, int32[3] c) => (int32 y) {
        y = Gemm <alpha = 2.0, beta = 3.0> (x, w, c) }""",
    "convolution along one axis": """(float[B, 4, 9] x, float[6, 2, 3] w, float[6] b) => (float y) {
        y = Conv <group = 2, strides = [2], dilations = [2], pads = [1, 2]> (x, w, b) }""",
    "convolution along two axes": """(float[B, 4, 7, 8] x, float[6, 4, 2, 3] w) => (float y) {
        y = Conv <auto_pad = "SAME_LOWER", strides = [2, 3]> (x, w) }""",
    "convolution along three axes": """(float[B, 4, 5, 6, 7] x, float[6, 2, 2, 3, 2] w, float[6] b) => (float y) {
        y = Conv <group = 2, strides = [2, 1, 2], dilations = [2, 1, 1], pads = [1, 0, 1, 2, 1, 0]> (x, w, b) }""",
    "max along three axes": """(float[B, 2, 5, 6, 7] x) => (float y) {
        y = MaxPool <kernel_shape = [2, 3, 2], strides = [2, 1, 3], pads = [1, 0, 1, 0, 1, 1], ceil_mode = 1> (x) }""",
    "mean along three axes": """(float[B, 2, 5, 6, 7] x) => (float y) {
        y = AveragePool <kernel_shape = [2, 3, 2], strides = [2, 1, 3], pads = [1, 0, 1, 0, 1, 1]> (x) }""",
    "mean over every position": "(float[B, 2, 3, 4, 5] x) => (float y) { y = GlobalAveragePool (x) }",
    "batch norm": """(float[B, 3, 4] x, float[3] g, float[3] b, float[3] m) => (float y) {
        v = Constant <value_floats = [1.0, 2.0, 3.0]> ()
        y = BatchNormalization <epsilon = 0.1> (x, g, b, m, v) }""",
    "instance norm": """(float[B, 3, S] x, float[3] g, float[3] b) => (float y) {
        y = InstanceNormalization (x, g, b) }""",
    "group norm": """(float[B, 4, 3, 2] x, float[4] g, float[4] b) => (float y) {
        y = GroupNormalization <num_groups = 2> (x, g, b) }""",
    "convolution at given places": """(float[B, 4, 5, 6] x, float[6, 2, 2, 3] w, float[B, 24, 3, 3] o, float[6] b,
        float[B, 12, 3, 3] m) => (float y) {
        y = DeformConv <group = 2, offset_group = 2, strides = [2, 2], dilations = [1, 1], pads = [1, 1, 0, 1],
                        kernel_shape = [2, 3]> (x, w, o, b, m) }""",
    "layer norm over two axes": """(float[B, 3, 4] x, float[4] g, float[3, 4] b) => (float y, float m, float i) {
        y, m, i = LayerNormalization <axis = 1> (x, g, b) }""",
    "softmax": "(float[B, 3, S] x) => (float y, float z) { y = Softmax (x)  z = LogSoftmax <axis = 1> (x) }",
    "product of 8 bits": """(int8[B, 4] x, uint8[4, 3] w, int8[1] xz, uint8[3] wz) => (int32 y) {
        y = MatMulInteger (x, w, xz, wz) }""",
    "quantised along an axis": """(float[B, 3, 2] x) => (int8 q, float y) {
        s = Constant <value_floats = [0.5, 0.01, 2.0]> ()  z = Constant <value = int8[3] {1, -2, 3}> ()
        q = QuantizeLinear <axis = 1> (x, s, z)  y = DequantizeLinear <axis = 1> (q, s, z) }""",
}  # fmt: skip


@pytest.mark.parametrize("body", SYMBOLIC.values(), ids=SYMBOLIC.keys())
def test_symbolic(body: str) -> None:
    """The program gives what the reference gives, at both sizes."""
    check(body, SMALL, FULL)


RUNTIME = {
    "max along one axis": "(float[B, 2, 9] x) => (float y) { y = MaxPool <kernel_shape = [3], pads = [1, 1]> (x) }",
    "mean over a symbolic number of positions": "(float[B, 2, S, 3] x) => (float y) { y = GlobalAveragePool (x) }",
    "largest of every position": "(float[B, 2, 5] x) => (float y) { y = GlobalMaxPool (x) }",
    "neighbouring channels": """(float[B, 5, 2, 2] x) => (float y) {
        y = LRN <size = 3, alpha = 0.5, beta = 0.6, bias = 2.0> (x) }""",
    "transposed convolution in groups": """(float[B, 4, 3, 4] x, float[4, 3, 2, 3] w, float[6] b) => (float y) {
        y = ConvTranspose <group = 2, strides = [3, 2], dilations = [2, 1], pads = [1, 0, 0, 2],
                           output_padding = [1, 0]> (x, w, b) }""",
    "transposed convolution to a shape": """(float[B, 2, 5] x, float[2, 3, 4] w) => (float y) {
        y = ConvTranspose <strides = [2], output_shape = [11], auto_pad = "SAME_UPPER"> (x, w) }""",
    "transposed convolution, cropped": """(float[B, 2, 5] x, float[2, 3, 2] w) => (float y) {
        y = ConvTranspose <strides = [1], pads = [2, 1]> (x, w) }""",
    "transposed convolution along three axes": """(float[B, 2, 3, 2, 4] x, float[2, 3, 2, 3, 2] w) => (float y) {
        y = ConvTranspose <strides = [2, 1, 3], pads = [1, 0, 0, 0, 1, 1]> (x, w) }""",
    "mean that counts padding, rounded up": """(float[B, 2, 7, 6] x) => (float y) {
        y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1,
                         ceil_mode = 1> (x) }""",
    "largest and where, along rows": """(float[B, 3, 5, 6] x) => (float y, int64 i) {
        y, i = MaxPool <kernel_shape = [2, 3], strides = [2, 2], dilations = [2, 1], pads = [1, 1, 0, 1]> (x) }""",
    "largest and where, along columns": """(float[B, 3, 5, 6] x) => (float y, int64 i) {
        y, i = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x) }""",
    "norm of windows": """(float[B, 2, 7] x) => (float y) {
        y = LpPool <kernel_shape = [3], p = 3, strides = [2], pads = [1, 1]> (x) }""",
    "norm of every position": "(float[B, 2, 3, 4] x) => (float y) { y = GlobalLpPool <p = 3> (x) }",
    "means of regions": """(float[2, 3, 6, 7] x, float[3, 4] r) => (float y) {
        n = Constant <value = int64[3] {0, 1, 1}> ()
        y = RoiAlign <output_height = 2, output_width = 3, sampling_ratio = 2, spatial_scale = 3.0> (x, r, n) }""",
    "largest of regions": """(float[2, 3, 6, 7] x, float[3, 4] r) => (float y) {
        n = Constant <value = int64[3] {0, 1, 1}> ()
        y = RoiAlign <output_height = 2, output_width = 1, sampling_ratio = 3, mode = "max",
                      coordinate_transformation_mode = "output_half_pixel"> (x, r, n) }""",
    "convolution of 8 bits": """(uint8[B, 300, 3, 3] x, uint8[2, 300, 2, 2] w, uint8 xz, uint8 wz) => (int32 y) {
        y = ConvInteger <pads = [1, 0, 0, 1]> (x, w, xz, wz) }""",
    "quantised convolution": """(uint8[B, 4, 3, 3] x, int8[4, 2, 2, 2] w, int32[4] b) => (uint8 y) {
        sx = Constant <value_float = 0.1> ()  zx = Constant <value = uint8 {3}> ()
        sw = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> ()  zw = Constant <value = int8[4] {0, 0, 0, 0}> ()
        sy = Constant <value_float = 0.05> ()  zy = Constant <value = uint8 {100}> ()
        y = QLinearConv <group = 2> (x, sx, zx, w, sw, zw, sy, zy, b) }""",
}  # fmt: skip


@pytest.mark.parametrize("body", RUNTIME.values(), ids=RUNTIME.keys())
def test_against_the_runtime(body: str) -> None:
    """The program gives what onnxruntime gives, at both sizes."""
    check(body, SMALL, FULL, runtime=True)


ATTENTION = {
    "grouped heads with a past": """(float[B, 4, S, 6] q, float[B, 2, S, 6] k, float[B, 2, S, 5] v,
        float[B, 2, P, 6] pk, float[B, 2, P, 5] pv) => (float y, float ck, float cv) {
        y, ck, cv = Attention <is_causal = 1, scale = 0.3> (q, k, v, , pk, pv) }""",
    "flat heads, masked": """(float[B, S, 8] q, float[B, P, 4] k, float[B, P, 6] v, bool[S, P] m) => (float y) {
        y = Attention <q_num_heads = 4, kv_num_heads = 2, softcap = 2.0> (q, k, v, m) }""",
    "scores after everything": """(float[B, 4, S, 6] q, float[B, 2, S, 6] k, float[B, 2, S, 6] v, float[S, S] m)
        => (float y, float s) {
        y, _, _, s = Attention <is_causal = 1, qk_matmul_output_mode = 3, softcap = 3.0> (q, k, v, m) }""",
    "raw scores": """(float[B, 2, S, 6] q, float[B, 2, P, 6] k, float[B, 2, P, 6] v) => (float y, float s) {
        y, _, _, s = Attention (q, k, v) }""",
    "rotated per sample": """(float[B, S, 12] x, int64[B, S] p) => (float y) {
        cos = Constant <value = float[5, 2] {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}> ()
        sin = Constant <value = float[5, 2] {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0}> ()
        two = Constant <value_int = 2> ()  at = Add (p, two)
        y = RotaryEmbedding <num_heads = 2, rotary_embedding_dim = 4> (x, cos, sin, at) }""",
    "rotated alike": """(float[B, 3, S, 4] x, float[1, S, 2] c, float[1, S, 2] s) => (float y) {
        b = Shape <start = 0, end = 1> (x)  one = Constant <value_ints = [1, 1]> ()
        shape = Concat <axis = 0> (b, one)  cos = Expand (c, shape)  sin = Expand (s, shape)
        y = RotaryEmbedding <interleaved = 1> (x, cos, sin) }""",
    "rms norm": "(float[B, S, 3, 2] x, float[2] g) => (float y) { y = RMSNormalization <axis = -2> (x, g) }",
}  # fmt: skip


@pytest.mark.parametrize("body", ATTENTION.values(), ids=ATTENTION.keys())
def test_attention(body: str) -> None:
    """The program gives what the reference gives, at both sizes."""
    check(body, SMALL, FULL, opset=24)


OLDER = {
    "softmax of a flattened tensor": (12, "(float[2, 3, 4] x) => (float y) { y = Softmax (x) }"),
    "softmax of the last axis": (12, "(float[2, 3, 4] x) => (float y) { y = LogSoftmax <axis = 2> (x) }"),
    "group norm with one gain for a group": (
        18, """(float[2, 4, 3] x, float[2] g, float[2] b) => (float y) {
            y = GroupNormalization <num_groups = 2> (x, g, b) }"""),
    "batch norm that learns": (
        15, """(float[3, 2, 4] x, float[2] g, float[2] b, float[2] m, float[2] v) => (float y, float p, float q) {
            y, p, q = BatchNormalization <training_mode = 1, momentum = 0.8> (x, g, b, m, v) }"""),
}  # fmt: skip


@pytest.mark.parametrize(("opset", "body"), OLDER.values(), ids=OLDER.keys())
def test_older_operator_sets(opset: int, body: str) -> None:
    """Operators that have meant something else."""
    check(body, opset=opset, runtime=True)


REFUSED = {
    "(float[1, 2, S] x, float[3, 2, 2] w) => (float y) { y = Conv (x, w) }": "symbolic size",
    "(float[1, 2, 3] x, float[3, 1, 2] w) => (float y) { y = Conv (x, w) }": "do not fit",
    "(float[1, 2, 3] x, float[3, 2, 2] w) => (float y) { y = Conv <strides = [0]> (x, w) }": r"strides = \[0\]",
    "(float[1, 2, 3] x, float[3, 2, 2] w) => (float y) { y = Conv <pads = [1]> (x, w) }": r"pads = \[1\]",
    "(float[1, 2, 3] x, float[3, 2, 4] w) => (float y) { y = Conv (x, w) }": "larger than its padded input",
    '(float[1, 2, 3] x) => (float y) { y = MaxPool <kernel_shape = [2], auto_pad = "SAME"> (x) }': "auto_pad = 'SAME'",
    "(float[1, 2, 3, 4, 5, 6] x) => (float y) { y = MaxPool <kernel_shape = [1, 1, 1, 1]> (x) }": "along 4 axes",
    "(float[2, 3] x, float[4, 5] w) => (float y) { y = MatMul (x, w) }": "inner dims differ",
    "(float[2, 5, 3] x, float[5] g, float[5] b) => (float y) { y = GroupNormalization <num_groups = 2> (x, g, b) }":
        "5 channels do not fall into 2 groups",
    "(float[1, S, 7] q) => (float y) { y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q) }":
        "7 columns do not fall into 2 heads",
    "(float[1, 7, S] q) => (float y) { y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q) }":
        r"axis 2 of f32\[1, 7, S\] must have a known size",
    "(uint8[1, 1, 20, 20] x, uint8[1, 1, 20, 20] w) => (int32 y) { y = ConvInteger (x, w) }":
        "400 taps and 1 channels: too large to be computed exactly",
}  # fmt: skip


@pytest.mark.parametrize(("body", "message"), REFUSED.items(), ids=REFUSED.values())
def test_refused(body: str, message: str) -> None:
    """What has no meaning, or no form on the machine, is one clear error."""
    with pytest.raises(ModelError, match=message):
        compiled(body, 24)
