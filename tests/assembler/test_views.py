"""Views: what an operand's text means as a descriptor, compared with what NumPy does to an array."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dla.assembler import assemble, disassemble
from dla.isa.descriptor import Descriptor, Dynamic, Segment
from dla.isa.dtypes import Array, DType

SHAPE = (4, 6, 5)


def view_of(text: str, declarations: str = ".scratch x : i32[4, 6, 5]\n") -> Descriptor:
    """The descriptor of operand `text`."""
    descriptor = assemble(f"{declarations}    PROBE {text}\n    HALT\n").instructions[0].operands[0]
    assert descriptor is not None
    return descriptor


def elements(descriptor: Descriptor, data: Array) -> Array:
    """What a static descriptor shows of the flat array `data`."""
    item = data.itemsize
    return np.lib.stride_tricks.as_strided(
        data[descriptor.offset // item :], descriptor.bounds, [s * item for s in descriptor.strides]
    )


NUMPY = {
    "x": lambda x: x,
    "x[1]": lambda x: x[1],
    "x[-1]": lambda x: x[-1],
    "x[1, 2]": lambda x: x[1, 2],
    "x[1, 2, -3]": lambda x: x[1, 2, -3],
    "x[1:3]": lambda x: x[1:3],
    "x[:, 2:]": lambda x: x[:, 2:],
    "x[:, :-1, 0x1]": lambda x: x[:, :-1, 1],
    "x[::2, ::3, ::4]": lambda x: x[::2, ::3, ::4],
    "x[..., 1:4:2]": lambda x: x[..., 1:4:2],
    "x[1, ..., 2]": lambda x: x[1, ..., 2],
    "x[..., None]": lambda x: x[..., None],
    "x[None, :, 1]": lambda x: x[None, :, 1],
    "x[2:2]": lambda x: x[2:2],
    "x.T": lambda x: x.swapaxes(-1, -2),
    "x[0].T": lambda x: x[0].T,
    "x.permute(2, 0, 1)": lambda x: x.transpose(2, 0, 1),
    "x.permute(-1, 0, 1)": lambda x: x.transpose(2, 0, 1),
    "x.broadcast(2, 4, 6, 5)": lambda x: np.broadcast_to(x, (2, 4, 6, 5)),
    "x[:, 0:1].broadcast(4, 3, 5)": lambda x: np.broadcast_to(x[:, 0:1], (4, 3, 5)),
    "x[:, None].broadcast(4, 2, 6, 5)": lambda x: np.broadcast_to(x[:, None], (4, 2, 6, 5)),
    "x.reshape(24, 5)": lambda x: x.reshape(24, 5),
    "x.reshape(2, 2, 30)": lambda x: x.reshape(2, 2, 30),
    "x.reshape(120)": lambda x: x.reshape(120),
    "x.reshape(1, 4, 1, 6, 5, 1)": lambda x: x.reshape(1, 4, 1, 6, 5, 1),
    "x[:, 2:4, :].reshape(4, 10)": lambda x: x[:, 2:4, :].reshape(4, 10),
    "x[1:3].reshape(2, 2, 3, 5).permute(0, 2, 1, 3)": lambda x: x[1:3].reshape(2, 2, 3, 5).transpose(0, 2, 1, 3),
    "x[1].reshape(2, 3, 5)[1, :, 4]": lambda x: x[1].reshape(2, 3, 5)[1, :, 4],
}


@pytest.mark.parametrize("text", NUMPY)
def test_a_static_view_shows_what_numpy_shows(text: str) -> None:
    """Indices, slices, steps, new axes, transposes, broadcasts and reshapes mean what they mean in NumPy."""
    data = np.arange(120, dtype=np.int32)
    shown = elements(view_of(text), data)
    expected = NUMPY[text](data.reshape(SHAPE))
    assert shown.shape == expected.shape
    np.testing.assert_array_equal(shown, expected)


def test_random_chains_of_views_show_what_numpy_shows() -> None:
    """Five hundred random chains of subscripts, permutations and reshapes agree with NumPy, and round-trip."""
    rng = random.Random(5)
    data = np.arange(120, dtype=np.int32)
    for _ in range(500):
        text, array = "x", data.reshape(SHAPE)
        for _ in range(rng.randint(1, 4)):
            suffix, array = _random_suffix(rng, array)
            text += suffix
        descriptor = view_of(text)
        np.testing.assert_array_equal(elements(descriptor, data), array, err_msg=text)
        written = disassemble(assemble(f".scratch x : i32[4, 6, 5]\n    PROBE {text}\n    HALT\n"))
        assert assemble(written).instructions[0].operands[0] == descriptor, text


def _random_suffix(rng: random.Random, array: Array) -> tuple[str, Array]:
    if array.ndim >= 2 and rng.random() < 0.3:
        order = rng.sample(range(array.ndim), array.ndim)
        return f".permute({', '.join(map(str, order))})", array.transpose(order)
    if array.ndim <= 4 and rng.random() < 0.2:
        return "[None]", array[None]
    if array.ndim and array.shape[-1] % 2 == 0 and array.size and array.ndim < 6:
        shape = (*array.shape[:-1], array.shape[-1] // 2, 2)
        return f".reshape({', '.join(map(str, shape))})", array.reshape(shape)
    items, index = [], []
    for size in array.shape:
        start, step = rng.randint(0, size), rng.randint(1, 3)
        stop = rng.randint(start, size)
        items.append(f"{start}:{stop}:{step}")
        index.append(slice(start, stop, step))
    return (f"[{', '.join(items)}]", array[tuple(index)]) if items else ("[...]", array)


def test_a_register_moves_an_index() -> None:
    """`x[s1]` starts s1 rows later: one register, scaled by the row's bytes."""
    assert view_of("x[s1]") == Descriptor(Segment.SCRATCH, DType.I32, (6, 5), (5, 1), 0, 1, 120)


