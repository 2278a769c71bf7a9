"""Descriptors as text: the way back from strides to `kv[:, :, s1, :].permute(0, 2, 1)`.

For each descriptor a form is looked for that evaluates to exactly that descriptor: a tensor's name, slices of its axes
that are split, permuted and broadcast, a reshape of all of it; and else the raw form
`scratch@1024+s1*64 : f32[4, 8]{8, 1}`, which can say everything.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass

from dla.assembler.declarations import RESERVED
from dla.assembler.syntax import InstructionStatement, SyntaxProblem, View, parse
from dla.assembler.views import Scope, view
from dla.isa.descriptor import Descriptor, Dim, Dynamic, Segment, bound_of, contiguous_strides
from dla.isa.dtypes import DType
from dla.isa.program import Program, Tensor

_CANDIDATES = 4  # tensors tried for each descriptor
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quoted(name: str) -> str:
    """`name` as assembly writes it: in backquotes if it would be read as something else."""
    return name if _PLAIN.match(name) and name not in RESERVED else f"`{name}`"


class Namer:
    """Writes the descriptors of one program."""

    def __init__(self, program: Program) -> None:
        self._scope = Scope({t.name: t.descriptor for t in program.tensors}, {d.name: d for d in program.dims})
        self._plain: dict[Descriptor, str] = {}
        self._symbols = {(d.register, d.bound): d.name for d in reversed(program.dims)}
        self._register_names = {d.register: d.name for d in reversed(program.dims)}
        groups: dict[tuple[Segment, DType], list[Tensor]] = {}
        for tensor in program.tensors:
            self._plain.setdefault(tensor.descriptor, quoted(tensor.name))
            groups.setdefault((tensor.segment, tensor.descriptor.dtype), []).append(tensor)
        self._groups = {key: sorted(ts, key=lambda t: t.descriptor.offset) for key, ts in groups.items()}
        self._offsets = {key: [t.descriptor.offset for t in ts] for key, ts in self._groups.items()}

    def dim(self, dim: Dim) -> str:
        """A dim: a number, a declared name, or `s5 <= 128`."""
        if not isinstance(dim, Dynamic):
            return str(dim)
        name = self._symbols.get((dim.register, dim.bound))
        return str(dim) if name is None else quoted(name)

    def extent(self, dim: Dynamic, room: int) -> str:
        """The length of a slice: a dim whose bound need not be written where it is all the room there is."""
        text = self.dim(dim)
        return f"s{dim.register}" if text == str(dim) and dim.bound == room else text

    def dims(self, dims: tuple[Dim, ...]) -> str:
        """Dims, separated by commas."""
        return ", ".join(self.dim(d) for d in dims)

    def register(self, index: int) -> str:
        """Register `s<index>`, or the name of the dim that it holds."""
        name = self._register_names.get(index)
        return f"s{index}" if name is None else quoted(name)

    def operand(self, descriptor: Descriptor) -> str:
        """The text of an operand."""
        known = self._plain.get(descriptor)
        if known is None:
            known = self._plain[descriptor] = self._search(descriptor)
        return known

    def _search(self, descriptor: Descriptor) -> str:
        for tensor in self._candidates(descriptor):
            for text in self._forms(tensor, descriptor):
                if self._means(text, descriptor):
                    return text
        return self._raw(descriptor)

    def _candidates(self, descriptor: Descriptor) -> list[Tensor]:
        key = (descriptor.segment, descriptor.dtype)
        if key not in self._groups:
            return []
        last = bisect_right(self._offsets[key], descriptor.offset)
        nearest = reversed(self._groups[key][max(0, last - 8 * _CANDIDATES) : last])
        inside = [t for t in nearest if descriptor.offset <= t.descriptor.offset + t.descriptor.span]
        return inside[:_CANDIDATES]

    def _forms(self, tensor: Tensor, descriptor: Descriptor) -> list[str]:
        name = quoted(tensor.name)
        sliced = _Sliced.of(tensor.descriptor, descriptor)
        forms = [] if sliced is None else [name + sliced.text(self)]
        if descriptor.offset == tensor.descriptor.offset and descriptor.offset_register is None:
            forms.append(f"{name}.reshape({self.dims(descriptor.dims)})")
        return forms

    def _means(self, text: str, descriptor: Descriptor) -> bool:
        """Whether `text` evaluates to exactly `descriptor`."""
        try:
            body = parse("X " + text).body
            assert isinstance(body, InstructionStatement)
            argument = body.arguments[0]
            return isinstance(argument, View) and view(self._scope, argument) == descriptor
        except SyntaxProblem:
            return False

    def _raw(self, d: Descriptor) -> str:
        address = f"{d.segment.text}@{d.offset}"
        if d.offset_register is not None:
            address += f"+{self.register(d.offset_register)}*{d.offset_scale}"
        text = f"{address} : {d.dtype.text}[{self.dims(d.dims)}]"
        return text if d.strides == contiguous_strides(d.dims) else text + "{" + ", ".join(map(str, d.strides)) + "}"


@dataclass
class _Sliced:
    """A descriptor as slices of a tensor's axes, each perhaps split; then an order, and broadcast axes."""

    base: Descriptor  # the tensor
    target: Descriptor
    groups: list[list[int]]  # for each axis of the tensor, the target's axes in it, outermost first
    positions: list[int]  # constant part of the position along each axis of the tensor
    register_axis: int | None
    factor: int  # of the offset register, along register_axis

    @classmethod
    def of(cls, base: Descriptor, target: Descriptor) -> _Sliced | None:
        """`target` in terms of `base`'s axes; None if that cannot be."""
        groups: list[list[int]] = [[] for _ in base.dims]
        for axis, (dim, stride) in enumerate(zip(target.dims, target.strides, strict=True)):
            if stride == 0:
                continue
            home = _home(base, groups, dim, stride)
            if home is None:
                return None
            groups[home].append(axis)
        for group in groups:
            group.sort(key=lambda axis: (-target.strides[axis], axis))
        rest, odd = divmod(target.offset - base.offset, base.dtype.itemsize)
        positions = []
        for stride in base.strides:
            position, rest = divmod(rest, max(1, stride))
            positions.append(position)
        register_axis, factor = None, 0
        if target.offset_register is not None:
            step, odd_step = divmod(target.offset_scale, base.dtype.itemsize)
            fitting = [k for k, s in enumerate(base.strides) if s and step % s == 0 and bound_of(base.dims[k]) > 1]
            if odd_step or not fitting:
                return None
            register_axis = fitting[0]
            factor = step // base.strides[register_axis]
        return None if odd or rest else cls(base, target, groups, positions, register_axis, factor)

    def text(self, namer: Namer) -> str:
        """The suffixes that follow the tensor's name."""
        items = [self._item(namer, axis) for axis in range(self.base.rank)]
        text = "" if all(item == ":" for item in items) else f"[{', '.join(items)}]"
        written = [axis for group in self.groups for axis in group]
        dims = self.target.dims
        if any(len(group) > 1 for group in self.groups):
            text += f".reshape({namer.dims(tuple(dims[a] for a in written))})"
        order = [written.index(axis) for axis in sorted(written)]
        rank = len(order)
        if rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]:
            text += ".T"
        elif order != sorted(order):
            text += f".permute({', '.join(map(str, order))})"
        return text + self._broadcast(namer, set(written))

    def _item(self, namer: Namer, axis: int) -> str:
        """What the subscript says about one axis of the tensor."""
        group, position = self.groups[axis], self.positions[axis]
        start = self._start(namer, axis, position)
        if not group:
            return start
        dims = [self.target.dims[a] for a in group]
        step = self.target.strides[group[-1]] // self.base.strides[axis]
        plain = self.register_axis != axis and position == 0
        if len(dims) == 1 and isinstance(dims[0], Dynamic):
            room = bound_of(self.base.dims[axis]) - (0 if self.register_axis == axis else position)
            extent = namer.extent(dims[0], room)
            if plain:
                return ":" if dims[0] == self.base.dims[axis] else f":{extent}"
            return f"{start}:{start}+{extent}"
        count = math.prod(bound_of(dim) for dim in dims)
        by = f":{step}" if step > 1 else ""
        if plain and isinstance(self.base.dims[axis], int) and count == -(-bound_of(self.base.dims[axis]) // step):
            return ":" + by
        length = (count - 1) * step + 1 if count else 0
        return f"{start}:{self._start(namer, axis, position + length)}{by}"

    def _start(self, namer: Namer, axis: int, position: int) -> str:
        if self.register_axis != axis or self.target.offset_register is None:
            return str(position)
        register = namer.register(self.target.offset_register)
        text = register if self.factor == 1 else f"{register}*{self.factor}"
        return text if position == 0 else f"{text}+{position}"

    def _broadcast(self, namer: Namer, kept: set[int]) -> str:
        """New axes, and axes that repeat."""
        rank = self.target.rank
        new = [axis for axis in range(rank) if axis not in kept]
        if not new:
            return ""
        ones = all(self.target.dims[axis] == 1 for axis in new)
        leading = new == list(range(len(new)))
        text = ""
        if ones or not leading:
            text = "[" + ", ".join(":" if axis in kept else "None" for axis in range(rank)) + "]"
        return text if ones else f"{text}.broadcast({namer.dims(self.target.dims)})"


def _home(base: Descriptor, groups: list[list[int]], dim: Dim, stride: int) -> int | None:
    """The axis of `base` along which a step of `stride` elements goes."""
    fitting = [k for k, s in enumerate(base.strides) if s and stride % s == 0]
    if dim == 1:  # its stride says little: an axis that nothing else uses is best
        exact = [k for k in fitting if base.strides[k] == stride and not groups[k]]
        fitting = exact or fitting
    else:
        fitting = [k for k in fitting if bound_of(base.dims[k]) > 1] or fitting
    return fitting[0] if fitting else None
