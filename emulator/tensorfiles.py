"""Tensors in files: .npy, .npz and .safetensors, read without trusting them, written whole or not at all.

bf16 needs a word: NumPy's own formats have no name for it. `.npy` and `.npz` hold it as two raw bytes per element
(type code V2, what NumPy writes for ml_dtypes' bfloat16), and V2 is read back as bf16; `.safetensors` names it.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import safetensors.numpy
from numpy.lib import format as npy_format

from dla.emulator.ranks import tensor_of
from dla.isa.atomic import replacing
from dla.isa.dtypes import Array, DType
from dla.isa.errors import ContainerError, InputError
from dla.isa.names import shown
from dla.isa.npy import read_header
from dla.isa.program import Tensor
from dla.isa.weights import Weights, open_weights

FORMATS = (".npy", ".npz", ".safetensors")
_WIDEST = 16  # bytes per element of the widest NumPy number (complex128): what a caller may mistakenly pass
_RAW_BF16 = np.dtype("V2")


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, known by its header only; `read()` allocates and reads `nbytes`."""

    where: str  # for messages, quoted
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    read: Callable[[], Array]


def contents(path: Path) -> dict[str, Stored]:
    """Every tensor in the file at `path` ("-" is .npy on stdin), by name; that of a .npy has the name "".

    Raises InputError if the file is missing, damaged, holds Python objects or is of an unknown format.
    """
    if str(path) == "-":
        data = sys.stdin.buffer.read()
        return {"": _npy("<stdin>", len(data), partial(io.BytesIO, data))}
    readers: dict[str, Callable[[Path], dict[str, Stored]]] = {
        ".npy": lambda p: {"": _npy(f"'{p}'", p.stat().st_size, lambda: p.open("rb"))},
        ".npz": _npz,
        ".safetensors": _safetensors,
    }
    if path.suffix not in readers:
        raise InputError(f"cannot tell the format of '{path}'", hint=f"end the name in {', '.join(FORMATS)}")
    try:
        return readers[path.suffix](path)
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from error


def gather(
    specs: Sequence[str], expected: Mapping[str, Tensor], what: str = "input", aliases: Mapping[str, str] | None = None,
    ranks: int = 1, mine: int | None = None,
) -> dict[str, Array]:  # fmt: skip
    """The tensors that `specs` name, for the program's `expected` tensors; `aliases` are other names of theirs.

    A spec is `FILE` (tensors by their names in the file), `NAME=FILE` or `NAME=FILE#KEY`. Data is read only after its
    header is known to fit the declared size, so a small file cannot ask for a large allocation.

    With several `ranks` a tensor may have a leading axis of all ranks, or be called `NAME.rank0` and so on; and where
    FILE does not exist, there may be one for each rank, `x.rank0.npy` and so on: all are read, or that of rank `mine`.
    Raises InputError, also where there are files for some ranks only.
    """
    found: dict[str, Array] = {}
    for spec, selected in _of_ranks(specs, tuple(expected), what, ranks, mine):
        for given, stored in selected:
            name = (aliases or {}).get(given, given)
            tensor = tensor_of(name, expected)[0] if ranks > 1 else name
            if tensor not in expected:
                raise _unknown(name, spec, tuple(expected), what)
            if name in found:
                raise InputError(f"{what} '{name}' is given twice")
            declared = expected[tensor].descriptor
            if stored.nbytes > declared.elements * _WIDEST * ranks:
                raise InputError(
                    f"{what} '{name}' from {stored.where} is {stored.dtype}{list(stored.shape)}, too large for "
                    f"{declared.dtype.text}{list(declared.bounds)}"
                )
            found[name] = stored.read()
    return found


def _of_ranks(
    specs: Sequence[str], expected: Sequence[str], what: str, ranks: int, mine: int | None
) -> Iterator[tuple[str, list[tuple[str, Stored]]]]:  # fmt: skip
    """Each spec, and what it names: from a file, or from one for each rank, or from that of rank `mine`."""
    for spec in specs:
        name, equals, rest = spec.partition("=")
        file, hash_, key = (rest if equals else spec).partition("#")
        wanted = range(ranks) if mine is None else (mine,)
        parts = [of_rank(Path(file), rank) for rank in wanted]
        there = None if (ranks == 1 and mine is None) or file == "-" else next(filter(Path.exists, parts), None)
        if there is None and (ranks == 1 or file == "-" or Path(file).exists()):
            yield spec, _select(spec, expected, what)
            continue
        if there is not None and Path(file).exists():
            raise InputError(
                f"both '{shown(file)}' and '{shown(str(there))}' are there", hint="remove one, or name the other"
            )
        missing = next((part for part in parts if not part.exists()), None)
        if missing is not None:
            raise InputError(
                f"there is no file '{shown(file)}', nor '{shown(str(missing))}'",
                hint="a tensor comes in one file for all ranks, or in one for each: "
                + ", ".join(str(of_rank(Path(file), rank).name) for rank in range(min(ranks, 2)))
                + ", ..." * (ranks > 2),
            )
        for rank in wanted:
            one = f"{name}{equals}" * bool(equals) + f"{of_rank(Path(file), rank)}{hash_}{key}"
            suffix = f".rank{rank}" if mine is None else ""
            yield one, [(given + suffix, stored) for given, stored in _select(one, expected, what)]