def test_a_register_moves_a_slice() -> None:
    """Both ends of a slice may move together; its length is their difference."""
    d = view_of("x[:, s2*2+1:s2*2+4, 3]")
    assert d == Descriptor(Segment.SCRATCH, DType.I32, (4, 3), (30, 5), 4 * (5 + 3), 2, 4 * 10)


def test_a_register_is_an_extent() -> None:
    """`:s3` has the axis' size as bound unless a smaller one is written."""
    assert view_of("x[:s3]").dims == (Dynamic(3, 4), 6, 5)
    assert view_of("x[1:1+s3]").dims == (Dynamic(3, 3), 6, 5)
    assert view_of("x[:s3 <= 2]").dims == (Dynamic(3, 2), 6, 5)
    assert view_of("x[s1:s1+s3 <= 2]").dims == (Dynamic(3, 2), 6, 5)


def test_one_register_may_appear_twice() -> None:
    """The diagonal: its factors add up."""
    assert view_of("x[s1, s1]").offset_scale == 4 * (30 + 5)


def test_named_dims_keep_their_place_in_views() -> None:
    """A dim's name is its register and bound; a reshape keeps it, strides stay those of the bound."""
    declared = ".input x : i32[batch <= 4, 6, 5]\n"
    assert view_of("x.reshape(batch, 30)", declared).dims == (Dynamic(31, 4), 30)
    assert view_of("x[:, :, 0]", declared) == Descriptor(Segment.INPUT, DType.I32, (Dynamic(31, 4), 6), (30, 5))
    assert view_of("x[batch]", declared).offset_register == 31
    assert view_of("x[0:3]", declared).dims == (3, 6, 5)


def test_the_raw_form_says_everything() -> None:
    """Segment, address, register, type, dims and strides, as they are in the descriptor."""
    d = view_of("state@1024+s1*-64 : f16[4, s2 <= 8]{0, 3}")
    assert d == Descriptor(Segment.STATE, DType.F16, (4, Dynamic(2, 8)), (0, 3), 1024, 1, -64)
    assert view_of("state@8 : f16[4, 8]") == Descriptor(Segment.STATE, DType.F16, (4, 8), (8, 1), 8)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x[1, :, :]",
        "x[:, 2:4, ::2]",
        "x[s1, :, 0]",
        "x[:, s1*2+1:s1*2+4, :]",
        "x[:s3, :, :]",
        "x.T",
        "x.permute(2, 0, 1)",
        "x[:, 0, :].broadcast(3, 4, 5)",
        "x[:, 0, :][:, None, :].broadcast(4, 7, 5)",
        "x.reshape(24, 5)",
        "x[:, 2:4, :].reshape(4, 2, 5)[:, :, None, :]".replace(".reshape(4, 2, 5)", ""),
        "x[:, 0:4, :].reshape(4, 2, 2, 5).permute(0, 2, 1, 3)",
        "scratch@2 : f16[3]{2}",
    ],
)
def test_the_disassembler_finds_the_form_that_was_written(text: str) -> None:
    """Views come back as people write them, not as addresses."""
    program = assemble(f".scratch x : i32[4, 6, 5]\n    PROBE {text}\n    HALT\n")
    assert f"PROBE {text}\n" in disassemble(program)
