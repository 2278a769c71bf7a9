"""Many random instructions as one program: views of all kinds, dynamic dims, results in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dla.isa.descriptor import Descriptor, Dim, Dynamic, Segment, contiguous
from dla.isa.dtypes import Array, DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import TENSOR_ALIGNMENT, DimSymbol, Instruction, Program, Tensor
from dla.isa.ranks import RankPairs
from dla.isa.table import Alias, Role
from dla.isa.typing import check
from dla.tests.emulator.device.random_instructions import Draft, Rng, Shape, Values, values

DYNAMIC_SIZES = {3: 31, 7: 30, 16: 29, 33: 28}
"""Sizes that a dynamic dim may have here, and the register that holds each."""
IN_PLACE = {"x": "out", "h": "out", "c": "c_out"}
"""Inputs that may be the state tensor that an output is."""
_DYNAMIC_ROOM = 2  # bound - size of a dynamic dim


@dataclass
class Batch:
    """Many instructions, each with tensors of its own, as one program."""

    rng: Rng
    instructions: list[Instruction] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)  # contents of input and state tensors
    sizes: dict[Segment, int] = field(default_factory=dict)

    def add(self, drawn: Draft) -> None:
        """Give the operands of `drawn` places: views of all kinds, sometimes with dynamic dims, sometimes in place."""
        if self.rng.random() < 0.25 and self._try(drawn, dynamic=True):
            return
        assert self._try(drawn, dynamic=False), "a draft is valid with constant dims"

    def _try(self, drawn: Draft, *, dynamic: bool) -> bool:
        saved = len(self.tensors), dict(self.sizes)
        placed: dict[str, Descriptor] = {}
        fills: list[Values] = []  # of the new tensors
        for operand in drawn.row.operands:
            if operand.name not in drawn.shapes:
                continue
            dims = tuple(self._dim(d) if dynamic else d for d in drawn.shapes[operand.name])
            dtype = drawn.dtypes[operand.name]
            out = placed.get(IN_PLACE.get(operand.name, ""))
            if out is not None and out.segment is Segment.STATE and out.dims == dims:
                placed[operand.name] = out
                continue
            if operand.role is Role.OUT:
                segment = Segment.STATE if self._works_in_place(drawn, operand.name) else Segment.OUTPUT
                placed[operand.name] = self._view(segment, dtype, dims, repeat=False)
            else:
                axes = drawn.repeated.get(operand.name, ())
                placed[operand.name] = self._view(Segment.INPUT, dtype, dims, repeat=True, repeated_axes=axes)
            fills.append(drawn.values.get("x" if operand.role is Role.OUT else operand.name, values))
        operands = tuple(placed.get(o.name) for o in drawn.row.operands)
        instruction = Instruction(drawn.row, drawn.sub, operands, drawn.attributes)
        if check(instruction):
            del self.tensors[saved[0] :]
            self.sizes = saved[1]
            return False
        for tensor, fill in zip(self.tensors[saved[0] :], fills, strict=True):
            self.arrays[tensor.name] = fill(self.rng, tensor.descriptor.bounds, tensor.descriptor.dtype)
        self.instructions.append(instruction)
        return True

    def _dim(self, value: int) -> Dim:
        register = DYNAMIC_SIZES.get(value)
        return value if register is None else Dynamic(register, value + _DYNAMIC_ROOM)

    def _works_in_place(self, drawn: Draft, output: str) -> bool:
        """Whether `output` shall be the state tensor that its input is: for rows that allow it, now and then."""
        name = next((n for n, written in IN_PLACE.items() if written == output and n in drawn.shapes), "")
        fits = drawn.shapes.get(name) == drawn.shapes[output] and drawn.dtypes.get(name) is drawn.dtypes[output]
        allowed = drawn.row.alias is Alias.SAME or any(o.may_be_output for o in drawn.row.inputs if o.name == name)
        return allowed and fits and bool(self.rng.random() < 0.25)

    def _view(
        self, segment: Segment, dtype: DType, dims: tuple[Dim, ...], *, repeat: bool, repeated_axes: Shape = ()
    ) -> Descriptor:
        """A view of `dims` of a new tensor: plain half of the time, else permuted, sliced, strided or repeated.

        It repeats along `repeated_axes` in any case.
        """
        rng, rank = self.rng, len(dims)
        bounds = contiguous(segment, dtype, dims).bounds
        if rng.random() < 0.5:
            order, steps, low, high, repeated = list(range(rank)), [1] * rank, [0] * rank, [0] * rank, [False] * rank
        else:
            order = rng.permutation(rank).tolist()
            steps = rng.choice([1, 1, 1, 2], rank).tolist()
            low, high = rng.choice([0, 0, 0, 1, 3], rank).tolist(), rng.choice([0, 0, 0, 1, 2], rank).tolist()
            repeated = [repeat and bool(r < 0.1) for r in rng.random(rank)]
        repeated = [known or k in repeated_axes for k, known in enumerate(repeated)]
        extents = [
            low[k] + high[k] + (1 if repeated[k] else 0 if bounds[k] == 0 else (bounds[k] - 1) * steps[k] + 1)
            for k in range(rank)
        ]
        base = self._tensor(segment, dtype, tuple(extents[k] for k in order)).descriptor
        along = {axis: base.strides[place] for place, axis in enumerate(order)}
        first = sum(low[k] * along[k] for k in range(rank)) if base.span else 0
        offset = base.offset + first * dtype.itemsize
        strides = tuple(0 if repeated[k] else along[k] * steps[k] for k in range(rank))
        return Descriptor(segment, dtype, dims, strides, offset)

    def _tensor(self, segment: Segment, dtype: DType, dims: Shape) -> Tensor:
        offset = -(-self.sizes.get(segment, 0) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        tensor = Tensor(f"t{len(self.tensors)}", contiguous(segment, dtype, dims, offset))
        self.tensors.append(tensor)
        self.sizes[segment] = offset + max(tensor.descriptor.span, 1)  # no two tensors share an offset
        return tensor

    def program(self, name: str = "random") -> Program:
        """The program, ending in HALT."""
        halt = Instruction(BY_MNEMONIC["HALT"])
        symbols = tuple(DimSymbol(f"n{v}", r, v + _DYNAMIC_ROOM) for v, r in sorted(DYNAMIC_SIZES.items()))
        alone = RankPairs("alone", ((0, 0),))
        code, tensors = (*self.instructions, halt), tuple(self.tensors)
        return Program(name, code, tensors, symbols, self.sizes, world=1, pairs=(alone,))

    def inputs(self) -> dict[str, Array]:
        """Contents of the input tensors."""
        return {t.name: self.arrays[t.name] for t in self.tensors if t.segment is Segment.INPUT}

    def state(self) -> dict[str, Array]:
        """Contents of the state tensors before a run."""
        return {t.name: self.arrays[t.name] for t in self.tensors if t.segment is Segment.STATE}

    @staticmethod
    def dims() -> dict[str, int]:
        """Values of the named dims."""
        return {f"n{v}": v for v in DYNAMIC_SIZES}

    def seen(self, descriptor: Descriptor, arrays: Mapping[str, Array]) -> Array:
        """What `descriptor` shows of the tensors in `arrays`."""
        sizes = {r: v for v, r in DYNAMIC_SIZES.items()}
        shape_now = tuple(sizes[d.register] if isinstance(d, Dynamic) else d for d in descriptor.dims)
        if not descriptor.span:
            return np.empty(shape_now, descriptor.dtype.numpy)
        base = next(
            t for t in self.tensors
            if t.segment is descriptor.segment and 0 <= descriptor.offset - t.descriptor.offset < t.descriptor.span
        )  # fmt: skip
        item = descriptor.dtype.itemsize
        first = (descriptor.offset - base.descriptor.offset) // item
        memory = np.ascontiguousarray(arrays[base.name]).reshape(-1)
        return as_strided(memory[first:], shape_now, tuple(s * item for s in descriptor.strides)).copy()
