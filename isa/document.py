"""The manual of the instruction set, written from the table: `python -m dla.isa.document` makes docs/isa.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from dla.isa import descriptor, dtypes, encoding, epilogue, ranks, shapes
from dla.isa.activations import ACTIVATIONS
from dla.isa.attributes import UNIT_BITS, Attribute, EnumList, Flag, IntList, Record
from dla.isa.descriptor import MAX_RANK, Segment
from dla.isa.dtypes import DType
from dla.isa.errors import TRAP_CATEGORIES
from dla.isa.instructions import ROWS
from dla.isa.picture import Field, draw
from dla.isa.program import ISA_VERSION, TENSOR_ALIGNMENT
from dla.isa.records import RECORDS
from dla.isa.registers import RegisterClass
from dla.isa.scalar_attributes import Reg, ScalarValue
from dla.isa.table import ATTRIBUTE_BITS, OPCODE, OPERAND_SLOTS, RECORD_SLOTS, SUB, Exec, Operand, Row

MANUAL = Path(__file__).parent.parent / "docs" / "isa.md"


def page(row: Row) -> str:
    """The page of one instruction, in Markdown."""
    parts = [f"### {row.mnemonic}: {row.summary}", f"`{syntax(row)}`", row.description]
    parts += [_sub_table(row)] if row.subs else []
    parts += ["**Encoding**", _fenced(draw(_word_fields(row), UNIT_BITS))]
    parts += [f"Records: {', '.join(_record_link(r) for r in row.records)}."] if row.records else []
    parts += ["**Operands**", _operand_table(row)] if row.operands else []
    parts += ["**Attributes**", _attribute_table(row.attributes)] if row.attributes else []
    if row.constraints:
        parts += ["**Constraints**", "\n".join(f"- **{c.name}** must hold: {c.text}." for c in row.constraints)]
    if row.static:
        parts.append(f"Constant dims: {', '.join(row.static)}.")
    if row.unit is Exec.TENSOR:
        parts += list(_behaviour(row))
    parts += ["**Example**", _fenced(row.example.strip(), "")]
    return "\n\n".join(parts) + "\n"


def syntax(row: Row) -> str:
    """How the instruction is written: positional ones first, then keywords; brackets mark what may be left out."""
    bare = row.default_sub or "" in row.sub_codes
    sub = ("[.sub]" if bare else ".sub") if row.subs else ""
    optional = {o.name for o in row.operands if o.optional or o.step or o.subs}
    attributes = row.all_attributes
    optional |= {a.name for a in attributes.values() if not a.required}
    first = [f"[{n}]" if n in optional else n for n in row.written_first]
    rest = [o.name for o in row.operands if o.name not in row.written_first]
    words = [f"[{name}=tensor]" if name in optional else f"{name}=tensor" for name in rest]
    named = (a for a in attributes.values() if a.name not in row.written_first)
    words += [_keyword(a) for a in named if not a.implicit and a.name not in ("steps", "clamp_low", "clamp_high")]
    words += ["[clamp=[low, high]]"] if "clamp_low" in attributes else []
    return " ".join([f"{row.mnemonic}{sub}", ", ".join(first), *words]).strip()


def manual() -> str:
    """The whole manual, in Markdown."""
    chapters = [_title(), *_generic_chapters()]
    for family, rows in groupby(ROWS, key=lambda row: row.family):
        chapters += [f"## Instructions: {family}\n", *(page(row) for row in rows)]
    return "\n".join(chapters)


def _title() -> str:
    major, minor = ISA_VERSION
    index = "\n".join(f"| `{r.opcode:#04x}` | [{r.mnemonic}](#{_anchor(r)}) | {r.family} | {r.summary} |" for r in ROWS)
    return (
        f"# The instruction set, version {major}.{minor}\n\n"
        "Generated from the table in `isa/instructions/` by `python -m dla.isa.document`; do not edit.\n\n"
        f"| opcode | instruction | family | what it does |\n|---|---|---|---|\n{index}\n"
    )


def _anchor(row: Row) -> str:
    text = f"{row.mnemonic} {row.summary}".lower()
    return "".join(c for c in text.replace(" ", "-") if c.isalnum() or c == "-")


def _generic_chapters() -> Iterator[str]:
    yield "## Numbers\n\n" + _table(
        ("type", "code", "bytes"), ((f"`{d.text}`", str(d.value), str(d.itemsize)) for d in DType)
    ) + "\n\n" + _docstring(dtypes.convert)  # fmt: skip
    yield "## Registers\n\n" + _table(
        ("registers", "holds", "writable", "first code"),
        ((_register_names(c), _HOLDS[c], "yes" if c.count > 1 else "no", str(c.first_code)) for c in RegisterClass),
    ) + "\n\nAll start at 0. Registers of named dims hold those dims before the first instruction.\n"  # fmt: skip
    yield "## Segments\n\n" + _table(
        ("segment", "code", "a program may", "at the start"),
        ((f"`{s.text}`", str(s.value), "read and write" if s.writable else "read", _AT_START[s]) for s in Segment),
    ) + f"\n\nTensors lie at multiples of {TENSOR_ALIGNMENT} bytes.\n"  # fmt: skip
    yield f"## Ranks\n\n{_docstring(ranks)}\n{_docstring(ranks.Member)}\n[Ranks](ranks.md) says more.\n"
    yield f"## Shapes\n\n{_docstring(shapes)}"
    yield "## Descriptors\n\n" + _docstring(descriptor) + "\n" + _docstring(descriptor.Descriptor) + "\n" + _fenced(
        draw(_descriptor_fields(), descriptor.DESCRIPTOR_BYTES * 8)
    )  # fmt: skip
    yield f"\n## The instruction word\n\n{_docstring(encoding)}\n" + _fenced(draw(_generic_fields(), UNIT_BITS))
    yield "\n## Records\n\nA record whose attributes are all at their defaults is not stored.\n"
    yield from (_record_page(record) for record in RECORDS)
    yield f"## The epilogue\n\n{_docstring(epilogue)}\n{_docstring(epilogue.slack)}"
    yield "## Traps\n\nA machine never continues after a trap, and delivers no outputs.\n\n" + _table(
        ("category", "what happened"), ((f"`{name}`", meaning) for name, meaning in TRAP_CATEGORIES.items())
    ) + "\n"  # fmt: skip


_HOLDS = {
    RegisterClass.INT: "i64, wraps",
    RegisterClass.FLOAT: "f64",
    RegisterClass.PREDICATE: "true or false",
    RegisterClass.RANK: "this machine's number among WORLD",
    RegisterClass.WORLD: "number of machines that run the program together",
}
_AT_START = {
    Segment.CONST: "the program's constants",
    Segment.INPUT: "the caller's tensors",
    Segment.OUTPUT: "not initialised",
    Segment.STATE: "zeros, or what the last run left",
    Segment.SCRATCH: "not initialised",
}


def _register_names(cls: RegisterClass) -> str:
    return f"`{cls.prefix}0` to `{cls.prefix}{cls.count - 1}`" if cls.count > 1 else f"`{cls.prefix}`"


def _docstring(thing: object) -> str:
    """A docstring as Markdown: indented parts stay as they are."""
    lines = inspect.cleandoc(inspect.getdoc(thing) or "").split("\n")
    text: list[str] = []
    fenced = False
    for line in lines:
        if line and line.startswith("    ") != fenced:
            if fenced:
                text = [*text[: len(text) - (text[-1] == "")], "```", ""]
            else:
                text.append("```")
            fenced = not fenced
        text.append(line[4:] if fenced else line)
    return "\n".join([*text, *(["```"] if fenced else [])]) + "\n"


def _fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    cells = [head, ("---",) * len(head), *(tuple(c.replace("|", "\\|") for c in row) for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _keyword(attribute: Attribute) -> str:
    text = attribute.name if isinstance(attribute, Flag) else f"{attribute.name}={_kind(attribute)}"
    return text if attribute.required else f"[{text}]"


def _kind(attribute: Attribute) -> str:
    names = {"Int": "integer", "IntList": "list", "F32": "number", "Enum": "name", "Target": "label", "Reg": "register",
             "RankTable": "name"}  # fmt: skip
    return names.get(type(attribute).__name__, type(attribute).__name__.lower().replace("scalarvalue", "scalar"))


def _sub_table(row: Row) -> str:
    return _table(
        ("sub-operation", "code", "meaning"),
        ((f"`.{s.name}`" if s.name else f"`{row.mnemonic}`", str(s.code), s.doc) for s in row.subs),
    )


def _operand_table(row: Row) -> str:
    head = ("operand", "role", "shape", "types", "meaning")
    return _table(head, ((o.name, _presence(o), f"`{o.shape}`", _types(row, o), o.doc) for o in row.operands))


def _presence(operand: Operand) -> str:
    if operand.step:
        return f"{operand.role.value}, with step {operand.step}"
    if operand.subs:
        return f"{operand.role.value}, for {', '.join(operand.subs)}"
    return f"{operand.role.value}, optional" if operand.optional else operand.role.value


def _types(row: Row, operand: Operand) -> str:
    names = " ".join(d.text for d in row.operand_dtypes(operand))
    return f"{operand.dtypes}: {names}" if isinstance(operand.dtypes, str) else names


def _attribute_table(attributes: tuple[Attribute, ...]) -> str:
    return _table(
        ("attribute", "bits", "default", "value", "meaning"),
        ((a.name, _bits(a), _default(a), a.expects, a.doc) for a in attributes),
    )


def _bits(attribute: Attribute) -> str:
    return ", ".join(f"{at}..{at + width - 1}" if width > 1 else str(at) for at, width in attribute.pieces)


def _default(attribute: Attribute) -> str:
    if attribute.implicit:
        return "worked out by the assembler"
    if attribute.default is None:
        return "absent" if attribute.optional or isinstance(attribute, Reg) else "must be written"
    if isinstance(attribute.default, bool):
        return "off"
    if isinstance(attribute.default, float):
        return f"{attribute.default:.7g}"
    if isinstance(attribute, EnumList):
        return "none"
    return str(list(attribute.default) if isinstance(attribute.default, tuple) else attribute.default)


def _behaviour(row: Row) -> Iterator[str]:
    shared = ", ".join(o.name for o in row.operands if o.may_be_output)
    yield f"**Aliasing**: {row.alias.value}{f'; {shared} may be exactly the output' if shared else ''}."
    yield f"**Error bound**: `{row.error.text}`."
    moved = f"; of {row.picked} only as many elements as are written" if row.picked else ""
    yield f"**Operations**: `{row.flops_text}`. **Bytes**: each operand once{moved}."
    assert row.semantics is not None
    yield "**Semantics**" + (" (operands arrive in their own types)" if row.raw else "")
    yield _fenced("\n\n".join(inspect.getsource(f).rstrip() for f in _with_helpers(row.semantics)), "python")
    if row.mnemonic == "ACT":
        yield _table(
            ("function", "formula", "alpha"),
            ((a.name, f"`{a.formula}`", f"{a.alpha:g}" if a.alpha else "") for a in ACTIVATIONS.values()),
        )


def _with_helpers(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """A function after those of its own module that it calls, each once."""
    found: dict[Callable[..., Any], None] = {}

    def visit(one: Any) -> None:
        for name in one.__code__.co_names:
            other = one.__globals__.get(name)
            if inspect.isfunction(other) and other.__module__ == function.__module__ and other not in found:
                visit(other)
        found.setdefault(one)

    visit(function)
    return list(found)


def _attribute_fields(attributes: Iterable[Attribute]) -> list[Field]:
    fields = []
    for attribute in attributes:
        parts = attribute.pieces
        if isinstance(attribute, ScalarValue):
            fields += [Field(*parts[0], f"{attribute.name} tag"), Field(*parts[1], attribute.name)]
        elif isinstance(attribute, IntList):
            at, size = attribute.at, attribute.size
            fields += [Field(at + i * size, size, f"{attribute.name}[{i}]") for i in range(attribute.length)]
        else:
            fields.append(Field(*parts[0], attribute.name))
    return fields


def _word_fields(row: Row) -> list[Field]:
    fields = [
        Field(*OPCODE, f"{row.opcode:#04x} {row.mnemonic}"),
        *([Field(*SUB, "sub-operation")] if row.subs else []),
    ]
    fields += [Field(*slot, f"{r.name} record") for slot, r in zip(RECORD_SLOTS, row.records, strict=False)]
    fields += [Field(*slot, f"{o.name} (descriptor)") for slot, o in zip(OPERAND_SLOTS, row.operands, strict=False)]
    return fields + _attribute_fields(row.attributes)


def _generic_fields() -> list[Field]:
    fields = [Field(*OPCODE, "opcode"), Field(*SUB, "sub-operation")]
    fields += [Field(*slot, f"record {i} (index + 1, or 0)") for i, slot in enumerate(RECORD_SLOTS)]
    fields += [Field(*slot, f"operand {i} (descriptor index + 1, or 0)") for i, slot in enumerate(OPERAND_SLOTS)]
    free = [bit for bit in ATTRIBUTE_BITS if bit % 32 == 0 or bit - 1 not in ATTRIBUTE_BITS]
    return fields + [Field(bit, 32 - bit % 32, "attributes") for bit in free]


def _descriptor_fields() -> list[Field]:
    fields = [Field(8 * i, 8, n) for i, n in enumerate(("segment", "dtype", "rank", "offset reg"))]
    fields += [Field(32 + 8 * i, 8, f"dim {i} reg") for i in range(MAX_RANK)]
    fields += [Field(128, 64, "offset"), Field(192, 64, "offset scale")]
    fields += [Field(256 + 64 * i, 64, f"dim {i}") for i in range(MAX_RANK)]
    return fields + [Field(640 + 64 * i, 64, f"stride {i}") for i in range(MAX_RANK)]


def _record_link(record: Record) -> str:
    return f"[{record.name}](#record-{record.name})"


def _record_page(record: Record) -> str:
    fields = [Field(0, 8, f"{record.code:#04x}"), *_attribute_fields(record.attributes)]
    picture = _fenced(draw(fields, UNIT_BITS))
    return f"### Record: {record.name}\n\n{picture}\n\n{_attribute_table(record.attributes)}\n"


if __name__ == "__main__":
    MANUAL.write_text(manual(), encoding="utf-8")
