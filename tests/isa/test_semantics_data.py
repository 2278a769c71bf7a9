"""What COPY, FILL, IOTA, PAD, GATHER, SCATTER, SELECT and TOPK mean, against plain loops."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dla.isa.dtypes import ALL, FLOATS, NUMBERS, Array, DType, convert
from dla.isa.errors import Trap

TYPES = pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.text)


def bits(array: Array) -> bytes:
    """The bytes of an array, for comparisons that see -0.0 and NaN payloads."""
    return np.ascontiguousarray(array).tobytes()


@TYPES
def test_copy_of_one_type_moves_bits(evaluate: Any, random: np.random.Generator, dtype: DType) -> None:
    """A COPY between equal types keeps every bit, NaN payloads and -0.0 included."""
    raw = random.integers(0, 256, 24 * dtype.itemsize, dtype=np.uint8)
    x = (raw & 1 if dtype is DType.BOOL else raw).view(dtype.numpy).reshape(4, 6)
    (y,) = evaluate("COPY", (4, 6), x, dtype=dtype)
    assert bits(convert(y, dtype)) == bits(x)


def test_copy_broadcasts(evaluate: Any) -> None:
    """A row is repeated over leading axes."""
    (y,) = evaluate("COPY", (2, 3), np.array([1, 2, 3], np.float32))
    assert y.tolist() == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        (np.float32(-2.9), DType.I32, -2),
        (np.float32(np.nan), DType.I32, 0),
        (np.float32(1e20), DType.I32, 2**31 - 1),
        (np.float32(-1e20), DType.I64, -(2**63)),
        (np.float32(1e20), DType.I64, 2**63 - 1),
        (np.float32(300.5), DType.U8, 255),
        (np.float32(-1), DType.U8, 0),
        (np.int64(300), DType.U8, 44),
        (np.int64(200), DType.I8, -56),
        (np.float32(0.25), DType.BOOL, True),
        (np.float32(np.nan), DType.BOOL, True),
        (np.int32(2**24 + 1), DType.F32, 2.0**24),
        (np.int64(65520), DType.F16, np.inf),
        (np.float32(1 + 2**-9), DType.BF16, 1.0),
        (np.int32(2**24 + 2**16 + 1), DType.BF16, 2.0**24 + 2.0**17),
        (np.float64(1 + 2**-8 + 2**-40), DType.BF16, 1 + 2**-7),
        (np.bool_(True), DType.BF16, 1.0),
    ],
)
def test_conversions_follow_the_stated_rules(value: Any, to: DType, expected: Any) -> None:
    """Floats truncate and saturate, NaN is 0, integers keep low bits, and floats round once to nearest even."""
    got = convert(np.asarray(value), to)
    assert got.dtype == to.numpy
    assert got.item() == expected


def test_bf16_rounds_once_from_f64(random: np.random.Generator) -> None:
    """The nearest bf16 is never closer than the one that convert gives, ties excepted."""
    x = random.standard_normal(2000) * 2.0 ** random.integers(-20, 20, 2000)
    got = convert(x, DType.BF16).astype(np.float64)
    spacing = np.ldexp(1.0, np.frexp(x)[1] - 8)
    assert np.all(np.abs(got - x) <= spacing / 2)
    midpoints = np.ldexp(np.floor(np.ldexp(x, 8 - np.frexp(x)[1])) + 0.5, np.frexp(x)[1] - 8)
    above = convert(midpoints * (1 + 2.0**-45), DType.BF16).astype(np.float64)
    assert np.all(np.abs(above) > np.abs(midpoints))


@pytest.mark.parametrize("value", [3, -2, 0.5, True])
@TYPES
def test_fill_writes_the_converted_number(evaluate: Any, dtype: DType, value: Any) -> None:
    """Every element of out is the number, in out's type."""
    (y,) = evaluate("FILL", (2, 0, 3), value=value, dtype=dtype)
    assert y.size == 0
    (y,) = evaluate("FILL", (2, 3), value=value, dtype=dtype)
    assert bits(convert(y, dtype)) == bits(np.broadcast_to(convert(np.asarray(value), dtype), (2, 3)))


def test_iota_counts_along_its_axis(evaluate: Any) -> None:
    """Each element is start + step * index, and only the index along the axis matters."""
    (y,) = evaluate("IOTA", (2, 3, 4), start=5, step=-2, axis=1, dtype=DType.I32)
    for index in np.ndindex(2, 3, 4):
        assert y[index] == 5 - 2 * index[1]


def test_iota_of_integers_wraps_and_of_floats_does_not(evaluate: Any) -> None:
    """Integers are computed in i64, anything with a float in f64."""
    (y,) = evaluate("IOTA", (2,), start=2**63 - 1, step=1, dtype=DType.I64)
    assert y.tolist() == [2**63 - 1, -(2**63)]
    (y,) = evaluate("IOTA", (3,), start=0, step=0.5)
    assert y.tolist() == [0, 0.5, 1]


