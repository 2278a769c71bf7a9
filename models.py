""".onnx models where a program is expected: compiled when first asked for, then taken from a folder of the user's.

The folder is that of isa/folders.py. A program's name there ends in the SHA-256 of all that it depends on: the model,
the files of its weights, the options and the compiler (of which half is enough to tell any two apart).

The compiler is imported where it is needed: a model that is in the cache takes no more of it than the loader.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dla
from dla.console import note
from dla.isa import container
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import ContainerError, InputError
from dla.isa.folders import cache_folder
from dla.isa.names import identifier, shown
from dla.isa.program import ISA_VERSION, Program

if TYPE_CHECKING:
    from dla.compiler.onnx.loader import Model
    from dla.compiler.onnx.signature import Declared
    from dla.compiler.pipeline import Compiled

_DIGITS = 32
_KEPT = re.compile(rf"-[0-9a-f]{{{_DIGITS}}}\.(dlab|safetensors)\Z")
_MAX_CACHE_BYTES = 2**34
"""What was not used for longest is deleted beyond this."""


def is_model(name: str) -> bool:
    """Whether `name` is that of an ONNX model: such files have no first bytes of their own to tell them by."""
    return name.lower().endswith(".onnx")


@dataclass(frozen=True)
class Request:
    """An .onnx file, and how to compile it; the fields are those of `dla.compile_model`."""

    path: Path
    bounds: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Array] = field(default_factory=dict)
    dtype: str | None = None
    math: str = "exact"
    substitute: bool = False

    @cached_property
    def model(self) -> Model:
        """The model, checked. Raises ModelError, InputError, BackendError."""
        from dla.compiler.onnx.loader import load

        return load(self.path)

    @property
    def inputs(self) -> tuple[Declared, ...]:
        """The inputs that are not constants."""
        from dla.compiler.onnx import signature

        return tuple(d for d in signature.inputs(self.model.proto.graph) if d.name not in self.values)

    def open_dims(self) -> Iterator[tuple[str, str, int]]:
        """(symbolic dim, input, axis) wherever an input has a dim without a bound."""
        from dla.compiler.onnx.signature import Symbol

        decided = self.bounds.keys() | self.fixed.keys()
        for declared in self.inputs:
            for axis, dim in enumerate(declared.dims or ()):
                if isinstance(dim, Symbol) and not {dim.name, dim.text} & decided:
                    yield dim.name, declared.name, axis

    @property
    def spellings(self) -> dict[str, str]:
        """What the model's inputs may be called: their own names, and those names as identifiers."""
        own = [declared.name for declared in self.inputs]
        return {**{identifier(name): name for name in own}, **{name: name for name in own}}

    def compile(self, **options: Any) -> Compiled:
        """Compile it; `options` are further ones of `dla.compile_model`."""
        from dla.compiler.api import compile_model

        return compile_model(self.path, bounds=self.bounds, fixed=self.fixed, values=self.values, dtype=self.dtype,
                             math=self.math, substitute=self.substitute, **options)  # fmt: skip

    def key(self) -> str:
        """What the compiled program depends on, in a name."""
        digest = hashlib.sha256()
        settings = [dla.__version__, ISA_VERSION, _compiler(), self.path.name, sorted(self.bounds.items()),
                    sorted(self.fixed.items()), self.dtype, self.math, self.substitute]  # fmt: skip
        for text in settings:
            digest.update(f"{text!r}\n".encode())
        for name, array in sorted(self.values.items()):
            digest.update(f"{name!r} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.tobytes())
        for name, data in sorted(self.model.values.files.items()):
            digest.update(f"{name!r} {hashlib.sha256(data).hexdigest()}\n".encode())
        return f"{identifier(self.path.stem)[:40]}-{digest.hexdigest()[:_DIGITS]}"


def renamed(request: Request, program: Program) -> tuple[dict[str, str], dict[str, str]]:
    """The program's name of each input, and of each output, of the model: both have them in the same order."""
    inputs = [declared.name for declared in request.inputs]
    outputs = [output.name for output in request.model.proto.graph.output]
    return (
        dict(zip(inputs, (t.name for t in program.in_segment(Segment.INPUT)), strict=True)),
        dict(zip(outputs, (t.name for t in program.in_segment(Segment.OUTPUT)), strict=True)),
    )


def program_of(request: Request, progress: Callable[[str], None]) -> Program:
    """The compiled model, from the cache where it is there. Raises ModelError, InputError, BackendError."""
    path = cache_folder() / f"{request.key()}.dlab"
    with contextlib.suppress(InputError, ContainerError):  # absent, or damaged: compiled again
        program = container.load(path)
        for file in (path, path.with_suffix(".safetensors")):
            with contextlib.suppress(OSError):
                os.utime(file)
        return program
    program = request.compile(progress=progress).program
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Weights stand beside the code, so that `dla dis` shows names and not bytes.
        container.save(program, path, external=Path(path.with_suffix(".safetensors").name))
        _trim(path.parent)
        program = container.load(path)
    except (OSError, InputError, ContainerError) as error:
        note(f"compiled {shown(request.path)}; not kept: {error}")
    else:
        note(f"compiled {shown(request.path)}; kept in {path.parent}")
    return program


def _compiler() -> str:
    """A digest of the compiler's own source, which may change where the version does not: while people work on it."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted((*(root / "isa").rglob("*.py"), *(root / "compiler").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _trim(folder: Path) -> None:
    """Delete what was not used for longest, down to `_MAX_CACHE_BYTES`. Another process may do the same."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if _KEPT.search(path.name):
                status = path.stat()
                found.append((status.st_mtime, path, status.st_size))
    kept = 0
    for _, path, size in sorted(found, reverse=True):
        kept += size
        if kept > _MAX_CACHE_BYTES:
            path.unlink(missing_ok=True)
