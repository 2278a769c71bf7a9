"""Tensors in files: read without trusting them, written whole or not at all."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from dla.emulator.tensorfiles import contents, destinations, gather, save
from dla.isa.descriptor import Segment, contiguous
from dla.isa.dtypes import BY_NUMPY, DType
from dla.isa.errors import InputError
from dla.isa.program import Tensor

ARRAYS = [np.arange(6, dtype=d.numpy).reshape(2, 3) if d is not DType.BOOL else np.eye(2, 3, dtype=bool) for d in DType]


def expect(**arrays: np.ndarray) -> dict[str, Tensor]:
    """Declarations that the arrays fit."""
    return {n: Tensor(n, contiguous(Segment.INPUT, BY_NUMPY[a.dtype], a.shape)) for n, a in arrays.items()}


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: a.dtype.name)
def test_every_dtype_survives_every_format(tmp_path: Path, suffix: str, array: np.ndarray) -> None:
    """What was written is read back with the same dtype, shape and bits, bf16 included."""
    path = tmp_path / f"t{suffix}"
    save([(path, ("y",))], {"y": array})
    back = gather([f"y={path}"], expect(y=array))["y"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.float32), np.float32(2.5).reshape(()), np.ones((2, 3), ">f4")])
def test_unusual_arrays_survive(tmp_path: Path, array: np.ndarray) -> None:
    """Empty, rank-0 and big-endian tensors are read as what they are, in native byte order."""
    np.save(tmp_path / "t.npy", array)
    back = contents(tmp_path / "t.npy")[""].read()
    assert back.dtype.isnative
    np.testing.assert_array_equal(back, array)


def test_column_major_files_are_read(tmp_path: Path) -> None:
    """A .npy in Fortran order has the same elements as in C order."""
    array = np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3))
    np.save(tmp_path / "t.npy", array)
    np.testing.assert_array_equal(contents(tmp_path / "t.npy")[""].read(), array)


def test_specs_name_tensors_in_every_documented_way(tmp_path: Path) -> None:
    """FILE, NAME=FILE and NAME=FILE#KEY find the same tensors."""
    x, w = np.ones(3, np.float32), np.zeros(2, np.int64)
    np.savez(tmp_path / "all.npz", x=x, w=w)
    np.save(tmp_path / "one.npy", x)
    safetensors.numpy.save_file({"deep.x": x}, tmp_path / "one.safetensors")
    declared = expect(x=x, w=w)
    for specs in (["all.npz"], ["x=one.npy", "w=all.npz"], ["x=one.safetensors#deep.x", "w=all.npz#w"]):
        located = [f"{s.rpartition('=')[0]}{'=' if '=' in s else ''}{tmp_path / s.rpartition('=')[2]}" for s in specs]
        found = gather(located, declared)
        assert found.keys() == {"x", "w"}
        np.testing.assert_array_equal(found["x"], x)
    assert gather([str(tmp_path / "one.npy")], expect(x=x)).keys() == {"x"}


