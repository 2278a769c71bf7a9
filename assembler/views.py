"""Operands: from `kv[:, :, s1, :].permute(0, 2, 1)` to a descriptor.

Everything here is address arithmetic on strides: no view moves a byte. A view that strides cannot express (or that
would need two registers in one address) is refused with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lark import Token

from dla.assembler.reshape import ReshapeError, reshape
from dla.assembler.source import suggestion
from dla.assembler.syntax import Method, Placed, Slice, Subscript, Sum, View, integer, name_of, problem
from dla.isa.descriptor import (
    MAX_DIM,
    MAX_OFFSET,
    MAX_RANK,
    Descriptor,
    Dim,
    Dynamic,
    Segment,
    bound_of,
    contiguous_strides,
)
from dla.isa.dtypes import BY_TEXT, DType
from dla.isa.program import DimSymbol
from dla.isa.ranks import RankGroup, RankPairs
from dla.isa.registers import BY_NAME, Register, RegisterClass

SEGMENTS = {segment.text: segment for segment in Segment}
METHODS = ("T", "permute", "broadcast", "reshape")


@dataclass
class Scope:
    """The names that a program has declared."""

    tensors: dict[str, Descriptor] = field(default_factory=dict)
    dims: dict[str, DimSymbol] = field(default_factory=dict)
    world: int = 0
    groups: dict[str, RankGroup] = field(default_factory=dict)
    pairs: dict[str, RankPairs] = field(default_factory=dict)

    def register(self, token: Token) -> Register | None:
        """The register that `token` names, itself or as a dim's name; else None."""
        symbol = self.dims.get(name_of(token))
        if symbol is not None:
            return BY_NAME[f"s{symbol.register}"]
        return BY_NAME.get(token) if token.type == "NAME" else None


@dataclass(frozen=True)
class Linear:
    """constant + sum of factor * register: what a Sum means."""

    constant: int
    factors: tuple[tuple[int, int], ...]  # (index of an s register, factor), sorted, no zero factor
    bound: int | None = None
    symbol: DimSymbol | None = None  # where it is nothing but a dim's name

    @property
    def static(self) -> bool:
        return not self.factors

    def minus(self, other: Linear) -> Linear:
        """Self - other."""
        factors = dict(self.factors)
        for register, factor in other.factors:
            factors[register] = factors.get(register, 0) - factor
        kept = tuple(sorted((r, f) for r, f in factors.items() if f))
        symbol = self.symbol if other == Linear(0, ()) else None
        return Linear(self.constant - other.constant, kept, self.bound, symbol)


def dtype_of(token: Token) -> DType:
    """The element type called `token`. Raises SyntaxProblem."""
    dtype = BY_TEXT.get(token)
    if dtype is None:
        raise problem(token, f"unknown type {token}", suggestion(token, BY_TEXT) or "types are " + ", ".join(BY_TEXT))
    return dtype


def linear(scope: Scope, given: Sum) -> Linear:
    """What `given` means. Raises SyntaxProblem for an unknown name or one that is no integer register."""
    factors: dict[int, int] = {}
    for token, factor in given.names:
        register = scope.register(token)
        if register is None:
            hint = suggestion(token, scope.dims) or "an integer, a register s0..s31 or the name of a dim is needed"
            raise problem(token, f"unknown dim or register {name_of(token)}", hint)
        if register.cls is not RegisterClass.INT:
            raise problem(token, f"{token} cannot be part of a shape or an address", "use a register s0..s31")
        factors[register.index] = factors.get(register.index, 0) + factor
    plain = given.plain
    symbol = None if plain is None else scope.dims.get(name_of(plain))
    return Linear(given.constant, tuple(sorted((r, f) for r, f in factors.items() if f)), given.bound, symbol)


def dim(scope: Scope, given: Sum) -> Dim:
    """A dim: an integer, `s5 <= 128`, or the name of one that was declared. Raises SyntaxProblem."""
    value = linear(scope, given)
    if value.static:
        if not 0 <= value.constant <= MAX_DIM:
            raise problem(given.at, f"a dim lies between 0 and {MAX_DIM}, not {value.constant}")
        if value.bound is not None:
            raise problem(given.at, "a constant dim takes no bound", "write the number alone")
        return value.constant
    extent = dynamic(value, given.at, None)
    if extent is None:
        hint = f"write `{given.at} <= 128` with the largest value that it can have"
        raise problem(given.at, f"register {given.at} needs a bound where it is a dim", hint)
    return extent