def of_rank(path: Path, rank: int) -> Path:
    """`x.npy` as the file of one rank: `x.rank0.npy`."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def shapes(specs: Sequence[str], names: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that `specs` name, where a file's header tells; `names` maps what each may be called.

    What comes from stdin can be read once, so not here. Raises InputError.
    """
    expected = tuple(dict.fromkeys(names.values()))
    found: dict[str, tuple[int, ...]] = {}
    for spec in specs:
        if spec.rpartition("=")[2] == "-":
            continue
        for name, stored in _select(spec, expected, "input"):
            if name not in names:
                raise _unknown(name, spec, expected, "input")
            found[names[name]] = stored.shape
    return found


def _unknown(name: str, spec: str, expected: Sequence[str], what: str) -> InputError:
    return InputError(
        f"the program has no {what} '{shown(name)}' (from '{spec}')",
        hint=f"its {what}s: {', '.join(expected) or 'none'}"
        + ("" if "=" in spec else f"; say which one this is: NAME={spec}"),
    )


def chosen(spec: str) -> tuple[str, Stored]:
    """The one tensor that `NAME=FILE` or `NAME=FILE#KEY` names, and the name. Raises InputError."""
    if not spec.partition("=")[1]:
        raise InputError(f"'{spec}' does not say which input it is for", hint=f"write NAME={spec}")
    return _select(spec, (), "input")[0]


def _select(spec: str, expected: Sequence[str], what: str) -> list[tuple[str, Stored]]:
    """(name, tensor) for each tensor that one spec names; one without a name is for the only `expected` one."""
    name, equals, rest = spec.partition("=")
    file, _, key = (rest if equals else spec).partition("#")
    stored = contents(Path(file))
    if not equals:
        if "" in stored:
            if len(expected) != 1:
                raise InputError(f"'{spec}' does not say which {what} it is for", hint=f"write NAME={spec}")
            return [(expected[0], stored[""])]
        return [(n, s) for n, s in stored.items() if not key or n == key]
    if key or len(stored) > 1:
        if (key or name) not in stored:
            keys = shown(", ".join(sorted(stored))) or "none"
            raise InputError(
                f"'{file}' holds no tensor '{key or name}'", hint=f"write {name}={file}#KEY; its keys: {keys}"
            )
        return [(name, stored[key or name])]
    if not stored:
        raise InputError(f"'{file}' holds no tensors")
    return [(name, next(iter(stored.values())))]


def _npy(where: str, size: int, opened: Callable[[], AbstractContextManager[IO[bytes]]]) -> Stored:
    """The tensor in .npy data of `size` bytes, which `opened()` opens."""
    with opened() as file:
        try:
            header = read_header(file)
        except ValueError as error:
            raise InputError(f"{where} is not a .npy file: {error}") from error
        start = file.tell()
    if header.dtype.hasobject:
        raise InputError(f"{where} holds pickled Python objects, which dla never loads", hint="save numbers only")
    if start + header.nbytes != size:
        raise InputError(
            f"{where} is damaged: its header asks for {header.nbytes:,} bytes of data, it has {size - start:,}"
        )

    def read() -> Array:
        with opened() as file:
            file.read(start)
            array = header.array(file.read(header.nbytes))
        if header.dtype == _RAW_BF16:
            return array.view(DType.BF16.numpy)
        return array.astype(header.dtype.newbyteorder("="), copy=False)

    return Stored(where, header.dtype.name, header.shape, header.nbytes, read)


def _npz(path: Path) -> dict[str, Stored]:
    """The tensors of a .npz file: a zip of .npy members."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                stored = _npy(f"'{path}#{shown(name)}'", info.file_size, partial(archive.open, info))
                found[name] = dataclasses.replace(stored, read=partial(_read_member, path, info, stored))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' is not a .npz file: {error}") from error
    return found


def _read_member(path: Path, info: zipfile.ZipInfo, stored: Stored) -> Array:
    try:
        with zipfile.ZipFile(path) as archive:
            return _npy(stored.where, info.file_size, partial(archive.open, info)).read()
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{stored.where} is damaged: {error}") from error


def _safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of a .safetensors file."""
    try:
        weights = open_weights(path)
        return {key: _stored(path, weights, key) for key in weights.keys()}  # noqa: SIM118  # no mapping
    except ContainerError as error:
        raise InputError(f"cannot read '{path}': {error.message}", hint=error.hint) from error