def padded(x: Array, low: int, high: int, source: Any) -> list[Any]:
    """One axis padded by a function from an index outside to an index inside (or a value)."""
    n = len(x)
    return [x[i] if 0 <= i < n else source(i, n) for i in range(-low, n + high)]


@TYPES
@pytest.mark.parametrize("sub", ["constant", "reflect", "edge", "wrap"])
def test_pad_surrounds_a_row(evaluate: Any, random: np.random.Generator, dtype: DType, sub: str) -> None:
    """The elements added are the value, the mirror image, the end, or the next period; all bits are kept."""
    x = convert(random.integers(-100, 100, 5), dtype)
    value = convert(np.asarray(7), dtype)
    inside = {
        "constant": lambda i, n: value[()],
        "reflect": lambda i, n: x[-i if i < 0 else 2 * (n - 1) - i],
        "edge": lambda i, n: x[0 if i < 0 else n - 1],
        "wrap": lambda i, n: x[i % n],
    }[sub]
    zeros = (0,) * 4
    given = {"value": 7} if sub == "constant" else {}
    (y,) = evaluate(
        f"PAD.{sub}", (3, 9), np.stack([x] * 3), low=(0, 3, *zeros), high=(0, 1, *zeros), dtype=dtype, **given
    )
    expected = np.array(padded(x, 3, 1, inside), dtype=dtype.numpy)
    for row in y:
        assert bits(row) == bits(expected)


@pytest.mark.parametrize("sub", ["constant", "reflect", "edge", "wrap"])
def test_pad_of_two_axes_is_one_after_the_other(evaluate: Any, random: np.random.Generator, sub: str) -> None:
    """Corners come from padding one axis and then the other; an empty unpadded axis stays empty."""
    x = random.standard_normal((3, 4)).astype(np.float32)
    zeros = (0,) * 4
    (both,) = evaluate(f"PAD.{sub}", (6, 6), x, low=(1, 2, *zeros), high=(2, 0, *zeros))
    (first,) = evaluate(f"PAD.{sub}", (6, 4), x, low=(1, 0, *zeros), high=(2, 0, *zeros))
    (then,) = evaluate(f"PAD.{sub}", (6, 6), first, low=(0, 2, *zeros), high=(0, 0, *zeros))
    assert bits(both) == bits(then)
    (empty,) = evaluate(f"PAD.{sub}", (6, 0), x[:, :0], low=(1, 0, *zeros), high=(2, 0, *zeros))
    assert empty.shape == (6, 0)


@TYPES
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_gather_replaces_an_axis_by_indices(
    evaluate: Any, random: np.random.Generator, dtype: DType, axis: int, shape: tuple[int, ...]
) -> None:
    """out[a, i, b] is x[a, indices[i], b], bit for bit."""
    x = convert(random.integers(-100, 100, (3, 4, 5)), dtype)
    indices = random.integers(0, x.shape[axis], shape)
    out = x.shape[:axis] + shape + x.shape[axis + 1 :]
    (y,) = evaluate("GATHER", out, x, indices, axis=axis, dtype=dtype)
    expected = np.empty(out, dtype.numpy)
    for index in np.ndindex(out):
        a, i, b = index[:axis], index[axis : axis + len(shape)], index[axis + len(shape) :]
        expected[index] = x[(*a, indices[i], *b)]
    assert bits(y) == bits(expected)


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_gather_traps_on_an_index_outside(evaluate: Any, index: int) -> None:
    """Neither negative indices nor those beyond the end are clamped: they trap."""
    with pytest.raises(Trap, match=f"index {index} is not from 0 to 2") as raised:
        evaluate("GATHER", (2,), np.arange(3.0), np.array([0, index]))
    assert raised.value.category == "index"


FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda a, b: b,
    "add": operator.add,
    "mul": operator.mul,
    "max": max,
    "min": min,
}


@pytest.mark.parametrize("sub", FOLDS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64], ids=lambda d: d.text)
@pytest.mark.parametrize(
    ("axis", "part"), [(0, (9, 4, 5)), (1, (3, 7, 5)), (2, (2, 3, 8)), (1, (3, 0, 5)), (0, (6, 0, 5)), (2, (1, 1, 1))]
)
def test_scatter_folds_position_after_position(
    evaluate: Any, random: np.random.Generator, sub: str, dtype: DType, axis: int, part: tuple[int, ...]
) -> None:
    """Each position of indices changes one element, in row-major order; the others stay."""
    x, updates = (random.integers(-9, 10, shape).astype(dtype.numpy) for shape in ((3, 4, 5), part))
    indices = random.integers(0, x.shape[axis], part)
    (y,) = evaluate(f"SCATTER.{sub}", x.shape, x, indices, updates, axis=axis, dtype=dtype)
    expected = x.copy()
    for position in np.ndindex(part):
        at = (*position[:axis], indices[position], *position[axis + 1 :])
        expected[at] = FOLDS[sub](expected[at], updates[position])
    assert bits(y) == bits(expected)


