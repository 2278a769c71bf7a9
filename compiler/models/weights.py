"""Weights by name: of a `.safetensors` file (memory-mapped), of a dict of arrays, or made up."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dla.isa.dtypes import BY_NUMPY, Array, DType, convert
from dla.isa.errors import ModelError
from dla.isa.names import shown
from dla.isa.weights import open_weights


@dataclass(frozen=True)
class Spelling:
    """How a set of weights names the parts of a layer, and in which order it lays out their axes.

    `parts` has a format for each part that is not called `<layer><separator><part>`. With `out_first` a product's
    weight is [out, in] and a convolution's [out, in, height, width], as PyTorch has them; else they are as the
    instructions read them, [in, out] and [out, height, width, in].
    """

    separator: str = "."
    parts: Mapping[str, str] = field(default_factory=dict)
    out_first: bool = True

    def name(self, layer: str, part: str) -> str:
        """The name of one part of `layer`, such as `fc.weight`."""
        return self.parts.get(part, f"{{}}{self.separator}{part}").format(layer)


PYTORCH = Spelling(
    parts={
        "table": "{}.weight",
        "gain": "{}.weight",
        "shift": "{}.bias",
        "mean": "{}.running_mean",
        "var": "{}.running_var",
    }
)
"""A `state_dict`, as checkpoints have it."""


_LARGE = 1 << 20
"""Elements from which on the rows of made-up weights are pieces of one."""
_DRAWN = 1 << 18


class Weights:
    """Arrays by name. Made by `of_file`, `of_arrays` or `random`; layers ask for what they need with `take`."""

    def __init__(self, find: Callable[[str, str, tuple[int, ...]], Array | None], names: Callable[[], list[str]],
                 source: str, spelling: Spelling = PYTORCH) -> None:  # fmt: skip
        self._find, self._names, self._source = find, names, source
        self.spelling = spelling

    @staticmethod
    def of_file(path: str | Path, *more: str | Path, spelling: Spelling = PYTORCH) -> Weights:
        """The tensors of a `.safetensors` file, or of several that a large model is split into.

        Raises InputError or ContainerError where one cannot be read.
        """
        files = [open_weights(Path(file)) for file in (path, *more)]
        held = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # a method of its own
        source = files[0].name if len(files) == 1 else f"{files[0].name} and {len(more)} more"
        return Weights(lambda name, part, shape: held[name].array(name) if name in held else None,
                       lambda: list(held), source, spelling)  # fmt: skip

    @staticmethod
    def of_arrays(arrays: Mapping[str, Array], spelling: Spelling = PYTORCH) -> Weights:
        """Arrays in memory."""
        return Weights(
            lambda name, part, shape: arrays.get(name), lambda: list(arrays), "the dict of weights", spelling
        )

    @staticmethod
    def random(
        seed: int = 0, keep: dict[str, Array] | None = None, spelling: Spelling = PYTORCH, dtype: DType = DType.F32
    ) -> Weights:  # fmt: skip
        """Whatever is asked for, of a float type, equal for equal seeds and names; `keep` collects it.

        Its size keeps activations near unit variance, so that deep networks neither explode nor vanish. Elements are
        normally distributed; rows of large weights are pieces of one row that is, so that they are made as fast as
        they are copied.
        """

        def find(name: str, part: str, shape: tuple[int, ...]) -> Array:
            if keep is not None and name in keep:
                return keep[name]
            rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
            made = _made_up(rng, part, shape, spelling, dtype)
            if keep is not None:
                keep[name] = made
            return made

        return Weights(find, lambda: list(keep or ()), "the made-up weights", spelling)

    def take(self, layer: str, part: str, shape: tuple[int, ...]) -> Array:
        """One part of `layer`, read-only. Raises ModelError if it is missing, or has another shape or no float type."""
        name = self.spelling.name(layer, part)
        array = self._find(name, part, shape)
        if array is None:
            near = difflib.get_close_matches(name, self._names(), n=2, cutoff=0.5)
            also = f"; it has {' and '.join(map(shown, near))}" if near else ""
            raise ModelError(f"{self._source} holds no {shown(name)} {list(shape)}{also}")
        if array.shape != shape:
            raise ModelError(f"{shown(name)} of {self._source} is {list(array.shape)}, but must be {list(shape)}")
        if array.dtype not in BY_NUMPY or not BY_NUMPY[array.dtype].is_float:
            raise ModelError(f"{shown(name)} of {self._source} is of type {array.dtype}, which is no float type of dla")
        return array


def _made_up(
    rng: np.random.Generator, part: str, shape: tuple[int, ...], spelling: Spelling, dtype: DType
) -> Array:  # fmt: skip
    if part in ("gain", "var"):
        return convert(rng.uniform(0.5, 1.5, shape).astype(np.float32), dtype)
    if len(shape) < 2:
        return convert((0.1 * rng.standard_normal(shape)).astype(np.float32), dtype)
    out_axis = 0 if spelling.out_first or len(shape) == 4 else 1
    size = 1.0 if part == "table" else np.sqrt(np.prod(shape) / shape[out_axis])
    if np.prod(shape) < _LARGE:
        return convert(rng.standard_normal(shape, np.float32) / np.float32(size), dtype)
    drawn = convert(rng.standard_normal(_DRAWN + shape[-1], np.float32) / np.float32(size), dtype)
    rows = np.lib.stride_tricks.sliding_window_view(drawn, shape[-1])
    return np.asarray(rows[rng.integers(0, _DRAWN, shape[:-1])])