def dynamic(value: Linear, at: Token, limit: int | None) -> Dynamic | None:
    """`value` as a dim held in a register; None if its bound is not known. `limit` is the bound where none is given."""
    if len(value.factors) != 1 or value.factors[0][1] != 1 or value.constant:
        raise problem(at, "an extent is a constant or one register", "compute it with ALU into a register first")
    bound = value.bound
    if value.symbol is not None:
        if bound is not None and bound != value.symbol.bound:
            raise problem(at, f"dim {value.symbol.name} is at most {value.symbol.bound}, not {bound}",
                          f"write {value.symbol.name} alone")  # fmt: skip
        bound = value.symbol.bound
    bound = limit if bound is None else bound
    if bound is None:
        return None
    if not 0 <= bound <= MAX_DIM:
        raise problem(at, f"a bound lies between 0 and {MAX_DIM}, not {bound}")
    return Dynamic(value.factors[0][0], bound)


def view(scope: Scope, given: View) -> Descriptor:
    """The descriptor of a named tensor with suffixes. Raises SyntaxProblem."""
    result = named(scope, given.name)
    for suffix in given.suffixes:
        if isinstance(suffix, Subscript):
            result = _subscript(scope, result, suffix, given.name)
        else:
            result = _method(scope, result, suffix)
        if result.rank > MAX_RANK:
            raise problem(given.name, f"this view has rank {result.rank}; tensors have at most {MAX_RANK} dims")
    return result


def named(scope: Scope, name: Token) -> Descriptor:
    """The descriptor of the tensor called `name`. Raises SyntaxProblem."""
    descriptor = scope.tensors.get(name_of(name))
    if descriptor is None:
        if name.type == "NAME" and name in BY_NAME:
            raise problem(name, f"a tensor is needed here, not register {name}")
        hint = suggestion(name_of(name), scope.tensors)
        hint = hint or f"declare it: .scratch {name} : f32[...]"
        raise problem(name, f"unknown tensor {name_of(name)}", hint)
    return descriptor


def placed(scope: Scope, given: Placed) -> Descriptor:
    """The descriptor written in full: `scratch@1024+s1*64 : f32[4]{1}`. Raises SyntaxProblem."""
    segment = SEGMENTS.get(given.segment)
    if segment is None:
        hint = suggestion(given.segment, SEGMENTS) or "segments are " + ", ".join(SEGMENTS)
        raise problem(given.segment, f"unknown segment {given.segment}", hint)
    address = linear(scope, given.address)
    dims = tuple(dim(scope, d) for d in given.dims)
    if len(dims) > MAX_RANK:
        raise problem(given.dtype, f"{len(dims)} dims; tensors have at most {MAX_RANK}")
    if given.strides is None:
        strides = contiguous_strides(dims)
    else:
        strides = tuple(integer(s) for s in given.strides)
        if len(strides) != len(dims) or any(not 0 <= s <= MAX_DIM for s in strides):
            raise problem(given.dtype, f"strides are {len(dims)} integers from 0 to {MAX_DIM}, one for each dim")
    base = Descriptor(segment, dtype_of(given.dtype), dims, strides)
    return _moved(base, address, given.address.at)


def _moved(base: Descriptor, by: Linear, at: Token) -> Descriptor:
    """`base` with its address moved by `by` bytes. Raises SyntaxProblem if a descriptor cannot say that."""
    factors: dict[int, int] = dict(by.factors)
    if base.offset_register is not None:
        factors[base.offset_register] = factors.get(base.offset_register, 0) + base.offset_scale
    factors = {r: f for r, f in factors.items() if f}
    if len(factors) > 1:
        names = " and ".join(f"s{r}" for r in sorted(factors))
        raise problem(at, f"this address depends on two registers, {names}",
                      "an address takes one: combine them with ALU, or COPY a slice first")  # fmt: skip
    offset = base.offset + by.constant
    register, scale = next(iter(factors.items()), (None, 0))
    if not 0 <= offset <= MAX_OFFSET:
        hint = "the constant part of an address cannot be negative: subtract in a register first"
        raise problem(at, f"this address starts {-offset} bytes before its segment" if offset < 0
                      else f"this address is beyond {MAX_OFFSET} bytes", hint if offset < 0 else None)  # fmt: skip
    if abs(scale) > MAX_OFFSET:
        raise problem(at, f"the register is scaled by more than {MAX_OFFSET} bytes")
    return replace(base, offset=offset, offset_register=register, offset_scale=scale)


