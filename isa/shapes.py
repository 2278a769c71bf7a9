"""Symbolic shapes: the little language in which a row states the shapes of its operands, and how they unify.

    [M, K]          two dims, named; the same name means the same size everywhere in the row
    [B..., M, K]    any number of leading dims, together named B
    [N, S..., C]    the variadic part may stand anywhere
    [~B..., M, K]   leading dims that broadcast to B (NumPy's rule: aligned right, equal or 1)
    ~[B..., M, N]   the whole shape broadcasts to that shape
    [N, 1]          a literal size

Names are capital letters and digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from dla.isa.descriptor import Dim, Dynamic, bound_of

Shape = tuple[Dim, ...]
_NAME = re.compile(r"[A-Z][A-Z0-9]*$")


@dataclass(frozen=True)
class ShapePattern:
    """A parsed shape: fixed dims, and an optional variadic part after the first `before` of them."""

    text: str
    prefix: str | None  # name of the variadic part
    prefix_broadcasts: bool
    fixed: tuple[str | int, ...]
    broadcasts: bool  # the whole shape broadcasts to the pattern
    before: int = 0  # fixed dims in front of the variadic part

    @property
    def symbols(self) -> list[str]:
        """Every name that the pattern mentions."""
        return ([self.prefix] if self.prefix else []) + [f for f in self.fixed if isinstance(f, str)]

    @property
    def borrowed(self) -> list[str]:
        """The names that an earlier operand must have bound, because this pattern broadcasts to them."""
        return self.symbols if self.broadcasts else [self.prefix] if self.prefix and self.prefix_broadcasts else []


@cache
def parse(text: str) -> ShapePattern:
    """Parse one pattern. Raises ValueError: patterns are written in rows, never by users."""
    broadcasts = text.startswith("~")
    body = text.removeprefix("~")
    if not (body.startswith("[") and body.endswith("]")):
        raise ValueError(f"not a shape pattern: {text}")
    items = [item.strip() for item in body[1:-1].split(",") if item.strip()]
    prefix, prefix_broadcasts, before = None, False, 0
    variadic = [i for i, item in enumerate(items) if item.endswith("...")]
    if variadic:
        before = variadic[0]
        name = items.pop(before).removesuffix("...")
        prefix_broadcasts, prefix = name.startswith("~"), name.removeprefix("~")
    fixed: list[str | int] = []
    for item in items:
        if not item.isdigit() and not _NAME.match(item):
            raise ValueError(f"bad dim {item!r} in shape pattern {text}")
        fixed.append(int(item) if item.isdigit() else item)
    return ShapePattern(text, prefix, prefix_broadcasts, tuple(fixed), broadcasts, before)


class ShapeMismatch(ValueError):
    """An operand's shape does not fit its pattern; the message says how."""


@dataclass
class Bindings:
    """What the names in a row's patterns stand for in one instruction."""

    dims: dict[str, Dim]
    prefixes: dict[str, Shape]

    def size(self, name: str) -> int:
        """The size of dim `name`, at its bound where it is dynamic."""
        return bound_of(self.dims[name])

    def sizes(self, name: str) -> tuple[int, ...]:
        """The sizes of the variadic part `name`, at their bounds."""
        return tuple(bound_of(d) for d in self.prefixes[name])

    def __contains__(self, name: str) -> bool:
        return name in self.dims or name in self.prefixes


def show(shape: Shape) -> str:
    """A shape as a person writes it: `[s31 <= 64, 10]`."""
    return "[" + ", ".join(str(d) for d in shape) + "]"


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Whether `shape` broadcasts to `target` by NumPy's rule; dynamic dims match only themselves."""
    if len(shape) > len(target):
        return False
    return all(d == 1 or d == t for d, t in zip(reversed(shape), reversed(target), strict=False))


def unify(pattern: ShapePattern, shape: Shape, bindings: Bindings, operand: str) -> None:
    """Match one operand's `shape` against its pattern, binding new names. Raises ShapeMismatch.

    A pattern that broadcasts binds nothing: its names must have been bound by an earlier operand.
    """
    if pattern.broadcasts:
        target = expand(pattern, bindings)
        if not broadcasts_to(shape, target):
            raise ShapeMismatch(f"{operand} is {show(shape)}, which does not broadcast to {show(target)}")
        return
    extra = len(shape) - len(pattern.fixed)
    if extra < 0 or (extra > 0 and pattern.prefix is None):
        raise ShapeMismatch(f"{operand} is {show(shape)}, which does not have the rank of {pattern.text}")
    if pattern.prefix is not None:
        _bind_prefix(pattern, shape[pattern.before : pattern.before + extra], bindings, operand)
    fixed = shape[: pattern.before] + shape[pattern.before + extra :]
    for name, dim in zip(pattern.fixed, fixed, strict=True):
        expected = name if isinstance(name, int) else bindings.dims.setdefault(name, dim)
        if expected != dim:
            raise ShapeMismatch(f"{operand} is {show(shape)}, but {pattern.text} has {name} = {expected} there")


def _bind_prefix(pattern: ShapePattern, part: Shape, bindings: Bindings, operand: str) -> None:
    assert pattern.prefix is not None
    known = bindings.prefixes.get(pattern.prefix)
    if pattern.prefix_broadcasts:
        if known is None:
            raise ValueError(f"pattern {pattern.text} broadcasts to {pattern.prefix}, which is not bound yet")
        if not broadcasts_to(part, known):
            raise ShapeMismatch(f"{operand} has leading dims {show(part)}, which do not broadcast to {show(known)}")
    elif known is None:
        bindings.prefixes[pattern.prefix] = part
    elif known != part:
        raise ShapeMismatch(f"{operand} has dims {show(part)} for {pattern.prefix}, which is {show(known)}")


def expand(pattern: ShapePattern, bindings: Bindings) -> Shape:
    """The shape that `pattern` stands for under `bindings`."""
    prefix = bindings.prefixes[pattern.prefix] if pattern.prefix else ()
    fixed = tuple(f if isinstance(f, int) else bindings.dims[f] for f in pattern.fixed)
    return fixed[: pattern.before] + prefix + fixed[pattern.before :]


def is_static(dim: Dim) -> bool:
    """Whether `dim` is a constant."""
    return not isinstance(dim, Dynamic)
