"""Einsum: diagonals, sums, and products of two operands at a time, which are GEMMs where an index is summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.isa.descriptor import MAX_RANK
from dla.isa.errors import ModelError

Labels = tuple[str, ...]
"""The index of each axis: a letter, or `.k` for the k-th axis from the end of an ellipsis."""


@dataclass(frozen=True)
class Term:
    """A tensor and the indices of its axes."""

    value: Value
    labels: Labels

    def size(self, label: str) -> Dim:
        """The size of the axis that `label` is; 1 if none is."""
        return self.value.dims[self.labels.index(label)] if label in self.labels else 1


def einsum(c: Context) -> Value:
    """Operands are multiplied from left to right; indices are summed as soon as nothing after needs them."""
    inputs, result = _parsed(c)
    terms = [_diagonal(c, Term(v, labels)) for v, labels in zip(c.values(), inputs, strict=True)]
    for k in range(len(terms)):
        others = {label for j, t in enumerate(terms) if j != k for label in t.labels}
        terms[k] = _summed(c, terms[k], others | set(result))
    total, *rest = terms
    while rest:
        other, *rest = rest
        needed = {*result, *(label for t in rest for label in t.labels)}
        total = _product(c, total, other, needed)
    total = _summed(c, total, result)
    return _ordered(c, total, result)


def _parsed(c: Context) -> tuple[list[Labels], Labels]:
    """The labels of the inputs and of the result. Without an arrow, the result has the letters that occur once."""
    equation = "".join(c.required("equation").split())
    left, arrow, right = equation.partition("->")
    parts = left.split(",")
    if len(parts) != c.count:
        raise ModelError(f"equation '{equation}' has {len(parts)} operands, the node {c.count}")
    inputs = [_labels(equation, part, v.rank) for part, v in zip(parts, c.values(), strict=True)]
    dots = sorted({label for labels in inputs for label in labels if label[0] == "."}, key=_position)
    if arrow:
        result = _split(equation, right, len(dots))
    else:
        letters = sorted(x for x in set(left) if x.isalpha() and left.count(x) == 1)
        result = (*dots, *letters)
    unknown = [label for label in result if not any(label in labels for labels in inputs)]
    if unknown or len(set(result)) != len(result):
        raise ModelError(f"equation '{equation}' has a result that does not follow from its operands")
    return inputs, result


def _position(label: str) -> int:
    """Order of an ellipsis' axes: the last one is `.1`."""
    return -int(label[1:])


def _labels(equation: str, part: str, rank: int) -> Labels:
    letters = len(part.replace("...", ""))
    labels = _split(equation, part, rank - letters if "..." in part else 0)
    if len(labels) != rank:
        raise ModelError(f"'{part}' of equation '{equation}' for an operand of rank {rank}")
    return labels


def _split(equation: str, part: str, dots: int) -> Labels:
    before, ellipsis, after = part.partition("...")
    if not all(x.isalpha() for x in before + after) or dots < 0:
        raise ModelError(f"equation '{equation}' is not one of letters and '...'")
    axes = [f".{k}" for k in range(dots, 0, -1)] if ellipsis else []
    return (*before, *axes, *after)


def _diagonal(c: Context, term: Term) -> Term:
    """Each index once: of n by n elements in a row, those of the diagonal are n + 1 apart."""
    value, labels = term.value, list(term.labels)
    while len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        size = value.dims[first]
        if size != value.dims[second] or not isinstance(size, int):
            raise ModelError(f"index '{twice}' of {value.type} needs axes of one known size")
        rest = [k for k in range(value.rank) if k not in (first, second)]
        moved = c.b.transpose(value, [*rest, first, second])
        flat = c.b.reshape(moved, [*moved.dims[:-2], size * size])
        value = c.b.slice(flat, {}, {-1: size}, {-1: size + 1})
        labels = [*(labels[k] for k in rest), twice]
    return Term(value, tuple(labels))


def _summed(c: Context, term: Term, needed: Iterable[str]) -> Term:
    """Without the indices that nothing needs."""
    needed = set(needed)
    gone = [k for k, label in enumerate(term.labels) if label not in needed]
    if not gone:
        return term
    return Term(c.b.reduce("sum", term.value, gone), tuple(x for x in term.labels if x in needed))


def _ordered(c: Context, term: Term, labels: Sequence[str]) -> Value:
    """The axes in the order of `labels`."""
    return c.b.transpose(term.value, [term.labels.index(label) for label in labels])


def _product(c: Context, a: Term, b: Term, needed: set[str]) -> Term:
    """The product of two terms, summed over the indices that both have and nothing needs."""
    a, b = _squeezed(c, a, b), _squeezed(c, b, a)
    shared = [x for x in a.labels if x in b.labels]
    inner = [x for x in shared if x not in needed]
    batch = [x for x in shared if x in needed]
    outer_a = [x for x in a.labels if x not in b.labels]
    outer_b = [x for x in b.labels if x not in a.labels]
    for label in shared:
        if a.size(label) != b.size(label):
            raise ModelError(f"index '{label}' has sizes {a.size(label)} and {b.size(label)}")
    labels = (*batch, *outer_a, *outer_b)
    if not inner or not a.value.dtype.is_float:
        return _outer(c, a, b, labels, inner)
    at, bt = _ordered(c, a, [*batch, *outer_a, *inner]), _ordered(c, b, [*batch, *inner, *outer_b])
    rows, columns = (dims.product(t.size(x) for x in xs) for t, xs in ((a, outer_a), (b, outer_b)))
    depth, sizes = dims.product(a.size(x) for x in inner), [a.size(x) for x in batch]
    groups = sizes if len(sizes) <= MAX_RANK - 2 else [dims.product(sizes)]
    made = c.b.matmul(c.b.reshape(at, [*groups, rows, depth]), c.b.reshape(bt, [*groups, depth, columns]))
    full = [*sizes, *(a.size(x) for x in outer_a), *(b.size(x) for x in outer_b)]
    return Term(c.b.reshape(made, full), labels)


def _squeezed(c: Context, term: Term, other: Term) -> Term:
    """Without axes of size 1 whose index is larger in the other term: those broadcast."""
    gone = [k for k, x in enumerate(term.labels) if term.value.dims[k] == 1 and other.size(x) != 1]
    kept = tuple(x for k, x in enumerate(term.labels) if k not in gone)
    return Term(c.b.squeeze(term.value, *gone), kept) if gone else term


def _outer(c: Context, a: Term, b: Term, labels: Labels, inner: Sequence[str]) -> Term:
    """The product element by element, then summed over `inner`."""
    every = (*labels, *inner)
    if len(every) > MAX_RANK:
        raise ModelError(f"{len(every)} indices in one product are more than {MAX_RANK}")
    sides = []
    for term in (a, b):
        present = [x for x in every if x in term.labels]
        sides.append(c.b.reshape(_ordered(c, term, present), [term.size(x) for x in every]))
    return _summed(c, Term(c.b.mul(*sides), every), labels)


RULES: dict[str, Callable[[Context], Any]] = {"Einsum": einsum}
