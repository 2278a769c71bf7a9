"""Bad inputs and what the assembler answers: exact texts, and a check that no message goes without a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dla.assembler
from dla.assembler import assemble, assemble_file
from dla.isa.errors import AssemblyError

BAD = Path(__file__).parent / "bad"
SOURCES = Path(dla.assembler.__file__).parent


def _error_text(path: Path) -> str:
    with pytest.raises(AssemblyError) as caught:
        assemble_file(path)
    return str(caught.value).replace(f"{path.parent}/", "")


@pytest.mark.parametrize("path", sorted(BAD.glob("*.dla")), ids=lambda p: p.stem)
def test_bad_input_gets_exactly_this_answer(path: Path) -> None:
    """Each bad input has its whole expected answer beside it."""
    assert _error_text(path) + "\n" == path.with_suffix(".txt").read_text(encoding="utf-8")


def test_there_are_many_bad_inputs() -> None:
    """An empty folder would make the test above pass."""
    assert len(list(BAD.glob("*.dla"))) >= 40


def test_diagnostics_are_all_kept_though_twenty_are_shown() -> None:
    """The message stops at twenty and counts the rest; the exception carries them all."""
    with pytest.raises(AssemblyError, match="and 80 more errors") as caught:
        assemble("".join(f"    WRONG{i}\n" for i in range(100)))
    assert [d.line for d in caught.value.diagnostics] == list(range(1, 101))


def test_nesting_of_100_000_brackets_is_one_quick_diagnostic() -> None:
    """Hostile nesting neither recurses nor hides the next line's error."""
    deep = ".const a : f32[2] = " + "[" * 100_000 + "]" * 100_000 + "\n    COPY a" + "(" * 100_000 + "\n    WRONG\n"
    with pytest.raises(AssemblyError) as caught:
        assemble(deep)
    found = [(d.line, d.message) for d in caught.value.diagnostics]
    nested = "brackets are nested more than 32 deep"
    assert found == [(1, nested), (2, nested), (3, "unknown instruction WRONG")]


def test_overlong_line_is_refused() -> None:
    """A line of more than a mebibyte is not parsed."""
    with pytest.raises(AssemblyError, match="this line has more than 1048576 characters"):
        assemble("    HALT" + " " * 2**20 + "\n    HALT")


def test_overlong_file_is_refused(tmp_path: Path) -> None:
    """A file of more than 64 MiB is refused before it is read."""
    path = tmp_path / "large.dla"
    with path.open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    with pytest.raises(AssemblyError, match="assembly text is at most 67108864"):
        assemble_file(path)


def test_a_name_as_long_as_a_file_is_not_repeated() -> None:
    """A message quotes at most a thousand characters."""
    with pytest.raises(AssemblyError) as caught:
        assemble("A" * 100_000)
    assert len(str(caught.value)) < 3000


def test_two_hundred_diagnostics_are_enough() -> None:
    """Reading stops after two hundred complaints."""
    with pytest.raises(AssemblyError) as caught:
        assemble("    WRONG\n" * 3000)
    assert len(caught.value.diagnostics) == 200


