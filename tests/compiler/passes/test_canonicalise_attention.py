"""Attention and its masks in the spellings of exporters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from canonical import BATCH, PAST, SEQ, canonical, canonical_graph

from dla.compiler.builder import GraphBuilder
from dla.isa.dtypes import DType

BOOL, F16, F32, I64 = DType.BOOL, DType.F16, DType.F32, DType.I64
HEADS, WIDTH = 4, 8
LOWEST = float(np.finfo(np.float32).min)
MINUS = float("-inf")


def operands(keys=SEQ, heads=HEADS, dtype=F32):
    """A builder, queries [batch, HEADS, seq, WIDTH], and keys and values [batch, heads, keys, WIDTH]."""
    b = GraphBuilder()
    q = b.input("q", dtype, (BATCH, HEADS, SEQ, WIDTH))
    k, v = (b.input(name, dtype, (BATCH, heads, keys, WIDTH)) for name in "kv")
    if keys == SEQ + PAST:  # so that the size of the cache is known
        b.output("cache", b.act("abs", b.input("past", F32, (PAST,))))
    return b, q, k, v


def product(b, q, k):
    """Scores, scaled afterwards."""
    return b.div(b.matmul(q, b.swap(k)), math.sqrt(WIDTH))


def attend(b, scores, v):
    """softmax(scores) @ v as the output."""
    b.output("y", b.matmul(b.softmax(scores), v))


def found(b, **options):
    """The one ATTENTION that is left of the graph."""
    graph = canonical_graph(b, **options)
    (node,) = (n for n in graph.nodes if n.op == "ATTENTION")
    assert not [n for n in graph.nodes if n.op in ("GEMM", "SOFTMAX")]
    return node


SCALES = {
    "after, quotient": product,
    "after, factor": lambda b, q, k: b.mul(b.matmul(q, b.swap(k)), 1 / math.sqrt(WIDTH)),
    "before, queries": lambda b, q, k: b.matmul(b.div(q, math.sqrt(WIDTH)), b.swap(k)),
    "before, both": lambda b, q, k: b.matmul(b.mul(q, WIDTH**-0.25), b.mul(b.swap(k), WIDTH**-0.25)),
    "before, key under the transpose": lambda b, q, k: b.matmul(q, b.swap(b.mul(k, WIDTH**-0.5))),
}


@pytest.mark.parametrize("scale", SCALES)
def test_the_usual_scale(scale):
    """1 / sqrt(width), wherever it is multiplied in, needs no attribute."""
    b, q, k, v = operands(SEQ + PAST)
    attend(b, SCALES[scale](b, q, k), v)
    assert "scale" not in found(b).attributes


def test_another_scale():
    """It becomes the attribute."""
    b, q, k, v = operands()
    attend(b, b.mul(b.matmul(q, b.swap(k)), 0.25), v)
    assert found(b).attributes["scale"] == 0.25


def test_no_scale():
    """A factor of 1 must be said."""
    b, q, k, v = operands()
    attend(b, b.matmul(q, b.swap(k)), v)
    assert found(b).attributes["scale"] == 1.0


def test_soft_cap():
    """Scores as cap * tanh(scores / cap)."""
    b, q, k, v = operands()
    attend(b, b.mul(b.act("tanh", b.div(product(b, q, k), 30.0)), 30.0), v)
    assert found(b).attributes["softcap"] == 30.0


def test_softmax_in_f32_of_half_precision():
    """ATTENTION computes in f32 anyway."""
    b, q, k, v = operands(dtype=F16)
    p = b.cast(b.softmax(b.cast(product(b, q, k), F32)), F16)
    b.output("y", b.matmul(p, v))
    assert canonical(b, rtol=4e-3) == {"ATTENTION": 1}


def test_keys_transposed_by_way_of_rank_3():
    """As PyTorch's exporter does it."""
    b, q, k, v = operands()
    flat = b.swap(b.reshape(k, (BATCH * HEADS, SEQ, WIDTH)))
    attend(b, b.matmul(q, b.reshape(flat, (BATCH, HEADS, WIDTH, SEQ))), v)
    assert found(b).inputs[1] is k


