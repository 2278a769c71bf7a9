"""Attributes in assembly: from a written value to the value that the row's attribute holds, and back to text."""

from __future__ import annotations

from typing import Any

import numpy as np
from lark import Token

from dla.assembler.constants import number
from dla.assembler.source import suggestion
from dla.assembler.syntax import ListValue, Value, integer, name_of, problem
from dla.assembler.views import Scope
from dla.assembler.worlds import table_index
from dla.isa.attributes import F32, Attribute, Enum, Flag
from dla.isa.ranks import RankTable
from dla.isa.registers import Register
from dla.isa.scalar_attributes import Reg, ScalarValue


def attribute_value(scope: Scope, attribute: Attribute, value: Value | None, place: Token) -> Any:
    """What `value` means for `attribute`, not yet checked against its range. Raises SyntaxProblem.

    `place` is the token to point at where the value itself is no token; `value` is None for a bare flag.
    """
    if isinstance(attribute, Flag):
        return _flag(attribute, value, place)
    if isinstance(value, ListValue):
        return tuple(_item(attribute, item, place) for item in value.items)
    if not isinstance(value, Token):
        raise problem(place, f"{attribute.name} must be {attribute.expects}")
    if isinstance(attribute, RankTable):
        return table_index(scope, attribute.table, value)
    if isinstance(attribute, Reg | ScalarValue):
        return _scalar(scope, attribute, value)
    if isinstance(attribute, F32) and value.type == "NUMBER":
        return number(value)
    if isinstance(attribute, Enum):
        return str(value)
    if value.type == "NUMBER":
        return integer(value)
    raise problem(value, f"{attribute.name} must be {attribute.expects}, not {value}")


def _flag(attribute: Flag, value: Value | None, place: Token) -> bool:
    if value is None:
        return True
    if not isinstance(value, Token) or value not in ("true", "false"):
        raise problem(place, f"{attribute.name} must be {attribute.expects}", f"write {attribute.name} alone")
    return bool(value == "true")


def _item(attribute: Attribute, value: Value, place: Token) -> int | float | str:
    if not isinstance(value, Token):
        raise problem(place, f"{attribute.name} must be {attribute.expects}")
    return number(value) if value.type == "NUMBER" else str(value)


def _scalar(scope: Scope, attribute: Reg | ScalarValue, value: Token) -> Any:
    if value.type == "NUMBER" and isinstance(attribute, ScalarValue):
        return number(value)
    if isinstance(attribute, ScalarValue) and value in ("true", "false"):
        return int(value == "true")
    register = scope.register(value)
    if register is None:
        hint = suggestion(name_of(value), scope.dims) if value.type == "NAME" else None
        raise problem(value, f"{attribute.name} must be {attribute.expects}, not {value}", hint)
    return register


def attribute_text(attribute: Attribute, value: Any) -> str:
    """How assembly writes `value`; reading it gives exactly `value` again."""
    if isinstance(attribute, F32):
        return float_text(np.float32(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(str(v) for v in value) + "]"
    if isinstance(value, float):
        return float_text(np.float64(value))
    return str(value) if isinstance(value, Register | int | str) else repr(value)


def float_text(value: Any) -> str:
    """The shortest decimal that reads back as `value`, a NumPy float of its own width.

    Integral f32 and f16 need no point where they are read; a scalar (f64) does, or it would be an integer.
    """
    plain = isinstance(value, np.float32 | np.float16) and float(value).is_integer() and abs(float(value)) < 1e6
    return str(int(value)) if plain and (value or not np.signbit(value)) else str(value)
