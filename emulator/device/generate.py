"""The CUDA half of the table: constants, attribute accessors and dispatch, generated from the rows.

Each tensor row `GEMM` gets an argument view `GemmArgs` and is dispatched to a handler that must exist in
`kernel/gemm.cuh`:

    struct GemmHandler {
        // Shared memory that a tile needs: up to STAGING_BYTES cost nothing, up to SCRATCH_BYTES are possible.
        static constexpr u32 SCRATCH = 0;
        // Only where some instructions need less of it than others: how much this one does.
        static DEV u32 scratch(const GemmArgs& args);
        // How many tiles the instruction is split into.
        static DEV u32 tiles(const GemmArgs& args);
        // Executes one tile, with 256 threads. A call, or a choice between calls.
        static DEV_CALL void run(const GemmArgs& args, u32 tile, const Block& block);
        // Only where `run` calls block.begin() itself, in every thread and for each tile, before it touches operands
        // or scratch memory: what it works out before, it works out while it would wait. If false, it returns.
        static constexpr bool BEGINS = true;
    };

A row without a handler is an error of the CUDA compiler that names `GemmHandler`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dla.isa import scalar_attributes
from dla.isa.activations import ACTIVATIONS
from dla.isa.attributes import F32, Attribute, Axes, Enum, EnumList, Flag, IntList
from dla.isa.dtypes import DType
from dla.isa.errors import TRAP_CATEGORIES
from dla.isa.instructions import ROWS
from dla.isa.records import RECORDS
from dla.isa.registers import RegisterClass
from dla.isa.scalar_attributes import Reg, ScalarValue
from dla.isa.table import SUB, Exec, Row

TRAP_CODES = {name: code for code, name in enumerate(TRAP_CATEGORIES, start=1)}
"""Code of each trap category in a report; 0 is no trap."""

_CPP_KEYWORDS = {"if", "not", "and", "or", "xor", "const", "float", "int", "bool", "double", "default", "register"}


def worker_rows() -> list[Row]:
    """The rows that workers execute: tensor rows, and PROBE, which reads a whole tensor."""
    return [row for row in ROWS if row.unit is Exec.TENSOR or row.mnemonic == "PROBE"]


def handler_numbers() -> dict[str, int]:
    """The number of each row's handler, from 1 on. There are no gaps: the kernel finds handlers by few jumps."""
    return {row.mnemonic: number for number, row in enumerate(worker_rows(), start=1)}


def pascal(mnemonic: str) -> str:
    """`GEMM` -> `Gemm`: the CUDA name of a row."""
    return mnemonic.capitalize()


def identifier(name: str) -> str:
    """`name`, or `name_` where C++ has taken it."""
    return f"{name}_" if name in _CPP_KEYWORDS else name


def constants_and_views() -> str:
    """The text of `generated.cuh`: everything that the machine's own code is written against."""
    return "\n".join(["#pragma once", '#include "config.cuh"', *_constants(), *_opcode_table(), _BITS, ""])


_OPTIONAL = """
// What a handler says of this instruction, or of all.
template <class Handler, class Args> DEV auto scratch_for(const Args& args, int) -> decltype(Handler::scratch(args)) {
    return Handler::scratch(args);
}
template <class Handler, class Args> DEV u32 scratch_for(const Args&, long) { return Handler::SCRATCH; }
// Handlers that may have a unit for each thread, and for some none, say how many: warps without any leave the work out.
template <class Handler, class Args> DEV auto units_for(const Args& args, int) -> decltype(Handler::units(args)) {
    return Handler::units(args);
}
template <class Handler, class Args> DEV u32 units_for(const Args&, long) { return 0; }
// Handlers that choose between ways keep what they measured in the detail of the work.
template <class Handler, class Args>
DEV auto prepare_for(const Args& args, Work& w, int)
    -> decltype(Handler::prepare(args, reinterpret_cast<typename Handler::Kept&>(w.detail))) {
    Handler::prepare(args, reinterpret_cast<typename Handler::Kept&>(w.detail));
    w.units = units_for<Handler>(args, 0);
}
template <class Handler, class Args> DEV void prepare_for(const Args&, Work&, long) {}
// Handlers whose first reads are known ahead of what the work waits for bring them to a cache.
template <class Handler, class Args>
DEV auto expect_for(const Args& args, u32 lane, int) -> decltype(Handler::expect(args, lane)) {
    Handler::expect(args, lane);
}
template <class Handler, class Args> DEV void expect_for(const Args&, u32, long) {}
// Executes one tile, once everything that the work depends on is done; nothing if the run is over.
template <class Handler, class Args>
DEV auto run_for(const Args& args, u32 tile, const Block& block, int) -> decltype(static_cast<void>(Handler::BEGINS)) {
    Handler::run(args, tile, block);
}
// A call: inlined, it would lie between what finds the handlers of small networks.
template <class Handler, class Args> DEV_CALL void begin_and_run(const Args& args, u32 tile, const Block& block) {
    if (block.begin()) Handler::run(args, tile, block);
}
template <class Handler, class Args> DEV void run_for(const Args& args, u32 tile, const Block& block, long) {
    begin_and_run<Handler>(args, tile, block);
}"""


