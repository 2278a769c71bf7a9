"""The Python API: what `import dla` offers, and how a machine is picked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dla
from dla.emulator import api

TEXT = ".program t\n.const w : f32[2] = [1, 2]\n.output y : f32[2]\nmain:\nEW.add y, w, w\nHALT\n"


def test_import_is_light() -> None:
    """`import dla` loads neither NumPy, nor the parser, nor CuPy; names arrive when they are used."""
    heavy = {"numpy", "lark", "ml_dtypes", "cupy", "click"}
    code = f"import dla, sys; loaded = {heavy} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_exported_name_exists() -> None:
    """`__all__` holds what `dla.name` finds, and dir() shows it."""
    for name in dla.__all__:
        assert getattr(dla, name) is not None
    assert set(dla.__all__) <= set(dir(dla))
    with pytest.raises(AttributeError, match="no attribute 'asemble'"):
        _ = dla.asemble  # type: ignore[attr-defined]


def test_text_to_result() -> None:
    """Assemble, verify, run: three calls."""
    program = dla.assemble(TEXT)
    dla.verify(program)
    result = dla.Machine("golden").run(program, {})
    assert result["y"].tolist() == [2, 4]
    assert result.backend == "golden"
    assert result.elapsed > 0
    assert [c.ok for c in dla.compare(program, {}, result)] == [True]


def test_load_takes_text_and_binary(tmp_path: Path) -> None:
    """A file is a program by what is in it; a saved program is the one that was assembled."""
    (tmp_path / "t.dla").write_text(TEXT)
    program = dla.load(tmp_path / "t.dla")
    dla.save(program, tmp_path / "t.dlab")
    dla.save(program, tmp_path / "renamed")
    for name in ("t.dlab", "renamed"):
        loaded = dla.load(str(tmp_path / name))
        assert loaded.instructions == program.instructions
        assert dla.Machine("golden").run(loaded, {})["y"].tolist() == [2, 4]


def test_load_of_what_is_no_program_says_so(tmp_path: Path) -> None:
    """Text named .dlab, an empty file and a missing one each end as a DlaError."""
    (tmp_path / "t.dlab").write_text(TEXT)
    with pytest.raises(dla.ContainerError):
        dla.load(tmp_path / "t.dlab")
    (tmp_path / "empty.dla").write_bytes(b"")
    with pytest.raises(dla.DlaError):
        dla.load(tmp_path / "empty.dla")
    with pytest.raises(dla.InputError):
        dla.load(tmp_path / "missing.dla")
    with pytest.raises(dla.InputError, match=r"is a model, not a program.*\n.*compile_model"):
        dla.load(tmp_path / "model.onnx")


def test_programs_are_verified_before_they_run() -> None:
    """A machine refuses what the verifier refuses."""
    program = dla.assemble(TEXT)
    broken = type(program)(program.name, program.instructions[:-1], program.tensors, program.dims,
                           program.segment_bytes, program.constants)  # fmt: skip
    with pytest.raises(dla.VerifyError):
        dla.Machine("golden").load(broken)


def test_gpu_without_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the GPU never falls back; "auto" does, and says which machine it is."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(dla.BackendError, match="CuPy is not installed") as caught:
        dla.Machine("gpu")
    assert caught.value.exit_code == 6
    assert "cupy-cuda12x[ctk]" in str(caught.value)
    assert dla.Machine("auto").name == "golden"


def test_a_broken_cupy_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CuPy that is there but does not load is told apart from one that is missing."""

    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "cupy":
                raise ImportError("libcuda.so.1: cannot open shared object file\nand more")

    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert api.gpu_missing() == "CuPy cannot be imported: libcuda.so.1: cannot open shared object file"


def test_gpu_without_a_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy alone is not a GPU."""
    monkeypatch.setattr(api, "gpu_missing", lambda: "there is no CUDA device")
    with pytest.raises(dla.BackendError, match=r"no CUDA device(.|\n)*dla doctor"):
        dla.Machine("gpu")


def test_unknown_backends_and_options_are_refused() -> None:
    """With the nearest name as a hint."""
    with pytest.raises(dla.InputError, match=r"no backend 'goldn'(.|\n)*did you mean 'golden'"):
        dla.Machine("goldn")
    with pytest.raises(dla.InputError, match=r"no option 'shufle'(.|\n)*did you mean 'shuffle'"):
        dla.Machine("golden", shufle=1)


@pytest.mark.gpu
def test_cupy_arrays_go_in_and_come_out() -> None:
    """The GPU machine takes device arrays and gives them back."""
    import cupy

    program = dla.assemble(".program t\n.input x : f32[3]\n.output y : f32[3]\nmain:\nEW.add y, x, x\nHALT\n")
    x = cupy.arange(3, dtype=cupy.float32)
    y = dla.Machine("gpu").run(program, {"x": x})["y"]
    assert isinstance(y, cupy.ndarray)
    assert y.get().tolist() == [0, 2, 4]
    assert dla.Machine("golden").run(program, {"x": x})["y"].tolist() == [0, 2, 4]
    assert np.asarray(dla.Machine("gpu").run(program, {"x": x.get()})["y"]).tolist() == [0, 2, 4]
