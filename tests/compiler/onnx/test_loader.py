"""Reading ONNX files: versions, damage, and random mutations, which end in a model or in one error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import mlp, model, relu, saved, with_tensor

from dla.compiler.onnx import loader
from dla.compiler.onnx.loader import from_proto, load
from dla.isa.errors import BackendError, InputError, ModelError


def test_a_sound_model_is_read(tmp_path: Path) -> None:
    """Nodes and initialisers are those of the file."""
    proto = mlp()
    found = load(saved(proto, tmp_path))
    assert [node.op_type for node in found.proto.graph.node] == [node.op_type for node in proto.graph.node]
    arrays = found.initialisers()
    for tensor in proto.graph.initializer:
        np.testing.assert_array_equal(arrays[tensor.name], numpy_helper.to_array(tensor))
        assert not arrays[tensor.name].flags.writeable
    constant = found.proto.graph.node[0].attribute[0].t
    assert numpy_helper.to_array(constant) == found.array(constant) == np.float32(0.5)


def test_a_model_in_memory_is_checked_as_a_file_is() -> None:
    """Its initialisers are there too, and what is unsound is refused."""
    arrays = from_proto(mlp()).initialisers()
    np.testing.assert_array_equal(arrays["w1"], numpy_helper.to_array(mlp().graph.initializer[0]))
    with pytest.raises(ModelError, match="no IR version"):
        from_proto(onnx.ModelProto())


def test_weights_stay_in_the_file(tmp_path: Path) -> None:
    """Reading 16 MiB of weights, and their arrays, allocates next to nothing."""
    path = saved(with_tensor(numpy_helper.from_array(np.ones((2**20, 4), np.float32), "w")), tmp_path)
    load(path)  # imports, tables
    tracemalloc.start()
    try:
        array = load(path).initialisers()["w"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.sum() == 2**22
    assert peak < 2**20


# -- the file


def refused(path: Path) -> str:
    """The message with which the file is refused."""
    with pytest.raises(ModelError) as caught:
        load(path)
    assert str(caught.value).isprintable() or "\n  help: " in str(caught.value)
    return str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    """As for every other command."""
    with pytest.raises(InputError, match=r"there is no file '.*nothing.onnx'"):
        load(tmp_path / "nothing.onnx")


def test_a_folder(tmp_path: Path) -> None:
    """A folder is not a file."""
    with pytest.raises(InputError, match="is not a regular file"):
        load(tmp_path)


def test_a_fifo(tmp_path: Path) -> None:
    """A FIFO that nobody writes is refused, not waited for."""
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(InputError, match="is not a regular file"):
        load(tmp_path / "model.onnx")


def test_a_device() -> None:
    """A device that never ends is not read."""
    with pytest.raises(InputError, match="is not a regular file"):
        load(Path("/dev/zero"))


def test_an_empty_file(tmp_path: Path) -> None:
    """It would be a valid protobuf, of nothing."""
    (tmp_path / "model.onnx").write_bytes(b"")
    assert refused(tmp_path / "model.onnx").endswith("model.onnx: the file is empty")


def test_a_file_beyond_the_limit_of_protobuf(tmp_path: Path) -> None:
    """2 GiB of zeros take no room on the disk, and are not read."""
    path = tmp_path / "model.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    message = refused(path)
    assert "no ONNX file can have 2 GiB or more" in message
    assert "save_as_external_data=True" in message


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    """What a clone without Git LFS has in place of the model."""
    path = tmp_path / "model.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "Git LFS pointer" in refused(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<!DOCTYPE html><html>", "no field begins at byte"),
        (b"\x0a\x80\x02", "byte 3 begins a field of 256 bytes, and 0 are there"),
        (b"\x08", "no number ends at byte 1"),
        (b"\x08" + b"\xff" * 20, "no number ends at byte 11"),
        (b"\x3a\xff\xff\xff\xff\x0f", "byte 6 begins a field of 4,294,967,295 bytes, and 0 are there"),
        (b"\x08\x08", "it has no IR version or no graph"),
        (b"\x3a\x00", "it has no IR version or no graph"),
        (b"\x02\x00", "it is damaged, or no ONNX model"),
    ],
)
def test_what_is_no_model(tmp_path: Path, data: bytes, message: str) -> None:
    """Other formats, and protobufs of something else."""
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert message in refused(path)


def test_every_truncation(tmp_path: Path) -> None:
    """A download that stopped is refused wherever it did: the operators' version is at the very end."""
    data = mlp().SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert str(path) in refused(path)


def field(number: int, data: bytes) -> bytes:
    """A message as field `number` of another."""
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data


def nested(levels: int) -> bytes:
    """A model with graphs in attributes in nodes in graphs, and so on."""
    graph = b""
    for _ in range(levels):
        attribute = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH).SerializeToString()
        node = onnx.NodeProto(op_type="If", output=["y"]).SerializeToString()
        graph = field(1, node + field(5, attribute + field(6, graph)))
    return relu().SerializeToString() + field(7, graph.replace(b"y", b"z"))  # protobuf joins the two graphs


def test_graphs_nested_deep(tmp_path: Path) -> None:
    """Deeper than the parser could follow: clear even so. Thousands of levels are no harder."""
    path = tmp_path / "model.onnx"
    for levels in (33, 60, 3000):
        path.write_bytes(nested(levels))
        assert "its graphs are nested more than 32 deep" in refused(path)


