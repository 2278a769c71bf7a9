"""Binding inputs and dims: what fits is taken as it is, what does not is refused with a way out."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dla
from dla.emulator.binding import as_array, bind
from dla.isa.program import Program

TEXT = """
.program t
.input x    : f32[batch <= 8, 3]
.input mask : bool[batch]
.output y : f32[batch, 3]
main:
    COPY y, x
    HALT
"""


@pytest.fixture(scope="module")
def program() -> Program:
    """A program of two inputs that share a dim."""
    return dla.assemble(TEXT)


def inputs(batch: int = 2, **others: Any) -> dict[str, Any]:
    """Inputs that fit, but for `others`."""
    return {"x": np.ones((batch, 3), np.float32), "mask": np.ones(batch, np.bool_)} | others


def test_dims_follow_from_shapes(program: Program) -> None:
    """A named dim takes its value from any input that has it; setting it too is fine if it agrees."""
    assert bind(program, inputs(5)).dims == {"batch": 5}
    assert bind(program, inputs(5), {"batch": 5}).dims == {"batch": 5}
    assert bind(program, inputs(0)).dims == {"batch": 0}
    assert bind(program, inputs(8), {"batch": np.int64(8)}).dims == {"batch": 8}


@pytest.mark.parametrize(
    ("given", "dims", "message"),
    [
        ({"x": np.ones((2, 3), np.float32)}, None, "missing input 'mask'"),
        ({}, None, "missing inputs 'x', 'mask'"),
        (inputs(maks=1), None, "no input 'maks'.*did you mean 'mask'"),
        (inputs(zzzz=1), None, "no input 'zzzz'.*it has 'x', 'mask'"),
        (inputs(x=np.ones((2, 3))), None, r"'x' must be f32, not float64.*x.astype\(numpy.float32\)"),
        (inputs(x=np.ones((2, 3), np.float16)), None, "'x' must be f32, not f16"),
        (inputs(mask=np.ones(2, np.uint8)), None, "'mask' must be bool, not u8"),
        (inputs(x=np.ones((2, 4), np.float32)), None, r"must have shape \[batch <= 8, 3\], not \[2, 4\]"),
        (inputs(x=np.ones((9, 3), np.float32)), None, r"must have shape \[batch <= 8, 3\], not \[9, 3\]"),
        (inputs(x=np.ones(3, np.float32)), None, r"not \[3\].*a single sample needs a leading axis: x\[None\]"),
        (inputs(mask=np.ones(3, np.bool_)), None, "dim 'batch' is 3 in input 'mask', but 2 in input 'x'"),
        (inputs(2), {"batch": 3}, "dim 'batch' is 2 in input 'x', but 3 in the value that was set"),
        (inputs(2), {"batch": 9}, "dim 'batch' must be from 0 to 8, not 9"),
        (inputs(2), {"batch": -1}, "dim 'batch' must be from 0 to 8, not -1"),
        (inputs(2), {"batch": 2.0}, "dim 'batch' must be an integer"),
        (inputs(2), {"bath": 2}, "no dim 'bath'.*did you mean 'batch'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    program: Program, given: dict[str, Any], dims: dict[str, Any] | None, message: str
) -> None:
    """Each complaint names the tensor or dim, what is wrong, and what to do."""
    with pytest.raises(dla.InputError) as caught:
        bind(program, given, dims)
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


def test_dims_of_no_input_must_be_set() -> None:
    """A dim that only outputs have needs a value."""
    program = dla.assemble(".program t\n.output y : f32[n <= 4]\nmain:\nFILL y, 1\nHALT\n")
    with pytest.raises(dla.InputError, match=r"dim 'n' has no value(.|\n)*--set n=N"):
        bind(program, {})
    assert dla.Machine("golden").run(program, {}, {"n": 3})["y"].shape == (3,)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(12, dtype=np.float32).reshape(4, 3)[::2],
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.broadcast_to(np.float32(7), (2, 3)),
        np.arange(6, dtype=np.float32)[::-1].reshape(2, 3),
    ],
    ids=["strided", "transposed", "big-endian", "fortran", "broadcast", "reversed"],
)
def test_any_memory_layout_is_accepted(program: Program, x: np.ndarray) -> None:
    """Strides and byte order of the caller's array do not matter; its values arrive."""
    result = dla.Machine("golden").run(program, inputs(x=x))
    np.testing.assert_array_equal(result["y"], x.astype(np.float32))


def test_bfloat16_is_ml_dtypes_bfloat16() -> None:
    """bf16 inputs are ml_dtypes arrays; raw 16-bit integers are not taken for them."""
    program = dla.assemble(".program t\n.input x : bf16[2]\n.output y : bf16[2]\nmain:\nEW.add y, x, x\nHALT\n")
    x = np.array([1.5, 2], ml_dtypes.bfloat16)
    assert dla.Machine("golden").run(program, {"x": x})["y"].tolist() == [3, 4]
    with pytest.raises(dla.InputError, match=r"must be bf16, not uint16(.|\n)*ml_dtypes.bfloat16"):
        bind(program, {"x": x.view(np.uint16)})


def test_nan_inputs_are_data(program: Program) -> None:
    """NaN is not an error."""
    x = np.full((2, 3), np.nan, np.float32)
    assert np.isnan(dla.Machine("golden").run(program, inputs(x=x))["y"]).all()


def test_the_callers_array_is_not_kept(program: Program) -> None:
    """Outputs share no memory with inputs."""
    given = inputs()
    result = dla.Machine("golden").run(program, given)
    given["x"][:] = 9
    assert (result["y"] == 1).all()


@dataclasses.dataclass
class Foreign:
    """An array of another library, as DLPack shows it."""

    array: np.ndarray
    device: tuple[int, int] = (1, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


def test_dlpack_objects_are_read(program: Program) -> None:
    """Whatever speaks DLPack in host memory is an input."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(dla.Machine("golden").run(program, inputs(x=Foreign(x)))["y"], x)


def test_dlpack_objects_on_a_gpu_need_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CuPy, memory of a GPU cannot be read, and the message says so."""
    import sys

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(dla.InputError, match="input 'x' cannot be read as an array: it lives on a GPU, and CuPy"):
        as_array(Foreign(np.ones(2, np.float32), (2, 0)), "input 'x'")


@pytest.mark.parametrize("value", ["text", object(), [[1, 2], [3]], {"a": 1}])
def test_what_is_no_array_is_refused(program: Program, value: Any) -> None:
    """Strings, objects and ragged lists end as InputError."""
    with pytest.raises(dla.InputError, match="input 'x'"):
        bind(program, inputs(x=value))


def test_names_in_messages_are_escaped(program: Program) -> None:
    """A hostile name cannot drive the terminal."""
    with pytest.raises(dla.InputError) as caught:
        bind(program, inputs(**{"x\x1b[2J": 1}))
    assert "\x1b" not in str(caught.value)
