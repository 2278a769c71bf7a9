"""The disassembler: `Program` -> the text that assembles to the same program, to the byte.

Names, labels, comments and messages come from the debug section. Instructions stand on the lines that the debug
section gives them, with blank lines between; where that cannot be, a `.line` directive says so.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from dla.assembler import comments as places
from dla.assembler.attributes import attribute_text
from dla.assembler.constanttext import bytes_of, source_text
from dla.assembler.declarations import DIM_REGISTERS, aligned
from dla.assembler.instructions import positional_names
from dla.assembler.viewtext import Namer, quoted
from dla.isa.attributes import Attribute, Flag, Target
from dla.isa.descriptor import Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.program import Debug, DimSymbol, Instruction, Program, Tensor
from dla.isa.ranks import RankTable, Shard
from dla.isa.registers import Register, RegisterClass
from dla.isa.scalar_attributes import Reg, ScalarValue

_MAX_BLANK_LINES = 40


def disassemble(program: Program) -> str:
    """The text of `program`. `assemble` gives back an equal program, debug section included."""
    return _Disassembly(program).run()


def instruction_texts(program: Program) -> list[str]:
    """Each instruction as `disassemble` writes it, without labels, messages and comments."""
    disassembly = _Disassembly(program)
    return [disassembly.instruction_text(instruction) for instruction in program.instructions]


@dataclass
class _Disassembly:
    """The state of one run of the disassembler."""

    program: Program
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._namer = Namer(self.program)
        self._debug = self.program.debug or Debug()
        self._comments: dict[tuple[str, int], list[str]] = defaultdict(list)
        for place, index, text in self._debug.comments:
            self._comments[place, index].append(text)
        self._messages = dict(self._debug.messages)
        self._labels = self._all_labels()
        self._shift = 0  # how far `.line` has moved line numbers

    def run(self) -> str:
        """Header, ranks, declarations, code."""
        self._header()
        self._ranks()
        self._declarations()
        self.lines.append("")
        width = max((len(i.name) for i in self.program.instructions), default=0)
        for index, instruction in enumerate(self.program.instructions):
            self._instruction(index, instruction, width)
        self.lines += [";" + text for text in self._comments[places.END, 0]]
        return "\n".join(self.lines) + "\n"

    def _header(self) -> None:
        version = ".".join(map(str, self.program.isa_version))
        self.lines += [";" + text for text in self._comments[places.HEADER, 0]]
        self.lines += [f".isa {version}", f".program {quoted(self.program.name)}"]
        if self.program.debug is not None and self._debug.file != "<string>":
            self.lines.append(f".file {json.dumps(self._debug.file, ensure_ascii=False)}")
        self.lines.append("")

    def _ranks(self) -> None:
        """The world and its tables."""
        if self.program.world:
            self.lines.append(f".world {self.program.world}")
        tables = [("group", g.name, g.ranks) for g in self.program.groups]
        tables += [("pairs", p.name, p.pairs) for p in self.program.pairs]
        for what, name, lists in tables:
            self.lines.append(f".{what} {quoted(name)} [{', '.join(str(list(ranks)) for ranks in lists)}]")
        self.lines += [""] * bool(self.program.world)

    def _declarations(self) -> None:
        unseen = {d.name: d for d in self.program.dims}
        if not _dims_are_natural(self.program):
            self.lines += [f".dim {quoted(d.name)} s{d.register} {d.bound}" for d in self.program.dims]
            unseen = {}
        ends: dict[Segment, int] = {}
        widths = [len(quoted(t.name)) for t in self.program.tensors]
        width = min(max(widths, default=0), 24)
        external = {e.offset: e for e in self.program.external}
        shards = {shard.tensor: shard for shard in self.program.shards}
        for index, tensor in enumerate(self.program.tensors):
            self.lines += [";" + text for text in self._comments[places.ABOVE_TENSOR, index]]
            head = f".{tensor.segment.text:<7} {quoted(tensor.name):<{width}} : {self._shape(tensor, unseen)}"
            if tensor.descriptor.offset != aligned(ends.get(tensor.segment, 0)):
                head += f" @ {tensor.descriptor.offset}"
            end = tensor.descriptor.offset + tensor.descriptor.span
            ends[tensor.segment] = max(ends.get(tensor.segment, 0), end)
            outside = external.get(tensor.descriptor.offset) if tensor.segment is Segment.CONST else None
            if outside is not None:
                place = json.dumps(f"{outside.file}#{outside.key}", ensure_ascii=False)
                head += f" external {place}" + (f' "{outside.sha256.hex()}"' if outside.sha256 else "")
                value = []
            elif tensor.name in shards:
                value = self._cut(tensor, shards[tensor.name])
            else:
                value = self._value(tensor)
            rows = [f"{head} {value[0]}", *value[1:]] if value else [head]
            self.lines += self._beside(rows, places.BESIDE_TENSOR, index)
        for segment, nbytes in self.program.segment_bytes.items():
            if nbytes != ends.get(segment, 0):
                self.lines.append(f".segment {segment.text} {nbytes}")

    def _shape(self, tensor: Tensor, unseen: dict[str, DimSymbol]) -> str:
        dims = []
        for dim in tensor.descriptor.dims:
            text = self._namer.dim(dim)
            symbol = next((d for d in unseen.values() if quoted(d.name) == text), None)
            if symbol is not None and isinstance(dim, Dynamic):
                del unseen[symbol.name]
                text += f" <= {symbol.bound}"
            dims.append(text)
        return f"{tensor.descriptor.dtype.text}[{', '.join(dims)}]"

    def _value(self, tensor: Tensor) -> list[str]:
        if tensor.segment is not Segment.CONST:
            return []
        d = tensor.descriptor
        return source_text(d, bytes_of(self.program.constants, d.offset, d.span))

    def _cut(self, tensor: Tensor, shard: Shard) -> list[str]:
        """The value of a constant of which each rank holds a piece: the whole, and how it is cut."""
        groups, d = self.program.groups, tensor.descriptor
        group = groups[shard.group - 1] if 0 < shard.group <= len(groups) else None
        count = len(group.ranks[0]) if group and group.ranks else self.program.world
        whole = tuple(n * count if k == shard.axis else n for k, n in enumerate(d.bounds))
        if math.prod(whole) * d.dtype.itemsize == shard.data.nbytes:
            rows = source_text(contiguous(Segment.CONST, d.dtype, whole), shard.data)
        else:  # which the verifier refuses
            rows = source_text(contiguous(Segment.CONST, DType.U8, (shard.data.nbytes,)), shard.data)
        rows[-1] += f" shard axis={shard.axis}" + (f" group={quoted(group.name)}" if group else "")
        return rows

    def _beside(self, rows: list[str], place: str, index: int) -> list[str]:
        """`rows` with the comment that stands beside them; others that claim the place go above."""
        texts = self._comments[place, index]
        above = [";" + text for text in texts[:-1]]
        return above + rows[:-1] + [f"{rows[-1]:<40} ;{texts[-1]}" if texts else rows[-1]]

    def _all_labels(self) -> dict[int, list[str]]:
        """Labels by instruction; every target has one, L<index> where the debug section has none."""
        labels: dict[int, list[str]] = defaultdict(list)
        for name, index in self._debug.labels:
            labels[index].append(name)
        taken = {name for name, _ in self._debug.labels}
        for target in sorted(set(_targets(self.program))):
            if not labels[target]:
                name = f"L{target}"
                while name in taken:
                    name += "_"
                taken.add(name)
                labels[target].append(name)
        return labels

    def _instruction(self, index: int, instruction: Instruction, width: int) -> None:
        labels = self._labels.get(index, [])
        block = [";" + text for text in self._comments[places.ABOVE_LABEL, index]]
        block += [f"{quoted(name)}:" for name in labels]
        block += ["    ;" + text for text in self._comments[places.ABOVE, index]]
        text = self.instruction_text(instruction, width)
        if index in self._messages:
            text += f"  {json.dumps(self._messages[index], ensure_ascii=False)}"
        rows = self._beside(["    " + text], places.BESIDE, index)
        self._align(index, len(block) + len(rows))
        self.lines += block + rows[:-1]
        wanted = self._wanted(index)
        if wanted is not None and wanted != len(self.lines) + 1 + self._shift:
            self.lines.append(f".line {wanted}")
            self._shift = wanted - len(self.lines) - 1
        self.lines.append(rows[-1])

    def _wanted(self, index: int) -> int | None:
        known = index < len(self._debug.lines) and self._debug.lines[index] > 0
        return self._debug.lines[index] if known else None

    def _align(self, index: int, height: int) -> None:
        """Put the next `height` lines where the debug section wants the last one of them."""
        wanted = self._wanted(index)
        if wanted is None:
            return
        blanks = wanted - (len(self.lines) + height + self._shift)
        if 0 <= blanks <= _MAX_BLANK_LINES:
            self.lines += [""] * blanks
        elif wanted - height >= 0:
            self.lines.append(f".line {wanted - height + 1}")
            self._shift = wanted - height - len(self.lines)

    def instruction_text(self, instruction: Instruction, width: int = 0) -> str:
        """One instruction; its name takes `width` characters at least."""
        arguments = _Arguments(instruction)
        first, names = [], positional_names(instruction.row, instruction.sub)
        last = max((i for i, name in enumerate(names) if arguments.given(name)), default=-1)
        for name in names[: last + 1]:
            if not arguments.sayable(name):
                break
            first.append(self._argument(arguments, name))
            arguments.written.add(name)
        words = [self._keyword(arguments, name) for name in arguments.rest()]
        text = f"{instruction.name:<{width}} {', '.join(first)}" if first or words else instruction.name
        return f"{text}  {' '.join(words)}".rstrip() if words else text.rstrip()

    def _argument(self, arguments: _Arguments, name: str) -> str:
        descriptor = arguments.operands.get(name)
        if descriptor is not None:
            return self._namer.operand(descriptor)
        attribute = arguments.instruction.row.all_attributes[name]
        value = arguments.instruction.attributes.get(name, attribute.default)
        return self._attribute(attribute, value)

    def _attribute(self, attribute: Attribute, value: Any) -> str:
        if isinstance(attribute, Target):
            return quoted(self._labels[value][0])
        if isinstance(attribute, RankTable):
            names = [t.name for t in (self.program.groups if attribute.table == "groups" else self.program.pairs)]
            return quoted(names[value - 1]) if 0 < value <= len(names) else str(value)
        if isinstance(attribute, Reg | ScalarValue) and isinstance(value, Register):
            return self._namer.register(value.index) if value.cls is RegisterClass.INT else str(value)
        return attribute_text(attribute, value)

    def _keyword(self, arguments: _Arguments, name: str) -> str:
        if name == "clamp":
            row, values = arguments.instruction.row, arguments.instruction.attributes
            limits = [row.all_attributes[n] for n in ("clamp_low", "clamp_high")]
            return "clamp=[" + ", ".join(self._attribute(a, values.get(a.name, a.default)) for a in limits) + "]"
        attribute = arguments.instruction.row.all_attributes.get(name)
        if isinstance(attribute, Flag) and arguments.instruction.attributes[name] is True:
            return name
        return f"{name}={self._argument(arguments, name)}"


class _Arguments:
    """What one instruction has to write, and what of it is written."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.operands = {o.name: d for o, d in zip(instruction.row.operands, instruction.operands, strict=True)}
        self.written: set[str] = set()

    def given(self, name: str) -> bool:
        """Whether the instruction has this operand, or this attribute with a value that is not its default."""
        if name in self.operands:
            return self.operands[name] is not None
        attribute = self.instruction.row.all_attributes[name]
        return name in self.instruction.attributes or isinstance(attribute, Target)

    def sayable(self, name: str) -> bool:
        """Whether a value for `name` can be written, be it the default."""
        if self.given(name):
            return True
        return name not in self.operands and self.instruction.row.all_attributes[name].default is not None

    def rest(self) -> list[str]:
        """What follows as name=value, in order: epilogue steps as they happen, operands, attributes."""
        steps = self.instruction.attributes.get("steps", ())
        by_step = {o.step: o.name for o in self.instruction.row.operands if o.step is not None}
        names = [by_step.get(step, step) for step in steps]
        hidden = {"steps"} | ({"clamp_low", "clamp_high"} if "clamp" in steps else set())
        names += [n for n, d in self.operands.items() if d is not None and n not in names]
        row = self.instruction.row
        for name, attribute in row.all_attributes.items():
            if name not in names and not attribute.implicit and name not in hidden and self.given(name):
                names.append(name)
        return [n for n in names if n not in self.written]


def _targets(program: Program) -> list[int]:
    """Every instruction that a written target names."""
    found = []
    for instruction in program.instructions:
        for attribute in instruction.row.attributes:
            if isinstance(attribute, Target) and not attribute.implicit:
                found.append(instruction.attributes.get(attribute.name, attribute.default))
    return [target for target in found if isinstance(target, int)]


def _dims_are_natural(program: Program) -> bool:
    """Whether naming dims where they first appear in declarations gives each the register that it has."""
    symbols = {(d.register, d.bound): d.name for d in reversed(program.dims)}
    order: list[str] = []
    for tensor in program.tensors:
        for dim in tensor.descriptor.dims:
            if isinstance(dim, Dynamic) and (dim.register, dim.bound) in symbols:
                name = symbols[dim.register, dim.bound]
                if name not in order:
                    order.append(name)
    registers = [d.register for d in program.dims]
    return order == [d.name for d in program.dims] and registers == list(DIM_REGISTERS[: len(registers)])