def test_heads_as_samples():
    """nn.MultiheadAttention multiplies [batch * heads, seq, width]."""
    b = GraphBuilder()
    q, k, v = (b.input(name, F32, (BATCH * HEADS, SEQ, WIDTH)) for name in "qkv")
    shown = b.input("shown", F32, (BATCH, SEQ))
    b.output("s", shown)
    mask = b.constant(np.triu(np.full((1, 8, 8), MINUS, np.float32), 1))
    scores = b.add(b.matmul(b.div(q, math.sqrt(WIDTH)), b.swap(k)), b.slice(mask, {}, {1: SEQ, 2: SEQ}))
    attend(b, scores, v)
    node = found(b)
    assert node.output.dims == (BATCH * HEADS, 1, SEQ, WIDTH)
    assert node.attributes["causal"]


# -- masks


def test_an_added_mask():
    """It needs no EXPAND."""
    b, q, k, v = operands()
    mask = b.input("mask", F32, (BATCH, 1, 1, SEQ))
    attend(b, b.add(b.expand(mask, (BATCH, 1, SEQ, SEQ)), product(b, q, k)), v)
    assert found(b).inputs[3] is mask


def test_two_added_masks():
    """Their sum is one mask."""
    b, q, k, v = operands()
    masks = [b.input("row", F32, (BATCH, 1, 1, SEQ)), b.input("heads", F32, (HEADS, SEQ, SEQ))]
    attend(b, b.add(b.add(product(b, q, k), masks[0]), masks[1]), v)
    assert canonical(b) == {"EW.add": 1, "ATTENTION": 1}


def test_a_mask_of_each_window():
    """Swin: samples are images times windows, and each window has a mask."""
    b = GraphBuilder()
    q, k, v = (b.input(name, F32, (BATCH * 3, HEADS, 5, WIDTH)) for name in "qkv")
    b.output("size", b.act("abs", b.input("images", F32, (BATCH,))))
    mask = b.input("mask", F32, (3, 1, 5, 5))
    split = b.reshape(product(b, q, k), (BATCH, 3, HEADS, 5, 5))
    attend(b, b.reshape(b.add(split, mask), (BATCH * 3, HEADS, 5, 5)), v)
    assert found(b).inputs[3].dims == (BATCH * 3, 1, 5, 5)


def test_queries_keys_and_values_of_one_product():
    """As timm has it: [B, S, 3, H, D], permuted and unbound; all three are views."""
    b = GraphBuilder()
    x = b.input("x", F32, (BATCH, SEQ, 3 * HEADS * WIDTH))
    parts = b.transpose(b.reshape(x, (BATCH, SEQ, 3, HEADS, WIDTH)), (2, 0, 3, 1, 4))
    q, k, v = (b.gather(parts, b.constant(index, I64), 0) for index in range(3))
    attend(b, product(b, q, k), v)
    assert canonical(b) == {"ATTENTION": 1}


HIDDEN = {
    "where(m, s, -inf)": (lambda b, m, s: b.select(m, s, MINUS), True),
    "where(not m, -inf, s)": (lambda b, m, s: b.select(b.act("not", m), MINUS, s), True),
    "s + where(m, 0, -inf)": (lambda b, m, s: b.add(s, b.select(m, b.constant(0.0, F32), MINUS)), True),
    "where(m, s, lowest)": (lambda b, m, s: b.select(m, s, LOWEST), False),
    "s + where(m, 0, lowest)": (lambda b, m, s: b.add(s, b.select(m, b.constant(0.0, F32), LOWEST)), False),
    "where(m, s, -1e9)": (lambda b, m, s: b.select(m, s, -1e9), False),
    "where(m, s, -10000)": (lambda b, m, s: b.select(m, s, -1e4), False),
}


