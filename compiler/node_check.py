"""Whether a node fits its row: types, shapes, constraints and attributes, as the verifier will ask of the instruction.

Asked when a node is made, so that an input that does not fit is reported where it is, and before constants are folded.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr
from dla.compiler.graph import TensorType
from dla.compiler.operators import GRAPH_ONLY, row_of
from dla.isa import typing
from dla.isa.attributes import pack
from dla.isa.descriptor import MAX_DIM, MAX_RANK, Descriptor, Dynamic, Segment, contiguous
from dla.isa.errors import ModelError
from dla.isa.names import shown
from dla.isa.program import Instruction
from dla.isa.registers import s
from dla.isa.table import Role, Row

Types = Sequence[TensorType | None]


def check_node(op: str, sub: str, inputs: Types, outputs: Types, attributes: Mapping[str, Any]) -> None:
    """Raise ModelError where a node has sizes that no tensor has, or does not fit its row."""
    for given in outputs:
        for dim in () if given is None else given.dims:
            if not 0 <= dims.bound(dim) <= MAX_DIM:
                raise ModelError(f"{op}: a tensor {given}: its sizes must be from 0 to 2**40")
    row = row_of(op)
    # Lowering refuses tensors of too many axes, where no pass has done away with them.
    if row is not None and all(t is None or t.rank <= MAX_RANK for t in (*inputs, *outputs)):
        _check_row(row, sub, inputs, outputs, attributes)


def _check_row(row: Row, sub: str, inputs: Types, outputs: Types, attributes: Mapping[str, Any]) -> None:
    numbers: dict[Dim, int] = {}
    made, read = iter(outputs), iter(inputs)
    views = tuple(_view(next(made if o.role is Role.OUT else read, None), numbers) for o in row.operands)
    # A register stands for a symbolic size, here any one.
    given = {k: s(0) if isinstance(v, Expr) else v for k, v in attributes.items() if k not in GRAPH_ONLY}
    name = f"{row.mnemonic}.{sub}" if sub else row.mnemonic
    _check_names(name, row, sub, given)
    try:
        for group in (row.attributes, *(r.attributes for r in row.records)):
            pack(group, given)
    except ValueError as error:
        raise ModelError(f"{name}: {error}") from None
    for complaint in typing.check(Instruction(row, sub, views, given)):
        raise ModelError(f"{name}: {complaint.message}")


def _check_names(name: str, row: Row, sub: str, attributes: Mapping[str, Any]) -> None:
    """Raise ModelError, with the nearest name, for a sub-operation or an attribute that the row does not have."""
    subs = [s.name for s in row.subs]
    if sub and sub not in subs:
        raise ModelError(f"{row.mnemonic} has no function {shown(sub)!r}", hint=_nearest(sub, subs))
    for attribute in attributes:
        if attribute not in row.all_attributes:
            hint = _nearest(attribute, list(row.all_attributes))
            raise ModelError(f"{name} has no attribute {shown(attribute)!r}", hint=hint)


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(filter(None, known)) or 'none'}"


def _view(type_: TensorType | None, numbers: dict[Dim, int]) -> Descriptor | None:
    """A tensor of the type; each symbolic size is in a register of its own."""
    if type_ is None:
        return None
    sizes = (Dynamic(numbers.setdefault(d, len(numbers)), dims.bound(d)) if isinstance(d, Expr) else d
             for d in type_.dims)  # fmt: skip
    return contiguous(Segment.SCRATCH, type_.dtype, tuple(sizes))
