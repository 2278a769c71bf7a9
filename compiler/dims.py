"""Symbolic dims: sizes that are known only when a program runs, as polynomials with integer coefficients.

    batch * seq + 1        symbols such as `batch` have a largest value; so has every expression of them

`Dim = int | Expr`: arithmetic gives an int wherever the result does not depend on a symbol. Equal expressions are equal
objects for `==`, because terms are kept in one canonical form; floors and extremes that do not simplify are atoms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Union

from dla.isa.errors import ModelError


@dataclass(frozen=True)
class Symbol:
    """A named size, 0 <= size <= bound, set when the program starts."""

    name: str
    bound: int

    def __str__(self) -> str:
        return self.name

    @property
    def interval(self) -> tuple[int, int]:
        return 0, self.bound

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value where symbols have `sizes`."""
        return sizes[self.name]


@dataclass(frozen=True)
class Quotient:
    """floor(numerator / divisor), for a divisor of at least 1."""

    numerator: Dim
    divisor: Dim

    def __str__(self) -> str:
        return f"({self.numerator} // {_factor_text(self.divisor)})"

    @property
    def interval(self) -> tuple[int, int]:
        low, high = interval(self.numerator)
        small, large = interval(self.divisor)
        ends = [end // d for end in (low, high) for d in (max(small, 1), max(large, 1))]
        return min(ends), max(ends)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value where symbols have `sizes`."""
        return evaluate(self.numerator, sizes) // evaluate(self.divisor, sizes)


@dataclass(frozen=True)
class Extreme:
    """The smaller ("min") or the larger ("max") of two sizes."""

    kind: str
    a: Dim
    b: Dim

    def __str__(self) -> str:
        return f"{self.kind}({self.a}, {self.b})"

    @property
    def interval(self) -> tuple[int, int]:
        pick = min if self.kind == "min" else max
        (low_a, high_a), (low_b, high_b) = interval(self.a), interval(self.b)
        return pick(low_a, low_b), pick(high_a, high_b)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value where symbols have `sizes`."""
        pick = min if self.kind == "min" else max
        return pick(evaluate(self.a, sizes), evaluate(self.b, sizes))


_HEAVIEST = 128  # of an expression, in atoms: products of sums grow fast, and floors of floors nest
Atom = Symbol | Quotient | Extreme
Monomial = tuple[Atom, ...]
"""A product of atoms in canonical order; () is 1."""


@dataclass(frozen=True)
class Expr:
    """A sum of integer multiples of monomials that is not a constant. Made by arithmetic on `symbol(...)`."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        return _sum((_product(m, n), a * b) for m, a in self.terms for n, b in _terms(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        exact = divide(self, other)
        if exact is not None:
            return exact
        low, high = interval(self)
        if isinstance(other, int) and low // other == high // other:
            return low // other
        return _limited((((Quotient(self, other),), 1),))

    def __rfloordiv__(self, other: int) -> Dim:
        if other == 0:
            return 0
        return _limited((((Quotient(other, self),), 1),))

    def __mod__(self, other: Dim) -> Dim:
        return self - (self // other) * other

    def __str__(self) -> str:
        parts = []
        for monomial, factor in self.terms:
            text = " * ".join(map(str, monomial))
            parts.append(str(factor) if not monomial else text if factor == 1 else f"{factor} * {text}")
        return " + ".join(parts).replace("+ -", "- ")

    __repr__ = __str__

    @cached_property
    def interval(self) -> tuple[int, int]:
        """Its smallest and largest value, as far as interval arithmetic tells."""
        extremes = [(m, f) for m, f in self.terms if len(m) == 1 and isinstance(m[0], Extreme)]
        if 0 < len(extremes) <= 4:  # each doubles the work
            # The smaller (larger) of two sums, so that max(a, b) - b is known not to be negative.
            chosen, times = extremes[0]
            (atom,) = chosen
            assert isinstance(atom, Extreme), "only these were chosen"
            rest = self - Expr((extremes[0],))
            pick = max if (atom.kind == "max") == (times > 0) else min
            sides = [interval(side * times + rest) for side in (atom.a, atom.b)]
            return pick(low for low, _ in sides), pick(high for _, high in sides)
        low = high = 0
        for monomial, factor in self.terms:
            ends = reduce(_times, (atom.interval for atom in monomial), (factor, factor))
            low, high = low + ends[0], high + ends[1]
        return low, high

    @cached_property
    def weight(self) -> int:
        """How many atoms there are in it, also within others."""
        return sum(_weight(atom) for monomial, _ in self.terms for atom in monomial)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol in it."""
        return frozenset(s for monomial, _ in self.terms for atom in monomial for s in _symbols_of(atom))

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value where symbols have `sizes`."""
        return sum(factor * math.prod(atom.at(sizes) for atom in monomial) for monomial, factor in self.terms)


Dim = Union[int, Expr]  # noqa: UP007  # Expr's own annotations need the name before `|` can be evaluated


def symbol(name: str, bound: int) -> Expr:
    """The dim that is called `name` and is at most `bound`."""
    return Expr((((Symbol(name, bound),), 1),))


def interval(dim: Dim) -> tuple[int, int]:
    """The smallest and the largest value of `dim`."""
    return (dim, dim) if isinstance(dim, int) else dim.interval


def bound(dim: Dim) -> int:
    """The largest value of `dim`."""
    return interval(dim)[1]


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value of `dim` where symbols have `sizes`."""
    return dim if isinstance(dim, int) else dim.at(sizes)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def divide(a: Dim, b: Dim) -> Dim | None:
    """A / b where that is exact for all values of the symbols; else None."""
    if isinstance(b, int):
        if b == 0:
            return None
        if isinstance(a, int):
            return a // b if a % b == 0 else None
        if all(factor % b == 0 for _, factor in a.terms):
            return _sum((m, factor // b) for m, factor in a.terms)
        return None
    if isinstance(a, int):
        return 0 if a == 0 else None
    atoms = sorted({atom for dim in (a, b) for monomial, _ in dim.terms for atom in monomial}, key=str)

    def leading(dim: Dim) -> tuple[Monomial, int]:
        """The first term in graded lexicographic order, which products respect, so that division ends."""
        return max(_terms(dim), key=lambda term: (len(term[0]), *(term[0].count(atom) for atom in atoms)))

    quotient: Dim = 0
    while a != 0:
        (first, factor), (divisor, scale) = leading(a), leading(b)
        rest = list(first)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if factor % scale:
            return None
        term = _sum([(tuple(rest), factor // scale)])
        quotient, a = quotient + term, a - term * b
    return quotient


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims."""
    return _extreme("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of two dims."""
    return _extreme("max", a, b)


def symbols(dims: Iterable[Dim]) -> frozenset[Symbol]:
    """Every symbol in `dims`."""
    return frozenset(s for dim in dims if isinstance(dim, Expr) for s in dim.symbols)


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with the symbols named in `values` replaced."""
    if isinstance(dim, int):
        return dim
    result: Dim = 0
    for monomial, factor in dim.terms:
        result = product([*(_substitute_atom(atom, values) for atom in monomial), factor]) + result
    return result


def _substitute_atom(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return values.get(atom.name, Expr((((atom,), 1),)))
    if isinstance(atom, Quotient):
        return substitute(atom.numerator, values) // substitute(atom.divisor, values)
    return _extreme(atom.kind, substitute(atom.a, values), substitute(atom.b, values))


def _extreme(kind: str, a: Dim, b: Dim) -> Dim:
    low, high = interval(a - b)
    if low >= 0:
        return b if kind == "min" else a
    if high <= 0:
        return a if kind == "min" else b
    a, b = sorted((a, b), key=str)
    return _limited((((Extreme(kind, a, b),), 1),))


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), int(dim)),)


def _product(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted((*a, *b), key=str))


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    kept = [(m, f) for m, f in total.items() if f]
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    # Constants last, so that it reads `seq + 1`.
    _check_weight(kept)
    return Expr(tuple(sorted(kept, key=lambda term: (not term[0], [str(a) for a in term[0]]))))


def _limited(terms: tuple[tuple[Monomial, int], ...]) -> Expr:
    """An expression, if it is not too heavy. Raises ModelError."""
    _check_weight(terms)
    return Expr(terms)


def _check_weight(terms: Iterable[tuple[Monomial, int]]) -> None:
    if sum(_weight(atom) for monomial, _ in terms for atom in monomial) > _HEAVIEST:
        raise ModelError(f"a symbolic size is a formula of more than {_HEAVIEST} parts",
                         hint="fix some dims: --fix NAME=SIZE")  # fmt: skip


def _weight(atom: Atom) -> int:
    """How many atoms there are in one, with itself."""
    if isinstance(atom, Symbol):
        return 1
    parts = (atom.numerator, atom.divisor) if isinstance(atom, Quotient) else (atom.a, atom.b)
    return 1 + sum(part.weight for part in parts if isinstance(part, Expr))


def _times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _symbols_of(atom: Atom) -> Iterable[Symbol]:
    if isinstance(atom, Symbol):
        return (atom,)
    parts: tuple[Any, ...] = (atom.numerator, atom.divisor) if isinstance(atom, Quotient) else (atom.a, atom.b)
    return symbols(parts)


def _factor_text(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) or len(dim.terms) == 1 else f"({dim})"
