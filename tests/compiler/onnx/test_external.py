"""Weights in files beside an ONNX model: found where they are, refused wherever else they claim to be."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, saved, with_tensor

from dla.compiler.onnx.loader import from_proto, load
from dla.isa.errors import ModelError
from dla.isa.names import shown

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def external(name: str = "w", **entries: str) -> TensorProto:
    """An f32 tensor [2, 3] whose values are where `entries` say."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def loaded(folder: Path, **entries: str) -> np.ndarray:
    """The initialiser of a model in `folder` with its values where `entries` say."""
    return load(saved(with_tensor(external(**entries)), folder)).initialisers()["w"]


def refused(folder: Path, **entries: str) -> str:
    """The message with which such a model is refused, when it is loaded and not later."""
    path = saved(with_tensor(external(**entries)), folder)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{shown(path)}: tensor 'w'")
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `weights.bin`: 8 bytes of something else and the values; beside it, one with a secret."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(bytes(8) + WEIGHTS.tobytes())
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    return tmp_path / "model"


# -- found


def test_values_beside_the_model(folder: Path) -> None:
    """By offset and length; without a length, as many as the shape says."""
    np.testing.assert_array_equal(loaded(folder, location="weights.bin", offset="8", length="24"), WEIGHTS)
    array = loaded(folder, location="./weights.bin", offset="8")
    np.testing.assert_array_equal(array, WEIGHTS)
    assert not array.flags.writeable


def test_values_in_a_folder_below(folder: Path) -> None:
    """Inside is inside; a link that stays there, too."""
    (folder / "data").mkdir()
    (folder / "data" / "w").write_bytes(WEIGHTS.tobytes())
    (folder / "link").symlink_to("data/w")
    np.testing.assert_array_equal(loaded(folder, location="data/w"), WEIGHTS)
    np.testing.assert_array_equal(loaded(folder, location="link"), WEIGHTS)


def test_what_onnx_saves(tmp_path: Path) -> None:
    """A model saved by the package itself, weights in one file, and in an attribute."""
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(WEIGHTS * 2))
    add = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Add", ["s", "k"], ["y"])]
    proto = model([constant, *add], [numpy_helper.from_array(WEIGHTS, "w")])
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0,
              convert_attribute=True)  # fmt: skip
    found = load(tmp_path / "m.onnx")
    np.testing.assert_array_equal(found.initialisers()["w"], WEIGHTS)
    tensor = found.proto.graph.node[0].attribute[0].t
    np.testing.assert_array_equal(found.array(tensor), WEIGHTS * 2)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), WEIGHTS * 2)  # needs no file any more


