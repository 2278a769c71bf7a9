"""asm . dis . asm is the identity, to the byte: on every program, every row's example, and generated ones."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark
from random_programs import random_program

from dla.assembler import assemble, assemble_file, disassemble, instruction_texts
from dla.assembler.syntax import GRAMMAR
from dla.isa.container import read_bytes, write_bytes
from dla.isa.errors import AssemblyError, Diagnostic
from dla.isa.instructions import ROWS
from dla.isa.program import ConstBlock, Debug, DimSymbol, ExternalConst, Program

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.dla"))


def check_round_trip(program: Program) -> str:
    """Assert that disassembling and assembling gives back `program`, from memory and from its file's bytes."""
    text = disassemble(program)
    again = assemble(text)
    assert again == program
    assert disassemble(again) == text
    data = write_bytes(program)
    assert write_bytes(again) == data
    assert disassemble(read_bytes(data)) == text
    assert write_bytes(assemble(disassemble(read_bytes(data)))) == data
    return text


def test_there_are_programs() -> None:
    """An empty folder would make the next test pass."""
    assert PROGRAMS


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_every_program_comes_back_with_names_and_comments(path: Path) -> None:
    """Programs in programs/ survive, and so does every comment and label in them."""
    text = check_round_trip(assemble_file(path))
    for line in path.read_text(encoding="utf-8").splitlines():
        comment = line.partition(";")[2].rstrip()
        assert comment in text


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.mnemonic)
def test_every_example_comes_back(row: object) -> None:
    """The example of each row survives."""
    check_round_trip(assemble(row.example))  # type: ignore[attr-defined]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_programs_generated_from_the_table_come_back(seed: int) -> None:
    """A random program without a debug section comes back equal, but for the labels and lines it then has."""
    program = random_program(random.Random(seed), instructions=6)
    again = assemble(disassemble(program))
    assert replace(again, debug=None) == program
    assert write_bytes(replace(again, debug=None)) == write_bytes(program)
    check_round_trip(again)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.data())
def test_comments_and_lines_come_back_wherever_they_are(seed: int, data: st.DataObject) -> None:
    """Comments, blank lines and labels put at random into a program's text all survive."""
    rng = random.Random(seed)
    lines = disassemble(random_program(rng, instructions=4)).splitlines()
    code = next(i for i, line in enumerate(lines) if re.match(r"    [A-Z]", line))
    for _ in range(rng.randint(0, 12)):
        words = data.draw(st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=20))
        lines.insert(rng.randint(code, len(lines)), f"label{rng.randrange(10**9)}:  ; {words}")
        lines.insert(rng.randint(0, code), rng.choice(["", f"; {words}", f";{words}"]))
        code += 1
        index = rng.randrange(len(lines))
        if '"' not in lines[index] and rng.random() < 0.3:
            lines[index] += f"  ; {words}"
    check_round_trip(assemble("\n".join(lines) + "\n    HALT\n"))


def program_or_diagnostics(text: str, folder: Path | None) -> Program | list[Diagnostic]:
    """What the assembler makes of `text`: a program, or at least one diagnostic."""
    try:
        return assemble(text, folder=folder)
    except AssemblyError as refused:
        return refused.diagnostics