def test_scatter_leaves_its_operands_alone(evaluate: Any) -> None:
    """The result is another array than x, even where nothing changes."""
    x = np.zeros(3)
    (y,) = evaluate("SCATTER.add", (3,), x, np.array([1, 1]), np.array([2.0, 3.0]))
    assert (x.tolist(), y.tolist()) == ([0, 0, 0], [0, 5, 0])


def test_scatter_of_bools_keeps_the_last(evaluate: Any) -> None:
    """A later update of one element replaces an earlier one."""
    x, indices, updates = np.zeros(3, np.bool_), np.array([2, 0, 2]), np.array([True, True, False])
    (y,) = evaluate("SCATTER.set", (3,), x, indices, updates, dtype=DType.BOOL)
    assert y.tolist() == [True, False, False]


@pytest.mark.parametrize("sub", ["max", "min"])
def test_scatter_passes_nan_on(evaluate: Any, sub: str) -> None:
    """NaN wins, whether it was there or comes."""
    x, updates = np.array([np.nan, 1.0, 1.0]), np.array([2.0, np.nan, 3.0])
    (y,) = evaluate(f"SCATTER.{sub}", (3,), x, np.array([0, 1, 1]), updates)
    assert np.isnan(y).tolist() == [True, True, False]


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_scatter_traps_on_an_index_outside(evaluate: Any, index: int) -> None:
    """As GATHER does: nothing is clamped, and a negative index is none."""
    with pytest.raises(Trap, match=f"SCATTER: index {index} is not from 0 to 2") as raised:
        evaluate("SCATTER.set", (3,), np.arange(3.0), np.array([0, index]), np.ones(2))
    assert raised.value.category == "index"


@TYPES
def test_select_moves_the_chosen_element(evaluate: Any, random: np.random.Generator, dtype: DType) -> None:
    """A where cond is true, b elsewhere, all broadcast."""
    cond = random.integers(0, 2, (4, 1)).astype(bool)
    a, b = (convert(random.integers(-100, 100, s), dtype) for s in ((3,), ()))
    (y,) = evaluate("SELECT", (4, 3), cond, a, b, dtype=dtype)
    for i, j in np.ndindex(4, 3):
        assert y[i, j] == (a[j] if cond[i, 0] else b)
    assert y.dtype == dtype.numpy


def ordered(row: list[Any], count: int, smallest: bool) -> list[int]:
    """Indices of the extreme elements by selection: scan for the best, mark it, repeat."""

    def better(i: int, j: int) -> bool:
        a, b = row[i], row[j]
        if a != a or b != b:
            return bool((b != b) and (a == a)) if smallest else bool((a != a) and (b == b))
        return bool(a < b if smallest else a > b)

    left, chosen = list(range(len(row))), []
    for _ in range(count):
        best = left[0]
        for i in left:
            if better(i, best):
                best = i
        left.remove(best)
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("smallest", [False, True])
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.text)
def test_topk_is_sorted_and_keeps_the_first_of_equals(
    evaluate: Any, random: np.random.Generator, dtype: DType, smallest: bool
) -> None:
    """Best first, ties by lower index, NaN largest."""
    x = convert(random.integers(0, 6, (7, 9)), dtype)
    wide = x.astype(np.float64 if dtype in FLOATS else np.int64)
    if dtype in FLOATS:
        wide[random.random(wide.shape) < 0.2] = np.nan
        wide[0, :3] = [-np.inf, np.inf, -0.0]
    values, indices = evaluate("TOPK", (7, 4), wide, smallest=smallest, dtype=dtype)
    for row in range(7):
        expected = ordered(wide[row].tolist(), 4, smallest)
        assert indices[row].tolist() == expected
        np.testing.assert_array_equal(values[row], wide[row, expected])


def test_topk_orders_the_extremes_of_i64(evaluate: Any) -> None:
    """The smallest i64 has no negative, and is ordered all the same."""
    x = np.array([[-(2**63), 0, 2**63 - 1]])
    (values, _) = evaluate("TOPK", (1, 3), x, dtype=DType.I64)
    assert values.tolist() == [[2**63 - 1, 0, -(2**63)]]


def test_topk_of_too_few_elements_traps(evaluate: Any) -> None:
    """A dynamic N below K traps with category extent."""
    with pytest.raises(Trap, match="2 of 1 elements") as raised:
        evaluate("TOPK", (1, 2), np.zeros((1, 1)))
    assert raised.value.category == "extent"
