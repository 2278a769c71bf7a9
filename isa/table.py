"""What a row of the instruction table is. The rows themselves are in `isa/instructions/`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dla.isa import dtypes, shapes
from dla.isa.attributes import UNIT_BITS, Attribute, Record
from dla.isa.bounds import EXACT, ErrorBound
from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import Array, DType
from dla.isa.ranks import RankTable

MAX_OPERANDS = 8
OPCODE = (0, 8)
"""Bits of the opcode: (first, width)."""
SUB = (8, 8)
"""Bits of the sub-operation."""
RECORD_SLOTS = ((32, 32), (64, 32))
"""Bits of the two record indices (index + 1; 0 means all defaults)."""
OPERAND_SLOTS = tuple((128 + 32 * i, 32) for i in range(MAX_OPERANDS))
"""Bits of the descriptor indices (index + 1; 0 means absent)."""
ATTRIBUTE_BITS = (*range(16, 32), *range(96, 128), *range(384, UNIT_BITS))
"""Bits that a row may give to its attributes; the rest are zero."""


class Role(enum.Enum):
    """Whether an instruction reads an operand or writes it."""

    IN = "in"
    OUT = "out"


class Alias(enum.Enum):
    """What memory an output may share with an input."""

    NONE = "outputs overlap no input"
    SAME = "an output may be exactly an input (same view), but not overlap one otherwise"


@dataclass(frozen=True)
class Operand:
    """One tensor operand: its name, shape pattern (see `isa.shapes`) and types.

    `dtypes` is the name of one of the row's type variables, or a tuple of types. `subs` limits the operand to some
    sub-operations. `step` names the epilogue step that the operand belongs to: it is present exactly if the step is.
    `may_be_output` lets an input be exactly the first output even where the row's alias rule does not: each of its
    elements is read only to compute the output element in the same place.
    """

    name: str
    role: Role
    shape: str
    dtypes: str | tuple[DType, ...]
    doc: str = ""
    optional: bool = False
    subs: tuple[str, ...] = ()
    step: str | None = None
    may_be_output: bool = False


@dataclass(frozen=True)
class Sub:
    """One sub-operation, `MNEMONIC.name`; with an empty name it is what the bare mnemonic means."""

    name: str
    code: int
    doc: str


@dataclass(frozen=True)
class Site:
    """One instruction as a constraint sees it: everything known before it runs."""

    sub: str
    attributes: Mapping[str, Any]  # with defaults filled in
    operands: Mapping[str, Descriptor | None]
    types: Mapping[str, DType]  # what the row's type variables stand for
    dims: shapes.Bindings

    def __getitem__(self, dim: str) -> int:
        """The size of a named dim, at its bound."""
        return self.dims.size(dim)


@dataclass(frozen=True)
class Constraint:
    """A numbered rule that shapes and types alone do not express.

    `holds(site)` is asked after shapes and types have unified. `text` completes "must hold: ...". `operand` is the one
    that a message points at, where the rule is about one.
    """

    number: int
    text: str
    holds: Callable[[Site], bool]
    operand: str | None = None

    @property
    def name(self) -> str:
        return f"C{self.number}"


def axis_below_rank(operand: str) -> Callable[[Site], bool]:
    """The rule that attribute `axis` is an axis of `operand`."""

    def holds(site: Site) -> bool:
        descriptor = site.operands[operand]
        return descriptor is not None and site.attributes["axis"] < descriptor.rank

    return holds


def only_for(attribute: str, *subs: str) -> Callable[[Site], bool]:
    """The rule that `attribute` is written for sub-operations `subs` only: elsewhere it is 0, false or absent."""
    return lambda site: site.sub in subs or not site.attributes[attribute]


@dataclass(frozen=True)
class Out:
    """What a row's semantics needs to know of its first output: resolved shape and element type."""

    shape: tuple[int, ...]
    dtype: DType


class Exec(enum.Enum):
    """Which unit of a machine executes a row."""

    SCALAR = "scalar"  # registers and control flow: executed by every block alike
    TENSOR = "tensor"  # operands in segments: split into tiles over blocks