def test_values_are_not_copied(folder: Path) -> None:
    """64 MiB of zeros, which take no room on the disk, take none in memory."""
    with (folder / "large.bin").open("wb") as stream:
        stream.truncate(2**26)
    tensor = external(location="large.bin")
    tensor.dims[:] = [2**24]
    path = saved(with_tensor(tensor), folder)
    load(path)  # imports, tables
    tracemalloc.start()
    try:
        array = load(path).initialisers()["w"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.nbytes == 2**26
    assert peak < 2**20


def test_very_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some exporters write a file for each tensor; a process may have only so many open."""
    names = [f"w{i}" for i in range(40)]
    for name in names:
        (folder / name).write_bytes(WEIGHTS.tobytes())
    proto = model([helper.make_node("Sum", ["x", *names], ["y"])], [external(name, location=name) for name in names])
    path = saved(proto, folder)
    monkeypatch.setattr("dla.compiler.onnx.external._MAX_MAPS", 10)
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = load(path)
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 20
    assert all(np.array_equal(array, WEIGHTS) for array in found.initialisers().values())


# -- refused: where


@pytest.mark.parametrize(
    "location", ["../secret.bin", "data/../../secret.bin", "..", "/etc/passwd", "a\\b", "C:x", "\x1b"]
)
def test_paths_that_lead_out(folder: Path, location: str) -> None:
    """By the text alone, whether there is such a file or not."""
    assert "is not a relative path inside the model's folder" in refused(folder, location=location)


def test_a_link_that_leads_out(folder: Path) -> None:
    """To a file, or by way of a folder."""
    (folder / "link").symlink_to("../secret.bin")
    (folder / "up").symlink_to("..")
    assert "'link' leads out of the model's folder through a link" in refused(folder, location="link")
    assert "'up/secret.bin' leads out of the model's folder" in refused(folder, location="up/secret.bin")
    assert "copy the model and its data" in refused(folder, location="link")


def test_a_loop_of_links(folder: Path) -> None:
    """It leads nowhere."""
    (folder / "loop").symlink_to("loop")
    message = refused(folder, location="loop")
    assert "cannot open" in message
    assert "loop" in message


def test_a_hard_link(folder: Path) -> None:
    """It looks like any file of the folder, but is also the secret."""
    os.link(folder.parent / "secret.bin", folder / "hard")
    assert "'hard' is a hard link: the same file has another name" in refused(folder, location="hard")


def test_a_fifo(folder: Path) -> None:
    """Refused, not waited for."""
    os.mkfifo(folder / "fifo")
    assert "is not a regular file" in refused(folder, location="fifo")


def test_a_folder(folder: Path) -> None:
    """The model's own folder, or one in it."""
    (folder / "data").mkdir()
    assert "is not a regular file" in refused(folder, location="data")
    assert "is not a regular file" in refused(folder, location=".")


def test_a_missing_file(folder: Path) -> None:
    """The model alone was copied."""
    message = refused(folder, location="nothing.bin")
    assert "there is no file" in message
    assert "copy the files of its weights along" in message


def test_a_name_that_is_too_long(folder: Path) -> None:
    """The operating system's own limits."""
    assert "cannot open" in refused(folder, location="x" * 500)


def test_no_location(folder: Path) -> None:
    """Absent, or empty."""
    assert "no location is given" in refused(folder, offset="0")
    assert "no location is given" in refused(folder, location="")


def test_a_model_in_memory_has_no_folder() -> None:
    """The working directory is not it."""
    with pytest.raises(ModelError, match=r"is in the file 'w', but the model was not loaded from a file"):
        from_proto(with_tensor(external(location="w")))


# -- refused: which bytes


@pytest.mark.parametrize("text", ["-1", "1e3", "0x10", " 1", "+1", "\u0661", "9" * 20, "9" * 10_000, ""])
@pytest.mark.parametrize("key", ["offset", "length"])
def test_numbers_that_are_no_sizes(folder: Path, key: str, text: str) -> None:
    """Negative, huge, or not decimal digits."""
    assert f"the {key} of its external data is '" in refused(folder, **{"location": "weights.bin", key: text})


@pytest.mark.parametrize("offset", ["9", "32", "33", "4294967296", "9223372036854775807", "9" * 19])
def test_bytes_that_are_not_there(folder: Path, offset: str) -> None:
    """The file has 32 bytes: it is truncated, or another one."""
    message = refused(folder, location="weights.bin", offset=offset)
    assert "of 'weights.bin' are not there; the file has 32" in message


def test_a_length_that_is_not_the_size_of_the_shape(folder: Path) -> None:
    """More or fewer."""
    for length in ("0", "20", "32"):
        message = refused(folder, location="weights.bin", length=length)
        assert f"needs 24 bytes, but its external data has length {length}" in message


def test_a_file_that_changed_after_the_model_was_made(folder: Path) -> None:
    """A file cut short is refused, not read beyond its end."""
    path = saved(with_tensor(external(location="weights.bin", offset="8", length="24")), folder)
    load(path)
    (folder / "weights.bin").write_bytes(bytes(16))
    with pytest.raises(ModelError, match="the file has 16"):
        load(path)


def test_a_place_given_twice(folder: Path) -> None:
    """It would not be clear which one is meant."""
    tensor = external(location="weights.bin")
    tensor.external_data.add(key="location", value="other.bin")
    with pytest.raises(ModelError, match="is given twice"):
        load(saved(with_tensor(tensor), folder))


def test_values_in_the_model_and_beside_it(folder: Path) -> None:
    """It would not be clear which ones are meant."""
    tensor = external(location="weights.bin")
    tensor.raw_data = bytes(24)
    with pytest.raises(ModelError, match="in more than one place"):
        load(saved(with_tensor(tensor), folder))


def test_many_attributes_of_one_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of attributes are copied, so that a small file could become much memory."""
    monkeypatch.setattr("dla.compiler.onnx.tensors._MAX_EMBEDDED", 100)
    tensor = external(location="weights.bin")
    nodes = [helper.make_node("Constant", [], [f"k{i}"], value=tensor) for i in range(5)]
    path = saved(model([*nodes, helper.make_node("Relu", ["x"], ["y"])]), folder)
    with pytest.raises(ModelError, match="attributes have more than 100 bytes of external data"):
        load(path)