def _subscript(scope: Scope, base: Descriptor, given: Subscript, name: Token) -> Descriptor:
    items = _expand_ellipsis(given, base, name)
    dims: list[Dim] = []
    strides: list[int] = []
    result, axis = base, 0
    for item in items:
        if item is None:  # all of an axis that the subscript does not mention
            dims.append(base.dims[axis])
            strides.append(base.strides[axis])
        elif isinstance(item, Sum) and _is_new_axis(item):
            dims.append(1)
            strides.append(0)
            continue
        elif isinstance(item, Sum):
            result = _index(scope, result, base, axis, item)
        else:
            extent, step, result = _slice(scope, result, base, axis, item)
            dims.append(extent)
            strides.append(base.strides[axis] * step)
        axis += 1
    return replace(result, dims=tuple(dims), strides=tuple(strides))


def _is_new_axis(item: Sum | Slice | Token) -> bool:
    return isinstance(item, Sum) and item.plain is not None and str(item.plain) == "None"


def _expand_ellipsis(given: Subscript, base: Descriptor, name: Token) -> list[Sum | Slice | None]:
    """The items of a subscript, one for each axis of `base` and new axis; None where an axis is not mentioned."""
    used = sum(1 for i in given.items if not isinstance(i, Token) and not _is_new_axis(i))
    ellipses = [i for i in given.items if isinstance(i, Token)]
    if len(ellipses) > 1:
        raise problem(ellipses[1], "a subscript has at most one `...`")
    if used > base.rank:
        extra = [i for i in given.items if not isinstance(i, Token) and not _is_new_axis(i)][base.rank]
        assert not isinstance(extra, Token)
        raise problem(extra.at, f"{used} indices for {name_of(name)}, which has {base.rank} dims here")
    rest: list[Sum | Slice | None] = [None] * (base.rank - used)
    items: list[Sum | Slice | None] = []
    for item in given.items:
        if isinstance(item, Token):
            items += rest
        else:
            items.append(item)
    return items if ellipses else items + rest


def _index(scope: Scope, result: Descriptor, base: Descriptor, axis: int, item: Sum) -> Descriptor:
    position = _wrap(linear(scope, item), base.dims[axis], item.at)
    _inside(position, bound_of(base.dims[axis]) - 1, item.at, axis)
    return _moved(result, _bytes(position, base, axis), item.at)


def _wrap(position: Linear, extent: Dim, at: Token) -> Linear:
    """A negative constant counts from the end, where the end is known."""
    if position.static and position.constant < 0:
        if isinstance(extent, Dynamic):
            raise problem(at, f"a negative index needs a constant extent, not {extent}", "compute it in a register")
        return Linear(position.constant + extent, ())
    return position


def _inside(position: Linear, largest: int, at: Token, axis: int) -> None:
    if position.static and not 0 <= position.constant <= largest:
        raise problem(at, f"{at} is outside dim {axis}, which has {largest + 1} elements" if largest >= 0 else
                      f"dim {axis} is empty: it has no element {at}")  # fmt: skip


def _bytes(position: Linear, base: Descriptor, axis: int) -> Linear:
    unit = base.strides[axis] * base.dtype.itemsize
    return Linear(position.constant * unit, tuple((r, f * unit) for r, f in position.factors if f * unit))