def _stored(path: Path, weights: Weights, key: str) -> Stored:
    dtype, shape, data = weights.entry(key)

    def read() -> Array:
        try:
            return weights.array(key)
        except ContainerError as error:
            raise InputError(f"cannot read '{path}': {error.message}", hint=error.hint) from error

    return Stored(f"'{path}#{shown(key)}'", dtype, shape, len(data), read)


Destination = tuple[Path, tuple[str, ...]]
"""A file to write, and the names of the tensors that go there."""


def destinations(
    specs: Sequence[str], names: Sequence[str], what: str = "output", aliases: Mapping[str, str] | None = None
) -> list[Destination]:
    """Where `specs` say that the tensors called `names` go; asked before a run, so that no result is lost to a typo.

    A spec is `FILE` (.npz, .safetensors: every tensor; .npy: the only one) or `NAME=FILE`; `aliases` are other names.
    Raises InputError.
    """
    found: list[Destination] = []
    for spec in specs:
        name, equals, file = spec.rpartition("=")
        name = (aliases or {}).get(name, name)
        if equals and name not in names:
            raise InputError(f"the program has no {what} '{name}'", hint=f"its {what}s: {', '.join(names) or 'none'}")
        path, chosen = Path(file), (name,) if equals else tuple(names)
        if path.suffix not in FORMATS:
            raise InputError(f"cannot tell the format of '{path}'", hint=f"end the name in {', '.join(FORMATS)}")
        if not path.parent.is_dir():
            raise InputError(f"cannot write '{path}': there is no folder '{path.parent}'", hint="make the folder first")
        if path.suffix == ".npy" and len(chosen) != 1:
            raise InputError(
                f"a .npy file holds one tensor, the program has {len(chosen)} {what}s",
                hint=f"write to a .npz file, or one of them: NAME={path}",
            )
        if any(path == other for other, _ in found):
            raise InputError(f"'{path}' is written twice", hint="give each output a file, or name the file once")
        found.append((path, chosen))
    return found


def save(places: Sequence[Destination], tensors: Mapping[str, Array], mine: int | None = None) -> None:
    """Write each file of `places` with its tensors: all files or, where one fails, none. Raises InputError.

    With `mine`, each gets the name of that rank: `y.rank0.npy`.

    Where the ranks' parts of a tensor are there one by one (`y.rank0`, ...), so are they in the file; .npy files, which
    hold one tensor each, get the names of ranks, too.
    """
    if not places:
        return
    if mine is not None:
        places = [(of_rank(path, mine), names) for path, names in places]
    places = [one for place in places for one in _divided(place, tensors)]
    seen: set[Path] = set()
    for path, _ in places:
        if path in seen:
            raise InputError(f"'{path}' would be written twice: it is the file of one rank, and named besides",
                             hint="choose names of files without .rank0, .rank1, ...")  # fmt: skip
        seen.add(path)
    with replacing(*(path for path, _ in places)) as files:
        for (path, names), file in zip(places, files, strict=True):
            _write(path.suffix, {name: tensors[name] for name in names}, file)


def _divided(place: Destination, tensors: Mapping[str, Array]) -> list[Destination]:
    """`place` with the tensors that there are: those of ranks, where they are apart."""
    path, names = place
    found = tuple(key for name in names for key in ([name] if name in tensors else _parts(name, tensors)))
    if path.suffix != ".npy" or len(found) == 1:
        return [(path, found)]
    return [(of_rank(path, rank), (key,)) for rank, key in enumerate(found)]


def _parts(name: str, tensors: Mapping[str, Array]) -> list[str]:
    keys = [f"{name}.rank{rank}" for rank in range(len(tensors))]
    return [key for key in keys if key in tensors]


def _write(suffix: str, tensors: Mapping[str, Array], file: BinaryIO) -> None:
    if suffix == ".safetensors":
        file.write(safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))
    elif suffix == ".npy":
        npy_format.write_array(file, _nameable(next(iter(tensors.values()))), allow_pickle=False)
    else:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in tensors.items():
                # A ZipInfo has a constant date: the same tensors make the same bytes.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    npy_format.write_array(member, _nameable(array), allow_pickle=False)


def _nameable(array: Array) -> Array:
    return array.view(_RAW_BF16) if array.dtype == DType.BF16.numpy else array