VAST = "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, 9, 0)}}"
"""A `.npy` header of an array without elements that NumPy cannot make."""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("x=none.npy", "cannot read '{0}/none.npy': No such file or directory"),
        ("x=t.csv", "cannot tell the format of '{0}/t.csv'"),
        ("x=empty.npy", "'{0}/empty.npy' is not a .npy file: "),
        ("x=text.npy", "'{0}/text.npy' is not a .npy file: "),
        ("x=short.npy", "'{0}/short.npy' is damaged: its header asks for 40 bytes of data, it has 39"),
        ("x=objects.npy", "'{0}/objects.npy' holds pickled Python objects, which dla never loads"),
        ("x=text.npz", "'{0}/text.npz' is not a .npz file: "),
        ("x=text.safetensors", "cannot read '{0}/text.safetensors': text.safetensors is not a safetensors file: "),
        ("x=deep.npy", "'{0}/deep.npy' is not a .npy file: its header cannot be parsed"),
        ("x=open.npy", "'{0}/open.npy' is not a .npy file: its header cannot be parsed"),
        ("x=vast.npy", "'{0}/vast.npy' is not a .npy file: no array has the shape or type in its header"),
        ("x=f64.safetensors", "cannot read '{0}/f64.safetensors': f64.safetensors: tensor x has type F64, which dla"),
        ("x=vast.safetensors", "cannot read '{0}/vast.safetensors': vast.safetensors is damaged: the size of tensor x"),
        ("x=two.npz#c", "'{0}/two.npz' holds no tensor 'c'"),
        ("x=two.npz", "'{0}/two.npz' holds no tensor 'x'"),
        ("two.npz", "the program has no input 'a' (from '{0}/two.npz')"),
        ("x=bomb.npz", "input 'x' from '{0}/bomb.npz#x' is float64[500000], too large for i64[5]"),
        ("x=lies.npz", "'{0}/lies.npz#x' is damaged: its header asks for 8,000,000,000,000 bytes"),
    ],
)
def test_bad_files_are_refused_with_their_name(tmp_path: Path, spec: str, message: str) -> None:
    """Missing, foreign, damaged and hostile files each give one InputError that says which and why."""
    np.save(tmp_path / "short.npy", np.arange(5))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:-1])
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "two.npz", a=np.arange(2), b=np.arange(2))
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(500_000))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    for name in ("text.npy", "text.npz", "text.safetensors", "t.csv"):
        (tmp_path / name).write_text("hello, I am not a tensor\n")
    (tmp_path / "empty.npy").touch()
    for name, text in {"deep": "-" * 9000 + "1", "open": "(2L,\n", "vast": VAST.format(2**62)}.items():
        (tmp_path / f"{name}.npy").write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode())
    safetensors.numpy.save_file({"x": np.ones(1)}, tmp_path / "f64.safetensors")
    vast = b'{"x":{"dtype":"I64","shape":[0,4611686018427387904],"data_offsets":[0,0]}}'
    (tmp_path / "vast.safetensors").write_bytes(len(vast).to_bytes(8, "little") + vast)
    name, equals, file = spec.rpartition("=")
    with pytest.raises(InputError) as caught:
        gather([f"{name}{equals}{tmp_path / file}"], expect(x=np.arange(5)))
    assert caught.value.message.startswith(message.format(tmp_path))


def test_an_input_given_twice_is_refused(tmp_path: Path) -> None:
    """Which of two files is meant is not guessed."""
    np.save(tmp_path / "a.npy", np.arange(5))
    spec = f"x={tmp_path / 'a.npy'}"
    with pytest.raises(InputError, match="input 'x' is given twice"):
        gather([spec, spec], expect(x=np.arange(5)))


def test_one_failing_output_leaves_all_as_they_were(tmp_path: Path) -> None:
    """With two outputs and a folder that does not exist, nothing is written and nothing is left over."""
    (tmp_path / "a.npy").write_text("old")
    places = [(tmp_path / "a.npy", ("a",)), (tmp_path / "none" / "b.npy", ("b",))]
    with pytest.raises(InputError, match=r"cannot write '.*none/b.npy': No such file or directory"):
        save(places, {"a": np.ones(2), "b": np.ones(2)})
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]
    assert (tmp_path / "a.npy").read_text() == "old"


def test_the_same_tensors_make_the_same_bytes(tmp_path: Path) -> None:
    """A .npz holds no time of day."""
    places = [(tmp_path / name, ("x", "y")) for name in ("a.npz", "b.npz")]
    save(places, {"x": np.arange(3), "y": np.ones(2, ml_dtypes.bfloat16)})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert np.load(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]


def test_two_outputs_in_one_file_are_refused() -> None:
    """The second would replace the first."""
    with pytest.raises(InputError, match=r"'a\.npy' is written twice"):
        destinations(["x=a.npy", "y=a.npy"], ["x", "y"])


@pytest.mark.parametrize(
    ("spec", "names", "message"),
    [
        ("y.csv", ("y",), "cannot tell the format of 'y.csv'"),
        ("z=y.npy", ("y",), "the program has no output 'z'"),
        ("none/y.npz", ("y",), "cannot write 'none/y.npz': there is no folder 'none'"),
        ("y.npy", ("y", "z"), "a .npy file holds one tensor, the program has 2 outputs"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_before_the_run(
    spec: str, names: tuple[str, ...], message: str
) -> None:
    """A typo in an output's name, folder or format costs no run."""
    with pytest.raises(InputError) as caught:
        destinations([spec], names)
    assert caught.value.message == message


def test_outputs_go_where_they_are_sent() -> None:
    """FILE takes every tensor, NAME=FILE the one it names."""
    assert destinations(["a.npz", "y=b.npy"], ["x", "y"]) == [(Path("a.npz"), ("x", "y")), (Path("b.npy"), ("y",))]