_STATEMENTS = from_lark(
    Lark(GRAMMAR.read_text(encoding="utf-8"), parser="lalr"),
    start="start",
    explicit={
        "NAME": st.sampled_from(["x", "y", "w", "n", "s1", "f0", "p0", "act", "relu", "f32", "i32", "None", "true"]),
        "QUOTED": st.sampled_from(["`x`", "`a.b`", "`s1`"]),
        "MNEMONIC": st.sampled_from([f"{r.mnemonic}.{r.subs[0].name}" if r.subs else r.mnemonic for r in ROWS]),
        "KEY": st.sampled_from(["bias=", "axis=", "axes=", "alpha=", "act=", "clamp=", "scale=", "window=", "max="]),
        "DIRECTIVE": st.sampled_from([".input", ".const", ".state", ".scratch", ".output", ".program", ".isa", ".dim"]),
        "METHOD": st.sampled_from([".T", ".permute", ".broadcast", ".reshape"]),
        "LABEL": st.sampled_from(["main:", "end :", "`a.b`:"]),
        "NUMBER": st.sampled_from(["0", "1", "2", "-1", "4", "0x10", "1.5", "1e-3", "inf", "nan", "9" * 20]),
        "STRING": st.sampled_from(['"text"', '"tiny.safetensors#w1"', '"\\n"', '"00000000"']),
    },
)
_CONTEXT = ".input x : f32[n <= 4, 4]\n.scratch y : f32[4, 4]\n.output w : i32[4]\nstart:\n"


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(_STATEMENTS, min_size=1, max_size=4))
def test_texts_generated_from_the_grammar_come_back_or_are_diagnosed(statements: list[str]) -> None:
    """Whatever the grammar allows is a program that round-trips, or gets diagnostics: nothing else ever happens."""
    text = _CONTEXT + "".join(s.replace("\n", " ") + "\n" for s in statements) + "    HALT\n"
    program = program_or_diagnostics(text, None)
    if isinstance(program, Program):
        check_round_trip(program)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_damaged_texts_are_diagnosed(seed: int) -> None:
    """Characters changed, removed, doubled: a program or diagnostics, never another exception."""
    rng = random.Random(seed)
    path = rng.choice(PROGRAMS)
    text = list(path.read_text(encoding="utf-8"))
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(text))
        text[place] = rng.choice(["", text[place] * 2, rng.choice('[]{}()<>=.,:;@*+-"`\\\n\t\0 0aZ_')])
    program = program_or_diagnostics("".join(text), path.parent)
    if isinstance(program, Program):
        assert assemble(disassemble(program)) == program


def test_a_program_of_a_compiler_comes_back() -> None:
    """Overlapping tensors, odd addresses and sizes, dims in other registers, names with dots, external weights."""
    base = assemble(
        ".const w : f32[2] = [1, 2]\n.const v : f32[2] @ 1024 = hex(\"0100000000000080\")\n.input x : f32[2]\n"
        ".scratch a : f32[4] @ 64\n.scratch `b.0` : f32[4] @ 64\n.scratch `s1` : f32[s5 <= 4]\n"
        ".scratch z : bool[0, 3]\n"
        ".segment scratch 8192\n.segment state 64\n"
        ".const e : bf16[3] external \"weights.safetensors#layer.0\" \"" + "ab" * 32 + "\"\n"
        "`l.0`:\n    EW.add `b.0`[0:2], x, w\n    COPY `s1`[0:2], v\n    BR `l.1`\n`l.1`:\n    HALT\n"
    )  # fmt: skip
    text = check_round_trip(base)
    assert '.const   e     : bf16[3] external "weights.safetensors#layer.0"' in text
    assert base.external == (ExternalConst(1280, 6, "weights.safetensors", "layer.0", b"\xab" * 32),)
    dims = (DimSymbol("rows", 7, 9), DimSymbol("s3", 2, 4))
    check_round_trip(assemble(disassemble(replace(base, dims=dims))))
    assert assemble(disassemble(replace(base, dims=dims))).dims == dims


def test_nan_payloads_come_back() -> None:
    """A NaN with a payload is written as bytes, since `nan` would be another one."""
    program = assemble(".const a : f32[2] = [1, nan]\n    HALT\n")
    odd = replace(program, constants=(ConstBlock(0, program.constants[0].data.copy()),))
    odd.constants[0].data[4] = 7
    check_round_trip(odd)


def test_lines_far_apart_or_backwards_come_back() -> None:
    """Where blank lines cannot put an instruction on its line, a `.line` directive does."""
    program = assemble("    NOP\n    NOP ; here\na: ; there\n; above\n    NOP\n    HALT\n; end\n")
    assert program.debug is not None
    moved = replace(program, debug=replace(program.debug, lines=(90_000, 3, 3, 4)))
    check_round_trip(moved)


def test_a_program_without_debug_section_gets_labels() -> None:
    """Branch targets that nobody named are called after their index."""
    program = replace(assemble("    BR a if=p0\n    NOP\na:\n    HALT\n"), debug=None)
    assert "L2:\n" in disassemble(program)
    named = replace(program, debug=Debug("<string>", (), (("L2", 1),)))
    assert "L2_:\n" in disassemble(named)


def test_single_instructions_are_written_as_in_the_whole_text() -> None:
    """Views and labels have their names; what stands around an instruction is left out."""
    text = ".program p\n.input x : f32[n <= 4, 8]\n.output y : f32[n, 4]\nmain:\n  BR out if=p0\n"
    text += '  COPY y, x[:, :4] ; half\n  PROBE y "seen"\nout:\n  HALT\n'
    texts = instruction_texts(assemble(text))
    assert texts == ["BR out  if=p0", "COPY y, x[:, 0:4]", "PROBE y", "HALT"]
