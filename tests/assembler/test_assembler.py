"""Programs: placement, dims, control flow, attributes, comments, included files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dla.assembler import assemble, assemble_file, disassemble
from dla.isa.container import read_bytes, write_bytes
from dla.isa.descriptor import Dynamic, Segment
from dla.isa.errors import AssemblyError
from dla.isa.program import ISA_VERSION, DimSymbol, Instruction
from dla.isa.registers import BY_NAME

MATRICES = ".input x : f32[4, 8]\n.input w : f32[8, 2]\n.scratch y : f32[4, 2]\n.scratch b : f32[2]\n"


def one(line: str, declarations: str = MATRICES) -> Instruction:
    """The instruction on `line`."""
    return assemble(f"{declarations}    {line}\n    HALT\n").instructions[0]


def test_tensors_lie_in_order_of_declaration() -> None:
    """Each starts at a multiple of 256 bytes in its segment; a segment ends with its last tensor."""
    program = assemble(
        ".scratch a : f32[65]\n.input i : u8[3]\n.scratch b : f16[3]\n.state s : f32[0]\n.scratch c : i64[] @ 1024\n"
        "    HALT\n"
    )
    assert [(t.name, t.descriptor.offset) for t in program.tensors] == [
        ("a", 0), ("i", 0), ("b", 512), ("s", 0), ("c", 1024),
    ]  # fmt: skip
    assert program.segment_bytes == {Segment.INPUT: 3, Segment.STATE: 0, Segment.SCRATCH: 1032}


def test_named_dims_get_registers_from_s31_down() -> None:
    """The first mention has the bound; the name then stands for the dim, and for its register."""
    program = assemble(
        ".input x : f32[rows <= 9, cols <= 5]\n.output y : f32[cols, s3 <= 2]\n    MOV s0, rows\n    HALT\n"
    )
    assert program.dims == (DimSymbol("rows", 31, 9), DimSymbol("cols", 30, 5))
    assert program.by_name["y"].descriptor.dims == (Dynamic(30, 5), Dynamic(3, 2))
    assert program.instructions[0].attributes["src"] == BY_NAME["s31"]


def test_declarations_may_follow_their_use() -> None:
    """Where a declaration stands does not matter to instructions."""
    assert assemble("    COPY y, x\n    HALT\n.input x : f32[2]\n.output y : f32[2]\n").name == "program"


def test_epilogue_steps_keep_the_order_written() -> None:
    """The order of bias, act, residual, gate and clamp is the order of the steps."""
    given = one("GEMM y, x, w residual=y clamp=[-1, 2] bias=b act=relu")
    assert given.attributes["steps"] == ("residual", "clamp", "bias", "act")
    assert (given.attributes["clamp_low"], given.attributes["clamp_high"]) == (-1.0, 2.0)
    assert "residual=y clamp=[-1, 2] bias=b act=relu" in disassemble(
        assemble(MATRICES + "    GEMM y, x, w residual=y clamp=[-1, 2] bias=b act=relu\n    HALT\n")
    )


def test_defaults_are_not_stored() -> None:
    """An attribute written at its default is as if it were not written."""
    assert one("GEMM y, x, w alpha=1 beta=1.0 act=identity") == one("GEMM y, x, w")


def test_floats_are_stored_as_the_file_gives_them_back() -> None:
    """F32 attributes are rounded; scalar immediates keep whether they are integers."""
    assert one("GEMM y, x, w alpha=0.1").attributes["alpha"] == 0.10000000149011612
    assert isinstance(one("MOV f0, 2.0").attributes["src"], float)
    assert isinstance(one("MOV f0, 2").attributes["src"], int)


def test_axes_may_be_counted_from_the_end() -> None:
    """Negative axes are stored as what they mean."""
    assert one("SOFTMAX y, y axis=-1") == one("SOFTMAX.soft y, y axis=1")
    assert one("REDUCE.sum b, y axes=-2") == one("REDUCE.sum b, y axes=[0]")


def test_commas_between_keywords_and_flags_are_optional() -> None:
    """Blanks or commas separate keywords; a flag is a bare word, or =true, or =false."""
    line = "REDUCE.sum b[None], y axes=0 keepdims"
    assert one(line) == one("REDUCE.sum b[None], y, axes=0, keepdims") == one(line + "=true")
    assert "keepdims" not in one("REDUCE.sum b, y axes=0 keepdims=false").attributes


SPLIT = """\
.output y : f32[2]
.input  x : f32[2]
    EW.add y,  ; the first line
           x,
           x   ; the last line
    SELECT y, x,
    HALT
