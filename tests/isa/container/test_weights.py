"""Weights beside a program: found only where they may be, and only if they are the right ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from dla.assembler import assemble
from dla.isa import weights
from dla.isa.container import load, save, write_bytes
from dla.isa.errors import ContainerError, DlaError, InputError

PROGRAM = assemble("""
.program small
.input x : f32[3]
.const w : f32[3, 5] = 0.25
.const n : i64[2] = [7, 8]
.output y : f32[3]
main:
    EW.mul y, x, w[:, 0]
    HALT
""")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with p.dlab and its weights, w.safetensors."""
    save(PROGRAM, tmp_path / "p.dlab", external=Path("w.safetensors"))
    return tmp_path


def safetensors_file(header: object, data: bytes = bytes(128)) -> bytes:
    """A file with `header` as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_weights_come_back_mapped(saved: Path) -> None:
    """Constants that were moved out are read from beside the program, without a copy, at their offsets."""
    program = load(saved / "p.dlab")
    assert program.constants == ()
    blocks = weights.blocks(program)
    assert [b.offset for b in blocks] == [program.by_name[n].descriptor.offset for n in ("w", "n")]
    assert blocks[0].data.view(np.float32).tolist() == [0.25] * 15
    assert not any(b.data.flags.owndata for b in blocks)


def test_weights_are_a_safetensors_file(saved: Path) -> None:
    """Others can read the weights: names, types and shapes are those of the program."""
    tensors = safetensors.numpy.load_file(saved / "w.safetensors")
    assert {name: (a.dtype.name, a.shape) for name, a in tensors.items()} == {
        "w": ("float32", (3, 5)),
        "n": ("int64", (2,)),
    }


def test_loaded_program_writes_the_same_file(saved: Path) -> None:
    """A program with external weights has one file, too."""
    assert write_bytes(load(saved / "p.dlab")) == (saved / "p.dlab").read_bytes()


def _changed_value(folder: Path) -> None:
    path = folder / "w.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _link_out(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}.safetensors"
    (folder / "w.safetensors").rename(outside)
    (folder / "w.safetensors").symlink_to(outside)


def _fifo(folder: Path) -> None:
    (folder / "w.safetensors").unlink()
    os.mkfifo(folder / "w.safetensors")


def _other_shape(folder: Path) -> None:
    arrays = {"w": np.full((5, 3), 0.25, np.float32), "n": np.array([7, 8])}
    safetensors.numpy.save_file(arrays, folder / "w.safetensors")


def _other_size(folder: Path) -> None:
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, folder / "w.safetensors")


def _no_key(folder: Path) -> None:
    safetensors.numpy.save_file({"v": np.zeros(3, np.float32)}, folder / "w.safetensors")


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed value": (_changed_value, "is not the one that the program was made with"),
    "a link out of the folder": (_link_out, "lead out of the program's folder through a link"),
    "a pipe": (_fifo, "is not a regular file"),
    "no file": (lambda folder: (folder / "w.safetensors").unlink(), "weights cannot be read: there is no file"),
    "another shape": (_other_shape, r"is F32\[5, 3\], but the program declares w as F32\[3, 5\]"),
    "another size": (_other_size, "has 12 bytes, but the program needs 60"),
    "no such tensor": (_no_key, "holds no tensor w"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_weights_are_refused(saved: Path, case: str) -> None:
    """Weights that are missing, elsewhere or other than the program's are refused with the reason."""
    spoil, message = BAD[case]
    spoil(saved)
    with pytest.raises(DlaError, match=message):
        load(saved / "p.dlab")


BAD_FILES = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "a header larger than the file": (2**62).to_bytes(8, "little"),
    "a header that is no JSON": safetensors_file(b"{"),
    "a header that is no UTF-8": safetensors_file(b"\xff\xfe"),
    "a list for a header": safetensors_file([]),
    "100,000 brackets": safetensors_file(b"[" * 100_000),
    "a tensor twice": safetensors_file(b'{"w":1,"w":2}'),
    "a number of a million digits": safetensors_file(b'{"w":' + b"9" * 1_000_000 + b"}"),
    "a tensor that is a number": safetensors_file({"w": 1}),
    "offsets beyond the end": safetensors_file({"w": {"dtype": "F32", "shape": [3, 5], "data_offsets": [100, 160]}}),
    "offsets that go back": safetensors_file({"w": {"dtype": "F32", "shape": [3, 5], "data_offsets": [60, 0]}}),
    "negative offsets": safetensors_file({"w": {"dtype": "F32", "shape": [3, 5], "data_offsets": [-60, 0]}}),
    "fractions for sizes": safetensors_file({"w": {"dtype": "F32", "shape": [3.0, 5], "data_offsets": [0, 60]}}),
    "three offsets": safetensors_file({"w": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60, 60]}}),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_damaged_weights_file_is_refused(saved: Path, case: str) -> None:
    """A hostile `.safetensors` file gives a ContainerError and nothing else."""
    (saved / "w.safetensors").write_bytes(BAD_FILES[case])
    with pytest.raises(ContainerError):
        load(saved / "p.dlab")


@pytest.mark.parametrize("file", ["", "/w", "../w", "a/../w", "a//w", "./w", "a\\w", "C:w", "a\nw", "w" * 2000])
def test_paths_that_leave_the_folder_are_not_inside(file: str) -> None:
    """Only a plain relative path, written in one way, names weights."""
    assert not weights.is_inside(file)
    assert weights.is_inside("layers/w.safetensors")


def test_weights_in_another_folder_are_not_written(tmp_path: Path) -> None:
    """A program's weights go into its own folder, or nothing is written at all."""
    with pytest.raises(InputError, match="own folder"):
        save(PROGRAM, tmp_path / "p.dlab", external=tmp_path / "other" / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_damaged_weights_give_nothing_but_errors(saved: Path) -> None:
    """Every truncation and every bit flip of a weights file loads the same values, or ends in a DlaError."""
    path = saved / "w.safetensors"
    whole = path.read_bytes()
    flipped = (int.from_bytes(whole, "little") ^ (1 << bit) for bit in range(8 * len(whole)))
    damaged = [number.to_bytes(len(whole), "little") for number in flipped]
    refused = 0
    for data in [whole[:end] for end in range(len(whole))] + damaged:
        path.unlink()  # a new file: the old one may still be mapped
        path.write_bytes(data)
        try:
            program = load(saved / "p.dlab")
        except DlaError:
            refused += 1
        else:
            assert weights.blocks(program)[0].data.view(np.float32).tolist() == [0.25] * 15
    assert refused > 0.9 * 9 * len(whole)
