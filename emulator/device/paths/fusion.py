"""Normalisations that products do themselves, where the bytecode proves that others can do without them.

Every block of a streamed product reads all of `a`; of one in low tiles, all of the rows of its tile. Where
that is what a NORM made of x, each block may as well read x and normalise its rows, all blocks alike: no block is
waited for whose one tile would be in everybody's way, and there is one signal less on the way. The NORM is a NOP then,
and the products read what it would have read, as far as order, placement and the kernel are concerned. Where others
read what it makes as well, such as the residual of a network that normalises behind its layers, the first product, in
tiles, stores it for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dla.emulator.blocks import Accesses, block_starts
from dla.emulator.conflicts import conflicts
from dla.emulator.device.layout import (
    BIAS_FIRST,
    NORM_BIAS,
    NORM_CENTRED,
    NORM_GAIN,
    NORM_OF_ONE,
    NORM_ROWS,
    NORM_STORED,
    PATH_GEMM,
    PATH_STREAM,
    STREAM_NORM_ELEMENTS,
    WARP,
    WORKER_WARPS,
)
from dla.emulator.device.paths import gemm, stream
from dla.emulator.device.paths.tensor_map import ALIGNMENT
from dla.emulator.device.paths.types import Context, Schedule
from dla.emulator.footprint import Footprint, footprint
from dla.isa.descriptor import Descriptor, Dynamic, Segment
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction, Program
from dla.isa.table import Role

_EFFORT, _EFFORT_FREE = 16, 10_000
"""Instructions looked at for each one of a program, and for all, before the rest is left as it is."""
_CHUNK = ALIGNMENT // 2
"""Elements of 16 bits in an access."""


@dataclass(frozen=True)
class Norm:
    """What a product does to its rows before it multiplies them."""

    instruction: int  # the NORM
    given: Instruction
    flags: int  # NORM_ROWS and so on
    eps: float
    channels: Descriptor | None  # the gain, and the bias if there is one, as rows

    def added_to(self, schedule: Schedule, *, stored: bool) -> Schedule:
        """`schedule`, the product's, with what the kernel has to know of this; `stored`: also by others."""
        eps, summary = int(np.float32(self.eps).view(np.uint32)), f"{schedule.summary}; does NORM {self.instruction}"
        if schedule.path != PATH_STREAM:
            flags = self.flags | NORM_STORED * stored
            return replace(gemm.normalising(schedule, flags, eps), summary=summary + " and stores it" * stored)
        detail = list(schedule.detail)
        detail[stream.NORM_AT : stream.GIVES_AT] = self.flags, eps
        return replace(schedule, detail=tuple(detail), summary=summary)


@dataclass(frozen=True)
class Fused:
    """A program as the blocks execute it."""

    program: Program
    norms: Mapping[int, Norm]  # of products, by index
    schedules: Mapping[int, Schedule]  # theirs
    into: Mapping[int, Sequence[int]]  # the products that do a NORM, by its index
    stored: Mapping[int, Descriptor]  # what the product of this index stores of its NORM

    def order(self) -> list[Sequence[int]]:
        """For each instruction those that it waits for.

        As if the NORMs were there; but what others expect of one whose result a product stores, they expect of that.
        """
        makers = {self.norms[at].instruction: at for at in self.stored}
        code = list(self.program.instructions)
        for index, at in makers.items():
            code[index] = self.norms[at].given
        before = conflicts(replace(self.program, instructions=tuple(code)))
        if not makers:
            return before

        def executed(j: int, by: int) -> set[int]:
            """Those that `by` waits for where it would wait for `j`."""
            if not j < by < makers.get(j, 0):
                return {makers.get(j, j)}
            # Where all is ordered, it waits for what it has nothing to do with, and for what came before that.
            return {makers[j]}.union(*(executed(k, by) if k < j else {k} for k in before[j]))

        asked = [(*earlier, *(k for j in self._stored_by(i) for k in before[j])) for i, earlier in enumerate(before)]
        return [
            () if index in makers else tuple(sorted(set().union(*(executed(j, index) for j in earlier))))
            for index, earlier in enumerate(asked)
        ]

    def _stored_by(self, product: int) -> tuple[int, ...]:
        """The NORM whose result it stores, if there is one."""
        return (self.norms[product].instruction,) if product in self.stored else ()


