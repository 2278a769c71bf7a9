"""Weights by name: where they come from, and what is said of those that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Spelling, Weights
from dla.isa.dtypes import DType
from dla.isa.errors import ContainerError, InputError, ModelError

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A weights file with `fc.weight` [2, 3], `fc.bias` and the integers `fc.steps`."""
    arrays = {"fc.weight": MATRIX, "fc.bias": np.zeros(2, np.float32), "fc.steps": np.zeros(2, np.int32)}
    save_file(arrays, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_a_file_is_mapped_and_not_read(file: Path) -> None:
    """What a layer gets is a read-only view of the file."""
    array = Weights.of_file(file).take("fc", "weight", (2, 3))
    np.testing.assert_array_equal(array, MATRIX)
    assert not array.flags.writeable
    assert not array.flags.owndata


@pytest.mark.parametrize(
    ("layer", "part", "shape", "message"),
    [
        ("fcc", "weight", (2, 3), r"w\.safetensors holds no fcc\.weight \[2, 3\]; it has fc\.weight"),
        ("tail", "gain", (1,), r"w\.safetensors holds no tail\.weight \[1\]"),
        ("fc", "weight", (3, 2), r"fc\.weight of w\.safetensors is \[2, 3\], but must be \[3, 2\]"),
        ("fc", "steps", (2,), r"fc\.steps of w\.safetensors is of type int32, which is no float type"),
    ],
)
def test_what_does_not_fit_is_named(file: Path, layer: str, part: str, shape: tuple[int, ...], message: str) -> None:
    """With the name, the shape that is wanted, and the nearest names that are there."""
    with pytest.raises(ModelError, match=message):
        Weights.of_file(file).take(layer, part, shape)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    """As everywhere else."""
    with pytest.raises(InputError, match="there is no file"):
        Weights.of_file(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"not one")
    with pytest.raises(ContainerError, match="not a safetensors file"):
        Weights.of_file(tmp_path / "bad.safetensors")


def test_a_model_may_be_split_into_several_files(file: Path) -> None:
    """As large checkpoints are."""
    save_file({"head.weight": MATRIX + 1}, file.parent / "more.safetensors")
    both = Weights.of_file(file, file.parent / "more.safetensors")
    np.testing.assert_array_equal(both.take("head", "weight", (2, 3)), both.take("fc", "weight", (2, 3)) + 1)
    with pytest.raises(ModelError, match=r"w\.safetensors and 1 more holds no tail\.weight"):
        both.take("tail", "weight", (2, 3))


def test_made_up_weights_depend_on_seed_and_name_only() -> None:
    """Not on the order in which layers ask."""
    kept: dict[str, np.ndarray] = {}
    one, same, other = Weights.random(1, kept), Weights.random(1), Weights.random(2)
    a, b = one.take("a", "weight", (4, 8)), one.take("b", "weight", (4, 8))
    np.testing.assert_array_equal(same.take("b", "weight", (4, 8)), b)
    np.testing.assert_array_equal(same.take("a", "weight", (4, 8)), a)
    assert (a != b).any()
    assert (other.take("a", "weight", (4, 8)) != a).any()
    assert list(kept) == ["a.weight", "b.weight"]
    assert (one.take("norm", "var", (100,)) > 0).all()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_large_made_up_weights_are_like_small_ones(dtype: DType) -> None:
    """Of the type wished, equal for equal seeds, as large as they should be; no two rows are the same."""
    first, again = (Weights.random(3, dtype=dtype).take("big", "weight", (2048, 1024)) for _ in range(2))
    assert first.dtype == dtype.numpy
    np.testing.assert_array_equal(first, again)
    values = first.astype(np.float32)
    assert abs(float(values.std()) * 32 - 1) < 0.01
    assert abs(float(values.mean())) < 1e-3
    assert len(np.unique(values, axis=0)) > 2000
    assert np.abs(np.corrcoef(values[:64]) - np.eye(64)).max() < 0.3


def test_joint_weights_are_those_of_the_layers() -> None:
    """One after the other or in turn, in either order of axes; as one constant, however often they are asked for."""
    w = {"a.weight": MATRIX, "b.weight": -MATRIX}
    for arrays, spelling in ((w, Spelling()), ({k: v.T for k, v in w.items()}, Spelling(out_first=False))):
        m = Layers("m", Weights.of_arrays(arrays, spelling))
        joint = m.joint_matrix({"a": 2, "b": 2}, 3)
        np.testing.assert_array_equal(joint.constant, np.concatenate([MATRIX, -MATRIX]).T)
        mixed = m.joint_matrix({"a": 2, "b": 2}, 3, interleaved=True).constant
        assert mixed is not None
        np.testing.assert_array_equal(mixed[:, 0::2], MATRIX.T)
        np.testing.assert_array_equal(mixed[:, 1::2], -MATRIX.T)
        assert m.inner("step").joint_matrix({"a": 2, "b": 2}, 3) is joint
    m = Layers("m", Weights.of_arrays({"a.weight": MATRIX}))
    m.joint_matrix({"a": 2, "b": 2}, 3)
    with pytest.raises(ModelError, match=r"holds no b\.weight \[2, 3\]"):
        m.finish()


def test_spellings_name_parts_and_order_axes() -> None:
    """[out, in] of PyTorch, or [in, out] as GEMM reads it."""
    w = {"fc_w": MATRIX, "fc_b": np.ones(3, np.float32)}
    m = Layers("m", Weights.of_arrays(w, Spelling("_", {"weight": "{}_w", "bias": "{}_b"}, out_first=False)))
    x = m.constant(np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(m.linear(x, 3, "fc").constant, MATRIX.sum(0)[None] + 1)
    m = Layers("m", Weights.of_arrays({"head.fc.weight": MATRIX}))
    with m.scope("head"):
        y = m.linear(m.constant(np.ones((1, 3), np.float32)), 2, "fc", bias=False)
    np.testing.assert_array_equal(y.constant, MATRIX.sum(1)[None])


def test_every_weight_that_does_not_fit_is_in_one_error() -> None:
    """A model is checked as a whole, not weight by weight."""
    m = Layers("net", Weights.of_arrays({"fc1.weight": MATRIX, "fc1.bias": np.zeros(7, np.float32)}))
    x = m.input("x", DType.F32, (m.symbol("batch", 2), 3))
    m.output("y", m.linear(m.linear(x, 2, "fc1"), 5, "fc2"))
    with pytest.raises(ModelError) as caught:
        m.finish()
    assert str(caught.value).splitlines() == [
        "3 weights do not fit the model 'net':",
        "  fc1.bias of the dict of weights is [7], but must be [2]",
        "  the dict of weights holds no fc2.weight [5, 2]; it has fc1.weight",
        "  the dict of weights holds no fc2.bias [5]; it has fc1.bias",
    ]


def test_weights_are_held_in_the_type_of_the_model() -> None:
    """Converted where the file has another float type; one that is asked for twice is there once."""
    m = Layers("m", Weights.of_arrays({"fc.weight": MATRIX.astype(np.float16)}), DType.F32)
    first, again = (m.part_of("fc", "weight", (2, 3)) for _ in range(2))
    assert first is again
    assert first.dtype is DType.F32
    np.testing.assert_array_equal(first.constant, MATRIX)