@pytest.mark.parametrize("spelling", HIDDEN)
def test_hidden_keys(spelling):
    """-infinity is what a bool mask means; the lowest finite number differs where a row has nothing else."""
    write, exact = HIDDEN[spelling]
    b, q, k, v = operands()
    mask = b.input("mask", BOOL, (BATCH, 1, 1, SEQ))
    p = b.softmax(write(b, mask, product(b, q, k)))
    b.output("y", b.matmul(p, v))
    node = found(b)
    assert node.inputs[3].dtype is (BOOL if exact else F32)
    assert canonical(b)["SELECT"] == (not exact)


def test_guard_against_rows_without_keys():
    """ATTENTION gives 0 there, as the guard does."""
    b, q, k, v = operands()
    mask = b.input("mask", BOOL, (BATCH, 1, SEQ, SEQ))
    p = b.softmax(b.select(mask, product(b, q, k), MINUS))
    b.output("y", b.matmul(b.select(b.act("isnan", p), 0.0, p), v))
    assert found(b).inputs[3] is mask


def test_a_choice_that_is_no_mask():
    """Nobody would call -100 minus infinity."""
    b, q, k, v = operands()
    mask = b.input("mask", BOOL, (BATCH, 1, 1, SEQ))
    attend(b, b.select(mask, product(b, q, k), -100.0), v)
    assert canonical(b) == {"GEMM": 2, "SELECT": 1, "SOFTMAX.soft": 1}


# -- causal masks


def places(b, start, count, shape):
    """Start, start + 1, ... as a row or a column."""
    return b.reshape(b.iota((count,), I64, start=start), shape)


def compared(b, past):
    """Keys at or before each query."""
    total = SEQ + past
    return b.ew("le", places(b, 0, total, (1, 1, 1, total)), places(b, past, SEQ, (1, 1, SEQ, 1)))


def added(b, past, low):
    """A float mask by comparison and product."""
    total = SEQ + past
    later = b.ew("gt", places(b, 0, total, (1, total)), places(b, past, SEQ, (SEQ, 1)))
    full = b.select(later, b.fill((SEQ, total), low, F32), 0.0)
    return b.reshape(b.mul(full, b.cast(later, F32)), (1, 1, SEQ, total))


def sliced(b, past):
    """A slice of a constant triangle."""
    triangle = b.constant(np.tri(20, dtype=bool)[None, None])
    return b.slice(triangle, {2: past}, {2: SEQ, 3: SEQ + past})


CAUSAL = {
    "where(compared, s, -inf)": lambda b, s, past: b.select(compared(b, past), s, MINUS),
    "where(compared, s, lowest)": lambda b, s, past: b.select(compared(b, past), s, LOWEST),
    "where(not compared, -10000, s)": lambda b, s, past: b.select(b.act("not", compared(b, past)), -1e4, s),
    "s + where(compared, 0, lowest)": lambda b, s, past: b.add(
        s, b.select(compared(b, past), b.constant(0.0, F32), LOWEST)
    ),
    "s + product": lambda b, s, past: b.add(s, added(b, past, LOWEST)),
    "expanded": lambda b, s, past: b.add(s, b.expand(added(b, past, LOWEST), (BATCH, 1, SEQ, SEQ + past))),
    "where(triangle, s, lowest)": lambda b, s, past: b.select(sliced(b, past), s, LOWEST),
    "s + (1 - triangle) * lowest": lambda b, s, past: b.add(s, b.mul(b.sub(1.0, b.cast(sliced(b, past), F32)), LOWEST)),
}


@pytest.mark.parametrize("past", [0, PAST], ids=["whole", "cache"])
@pytest.mark.parametrize("spelling", CAUSAL)
def test_causal(spelling, past):
    """Every spelling of it becomes the attribute, and no mask is left."""
    b, q, k, v = operands(SEQ + past)
    attend(b, CAUSAL[spelling](b, product(b, q, k), past), v)
    node = found(b)
    assert node.inputs[3] is None
    assert node.attributes == {"causal": True}