def find(program: Program, context: Context) -> Fused:
    """Let products of a verified `program` do normalisations, wherever that is possible."""
    numbered = enumerate(program.instructions)
    candidates = [_norm(i, instruction, context) for i, instruction in numbered if instruction.row.mnemonic == "NORM"]
    if not context.target.hopper or not any(candidates):
        return Fused(program, {}, {}, {}, {})
    search = _Search(program, context)
    executed = list(program.instructions)
    norms: dict[int, Norm] = {}
    schedules: dict[int, Schedule] = {}
    into: dict[int, Sequence[int]] = {}
    stored: dict[int, Descriptor] = {}
    for norm in filter(None, candidates):
        trial = replace(context, maps=dict(context.maps))
        products = search.products(norm.instruction, trial)
        first, out = None, norm.given.operand("out")
        if not products:
            products = search.products_for_others(norm.instruction, trial)
            first = min(products, default=None)
        if products:
            assert out is not None
            context.maps.update(trial.maps)
            executed[norm.instruction] = Instruction(BY_MNEMONIC["NOP"])
            for at, product in products.items():
                executed[at] = product.instruction
                schedules[at] = norm.added_to(product.schedule, stored=at == first)
            norms |= dict.fromkeys(products, norm)
            into[norm.instruction] = tuple(products)
            stored |= {} if first is None else {first: out}
    return Fused(replace(program, instructions=tuple(executed)) if into else program, norms, schedules, into, stored)


def _norm(index: int, instruction: Instruction, context: Context) -> Norm | None:
    """What a NORM does to its rows, if the blocks of a product can do that; None for others."""
    out, x, gain, bias = (instruction.operand(name) for name in ("out", "x", "gain", "bias"))
    if instruction.sub not in ("layer", "rms") or out is None or x is None or out.segment is not Segment.SCRATCH:
        return None
    if any(d.is_dynamic or d.dtype is not x.dtype for d in (out, x, gain, bias) if d is not None):
        return None
    if x.dtype not in (DType.F16, DType.BF16) or out.elements == 0 or out.bounds[-1] % _CHUNK or not _is_dense(out):
        return None
    given = [d for d in (gain, bias) if d is not None]
    if any(d.strides[0] != 1 or d.offset % ALIGNMENT or not context.is_constant(d) for d in given):
        return None
    if bias is not None and (gain is None or gain.segment is not bias.segment):
        return None
    channels, flags = None, NORM_ROWS | NORM_CENTRED * (instruction.sub == "layer")
    if gain is not None:
        first = gain if bias is None or gain.offset <= bias.offset else bias
        apart = 0 if bias is None else abs(bias.offset - gain.offset) // gain.dtype.itemsize
        dims = (1 if bias is None else 2, *gain.dims)
        channels = replace(first, dims=dims, strides=(apart, 1))
        flags |= NORM_GAIN | NORM_BIAS * (bias is not None) | BIAS_FIRST * (first is bias)
    if out.elements == out.bounds[-1] and out.elements <= _CHUNK * WORKER_WARPS * WARP:
        flags |= NORM_OF_ONE
    eps = instruction.attributes.get("eps", instruction.row.all_attributes["eps"].default)
    return Norm(index, instruction, flags, eps, channels)


def _axes(descriptor: Descriptor) -> list[tuple[int, int]]:
    """The (dim, stride) of each axis that is one."""
    return [(d, s) for d, s in zip(descriptor.bounds, descriptor.strides, strict=True) if d != 1]


def _is_dense(descriptor: Descriptor) -> bool:
    """Whether a static view touches each byte of its span, once."""
    step = 1
    for dim, stride in sorted(_axes(descriptor), key=lambda axis: axis[1]):
        if stride != step:
            return False
        step *= dim
    return not descriptor.is_dynamic


