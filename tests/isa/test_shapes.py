"""Symbolic shapes: parsing, unification, and what mismatches say."""

from __future__ import annotations

import pytest

from dla.isa.descriptor import Dynamic
from dla.isa.shapes import Bindings, Shape, ShapeMismatch, broadcasts_to, expand, parse, unify

N = Dynamic(31, 64)
M = Dynamic(30, 64)


def bind(*pairs: tuple[str, Shape]) -> Bindings:
    """Unify (pattern, shape) pairs one after the other."""
    bindings = Bindings({}, {})
    for i, (pattern, shape) in enumerate(pairs):
        unify(parse(pattern), shape, bindings, f"operand {i}")
    return bindings


@pytest.mark.parametrize(
    ("pattern", "shape", "dims", "parts"),
    [
        ("[M, K]", (2, 3), {"M": 2, "K": 3}, {}),
        ("[]", (), {}, {}),
        ("[B...]", (), {}, {"B": ()}),
        ("[B..., M]", (4, N, 3), {"M": 3}, {"B": (4, N)}),
        ("[N, S..., C]", (2, 5, 6, 3), {"N": 2, "C": 3}, {"S": (5, 6)}),
        ("[N, S..., C]", (2, 3), {"N": 2, "C": 3}, {"S": ()}),
        ("[N, 1]", (N, 1), {"N": N}, {}),
        ("[D2]", (7,), {"D2": 7}, {}),
    ],
)
def test_names_bind_to_dims(pattern: str, shape: Shape, dims: dict[str, int], parts: dict[str, Shape]) -> None:
    """Fixed names take one dim each, the variadic part takes what is left, wherever it stands."""
    bindings = bind((pattern, shape))
    assert bindings.dims == dims
    assert bindings.prefixes == parts
    assert expand(parse(pattern), bindings) == shape


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("[M, K]", (2, 3)), ("[K, N]", (4, 5))], "K = 3"),
        ([("[M]", (2, 3))], "does not have the rank of"),
        ([("[B..., M, K]", (3,))], "does not have the rank of"),
        ([("[N, 1]", (4, 2))], "1 = 1"),
        ([("[B..., M]", (4, 2)), ("[B..., M]", (3, 2))], "has dims [3] for B, which is [4]"),
        ([("[B..., M]", (4, 2)), ("[~B..., M]", (3, 2))], "do not broadcast to [4]"),
        ([("[B...]", (4, 2)), ("~[B...]", (3, 2))], "does not broadcast to [4, 2]"),
        ([("[B...]", (4,)), ("~[B...]", (1, 4))], "does not broadcast to [4]"),
        ([("[M]", (N,)), ("[M]", (M,))], "s31 <= 64"),
        ([("[M]", (N,)), ("[M]", (64,))], "s31 <= 64"),
        ([("[M]", (N,)), ("[M]", (Dynamic(31, 63),))], "s31 <= 64"),
    ],
)
def test_a_mismatch_says_what_was_expected(pairs: list[tuple[str, Shape]], message: str) -> None:
    """The same name is the same dim; a dynamic dim equals only itself, bound included."""
    with pytest.raises(ShapeMismatch) as raised:
        bind(*pairs)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("shape", "target", "fits"),
    [
        ((), (2, 3), True), ((3,), (2, 3), True), ((1, 3), (2, 3), True), ((2, 1), (2, 3), True), ((2,), (2, 3), False),
        ((2, 3), (3,), False), ((N,), (5, N), True), ((1,), (N,), True), ((N,), (M,), False), ((0,), (1,), False),
        ((1,), (0,), True),
    ],
)  # fmt: skip
def test_broadcasting_is_numpys(shape: Shape, target: Shape, fits: bool) -> None:
    """Aligned right, equal or 1; never the other way round."""
    assert broadcasts_to(shape, target) is fits


def test_leading_dims_broadcast_beside_fixed_ones() -> None:
    """[~B..., K, N] may leave out or repeat leading dims."""
    bindings = bind(("[B..., M, N]", (4, 5, 2, 3)), ("[~B..., M, K]", (5, 2, 7)), ("[~B..., K, N]", (4, 1, 7, 3)))
    assert bindings.size("K") == 7
    assert bindings.sizes("B") == (4, 5)


def test_sizes_of_dynamic_dims_are_their_bounds() -> None:
    """A binding answers with numbers."""
    bindings = bind(("[B..., M]", (3, N, M)))
    assert bindings.size("M") == 64
    assert bindings.sizes("B") == (3, 64)


@pytest.mark.parametrize("text", ["M, K", "[m]", "[A..., B...]", "[2x]", "[M K]"])
def test_a_malformed_pattern_is_refused(text: str) -> None:
    """Patterns are part of the program text of rows: a mistake there must not pass."""
    with pytest.raises(ValueError, match=r"shape pattern"):
        parse(text)