def test_a_mask_for_one_query_at_the_end_hides_nothing_more_than_causal():
    """Decoding token by token: the axis of queries has size 1."""
    b, _, k, v = operands(PAST + 1)
    b.output("size", b.act("abs", b.input("past", F32, (PAST,))))
    q = b.input("token", F32, (BATCH, HEADS, 1, WIDTH))
    mask = b.ew("le", places(b, 0, PAST + 1, (1, 1, 1, PAST + 1)), places(b, PAST, 1, (1, 1, 1, 1)))
    attend(b, b.select(mask, product(b, q, k), LOWEST), v)
    node = found(b)
    assert node.inputs[3] is None
    assert node.attributes == {"causal": True}


def test_causal_from_another_position():
    """Queries that do not sit at the last keys."""
    b, q, k, v = operands(SEQ + 3)
    mask = b.ew("le", places(b, 0, SEQ + 3, (1, SEQ + 3)), places(b, 1, SEQ, (SEQ, 1)))
    attend(b, b.select(mask, product(b, q, k), MINUS), v)
    assert found(b).attributes == {"causal": True, "position": 1}


def test_causal_and_padding():
    """The attribute and a small mask instead of a large one."""
    b, q, k, v = operands()
    padding = b.input("padding", BOOL, (BATCH, 1, 1, SEQ))
    mask = b.ew("and", compared(b, 0), padding)
    attend(b, b.select(mask, product(b, q, k), MINUS), v)
    node = found(b)
    assert node.attributes["causal"]
    assert node.inputs[3] is padding


def test_causal_and_padding_by_the_lowest_number_stay_together():
    """A row whose keys are all padding attends to all keys alike, later ones too: only the whole mask says so."""
    b, q, k, v = operands()
    padding = b.input("padding", BOOL, (BATCH, 1, 1, SEQ))
    mask = b.ew("and", compared(b, 0), padding)
    attend(b, b.add(product(b, q, k), b.select(mask, b.constant(0.0, F32), LOWEST)), v)
    assert "causal" not in found(b).attributes


WINDOWS = {
    "where(m, s, -inf)": lambda b, m, s: b.select(m, s, MINUS),
    "where(m, s, lowest)": lambda b, m, s: b.select(m, s, LOWEST),
    "s + where(m, 0, lowest)": lambda b, m, s: b.add(s, b.select(m, b.constant(0.0, F32), LOWEST)),
}


@pytest.mark.parametrize("past", [0, PAST], ids=["whole", "cache"])
@pytest.mark.parametrize("spelling", WINDOWS)
def test_window(spelling, past):
    """The last three keys only, as sliding windows of Mistral and Gemma."""
    b, q, k, v = operands(SEQ + past)
    total = SEQ + past
    key, query = places(b, 0, total, (1, 1, 1, total)), places(b, past, SEQ, (1, 1, SEQ, 1))
    mask = b.ew("and", b.ew("le", key, query), b.ew("gt", key, b.sub(query, 3)))
    attend(b, WINDOWS[spelling](b, mask, product(b, q, k)), v)
    node = found(b)
    assert node.inputs[3] is None
    assert node.attributes == {"causal": True, "window": 3}


def test_a_window_after_the_query_stays():
    """A window of no key at all is none that the attribute can say."""
    b, q, k, v = operands()
    key, query = places(b, 0, SEQ, (1, SEQ)), places(b, 0, SEQ, (SEQ, 1))
    mask = b.ew("and", b.ew("le", key, query), b.ew("gt", key, b.add(query, 1)))
    attend(b, b.select(mask, product(b, q, k), MINUS), v)
    node = found(b)
    assert "window" not in node.attributes


NOT_CAUSAL = {
    "before": lambda b: b.ew("ge", places(b, 0, SEQ, (1, SEQ)), places(b, 0, SEQ, (SEQ, 1))),
    "every other key": lambda b: b.ew("le", b.iota((1, SEQ), I64, axis=1, step=2), places(b, 0, SEQ, (SEQ, 1))),
    "along samples": lambda b: b.ew("le", places(b, 0, SEQ, (1, 1, SEQ)), places(b, 0, HEADS, (HEADS, 1, 1))),
}


