"""Rules that sample: Resize and GridSample against torch, their tables by themselves, and Fourier transforms."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_bodies import check, compiled, inputs_of, parsed

from dla.compiler.onnx.rules import fourier, resize
from dla.compiler.onnx.rules.resize import Axis, Method
from dla.emulator.api import Machine
from dla.isa.dtypes import Array
from dla.isa.errors import ModelError

torch = pytest.importorskip("torch")


def run(text: str, opset: int = 21) -> tuple[dict[str, Array], Array]:
    """Random inputs, and the first output for them."""
    inputs = inputs_of(parsed(text, opset), {}, np.random.default_rng(7))
    outputs = Machine("golden").run(compiled(text, opset).program, inputs).outputs
    return inputs, next(iter(outputs.values()))


TORCH_RESIZES = {
    "nearest": ("mode = \"nearest\", nearest_mode = \"floor\", coordinate_transformation_mode = \"asymmetric\"",
                {"mode": "nearest"}),
    "bilinear": ("mode = \"linear\", coordinate_transformation_mode = \"pytorch_half_pixel\"", {"mode": "bilinear"}),
    "corners": ("mode = \"linear\", coordinate_transformation_mode = \"align_corners\"",
                {"mode": "bilinear", "align_corners": True}),
    "bicubic": ("mode = \"cubic\", coordinate_transformation_mode = \"half_pixel\"", {"mode": "bicubic"}),
    "antialiased": ("mode = \"linear\", antialias = 1, exclude_outside = 1", {"mode": "bilinear", "antialias": True}),
}  # fmt: skip


@pytest.mark.parametrize(("attributes", "options"), TORCH_RESIZES.values(), ids=TORCH_RESIZES.keys())
@pytest.mark.parametrize("size", [(9, 5), (4, 14)], ids=str)
def test_resize_as_torch(attributes: str, options: dict[str, object], size: tuple[int, int]) -> None:
    """What torch exports gives what torch computes."""
    given, found = run(
        f"""(float[2, 3, 6, 7] x) => (float y) {{ s = Constant <value_ints = [2, 3, {size[0]}, {size[1]}]> ()
        y = Resize <{attributes}> (x, , , s) }}"""
    )
    wanted = torch.nn.functional.interpolate(torch.from_numpy(given["x"]), size=size, **options).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_resize_keeps_the_aspect_ratio() -> None:
    """Sizes are limits then, and the axes named are the only ones that change."""
    check("""(float[3, 4, 6] x) => (float y) { s = Constant <value_ints = [9, 9]> ()
        y = Resize <mode = "linear", axes = [1, 2], keep_aspect_ratio_policy = "not_larger"> (x, , , s) }""")


def test_crops_have_a_value_outside() -> None:
    """A region that reaches beyond the image."""
    check("""(float[4, 5] x) => (float y) { s = Constant <value_ints = [3, 4]> ()
        roi = Constant <value_floats = [-0.5, 0.2, 0.9, 1.3]> ()
        y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize",
                    extrapolation_value = 7.0> (x, roi, , s) }""")


def test_upsample() -> None:
    """The older operator: scales as an attribute, positions from the corner."""
    given, found = run("(float[1, 1, 2, 3] x) => (float y) { y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x) }", 7)
    np.testing.assert_array_equal(found, given["x"].repeat(2, 2).repeat(3, 3))


def test_weights_sum_to_one() -> None:
    """Whatever the mode: a constant image stays constant."""
    for mode in ("linear", "cubic"):
        for antialias in (False, True):
            for axis in (Axis(7, 0.3, 2, (0, 1)), Axis(5, 2.5, 12, (0, 1))):
                method = Method(mode, "half_pixel", "floor", -0.75, antialias, False)
                at, _ = resize.positions(method, axis)
                indices, weights = resize.table(method, axis, at)
                np.testing.assert_allclose(weights.sum(1), 1)
                assert indices.min() >= 0
                assert indices.max() < axis.size


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_grid_sample_as_torch(mode: str, padding: str, corners: bool) -> None:
    """Positions within and outside of the images."""
    given, found = run(
        f"""(float[2, 3, 4, 5] x, float[2, 6, 2, 2] g) => (float y) {{
        y = GridSample <mode = "{"linear" if mode == "bilinear" else mode}", padding_mode = "{padding}",
                        align_corners = {int(corners)}> (x, g) }}"""
    )
    images, grid = torch.from_numpy(given["x"]), torch.from_numpy(given["g"])
    wanted = torch.nn.functional.grid_sample(images, grid, mode=mode, padding_mode=padding, align_corners=corners)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_batch_of_images_may_be_symbolic() -> None:
    """One program samples any number of images."""
    check("(float[B, 2, 3, 4] x, float[B, 5, 6, 2] g) => (float y) { y = GridSample (x, g) }", {"B": 1}, {"B": 3})


@pytest.mark.parametrize("onesided", [False, True])
@pytest.mark.parametrize("length", [5, 8])
def test_transforms_there_and_back(onesided: bool, length: int) -> None:
    """The inverse of the transform of real numbers is those numbers."""
    there = fourier.matrix(length, 1, length, inverse=False, onesided=onesided)
    back = fourier.matrix(there.shape[2], 2, length, inverse=True, onesided=onesided)
    both = there.reshape(length, -1) @ back.reshape(there.shape[2] * 2, -1)
    wanted = np.eye(length) if onesided else np.eye(length)[..., None] * np.array([1, 0])
    np.testing.assert_allclose(both, wanted.reshape(length, -1), atol=1e-12)


def test_transform_of_a_symbolic_batch() -> None:
    """Filled up with zeros to the length that is asked for."""
    check("""(float[B, 6, 1] x) => (float y) { n = Constant <value_int = 9> ()
        y = DFT <onesided = 1> (x, n) }""", {"B": 1}, {"B": 3}, rtol=1e-4, atol=1e-5)  # fmt: skip


REFUSED = {
    '(float[1, 1, S, 4] x) => (float y) { s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> () '
    'y = Resize (x, , s) }': "axis 2 of f32\\[1, 1, S, 4\\] must have a known size",
    '(float[2, 2] x) => (float y) { s = Constant <value_ints = [3, 3]> () y = Resize <mode = "best"> (x, , , s) }':
        "mode 'best' is none of nearest, linear, cubic",
    '(float[0, 2] x) => (float y) { s = Constant <value_ints = [3, 2]> () y = Resize (x, , , s) }':
        "cannot be resized to 3",
    '(float[2] x) => (float y) { s = Constant <value_floats = [-1.0]> () y = Resize (x, , s) }': "scales",
    '(float[1, 1, 2, 2] x, float[1, 2, 2, 3] g) => (float y) { y = GridSample (x, g) }': "positions",
    '(float[1, S, 1] x) => (float y) { y = DFT (x) }': "must have a known size",
}  # fmt: skip


@pytest.mark.parametrize(("body", "message"), REFUSED.items(), ids=map(str, range(len(REFUSED))))
def test_refused(body: str, message: str) -> None:
    """What cannot be compiled is refused, with a reason."""
    with pytest.raises(ModelError, match=message):
        compiled(body)
