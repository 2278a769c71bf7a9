"""Ranks in the program file: groups, pairs and shards survive it, and nothing else is read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dla.assembler import assemble, disassemble
from dla.isa.container import load, read_bytes, save, write_bytes
from dla.isa.container.layout import Kind
from dla.isa.container.ranks import MAX_LISTED, decode_groups, decode_shards, encode_groups, encode_shards
from dla.isa.errors import ContainerError
from dla.isa.program import Program
from dla.isa.ranks import RankGroup, RankPairs, Shard
from dla.tests.isa.container.test_container import patched, table

SOURCE = """
.program ranks
.world 4
.group tp [[0, 1], [2, 3]]
.group `dp.outer` [[0, 2], [1, 3]]
.pairs next [[0, 1], [1, 2], [2, 3]]
.const bias : f32[3] = [1, 2, 3]
.const w : f32[2, 3] = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]] shard axis=1 group=tp
.const after : f32[3] = 2
.const big : bf16[3, 40] = 0.5 shard axis=0
.output y : f32[2, 3]
main:
    ALLREDUCE.sum y, w group=tp             ; in pairs
    ALLREDUCE.max y, y group=`dp.outer`
    PERMUTE y, y pairs=next
    BROADCAST y, y root=3
    HALT
"""
PROGRAM = assemble(SOURCE, file="ranks.dla")
FILE = write_bytes(PROGRAM)


def test_a_program_of_ranks_survives_the_file_and_the_text() -> None:
    """World, groups, pairs, shards and the names of all: to the byte."""
    again = read_bytes(FILE)
    assert write_bytes(again) == FILE
    text = disassemble(again)
    assert " : f32[2, 3] = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]] shard axis=1 group=tp" in text
    assert "group=`dp.outer`" in text
    assert write_bytes(assemble(text, file="ranks.dla")) == FILE


def test_shards_stay_in_the_program_when_weights_move_out(tmp_path) -> None:
    """Named constants beside them go to the other file."""
    save(PROGRAM, tmp_path / "p.dlab", external=tmp_path / "p.safetensors")
    again = load(tmp_path / "p.dlab")
    assert again.shards == PROGRAM.shards
    assert [e.key for e in again.external] == ["bias", "after"]


def test_programs_without_ranks_are_written_as_before() -> None:
    """Four zero bytes, and no section of shards: files of earlier versions stay what they are."""
    plain = write_bytes(assemble(".output y : f32[]\nmain:\n    FILL y, 1\n    HALT\n"))
    kinds = {row[0]: row for row in table(plain)}
    assert kinds[Kind.GROUPS][3] == 4
    assert Kind.SHARDS not in kinds


def test_shards_are_not_copied_from_a_file() -> None:
    """They are views of its bytes."""
    shard = read_bytes(FILE).shards[0]
    assert not shard.data.flags.owndata
    assert shard.data.view(np.float32).tolist() == list(range(1, 13))


def groups(*numbers: int | str) -> bytes:
    """A section: numbers are u32, texts names."""
    return b"".join(
        n.to_bytes(4, "little") if isinstance(n, int) else bytes([len(n)]) + n.encode("ascii") for n in numbers
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (groups(0, 0), "bytes are left over"),
        (groups(2), "it is cut short"),
        (groups(70000, 0, 0), "a world has at most 65535 ranks, not 70000"),
        (groups(2, 1, "a b", 0, 0), "a name is not an identifier"),
        (groups(2, 1, "tp", 2**31), "it claims to have 2147483648 entries"),
        (groups(2, 1, "tp", 1, 9, 0), "it claims to have 9 entries"),
        (groups(2, 0, 1, "up", 2**30), "it claims to have 1073741824 entries"),
    ],
)
def test_damaged_groups_are_refused(data: bytes, message: str) -> None:
    """Counts before anything is made of them."""
    with pytest.raises(ContainerError) as caught:
        decode_groups(memoryview(data))
    assert caught.value.message == f"the groups section is not valid: {message}"


def test_tables_of_ranks_have_a_limit() -> None:
    """However large the file: as objects they would take many times its size."""
    many = tuple(RankGroup(f"g{i}", ((0, 1),)) for i in range(MAX_LISTED // 3 + 1))
    with pytest.raises(ContainerError, match="groups and pairs with more than 131072 ranks in them"):
        encode_groups(Program("p", (), world=2, groups=many))
    pairs = tuple(RankPairs(f"p{i}", ((0, 1),)) for i in range(3))
    data = bytearray(encode_groups(Program("p", (), world=2, groups=many[:-3], pairs=pairs)))
    assert decode_groups(memoryview(data))[2] == pairs
    data[8:8] = groups("more", 7, *[0] * 7)
    data[4:8] = (len(many) - 2).to_bytes(4, "little")
    with pytest.raises(ContainerError, match="it claims to have 1 entries"):
        decode_groups(memoryview(data))


def test_damaged_shards_are_refused() -> None:
    """Sizes, and bytes between tensors."""
    data = b"".join(encode_shards([Shard("w", 0, 0, np.arange(8, dtype=np.uint8))]))
    assert decode_shards(memoryview(data))[0] == Shard("w", 0, 0, np.arange(8, dtype=np.uint8))
    wrong = {
        data[:-1]: "it is cut short",
        data + b"\0": "bytes are left over",
        data[:25] + b"\1" + data[26:]: "bytes between tensors are not zero",
        bytes(4): "it is empty",
    }
    for damaged, message in wrong.items():
        with pytest.raises(ContainerError) as caught:
            decode_shards(memoryview(damaged))
        assert caught.value.message == f"the shards section is not valid: {message}"


def test_a_reader_that_does_not_know_shards_refuses_them() -> None:
    """They are a required feature; a file whose features and sections disagree is damaged."""
    assert int.from_bytes(FILE[48:56], "little") == 2
    with pytest.raises(ContainerError, match="its feature bits do not match its sections"):
        read_bytes(patched(FILE, 48, "<Q", 0))


@pytest.mark.parametrize(
    "changes",
    [{"world": 0}, {"world": -1}, {"pairs": (RankPairs("a b", ((0, 1),)),)}, {"groups": (RankGroup("g", ((-1,),)),)}],
)
def test_what_has_no_encoding_is_not_written(changes: dict[str, object]) -> None:
    """Groups without a world, names and numbers that are none."""
    with pytest.raises(ContainerError, match="the program cannot be written"):
        write_bytes(dataclasses.replace(PROGRAM, **changes))  # type: ignore[arg-type]


def test_text_of_a_program_that_the_verifier_refuses() -> None:
    """The disassembler takes whatever can be read."""
    odd = dataclasses.replace(PROGRAM, groups=(), shards=(Shard("w", 9, 7, np.zeros(5, np.uint8)),))
    text = disassemble(read_bytes(write_bytes(odd)))
    assert "group=1" in text
    assert "shard axis=9" in text