def _is_contiguous(descriptor: Descriptor) -> bool:
    """Whether rows of a static view follow each other, from the first to the last."""
    steps = [math.prod(descriptor.bounds[k + 1 :]) for k in range(descriptor.rank)]
    given = zip(descriptor.bounds, descriptor.strides, steps, strict=True)
    return not descriptor.is_dynamic and all(dim == 1 or stride == step for dim, stride, step in given)


def _view(a: Descriptor, out: Descriptor, x: Descriptor) -> Descriptor | None:
    """The part of x in the place of `a`; None unless `a` reads all of `out`, and its rows in the same order."""
    same = (a.segment, a.dtype, a.offset, a.is_dynamic) == (out.segment, out.dtype, out.offset, False)
    if not same or _axes(a) != _axes(out) or a.bounds[-1] != out.bounds[-1]:
        return None
    strides = iter([stride for dim, stride in zip(x.bounds, x.strides, strict=True) if dim != 1])
    found = tuple(0 if dim == 1 else next(strides) for dim in a.bounds)
    return replace(x, dims=a.dims, strides=found)


@dataclass(frozen=True)
class _Product:
    """A product that is to do a NORM: with x in the place of `a`, and without the NORM so far."""

    instruction: Instruction
    schedule: Schedule


def _schedule(product: Instruction, context: Context) -> Schedule | None:
    """The schedule of a GEMM that can do the NORM of its rows; None for others."""
    found = stream.schedule(product, context)
    if found is None:
        found = gemm.schedule(product, context, to_normalise=True)
        return found if found is not None and gemm.does_norms(product, found, context.target.blocks) else None
    a = product.operand("a")
    assert a is not None
    rows, depth = a.elements // a.bounds[-1], a.bounds[-1]
    return found if (1 << (rows - 1).bit_length()) * depth <= STREAM_NORM_ELEMENTS else None