def _no_flops(dims: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
    return 0


@dataclass(frozen=True)
class Row:
    """One instruction, completely.

    `semantics(out, **operands, **attributes)` returns the first output, or a tuple with one array per output operand
    in order. Operands arrive as arrays of resolved shape: floats widened to the machine's accumulator type (f64 in the
    oracle), integers to i64, bools as they are; with `raw` set, in their own types. An absent operand is None. Records
    arrive flattened with defaults. `sub` arrives as a keyword where the row has sub-operations. The machine rounds
    results once, by `dtypes.convert`. A scalar row has no semantics here: the machines' scalar units execute it.

    A collective row has an attribute that names ranks. Its semantics is that of one rank: each input arrives with a
    leading axis of all ranks of the group, in order, and that attribute as a `Member` (see `isa.ranks`), which tells
    which of them this one is.
    """

    mnemonic: str
    opcode: int
    family: str
    summary: str
    description: str
    example: str
    since: str = "1.0"
    unit: Exec = Exec.TENSOR
    subs: tuple[Sub, ...] = ()
    default_sub: str = ""  # what the bare mnemonic means
    operands: tuple[Operand, ...] = ()
    types: Mapping[str, tuple[DType, ...]] = field(default_factory=dict)
    attributes: tuple[Attribute, ...] = ()
    records: tuple[Record, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    static: tuple[str, ...] = ()  # dims that must be constants
    positional: tuple[str, ...] = ()  # operands and attributes written without a name; by default required operands
    alias: Alias = Alias.NONE
    raw: bool = False
    semantics: Callable[..., Any] | None = None
    error: ErrorBound = EXACT
    flops: Callable[[Mapping[str, int], Mapping[str, Any]], int] = _no_flops
    flops_text: str = "0"
    picked: str = ""  # operand of which only as many elements are read as are written
    alike: bool = False  # of a collective: all ranks of the group get the same

    def __post_init__(self) -> None:
        _check_row(self)

    @cached_property
    def all_attributes(self) -> dict[str, Attribute]:
        """Attributes of the word and of the records, by name."""
        both = [*self.attributes, *(a for r in self.records for a in r.attributes)]
        return {a.name: a for a in both}

    @cached_property
    def collective(self) -> bool:
        """Whether all ranks of a group execute it together."""
        return any(isinstance(a, RankTable) for a in self.attributes)

    @cached_property
    def written_first(self) -> tuple[str, ...]:
        """Names of the operands and attributes that assembly writes without a name, in order."""
        required = (o.name for o in self.operands if not o.optional and o.step is None)
        return self.positional or tuple(required)

    @cached_property
    def sub_codes(self) -> dict[str, int]:
        codes = {s.name: s.code for s in self.subs}
        return codes | {"": codes[self.default_sub]} if self.default_sub else codes

    @cached_property
    def sub_names(self) -> dict[int, str]:
        return {s.code: s.name for s in self.subs}

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.role is Role.OUT)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.role is Role.IN)

    def operand_dtypes(self, operand: Operand) -> tuple[DType, ...]:
        """The types that `operand` may have."""
        return self.types[operand.dtypes] if isinstance(operand.dtypes, str) else operand.dtypes

    def with_defaults(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """`attributes` completed by the defaults of those absent."""
        return {name: attributes.get(name, a.default) for name, a in self.all_attributes.items()}

    def missing(self, attributes: Mapping[str, Any]) -> list[str]:
        """Names of the attributes that must be written and are not in `attributes`."""
        return [name for name, a in self.all_attributes.items() if a.required and attributes.get(name) is None]


def _check_row(row: Row) -> None:
    """Refuse a row that contradicts itself: the build fails, not the user."""
    taken: dict[int, str] = {}
    for attribute in row.attributes:
        for at, width in attribute.pieces:
            for bit in range(at, at + width):
                if bit not in ATTRIBUTE_BITS:
                    raise ValueError(f"{row.mnemonic}.{attribute.name}: bit {bit} is not for attributes")
                if bit in taken:
                    raise ValueError(f"{row.mnemonic}: {attribute.name} and {taken[bit]} share bit {bit}")
                taken[bit] = attribute.name
    if len(row.operands) > MAX_OPERANDS or len(row.records) > len(RECORD_SLOTS):
        raise ValueError(f"{row.mnemonic}: too many operands or records")
    names = [o.name for o in row.operands] + [*row.all_attributes]
    if len(set(names)) != len(names):
        raise ValueError(f"{row.mnemonic}: a name is used twice")
    if row.picked and row.picked not in names:
        raise ValueError(f"{row.mnemonic}: picked is no operand")
    if row.default_sub and row.default_sub not in {s.name for s in row.subs}:
        raise ValueError(f"{row.mnemonic}: default_sub is no sub-operation")
    for operand in row.operands:
        shapes.parse(operand.shape)
        if not set(operand.subs) <= set(row.sub_codes):
            raise ValueError(f"{row.mnemonic}.{operand.name}: unknown sub-operation")
    if [c.number for c in row.constraints] != list(range(1, len(row.constraints) + 1)):
        raise ValueError(f"{row.mnemonic}: constraints must be numbered 1, 2, ...")
    if (row.semantics is None) != (row.unit is Exec.SCALAR):
        raise ValueError(f"{row.mnemonic}: tensor rows have semantics, scalar rows have none")


def result_arrays(row: Row, result: Any) -> tuple[Array | None, ...]:
    """What `semantics` returned, as one entry per output operand."""
    return result if isinstance(result, tuple) else (result,)


FLOATS = dtypes.FLOATS
INDEXES = dtypes.INDEXES
NUMBERS = dtypes.NUMBERS
ALL = dtypes.ALL