"""


def test_an_instruction_goes_on_after_a_comma() -> None:
    """An instruction over several lines is the one that stands on the first, and it comes back."""
    program = assemble(SPLIT.replace("    SELECT y, x,\n", ""))
    assert [i.name for i in program.instructions] == ["EW.add", "HALT"]
    assert program.debug is not None
    assert program.debug.lines == (3, 6)
    assert [text for _, _, text in program.debug.comments] == [" the first line", " the last line"]
    text = disassemble(program)
    assert write_bytes(assemble(text)) == write_bytes(program)


def test_errors_behind_a_comma_are_where_they_are() -> None:
    """A complaint names the line of its token; a comma too many swallows no instruction, label or directive."""
    tail = "    COPY y,\nlabel:\n    COPY y,\n.output z : f32[2]\n"
    with pytest.raises(AssemblyError) as caught:
        assemble(SPLIT.replace("           x,\n", "           other,\n") + tail)
    found = caught.value.diagnostics
    assert [(d.line, d.column) for d in found] == [(4, 12), (6, 17), (8, 12), (10, 12)]
    assert found[0].message == "unknown tensor other"
    assert all(d.message.startswith("the line ends too early") for d in found[1:])


def test_operands_may_be_named() -> None:
    """Positional operands may be written name=value too."""
    assert one("GEMM y, b=w a=x") == one("GEMM y, x, w")


def test_loops_and_branches_are_resolved() -> None:
    """Ends of loops and the number of loops that a branch leaves are worked out."""
    program = assemble(
        "    LOOP s0, 3\n    LOOP s1, 2\n    BR next if=p0\n    BR out unless=p1\nnext:\n    ENDLOOP\n    ENDLOOP\n"
        "out:\n    HALT\n"
    )
    outer, inner, stay, leave, end, last, _ = program.instructions
    assert (outer.attributes["end"], inner.attributes["end"]) == (5, 4)
    assert (end.attributes["begin"], last.attributes.get("begin", 0)) == (1, 0)
    assert "leaves" not in stay.attributes
    assert leave.attributes == {"target": 6, "leaves": 2, "unless": BY_NAME["p1"]}


def test_debug_section_holds_what_people_wrote() -> None:
    """Lines, labels and messages by instruction; comments by place."""
    debug = assemble(
        '; top\n.isa 1.0\n; of x\n.input x : f32[2] ; beside x\n; entry\nmain: ; label\n  ; first\n    NOP ; no\n'
        'end:\n    ASSERT p0 "why; not" ; trail\n    HALT\n; bye\n',
        file="dir/a.dla",
    ).debug  # fmt: skip
    assert debug is not None
    assert (debug.file, debug.lines, debug.labels) == ("a.dla", (8, 10, 11), (("main", 0), ("end", 1)))
    assert debug.messages == ((1, "why; not"),)
    assert sorted(debug.comments) == sorted(
        [
            ("header", 0, " top"), ("above tensor", 0, " of x"), ("beside tensor", 0, " beside x"),
            ("above label", 0, " entry"), ("above", 0, " label"), ("above", 0, " first"), ("beside", 0, " no"),
            ("beside", 1, " trail"), ("end", 0, " bye"),
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("directive", "expected"),
    [(".isa 1.0\n", (1, 0)), (".isa 1.1\n", (1, 1)), (".isa 1.2\n", (1, 2)), ("", ISA_VERSION)],
)
def test_program_keeps_the_version_that_it_was_written_for(directive: str, expected: tuple[int, int]) -> None:
    """A later assembler does not change the version of a program, so the round trip through a file does not either."""
    program = assemble(directive + "    HALT\n")
    assert program.isa_version == expected
    assert read_bytes(write_bytes(program)).isa_version == expected
    assert f".isa {expected[0]}.{expected[1]}\n" in disassemble(program)


def test_included_text_takes_the_line_of_its_include(tmp_path: Path) -> None:
    """Included declarations and instructions are as if written there; traps name the .include line."""
    (tmp_path / "part.inc").write_text(".scratch x : f32[2]\nhere:\n    FILL x, 0\n    NOP\n")
    path = tmp_path / "main.dla"
    path.write_text(
        '    NOP\n.include "part.inc"\n.include "part.inc"\n    HALT\n'.replace('.include "part.inc"\n', "", 1)
    )
    program = assemble_file(path)
    assert program.debug is not None
    assert program.debug.lines == (1, 2, 2, 3)
    assert program.location(1) == "main.dla:2"
    assert program.debug.labels == (("here", 1),)
    assert assemble(disassemble(program)) == program


def test_line_directives_count_from_the_next_line() -> None:
    """What generates assembly can name the lines of its own source."""
    debug = assemble('.file "model.py"\n.line 100\n    NOP\n    NOP\n.line 7\n    HALT\n').debug
    assert debug is not None
    assert (debug.file, debug.lines) == ("model.py", (100, 101, 7))


def test_line_endings_and_byte_order_marks_do_not_matter() -> None:
    """CRLF, a missing last newline and a BOM change nothing."""
    plain = assemble(".program a ; x\n    NOP ; y\n    HALT\n")
    assert assemble("\ufeff.program a ; x\r\n    NOP ; y\r\n    HALT") == plain


def test_a_bare_mnemonic_means_its_default_sub_operation() -> None:
    """SOFTMAX is SOFTMAX.soft; rows without a default ask for one."""
    assert one("SOFTMAX y, y axis=0").sub == "soft"
