"""Constants: literals, numbers as operands, hexadecimal bytes, tensors from files."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from dla.assembler import assemble, disassemble
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.program import ExternalConst, Program


def value(program: Program, name: str) -> Array:
    """The constant called `name`, in its type and shape."""
    d = program.by_name[name].descriptor
    image = np.zeros(program.segment_bytes[Segment.CONST], np.uint8)
    for block in program.constants:
        image[block.offset : block.offset + block.data.size] = block.data
    return image[d.offset : d.offset + d.span].view(d.dtype.numpy).reshape(d.bounds)


def constant(declaration: str, folder: Path | None = None) -> Array:
    """The value of `.const x : <declaration>`."""
    return value(assemble(f".const x : {declaration}\n    HALT\n", folder=folder), "x")


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("f32[2, 3] = [[1, 2.5, -3e2], [.5, 0x10, -0.0]]", np.array([[1, 2.5, -300], [0.5, 16, -0.0]], np.float32)),
        ("f32[3] = [inf, -inf, nan]", np.array([np.inf, -np.inf, np.nan], np.float32)),
        ("f16[2] = [0.1, 65504]", np.array([0.1, 65504], np.float16)),
        ("bf16[2] = [0.1, 3]", np.array([0.1, 3], ml_dtypes.bfloat16)),
        ("i64[2] = [-0x8000000000000000, 9223372036854775807]", np.array([-(2**63), 2**63 - 1], np.int64)),
        ("u8[2] = [0, 255]", np.array([0, 255], np.uint8)),
        ("bool[4] = [true, false, 1, 0]", np.array([True, False, True, False])),
        ("f32[] = 7", np.array(7, np.float32)),
        ("i32[2, 2] = 7", np.full((2, 2), 7, np.int32)),
        ("f32[2, 0] = [[], []]", np.zeros((2, 0), np.float32)),
        ("f32[2] = [1, 2,]", np.array([1, 2], np.float32)),
        ("i32[2] = hex(\"01000000\"\n  \"ffffffff\" ; bytes\n)", np.array([1, -1], np.int32)),
        ("i32[2, 2] = [ ; rows\n  [1, 2], ; first\n\n  [3, 4]\n]", np.array([[1, 2], [3, 4]], np.int32)),
    ],
)  # fmt: skip
def test_literals_are_exact(declaration: str, expected: Array) -> None:
    """A literal has the bits of the nearest value of its type."""
    result = constant(declaration)
    assert (result.dtype, result.shape, result.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_decimals_are_rounded_once() -> None:
    """Shortest decimals of random f32 and f16 numbers read back as the same bits."""
    values = np.random.default_rng(0).integers(0, 2**32, 4000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    for array in (values, values.view(np.float16)):
        finite = array[np.isfinite(array)]
        dtype = "f32" if array.dtype == np.float32 else "f16"
        text = f"{dtype}[{finite.size}] = [{', '.join(map(str, finite))}]"
        assert constant(text).tobytes() == finite.tobytes()


def test_numbers_as_operands_are_interned() -> None:
    """`EW.mul y, x, 0.5` makes one constant per value and type, of the type that the row asks for."""
    program = assemble(
        ".const _c0 : f32[] = 1\n.input x : f16[2]\n.input i : i32[2]\n.scratch y : f16[2]\n.scratch j : i32[2]\n"
        ".input w : f32[2, 2]\n.output z : f32[2, 2]\n.output b : bool[2]\n"
        "    EW.mul y, x, 0.5\n    EW.add y, y, 0.5\n    EW.add j, i, 2\n    GEMM z, w, w bias=2\n"
        "    SELECT y, true, y, 0.5\n    HALT\n"
    )
    names = [t.name for t in program.tensors if t.name.startswith("_c")]
    assert names == ["_c0", "_c1", "_c2", "_c3", "_c4"]
    assert [value(program, n).dtype.name for n in names] == ["float32", "float16", "int32", "float32", "bool"]
    assert ".const   _c1 : f16[] = 0.5" in disassemble(program)


def test_safetensors_and_npy_are_read_and_mapped(tmp_path: Path) -> None:
    """Tensors come from files below the source's folder, bf16 and Fortran order included, without a copy."""
    (tmp_path / "sub").mkdir()
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    half = np.array([1.5, -2], ml_dtypes.bfloat16)
    save_file({"a.w": matrix, "half": half, "flag": np.array([True, False])}, tmp_path / "sub" / "w.safetensors")
    np.save(tmp_path / "f.npy", np.asfortranarray(matrix))
    np.save(tmp_path / "half.npy", half)
    assert constant('f32[2, 3] from "sub/w.safetensors#a.w"', tmp_path).tobytes() == matrix.tobytes()
    assert constant('bf16[2] from "sub/w.safetensors#half"', tmp_path).tobytes() == half.tobytes()
    assert constant('bool[2] from "sub/w.safetensors#flag"', tmp_path).tolist() == [True, False]
    assert constant('f32[2, 3] from "f.npy"', tmp_path).tobytes() == matrix.tobytes()
    assert constant('bf16[2] from "half.npy"', tmp_path).tobytes() == half.tobytes()
    program = assemble('.const x : f32[2, 3] from "sub/w.safetensors#a.w"\n    HALT\n', folder=tmp_path)
    assert not program.constants[0].data.flags.owndata
    assert not program.constants[0].data.flags.writeable


def test_external_constants_stay_outside() -> None:
    """`external` leaves the bytes in their file and remembers where."""
    program = assemble('.const x : f32[4] external "w.safetensors#a"\n    HALT\n')
    assert program.external == (ExternalConst(0, 16, "w.safetensors", "a"),)
    assert program.constants == ()


def test_large_constants_are_written_as_bytes_and_uniform_ones_as_a_number() -> None:
    """Up to sixteen elements stay decimal; a constant of equal elements is one number whatever its size."""
    text = disassemble(
        assemble(
            f".const a : f32[17] = [{', '.join(map(str, range(17)))}]\n.const b : f32[4, 400] = 0.1\n"
            ".const c : i32[2, 2] = [[1, 2], [3, 4]]\n    HALT\n"
        )
    )
    assert '.const   a : f32[17] = hex(\n    "000000000000803f' in text
    assert ".const   b : f32[4, 400] = 0.1\n" in text
    assert ".const   c : i32[2, 2] = [[1, 2], [3, 4]]\n" in text