def test_graphs_nested_as_deep_as_allowed(tmp_path: Path) -> None:
    """The limit is not above the parser's."""
    path = tmp_path / "model.onnx"
    path.write_bytes(nested(31))
    load(path)


def test_very_many_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes in the file would become a node of some hundred in memory."""
    monkeypatch.setattr("dla.compiler.onnx.wire._MAX_FIELDS", 1000)
    proto = relu()
    proto.graph.node.extend(onnx.NodeProto() for _ in range(1000))
    assert "its graph has more than 1,000 fields" in refused(saved(proto, tmp_path))


def test_a_very_large_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights do not count, whatever field they are in; neither does documentation, which is left out."""
    monkeypatch.setattr("dla.compiler.onnx.wire._MAX_GRAPH_BYTES", 10_000)
    weights = np.ones(10_000, np.float32)
    load(saved(with_tensor(numpy_helper.from_array(weights, "w")), tmp_path))
    load(saved(with_tensor(helper.make_tensor("w", TensorProto.FLOAT, [10_000], weights)), tmp_path))
    proto = relu()
    proto.graph.doc_string = "x" * 10_000
    proto.graph.node[0].doc_string = "x" * 10_000
    assert not load(saved(proto, tmp_path)).proto.graph.node[0].doc_string
    proto.graph.name = "x" * 10_000
    assert "its graph, without the weights, has more than 10,000 bytes" in refused(saved(proto, tmp_path))


# -- versions


def test_an_opset_that_is_too_old(tmp_path: Path) -> None:
    """With the way to a newer one."""
    message = refused(saved(model([], opset=11), tmp_path))
    assert f"it uses opset 11; dla supports 12 to {onnx.defs.onnx_opset_version()}" in message
    assert "onnx.version_converter" in message


def test_an_opset_that_nobody_knows_yet(tmp_path: Path) -> None:
    """A newer onnx may know it."""
    message = refused(saved(model([], opset=10_000), tmp_path))
    assert "it uses opset 10000" in message
    assert "pip install --upgrade onnx" in message


def test_the_oldest_and_the_newest_opset(tmp_path: Path) -> None:
    """Both ends are supported."""
    for opset in (12, onnx.defs.onnx_opset_version()):
        load(saved(model([helper.make_node("Relu", ["x"], ["y"])], opset=opset), tmp_path))


def test_no_opset(tmp_path: Path) -> None:
    """Other domains alone do not say what Relu means."""
    proto = relu()
    del proto.opset_import[:]
    proto.opset_import.add(domain="com.example", version=1)
    assert "does not say which version of ONNX's operators it uses" in refused(saved(proto, tmp_path))


def test_two_opsets(tmp_path: Path) -> None:
    """The default domain has two names; one version."""
    proto = relu()
    proto.opset_import.add(domain="ai.onnx", version=13)
    assert "it imports two versions of domain ''" in refused(saved(proto, tmp_path))


def test_other_domains_are_not_looked_at(tmp_path: Path) -> None:
    """Whether their operators are supported is another question."""
    proto = relu()
    proto.opset_import.add(domain="com.example", version=10_000)
    load(saved(proto, tmp_path))


@pytest.mark.parametrize("version", [0, -1, 10_000])
def test_an_ir_version_that_nobody_knows(tmp_path: Path, version: int) -> None:
    """The format itself may have changed."""
    proto = relu()
    proto.ir_version = version
    assert f"it has IR version {version}, and onnx {onnx.__version__} knows 1 to" in refused(saved(proto, tmp_path))


def test_the_opset_of_a_function(tmp_path: Path) -> None:
    """Functions import operators for themselves."""
    body = helper.make_function(
        "com.example", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 7)]
    )
    message = refused(saved(model([helper.make_node("Relu", ["x"], ["y"])], functions=[body]), tmp_path))
    assert "its function 'F' uses opset 7" in message


# -- mutations


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data` with one bit flipped, or with some bytes changed, removed, put in, copied from elsewhere, or cut off."""
    changed = bytearray(data)
    if rng.random() < 0.5:  # which leaves the sizes of all messages as they are, most often
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(changed)), rng.randrange(len(changed))
        size = rng.choice([1, 1, 2, 8, 40])
        match rng.randrange(6):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = rng.randbytes(size)
            case 4:
                changed[at : at + size] = changed[other : other + size]
            case _:
                del changed[max(1, len(changed) - rng.randint(1, 60)) :]
        if not changed:
            break
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_mutations_end_in_a_model_or_in_one_error(tmp_path: Path, seed: int) -> None:
    """500 for each seed. What is accepted gives arrays, too, or says why not."""
    rng = random.Random(seed)
    data = mlp().SerializeToString()
    path = tmp_path / "model.onnx"
    messages = []
    for _ in range(500):
        path.write_bytes(mutated(data, rng))
        try:
            load(path).initialisers()
        except ModelError as error:
            messages.append(str(error))
    assert all(line.isprintable() for message in messages for line in message.split("\n"))
    assert 0 < len(messages) < 500


# -- the package


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BackendError, match=r"(?s)needs the package onnx.*pip install 'dla\[onnx\]'"):
        load(tmp_path / "model.onnx")


def test_onnx_is_imported_late() -> None:
    """Importing the loader does not need the package."""
    code = "import sys; import dla.compiler.onnx.loader; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(loader.__file__).parents[3])