def _slice(scope: Scope, result: Descriptor, base: Descriptor, axis: int, item: Slice) -> tuple[Dim, int, Descriptor]:
    """(extent, step, moved descriptor) of one slice."""
    extent = base.dims[axis]
    bound = bound_of(extent)
    step = 1 if item.step is None else integer(item.step)
    if step < 1:
        raise problem(item.step, "a step is at least 1", "a view cannot run backwards: COPY with GATHER instead")
    start = Linear(0, ()) if item.start is None else _wrap(linear(scope, item.start), extent, item.start.at)
    if item.start is not None and start.static and not 0 <= start.constant <= bound:
        raise problem(item.start.at, f"slice start {item.start.at} is outside dim {axis}, which has {bound} elements")
    length = _slice_length(scope, item, start, extent, axis)
    if step > 1:
        if not isinstance(length, int):
            raise problem(item.step, "a step needs a constant extent", "give constant ends, or use a step of 1")
        length = -(-length // step)
    moved = result if start == Linear(0, ()) else _moved(result, _bytes(start, base, axis), (item.start or item).at)
    return length, step, moved


def _slice_length(scope: Scope, item: Slice, start: Linear, extent: Dim, axis: int) -> Dim:
    bound = bound_of(extent)
    if item.stop is None:
        if start == Linear(0, ()):
            return extent
        if not start.static or isinstance(extent, Dynamic):
            hint = "write both ends: x[s1:s1+16], or x[s1:s1+s2 <= 16]"
            raise problem(item.at, "the length of this slice is not known", hint)
        return extent - start.constant
    stop = linear(scope, item.stop)
    if stop.static and start.static:
        stop = _wrap(stop, extent, item.stop.at)
        if not start.constant <= stop.constant <= bound:
            raise problem(item.stop.at, f"slice end {item.stop.at} is outside dim {axis}, which has {bound} elements"
                          if stop.constant > bound else "this slice ends before it starts")  # fmt: skip
        return stop.constant - start.constant
    length = stop.minus(start)
    if length.static:
        if not 0 <= length.constant <= bound:
            raise problem(item.stop.at, f"this slice has {length.constant} elements; dim {axis} has {bound}")
        return length.constant
    limit = bound - start.constant if start.static else bound
    given = dynamic(length, item.stop.at, limit)
    assert given is not None
    if given.bound > bound:
        raise problem(item.stop.at, f"this slice has up to {given.bound} elements; dim {axis} has {bound}")
    return given


def _method(scope: Scope, base: Descriptor, given: Method) -> Descriptor:
    name = given.name[1:]
    if name == "T":
        if given.arguments is not None:
            raise problem(given.name, ".T takes no arguments", "use .permute(1, 0) to name the axes")
        if base.rank < 2:
            raise problem(given.name, f".T swaps the last two dims; this view has {base.rank}")
        order = [*range(base.rank - 2), base.rank - 1, base.rank - 2]
        return _permuted(base, order)
    if name not in METHODS:
        hint = suggestion(name, METHODS) or "views are .T, .permute(...), .broadcast(...) and .reshape(...)"
        raise problem(given.name, f"unknown view {given.name}", hint)
    if given.arguments is None:
        raise problem(given.name, f"{given.name} needs arguments", f"write {given.name}(...)")
    arguments = [a for a in given.arguments if a is not None]
    if name == "permute":
        return _permuted(base, _axes(scope, base, given.name, arguments))
    dims = tuple(dim(scope, a) for a in arguments)
    if name == "broadcast":
        return _broadcast(base, dims, given.name)
    try:
        return reshape(base, dims)
    except ReshapeError as error:
        raise problem(given.name, str(error), error.hint) from None


def _axes(scope: Scope, base: Descriptor, at: Token, arguments: list[Sum]) -> list[int]:
    axes = [linear(scope, a) for a in arguments]
    order = [a.constant + base.rank if a.constant < 0 else a.constant for a in axes if a.static]
    if sorted(order) != list(range(base.rank)):
        raise problem(at, f".permute names each of the {base.rank} axes once, as in "
                      f".permute({', '.join(map(str, reversed(range(base.rank))))})")  # fmt: skip
    return order


def _permuted(base: Descriptor, order: list[int]) -> Descriptor:
    dims, strides = tuple(base.dims[i] for i in order), tuple(base.strides[i] for i in order)
    return replace(base, dims=dims, strides=strides)


def _broadcast(base: Descriptor, dims: tuple[Dim, ...], at: Token) -> Descriptor:
    extra = len(dims) - base.rank
    if extra < 0 or any(old not in (1, new) for old, new in zip(base.dims, dims[extra:], strict=True)):
        before, after = (", ".join(str(d) for d in shape) for shape in (base.dims, dims))
        raise problem(at, f"[{before}] does not broadcast to [{after}]")
    strides = [0] * extra
    for old, new, stride in zip(base.dims, dims[extra:], base.strides, strict=True):
        strides.append(stride if old == new else 0)
    return replace(base, dims=dims, strides=tuple(strides))