class _Search:
    """Looks for those who read what a NORM writes, on every way that the program may take from there."""

    def __init__(self, program: Program, context: Context) -> None:
        self._instructions = program.instructions
        self._context = context
        self._accesses = Accesses(program)
        self._starts = block_starts(program)
        self._budget = _EFFORT * len(program.instructions) + _EFFORT_FREE
        self._returns = [i + 1 for i, other in enumerate(self._instructions) if other.row.mnemonic == "CALL"]
        loops = ((i, other) for i, other in enumerate(self._instructions) if other.row.mnemonic == "LOOP")
        self._loop_of = {other.attributes["end"]: i for i, other in loops}

    def products(self, index: int, context: Context) -> dict[int, _Product]:
        """The products that are to do NORM `index`; none where it must be done itself.

        They follow in the same straight-line code, before x changes, nobody else reads the result in part or in whole,
        and it is written as a whole before control gets to anyone who might.
        """
        norm = self._instructions[index]
        out, x = norm.operand("out"), norm.operand("x")
        assert out is not None
        assert x is not None
        result, source = footprint(out, self._context.reach), footprint(x, self._context.reach)
        found: dict[int, _Product] = {}
        as_it_was = True  # x
        for at in range(index + 1, len(self._instructions) + 1):
            if at in self._starts or at == len(self._instructions):
                return {} if not found or self._is_read_after(at - 1, out, result) else found
            if not self._may_look():
                return {}
            reads, writes = self._accesses.of(at)
            if _touch(reads, out.segment, result):
                product = self._product(at, norm, result, context)
                if product is None or not as_it_was:
                    return {}
                found[at] = product
            if _touch(writes, x.segment, source):
                if at in found:  # its blocks read all of x at any time
                    return {}
                as_it_was = False
            if self._replaces(at, out):
                return found
            if _touch(writes, out.segment, result):
                return {}
        raise AssertionError("the end of the program ends its last stretch of code, too")

    def products_for_others(self, index: int, context: Context) -> dict[int, _Product]:
        """The products in tiles that are to do NORM `index`, the first of which stores the result for others.

        They follow in the same straight-line code, before x or the result change; who else reads it comes later.
        """
        norm = self._instructions[index]
        out, x = norm.operand("out"), norm.operand("x")
        assert out is not None
        assert x is not None
        result, source = footprint(out, self._context.reach), footprint(x, self._context.reach)
        found: dict[int, _Product] = {}
        if not _is_contiguous(out) or (x.segment is out.segment and not source.apart(result)):
            return found
        for at in range(index + 1, len(self._instructions)):
            if at in self._starts or not self._may_look():
                break
            reads, writes = self._accesses.of(at)
            if _touch(writes, x.segment, source) or _touch(writes, out.segment, result):
                break
            if _touch(reads, out.segment, result):
                product = self._product(at, norm, result, context)
                if product is not None and product.schedule.path == PATH_GEMM:
                    found[at] = product
                elif not found:
                    break
        return found

    def _product(self, at: int, norm: Instruction, result: Footprint, context: Context) -> _Product | None:
        """Instruction `at`, if it can do `norm`, whose result it reads as `a` alone; else None."""
        instruction, out, x = self._instructions[at], norm.operand("out"), norm.operand("x")
        assert out is not None
        assert x is not None
        if instruction.row.mnemonic != "GEMM":
            return None
        to = instruction.operand("out")
        if to is None or math.prod(to.bounds[:-1]) * out.bounds[-1] != out.elements:
            return None
        if any(isinstance(d, Dynamic) for d in to.dims):
            return None
        operands = list(instruction.operands)
        for k, (spec, d) in enumerate(zip(instruction.row.operands, instruction.operands, strict=True)):
            if d is None:
                continue
            if spec.name == "a":
                view = _view(d, out, x)
                if view is None:
                    return None
                operands[k] = view
            elif d.segment is out.segment and not footprint(d, self._context.reach).apart(result):
                return None
        product = replace(instruction, operands=tuple(operands))
        schedule = _schedule(product, context)
        return None if schedule is None else _Product(product, schedule)

    def _is_read_after(self, last: int, out: Descriptor, result: Footprint) -> bool:
        """Whether anyone may read `out` behind instruction `last` before it is written as a whole."""
        seen: set[int] = set()
        pending = [*self._following(last)]
        while pending:
            at = pending.pop()
            if at in seen or at == len(self._instructions):
                continue
            seen.add(at)
            if not self._may_look() or _touch(self._accesses.of(at)[0], out.segment, result):
                return True
            if not self._replaces(at, out):
                pending += self._following(at)
        return False

    def _following(self, at: int) -> Sequence[int]:
        """Where control may go from instruction `at`, and perhaps some places more."""
        instruction = self._instructions[at]
        match instruction.row.mnemonic:
            case "HALT":
                return ()
            case "LOOP":
                return at + 1, instruction.attributes["end"] + 1
            case "ENDLOOP":
                return at + 1, self._loop_of[at] + 1
            case "BR" | "CALL":
                return at + 1, instruction.attributes["target"]
            case "RET":
                return self._returns
            case _:
                return (at + 1,)

    def _replaces(self, at: int, out: Descriptor) -> bool:
        """Whether instruction `at` writes all bytes of `out`."""
        instruction = self._instructions[at]
        return any(
            d is not None
            and spec.role is Role.OUT
            and d.segment is out.segment
            and d.offset <= out.offset
            and out.offset + out.span <= d.offset + d.span
            and _is_dense(d)
            for spec, d in zip(instruction.row.operands, instruction.operands, strict=True)
        )

    def _may_look(self) -> bool:
        self._budget -= 1
        return self._budget >= 0


def _touch(accesses: Sequence[tuple[Segment, Footprint]], segment: Segment, where: Footprint) -> bool:
    """Whether one of `accesses` may touch a byte of `where` in `segment`."""
    return any(s is segment and not other.apart(where) for s, other in accesses)