def handlers(only: Collection[str] | None = None) -> str:
    """The text of `handlers.cuh`: includes one file per row and dispatches to its handler.

    `only` names the mnemonics to have: a machine with fewer rows compiles sooner, and shows what the others cost.
    """
    named = [(row, pascal(row.mnemonic)) for row in worker_rows() if only is None or row.mnemonic in only]
    lines = ["#pragma once", '#include "decode.cuh"', '#include "views.cuh"']
    lines += [f'#include "{row.mnemonic.lower()}.cuh"' for row, _ in named]

    def dispatch(signature: str, case: str, otherwise: str) -> None:
        lines.extend([f"{signature} {{", "    switch (w.handler) {"])
        lines.extend(f"        case HANDLER_{row.mnemonic}: {case.replace('?', name)}" for row, name in named)
        lines.extend([f"        default: {otherwise}", "    }", "}"])

    dispatch("DEV_CALL u32 tiles_of(const Work& w)", "return ?Handler::tiles(?Args::of(w));", "return 0;")
    lines.append(_OPTIONAL)
    dispatch("DEV u32 scratch_of(const Work& w)", "return scratch_for<?Handler>(?Args::of(w), 0);", "return 0;")
    dispatch("DEV_CALL void prepare_of(Work& w)", "prepare_for<?Handler>(?Args::of(w), w, 0); break;", "break;")
    expect = "expect_for<?Handler>(?Args::of(w), lane, 0); break;"
    dispatch("DEV void expect_of(const Work& w, u32 lane)", expect, "break;")
    run = "run_for<?Handler>(?Args::of(w), tile, block, 0); break;"
    dispatch("DEV void run_tile(const Work& w, u32 tile, const Block& block)", run, "break;")
    return "\n".join([*lines, ""])


def views() -> str:
    """The text of `views.cuh`: one argument view per row."""
    return "\n".join(["#pragma once", '#include "state.cuh"', *(_view(row) for row in ROWS), ""])


def activate() -> str:
    """The text of `activate.cuh`: the switch over the activations that floats take (all but `not`)."""
    lines = ["#pragma once", "DEV_CALL f32 activate_any(u32 kind, f32 x, f32 alpha) {", "    switch (kind) {"]
    for a in ACTIVATIONS.values():
        if a.name != "not":
            alpha = f"isnan(alpha) ? {a.alpha!r}f : alpha" if a.alpha else "alpha"
            lines.append(f"        case ACT_{a.name.upper()}: return activation_{a.name}(x, {alpha});")
    return "\n".join([*lines, "        default: return x;", "    }", "}", ""])


def _constants() -> Iterator[str]:
    yield from (f"constexpr u32 OP_{row.mnemonic} = {row.opcode};" for row in ROWS)
    yield from (f"constexpr u32 HANDLER_{mnemonic} = {number};" for mnemonic, number in handler_numbers().items())
    for row in ROWS:
        if row.mnemonic != "ACT":  # its sub-operations are the activations, below
            yield from (f"constexpr u32 {row.mnemonic}_{s.name.upper()} = {s.code};" for s in row.subs if s.name)
    yield from (f"constexpr u32 ACT_{a.name.upper()} = {a.code};" for a in ACTIVATIONS.values())
    yield from (f"constexpr u32 DTYPE_{d.name} = {d.value};" for d in DType)
    yield from (f"constexpr u32 TRAP_{name.upper()} = {code};" for name, code in TRAP_CODES.items())
    yield f"constexpr u32 TAG_INTEGER = {scalar_attributes.INTEGER_TAG};"
    yield f"constexpr u32 TAG_PRESENT_INTEGER = {scalar_attributes.PRESENT_INTEGER_TAG};"
    yield f"constexpr u32 TAG_FLOAT = {scalar_attributes.FLOAT_TAG};"
    for cls in RegisterClass:
        yield f"constexpr u32 REG_{cls.prefix.upper()}{'0' if cls.count > 1 else ''} = {cls.first_code};"
    for record in RECORDS:
        for attribute in record.attributes:
            if isinstance(attribute, EnumList):
                prefix = attribute.name.removesuffix("s").upper()
                yield from (
                    f"constexpr u32 {prefix}_{name.upper()} = {code};" for name, code in attribute.choices.items()
                )
    for row in ROWS:
        for attribute in row.attributes:
            if isinstance(attribute, Enum):
                prefix = f"{row.mnemonic}_{attribute.name.upper()}"
                yield from (
                    f"constexpr u32 {prefix}_{name.upper()} = {code};" for name, code in attribute.choices.items()
                )


