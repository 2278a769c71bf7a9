"""Instruction statements: matched against their row, operands and attributes resolved, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lark import Token

from dla.assembler.attributes import attribute_value
from dla.assembler.declarations import Declared
from dla.assembler.source import suggestion
from dla.assembler.syntax import InstructionStatement, Keyword, ListValue, Placed, Value, View, problem, unquote
from dla.assembler.views import named, placed, view
from dla.isa import typing
from dla.isa.attributes import Attribute, Axes, Axis, Enum, EnumList, Flag, Target
from dla.isa.descriptor import MAX_RANK, Descriptor
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.names import MAX_TEXT_BYTES, is_text
from dla.isa.program import Instruction
from dla.isa.scalar_attributes import Reg
from dla.isa.table import Operand, Row


@dataclass
class Lowered:
    """One instruction, but for what only the whole program tells: label targets and loop ends."""

    row: Row
    sub: str
    operands: list[Descriptor | None]
    attributes: dict[str, Any]
    statement: InstructionStatement
    places: dict[str, Token] = field(default_factory=dict)  # where each operand and attribute is written
    targets: dict[str, Token] = field(default_factory=dict)  # attribute name: label
    message: str | None = None

    def build(self) -> Instruction:
        """The finished instruction."""
        attributes = {n: v for n, v in self.attributes.items() if v != self.row.all_attributes[n].default}
        return Instruction(self.row, self.sub, tuple(self.operands), attributes)


def token_of(value: Value | Keyword) -> Token:
    """The token that a complaint about `value` points at."""
    if isinstance(value, Token):
        return value
    if isinstance(value, View | Keyword):
        return value.name
    if isinstance(value, Placed):
        return value.segment
    return value.at


def row_of(mnemonic: Token) -> tuple[Row, str]:
    """The row and sub-operation that `mnemonic` names. Raises SyntaxProblem."""
    name, dot, sub = mnemonic.partition(".")
    row = BY_MNEMONIC.get(name)
    if row is None:
        hint = suggestion(name, BY_MNEMONIC) or "`dla isa` lists the instructions"
        raise problem(mnemonic, f"unknown instruction {mnemonic}", hint)
    if not dot:
        sub = row.default_sub
    if not row.subs and sub:
        raise problem(mnemonic, f"{name} has no sub-operations", f"write {name}")
    if row.subs and sub not in row.sub_codes:
        names = ", ".join(filter(None, row.sub_codes))
        alone = f", or write {name} alone" if "" in row.sub_codes else ""
        hint = suggestion(sub, row.sub_codes) or f"it has {names}{alone}"
        message = f"{name} has no sub-operation {sub}" if sub else f"{name} needs a sub-operation"
        raise problem(mnemonic, message, hint if sub else f"write {name}.{next(iter(row.sub_codes))}; it has {names}")
    return row, sub


def lower(declared: Declared, statement: InstructionStatement) -> Lowered:
    """Match a statement against its row. Raises SyntaxProblem for the first thing that does not fit."""
    row, sub = row_of(statement.mnemonic)
    lowered = Lowered(row, sub, [None] * len(row.operands), {}, statement)
    given = _arguments(declared, statement, row, sub, lowered)
    numbers: list[tuple[int, Token]] = []
    for index, operand in enumerate(row.operands):
        value = given.pop(operand.name, None)
        if value is None:
            continue
        lowered.places[operand.name] = token_of(value)
        if isinstance(value, Token) and (value.type == "NUMBER" or _is_bool(declared, value)):
            numbers.append((index, value))
        else:
            lowered.operands[index] = _descriptor(declared, value, operand)
    for index, token in numbers:
        dtype = _number_type(lowered, row.operands[index], token)
        lowered.operands[index] = declared.number(token, dtype)
    for name, value in given.items():
        _set_attribute(declared, lowered, name, value)
    _require(lowered)
    return lowered


def positional_names(row: Row, sub: str) -> tuple[str, ...]:
    """What the unnamed arguments of an instruction stand for, in order."""
    return _positional_names(row.mnemonic, sub)


@cache
def _positional_names(mnemonic: str, sub: str) -> tuple[str, ...]:
    row = BY_MNEMONIC[mnemonic]
    absent = {o.name for o in row.operands if o.subs and sub not in o.subs}
    return tuple(n for n in row.written_first if n not in absent)


def _arguments(
    declared: Declared, statement: InstructionStatement, row: Row, sub: str, lowered: Lowered
) -> dict[str, Value | None]:
    """Argument values by name, in the order written; a flag's value is None. `steps` collects the epilogue's order."""
    names = positional_names(row, sub)
    given: dict[str, Value | None] = {}
    steps: list[str] = []
    taken = 0
    for argument in statement.arguments:
        if isinstance(argument, Token) and argument.type == "STRING":
            _set_message(lowered, argument)
            continue
        bare = argument if isinstance(argument, Token) and argument.type == "NAME" else None
        if isinstance(argument, Keyword):
            name = _keyword(row, argument)
            value = argument.value
        elif bare is not None and bare not in declared.scope.tensors and _is_flag(row, bare):
            name, value = str(bare), None
        elif taken < len(names):
            name, value = names[taken], argument
            taken += 1
        else:
            takes = f"takes {', '.join(names)}" if names else "takes nothing"
            raise problem(token_of(argument), f"too many arguments: {statement.mnemonic} {takes}",
                          _keyword_hint(row, names))  # fmt: skip
        if name in given:
            raise problem(token_of(argument), f"{name} is given twice")
        given[name] = value
        lowered.places[name] = token_of(argument)
        step = _step(row, name)
        if step is not None and value != "identity":
            steps.append(step)
    if steps:
        lowered.attributes["steps"] = tuple(steps)
    if "clamp" in given:
        _set_clamp(given, lowered)
    return given


def _is_flag(row: Row, name: str) -> bool:
    return isinstance(row.all_attributes.get(name), Flag)


def _keyword(row: Row, keyword: Keyword) -> str:
    """The operand or attribute that `keyword` names. Raises SyntaxProblem."""
    name = str(keyword.name)
    if keyword.value is None and not _is_flag(row, name):
        raise problem(keyword.name, f"{row.mnemonic} has no flag {name}",
                      "separate operands by commas, and give other attributes a value: name=value")  # fmt: skip
    known = keyword_names(row)
    if name not in known:
        hint = suggestion(name, known) or (f"it has {', '.join(known)}" if known else "it takes no keywords")
        raise problem(keyword.name, f"{row.mnemonic} has no operand or attribute {name}", hint)
    return name


def keyword_names(row: Row) -> list[str]:
    """What may be written as `name=value`."""
    written = [a.name for a in row.all_attributes.values() if not a.implicit and a.name != "steps"]
    names = [o.name for o in row.operands] + [n for n in written if n not in ("clamp_low", "clamp_high")]
    return [*names, "clamp"] if "clamp_low" in row.all_attributes else names


def _keyword_hint(row: Row, positional: tuple[str, ...]) -> str | None:
    others = [n for n in keyword_names(row) if n not in positional]
    return f"others are written name=value: {', '.join(others)}" if others else None


def _step(row: Row, name: str) -> str | None:
    """The epilogue step that mentioning `name` adds."""
    if "steps" not in row.all_attributes:
        return None
    if name in ("act", "clamp"):
        return name
    return next((o.step for o in row.operands if o.name == name), None)


def _set_clamp(given: dict[str, Value | None], lowered: Lowered) -> None:
    value = given.pop("clamp")
    if not isinstance(value, ListValue) or len(value.items) != 2:
        raise problem(lowered.places["clamp"], "clamp must be [low, high]")
    given["clamp_low"], given["clamp_high"] = value.items


def _set_message(lowered: Lowered, token: Token) -> None:
    text = unquote(token)
    if lowered.message is not None:
        raise problem(token, "an instruction has one message")
    if not is_text(text):
        raise problem(token, f"a message is printable text of at most {MAX_TEXT_BYTES} bytes")
    lowered.message = text


def _is_bool(declared: Declared, token: Token) -> bool:
    return token.type == "NAME" and token in ("true", "false", "inf", "nan") and token not in declared.scope.tensors


def _descriptor(declared: Declared, value: Value | None, operand: Operand) -> Descriptor:
    if isinstance(value, View):
        return view(declared.scope, value)
    if isinstance(value, Placed):
        return placed(declared.scope, value)
    if isinstance(value, ListValue):
        raise problem(value.at, f"{operand.name} must be a tensor, not a list", "declare a .const with these values")
    assert value is not None
    return named(declared.scope, value)


def _number_type(lowered: Lowered, operand: Operand, token: Token) -> DType:
    """The type of a number that stands for `operand`: what the other operands make of its type variable."""
    row = lowered.row
    allowed = row.operand_dtypes(operand)
    others = [(o, d) for o, d in zip(row.operands, lowered.operands, strict=True) if d is not None]
    if isinstance(operand.dtypes, str):
        same = [d.dtype for o, d in others if o.dtypes == operand.dtypes]
        if not same and len(allowed) > 1:
            raise problem(token, f"the type of {token} is not known here", f"declare it: .const {operand.name} : f32[]")
        return same[0] if same else allowed[0]
    outputs = [d.dtype for _, d in others if d.dtype in allowed]
    return outputs[0] if outputs else allowed[0]


def _set_attribute(declared: Declared, lowered: Lowered, name: str, value: Value | None) -> None:
    attribute = lowered.row.all_attributes[name]
    place = lowered.places.setdefault(name, lowered.places.get("clamp", lowered.statement.mnemonic))
    if isinstance(attribute, Target):
        if not isinstance(value, Token) or value.type not in ("NAME", "QUOTED"):
            raise problem(place, f"{name} must be a label")
        lowered.targets[name] = value
        return
    result = attribute_value(declared.scope, attribute, value, place)
    try:
        if isinstance(attribute, Axis | Axes):
            result = attribute.normalised(result, _rank(lowered, attribute.of))
        lowered.attributes[name] = attribute.canonical(result)
    except ValueError as error:
        at = value if isinstance(value, Token) else place
        raise problem(at, str(error), _value_hint(attribute, at)) from None


def _rank(lowered: Lowered, operand: str) -> int:
    """The rank of the operand that an axis belongs to."""
    for spec, descriptor in zip(lowered.row.operands, lowered.operands, strict=True):
        if spec.name == operand and descriptor is not None:
            return descriptor.rank
    return MAX_RANK


def _value_hint(attribute: Attribute, token: Token) -> str | None:
    choices = attribute.choices if isinstance(attribute, Enum | EnumList) else {}
    return suggestion(token, choices)


def _require(lowered: Lowered) -> None:
    """Complain about the first operand or attribute that must be there and is not."""
    row = lowered.row
    for operand in row.operands:
        needed = not operand.optional and operand.step is None and (not operand.subs or lowered.sub in operand.subs)
        if needed and lowered.operands[row.operands.index(operand)] is None:
            raise _missing(lowered, operand.name)
    for name, attribute in row.all_attributes.items():
        written = name in lowered.attributes or name in lowered.targets
        if not written and attribute.required and (not isinstance(attribute, Reg) or name in row.positional):
            raise _missing(lowered, name)


def _missing(lowered: Lowered, name: str) -> Exception:
    row, names = lowered.row, positional_names(lowered.row, lowered.sub)
    usage = f"{lowered.statement.mnemonic} {', '.join(names)}"
    hint = f"write {usage}" if name in names else f"write {usage} {name}=..."
    what = next((f" ({a.expects})" for a in [row.all_attributes.get(name)] if a is not None), "")
    return problem(lowered.statement.mnemonic, f"{name} is missing{what}", hint)


class Checker:
    """Asks `isa.typing` about instructions, once for each combination of row, shapes, types and attributes."""

    def __init__(self) -> None:
        self._known: dict[Any, list[typing.Complaint]] = {}

    def complaints(self, instruction: Instruction) -> list[typing.Complaint]:
        """Every way in which `instruction` does not fit its row."""
        shapes = tuple(d and (d.segment, d.dtype, d.dims, d.strides) for d in instruction.operands)
        key = (instruction.row.opcode, instruction.sub, shapes, _frozen(instruction.attributes))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = typing.check(instruction)
        return known


def _frozen(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((n, type(v).__name__, v) for n, v in attributes.items())) if attributes else ()