def test_half_a_surrogate_pair_is_refused() -> None:
    """A Python string that is no text is no program."""
    with pytest.raises(AssemblyError, match="the text holds half a surrogate pair: it is not UTF-8"):
        assemble("    HALT ; \ud800")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    """A constant's file may not lie outside the source's folder, not even through a link."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "two.npy").write_bytes((BAD / "two.npy").read_bytes())
    (inside / "link.npy").symlink_to(outside / "two.npy")
    (inside / "self.npy").symlink_to(inside / "self.npy")
    text = '.const a : i32[2] from "link.npy"\n.const b : i32[2] from "self.npy"\n    HALT\n'
    with pytest.raises(AssemblyError) as caught:
        assemble(text, folder=inside)
    first, second = caught.value.diagnostics
    assert first.message == "link.npy is a link that leaves the folder of the source file"
    assert "self.npy" in second.message


def test_a_string_has_no_folder() -> None:
    """Without a folder nothing is read from disk."""
    with pytest.raises(AssemblyError, match="this text has no folder to look up files in"):
        assemble('.const a : f32[2] from "two.npy"\n    HALT\n')


def test_include_depth_is_limited(tmp_path: Path) -> None:
    """A chain of files that include each other ends."""
    for i in range(20):
        (tmp_path / f"{i}.dla").write_text(f'.include "{i + 1}.dla"\n')
    (tmp_path / "20.dla").write_text("    HALT\n")
    with pytest.raises(AssemblyError, match="too many included files: at most 1000, 16 deep"):
        assemble_file(tmp_path / "0.dla")


def test_binary_include_is_refused(tmp_path: Path) -> None:
    """An included file that is no text is reported at its .include line."""
    (tmp_path / "bytes.inc").write_bytes(b"\xff")
    with pytest.raises(AssemblyError, match=r"bytes\.inc: byte 0 is not UTF-8 text") as caught:
        assemble('    HALT\n.include "bytes.inc"\n', folder=tmp_path)
    assert caught.value.diagnostics[0].line == 2


def test_damaged_tensor_files_are_refused(tmp_path: Path) -> None:
    """A wrong size, a bool that is 2, pickles and cut files are diagnosed, not read."""
    header = (
        b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}'
    )
    (tmp_path / "d.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\2\0\0\0")
    (tmp_path / "cut.npy").write_bytes((BAD / "two.npy").read_bytes()[:-1])
    (tmp_path / "no.npy").write_bytes(b"no")
    text = (
        '.const a : f32[2] from "d.safetensors#w"\n.const b : bool[1] from "d.safetensors#b"\n'
        '.const c : i32[2] from "cut.npy"\n.const d : i32[2] from "no.npy"\n    HALT\n'
    )
    with pytest.raises(AssemblyError) as caught:
        assemble(text, folder=tmp_path)
    assert [d.message for d in caught.value.diagnostics] == [
        "d.safetensors is damaged: the size of tensor w does not fit its shape",
        "d.safetensors is damaged: a bool of tensor b is neither 0 nor 1",
        "cut.npy is not an .npy file of numbers, or is cut short",
        "no.npy is not an .npy file of numbers",
    ]


LIMITS = (
    ".input t : f32[d0 <= 1{}]\n".format("".join(f", d{i} <= 1" for i in range(1, 6)))
    + "".join(f".input t{j} : f32[{', '.join(f'd{i} <= 1' for i in range(6 * j, 6 * j + 6))}]\n" for j in range(1, 6)),
    ".scratch " + "x" * 256 + " : f32[2]\n    HALT\n",
    ".dim d s31 4\n.dim d s30 4\n.dim e s29 1099511627777\n    HALT\n",
    ".line 0\n.segment scratch -1\n    HALT\n",
    '.program one\n.program two\n.file "\\u0007"\n    HALT\n',
    ".program `" + "x" * 256 + "`\n    HALT\n",
    ".scratch x : f32[4] @ 2\n    HALT\n",
    (
        ".scratch x : f32[4]\n    COPY x, scratch@281474976710657 : f32[4]\n"
        "    COPY x, scratch@0+s0*281474976710657 : f32[4]\n    HALT\n"
    ),
    ".scratch x : f32[4]\n    COPY x, x[rows]\n    HALT\n",
    ".const x : f32[1099511627776] = 0\n.const y : f16[2] = [70000, -1e9]\n.const z : f32[] = 1e39\n    HALT\n",
    "".join(f"    LOOP s{i}, 1\n" for i in range(9)) + "    BR end if=p0\n" + "    ENDLOOP\n" * 9 + "end:\n    HALT\n",
    ".output y : f32[2]\n    EW.add y, y, 1" + "0" * 400 + "\n    HALT\n",
    ".scratch x : f32[0]\n    COPY x, x[0]\n    HALT\n",
    ".scratch x : f32[4]\n    COPY x, x[0:0, s0:s0+9]\n    COPY x, x[s0:s0+9]\n    HALT\n",
    ".scratch x : f32[4]\n    COPY x, x[:s1 <= 1099511627777]\n    HALT\n",
    "    LOOP s0, s1 max=[1]\n    ENDLOOP\n    SOFTMAX\n    HALT\n",
    ".output x : f32[2]\n    REDUCE.sum x, x axes=[[1]] keepdims=[1]\n    SOFTMAX x, x axis=one\n    HALT\n",
    '.const a : f32[2] from ""\n    HALT\n',
    ".input x : f32[batch <= 4]\n.output y : f32[2]\n    COPY y, x[s0*562949953421312]\n    HALT\n",
    f".world 2\n.group {'x' * 256} [[0, 1]]\n.group deep [[[0]]]\n.input x : f32[2] shard axis=0\n    HALT\n",
)
"""Programs that break one limit each; their messages are compared with the templates below."""


UNTESTED = (r"a\ program\ has\ at\ most\ .*\ instructions", r"a\ program\ has\ at\ most\ .*\ tensors")
"""Messages that take a million lines to produce."""


def test_every_message_is_tested() -> None:
    """Each message in the assembler's source is produced by a bad input, or by a test in this file."""
    produced = "".join(path.read_text(encoding="utf-8") for path in BAD.glob("*.txt"))
    for text in LIMITS:
        with pytest.raises(AssemblyError) as caught:
            assemble(text, folder=BAD)
        produced += str(caught.value) + "\n"
    produced += Path(__file__).read_text(encoding="utf-8")
    missing = [f"{where}: {regex}" for where, regex in _templates() if not re.search(regex, produced)]
    assert missing == []


def _templates() -> Iterator[tuple[str, str]]:
    """(place, regular expression) of each message that the assembler's source can produce."""
    for path in sorted(SOURCES.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for part in _messages(node):
                text = _pattern(part)
                if text and text not in UNTESTED:
                    yield f"{path.name}:{part.lineno}", text


def _messages(node: ast.AST) -> Iterator[ast.expr]:
    """The message arguments of a call that makes a complaint; both branches of a conditional one."""
    positions = {"problem": 1, "SyntaxProblem": 0, "TensorFileError": 0, "ReshapeError": 2, "Diagnostic": 3, "add": 2}
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in positions and len(node.args) > positions[name]:
        argument = node.args[positions[name]]
        yield from [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]


def _pattern(message: ast.expr) -> str | None:
    """A regular expression for a literal or formatted message; None for one that comes from elsewhere."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return re.escape(message.value)
    if isinstance(message, ast.JoinedStr):
        parts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in message.values]
        return "".join(parts)
    return None