def _opcode_table() -> Iterator[str]:
    """Where the scalar operands of each opcode are, as one table in constant memory."""
    yield "struct OpcodeInfo {"
    yield "    u16 tag_bit[2];   // where the tag of each scalar operand is in the word"
    yield "    u16 value_bit[2]; // and its 64 value bits"
    yield "};"
    rows = {row.opcode: row for row in ROWS}
    yield f"__constant__ OpcodeInfo opcode_info[{max(rows) + 1}] = {{"
    for opcode in range(max(rows) + 1):
        row = rows.get(opcode)
        scalars = [a for a in row.attributes if isinstance(a, ScalarValue)] if row else []
        tags = ", ".join(str(a.at) for a in scalars) or "0"
        values = ", ".join(str(a.value_at) for a in scalars) or "0"
        name = row.mnemonic if row else "unused"
        yield f"    {{{{{tags}}}, {{{values}}}}},  // {name}"
    yield "};"


_BITS = """
// `width` bits at `at` in a word or record.
template <u32 AT, u32 WIDTH> DEV u32 field(const u32* unit) {
    static_assert(WIDTH <= 32 && AT % 32 + WIDTH <= 32, "a field lies within one u32");
    constexpr u32 mask = WIDTH == 32 ? 0xffffffffu : (1u << (WIDTH % 32)) - 1;
    return unit[AT / 32] >> (AT % 32) & mask;
}
template <u32 AT, u32 WIDTH> DEV i32 signed_field(const u32* unit) {
    return static_cast<i32>(field<AT, WIDTH>(unit) << (32 - WIDTH)) >> (32 - WIDTH);
}"""


def _view(row: Row) -> str:
    name = f"{pascal(row.mnemonic)}Args"
    # It lies over the work itself: an object of its own would be in local memory whenever it is passed to a call.
    lines = [f"// {row.mnemonic}: {row.summary}", f"struct {name} {{", "    Work work;"]
    lines.append(f"    static DEV const {name}& of(const Work& w) {{ return reinterpret_cast<const {name}&>(w); }}")
    if row.subs:
        lines.append(f"    DEV u32 sub() const {{ return field<{SUB[0]}, {SUB[1]}>(in_shared(work).word); }}")
    for index, operand in enumerate(row.operands):
        lines.append(
            f"    DEV const Tensor& {identifier(operand.name)}() const {{ return in_shared(work.operands[{index}]); }}"
        )
        if operand.optional or operand.step or operand.subs:
            lines.append(
                f"    DEV bool has_{operand.name}() const {{ return in_shared(work.operands[{index}]).present; }}"
            )
    scalar = 0
    for attribute in row.attributes:
        if isinstance(attribute, ScalarValue):
            lines.append(
                f"    DEV u32 {identifier(attribute.name)}() const {{ return {scalar}; }}  // index into work.scalars"
            )
            if attribute.optional:
                given = f"field<{attribute.at}, 8>(in_shared(work).word) != 0"
                lines.append(f"    DEV bool has_{attribute.name}() const {{ return {given}; }}")
            scalar += 1
        else:
            lines.append(_accessor(attribute, "in_shared(work).word"))
    for slot, record in enumerate(row.records):
        lines += [_accessor(attribute, f"in_shared(work).record({slot})") for attribute in record.attributes]
    return "\n".join([*lines, "};"])


def _accessor(attribute: Attribute, unit: str) -> str:
    """One method that reads `attribute` out of `unit`."""
    name = identifier(attribute.name)
    at, width = attribute.pieces[0]
    if isinstance(attribute, F32):
        # An optional one that is absent reads as NaN.
        return (
            f"    DEV f32 {name}() const {{ return __uint_as_float(field<{at}, 32>({unit}) ^ {attribute.mask:#x}u); }}"
        )
    if isinstance(attribute, IntList):
        return f"    DEV i32 {name}(u32 i) const {{ return {_list_entry(attribute, unit)}; }}"
    if isinstance(attribute, EnumList):
        bit, mask = f"({at} + {attribute.size} * i)", (1 << attribute.size) - 1
        return f"    DEV u32 {name}(u32 i) const {{ return {unit}[{bit} / 32] >> {bit} % 32 & {mask:#x}u; }}"
    if isinstance(attribute, Flag):
        return f"    DEV bool {name}() const {{ return field<{at}, 1>({unit}); }}"
    if isinstance(attribute, Enum | Reg | Axes) or getattr(attribute, "low", 0) >= 0:
        return f"    DEV u32 {name}() const {{ return field<{at}, {width}>({unit}); }}"
    return f"    DEV i32 {name}() const {{ return signed_field<{at}, {width}>({unit}); }}"


def _list_entry(attribute: IntList, unit: str) -> str:
    if attribute.size != 32 or attribute.at % 32:
        raise ValueError(f"{attribute.name}: lists are of aligned 32-bit entries")
    return f"static_cast<i32>({unit}[{attribute.at // 32} + i])"
