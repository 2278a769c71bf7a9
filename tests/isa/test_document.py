"""The manual: what the table gives, drawn and written, and up to date on disk."""

from __future__ import annotations

import re

import pytest

from dla.isa import document
from dla.isa.attributes import UNIT_BITS
from dla.isa.errors import TRAP_CATEGORIES
from dla.isa.instructions import BY_MNEMONIC, ROWS
from dla.isa.picture import Field, draw
from dla.isa.table import Row

NAMED = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mnemonic)


def test_the_manual_on_disk_is_the_one_that_the_table_gives() -> None:
    """docs/isa.md is generated; after a change of the table, `python -m dla.isa.document` writes it anew."""
    assert document.MANUAL.read_text(encoding="utf-8") == document.manual()


@NAMED
def test_a_page_shows_everything_that_the_row_says(row: Row) -> None:
    """Sub-operations, operands, attributes, constraints and the example are all there."""
    page = document.page(row)
    assert page.startswith(f"### {row.mnemonic}: {row.summary}\n")
    assert row.description in page
    assert row.example.strip() in page
    for sub in row.subs:
        assert (f"`.{sub.name}`" if sub.name else f"`{row.mnemonic}`") in page
    for name in [o.name for o in row.operands] + [a.name for a in row.attributes]:
        assert f"| {name} |" in page
    for constraint in row.constraints:
        assert f"- **{constraint.name}** must hold: {constraint.text}." in page
    if row.semantics is not None:
        assert "def semantics(" in page


def test_the_guide_quotes_the_code_as_it_is() -> None:
    """Each block of docs/adding-an-instruction.md that names a file is a part of that file."""
    root = document.MANUAL.parent.parent
    guide = (root / "docs" / "adding-an-instruction.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```\w+ (\S+)\n(.*?)\n```", guide, re.DOTALL)
    assert len(quoted) == 3
    for path, text in quoted:
        assert text in (root / path).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:isa|tests|emulator|docs)/[\w/.-]+)`", guide):
        assert (root / path).exists(), path


@pytest.mark.parametrize(
    ("mnemonic", "expected"),
    [
        ("HALT", "HALT"),
        ("FILL", "FILL out, value"),
        ("ALU", "ALU.sub dst, a, [b]"),
        ("SOFTMAX", "SOFTMAX[.sub] out, x axis=axis"),
        ("REDUCE", "REDUCE.sub out, x axes=axes [keepdims]"),
        (
            "GEMM",
            (
                "GEMM[.sub] out, a, b [c=tensor] [bias=tensor] [residual=tensor] [gate=tensor] [alpha=number] "
                "[beta=number] [unit=name] [math=name] [act=name] [act_alpha=number] [clamp=[low, high]]"
            ),
        ),
        ("NORM", "NORM.sub out, x, [gain], [bias], [mean], [var] [eps=number] [groups=integer]"),
        ("LOOP", "LOOP counter, count [max=integer]"),
    ],
)
def test_the_syntax_line_shows_what_may_be_left_out(mnemonic: str, expected: str) -> None:
    """Positional ones in order, then keywords; brackets around what has a default; nothing implicit."""
    assert document.syntax(BY_MNEMONIC[mnemonic]) == expected


def test_the_manual_lists_every_instruction_and_trap_category() -> None:
    """One line of the index per opcode, one of the last table per category."""
    manual = document.manual()
    for row in ROWS:
        assert f"| `{row.opcode:#04x}` | [{row.mnemonic}]" in manual
    for category in TRAP_CATEGORIES:
        assert f"| `{category}` |" in manual


def test_a_picture_shows_fields_by_their_bits() -> None:
    """Highest bit on the left, two characters a bit, a field across two lines split, zero lines together."""
    fields = [Field(0, 8, "low"), Field(16, 16, "high"), Field(24 + 32, 16, "across"), Field(191, 1, "flag")]
    assert draw(fields, 192).split("\n") == [
        "   u32   31           24 23           16 15            8 7             0",
        "        +-------------------------------+---------------+---------------+",
        "      0 |              high             |      zero     |      low      |",
        "        +---------------+---------------+---------------+---------------+",
        "      1 |  across[7:0]  |                      zero                     |",
        "        +---------------+-------------------------------+---------------+",
        "      2 |                      zero                     |  across[15:8] |",
        "        +-----------------------------------------------+---------------+",
        "   3..4 |                              zero                             |",
        "        +-+-------------------------------------------------------------+",
        "      5 |f|                             zero                            |",
        "        +-+-------------------------------------------------------------+",
    ]


@NAMED
def test_pictures_have_straight_edges(row: Row) -> None:
    """Every line of an encoding is equally long, and together they show all 512 bits."""
    picture = document.page(row).split("```")[1].strip("\n").split("\n")
    assert len({len(line) for line in picture[1:]}) == 1
    shown = 0
    for line in picture[2::2]:
        first, _, last = line.split("|")[0].strip().partition("..")
        shown += int(last or first) - int(first) + 1
    assert shown * 32 == UNIT_BITS