@pytest.mark.parametrize("spelling", NOT_CAUSAL)
def test_other_comparisons_stay_masks(spelling):
    """Only keys after a query are hidden by `causal`."""
    b, q, k, v = operands()
    attend(b, b.select(NOT_CAUSAL[spelling](b), product(b, q, k), MINUS), v)
    node = found(b)
    assert node.inputs[3] is not None
    assert "causal" not in node.attributes


def test_a_constant_mask_with_a_hole_stays():
    """Every element of a constant counts."""
    b, q, k, v = operands()
    triangle = np.tri(8, dtype=bool)
    triangle[5, 2] = False
    mask = b.slice(b.constant(triangle), {}, {0: SEQ, 1: SEQ})
    attend(b, b.select(mask, product(b, q, k), MINUS), v)
    assert "causal" not in found(b).attributes


def test_the_lowest_number_where_a_query_sees_no_key():
    """Position -1: query 0 sees nothing, and the lowest number is not -infinity there."""
    b, q, k, v = operands()
    mask = b.ew("lt", places(b, 0, SEQ, (1, SEQ)), places(b, 0, SEQ, (SEQ, 1)))
    attend(b, b.select(mask, product(b, q, k), LOWEST), v)
    assert "causal" not in found(b).attributes


def test_a_mask_that_hides_nothing():
    """It is dropped."""
    b, q, k, v = operands()
    attend(b, b.add(product(b, q, k), b.fill((1, 1, SEQ, SEQ), 0.0, F32)), v)
    assert found(b).inputs[3] is None


# -- groups of heads


@pytest.mark.parametrize("turned", [False, True])
def test_keys_and_values_repeated_for_groups_of_heads(turned):
    """ATTENTION reads each of them for a group."""
    b, q, k, v = operands(heads=2)

    def repeat(x):
        return b.reshape(b.expand(b.unsqueeze(x, 2), (BATCH, 2, 2, SEQ, WIDTH)), (BATCH, HEADS, SEQ, WIDTH))

    def repeat_turned(x):
        x = b.unsqueeze(b.transpose(x, (0, 2, 1, 3)), 3)
        wide = b.reshape(b.expand(x, (BATCH, SEQ, 2, 2, WIDTH)), (BATCH, SEQ, HEADS, WIDTH))
        return b.transpose(wide, (0, 2, 1, 3))

    k, v = (repeat_turned(x) if turned else repeat(x) for x in (k, v))
    attend(b, product(b, q, k), v)
    node = found(b)
    assert [x.name for x in node.inputs[:3]] == ["q", "k", "v"]


def test_heads_repeated_in_turns_stay():
    """0 1 0 1 is another order than 0 0 1 1."""
    b, q, k, v = operands(heads=2)

    def repeat(x):
        wide = b.expand(b.unsqueeze(x, 1), (BATCH, 2, 2, SEQ, WIDTH))
        return b.reshape(wide, (BATCH, HEADS, SEQ, WIDTH))

    attend(b, product(b, q, repeat(k)), repeat(v))
    assert found(b).inputs[1].dims[1] == HEADS


# -- what is no attention


def near_misses():
    """Graphs that are almost attention."""
    b, q, k, v = operands()
    p = b.softmax(product(b, q, k))
    b.output("p", p)
    b.output("y", b.matmul(p, v))
    yield "probabilities are read", b
    b, q, k, v = operands()
    b.output("y", b.matmul(b.softmax(product(b, q, k), axis=2), v))
    yield "softmax over queries", b
    b, q, k, v = operands()
    scores = product(b, q, k)
    b.output("s", scores)
    attend(b, scores, v)
    yield "scores are read", b
    b, q, k, v = operands()
    attend(b, b.act("relu", product(b, q, k)), v)
    yield "another function of scores", b
    b, q, k, v = operands()
    mask = b.input("mask", F32, (1, 1, SEQ, SEQ))
    attend(b, b.mul(b.add(b.matmul(q, b.swap(k)), mask), 0.5), v)
    yield "mask before scale", b


@pytest.mark.parametrize(("name", "b"), list(near_misses()))
def test_near_misses(name, b):
    """Products and a softmax that are not attention stay."""
    assert canonical(b)["ATTENTION"] == 0
