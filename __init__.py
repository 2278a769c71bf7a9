"""dla: a deep-learning accelerator that exists as an instruction set, and the machines that emulate it.

import dla

program = dla.load("model.dlab")        # or a .dla text; dla.assemble(text) for a string
result = dla.Machine("auto").run(program, {"x": images})
result["p"]                             # an array

dla.save(dla.compile_model("model.onnx", bounds={"batch": 64}).program, "model.dlab")
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dla.assembler import assemble, disassemble
    from dla.compiler.api import compile_model
    from dla.compiler.builder import GraphBuilder
    from dla.compiler.dims import symbol
    from dla.compiler.models.layers import Layers
    from dla.compiler.models.weights import Weights
    from dla.compiler.pipeline import Compiled
    from dla.emulator.api import Machine
    from dla.emulator.backend import Session
    from dla.emulator.compare import compare
    from dla.emulator.result import Probe, Result
    from dla.isa.dtypes import DType
    from dla.isa.errors import (
        AssemblyError,
        BackendError,
        ContainerError,
        DlaError,
        InputError,
        ModelError,
        TimeoutTrap,
        Trap,
        VerifyError,
    )
    from dla.isa.program import Program
    from dla.isa.verifier import verify

__version__ = "0.1.0"

# Imported when first used, so that `import dla` (and `dla --help`) loads neither NumPy nor the parser.
_HOMES = {
    "assemble": "dla.assembler",
    "disassemble": "dla.assembler",
    "Compiled": "dla.compiler.pipeline",
    "GraphBuilder": "dla.compiler.builder",
    "Layers": "dla.compiler.models.layers",
    "Weights": "dla.compiler.models.weights",
    "compile_model": "dla.compiler.api",
    "symbol": "dla.compiler.dims",
    "Machine": "dla.emulator.api",
    "compare": "dla.emulator.compare",
    "Session": "dla.emulator.backend",
    "Probe": "dla.emulator.result",
    "Result": "dla.emulator.result",
    "DType": "dla.isa.dtypes",
    "AssemblyError": "dla.isa.errors",
    "BackendError": "dla.isa.errors",
    "ContainerError": "dla.isa.errors",
    "DlaError": "dla.isa.errors",
    "InputError": "dla.isa.errors",
    "ModelError": "dla.isa.errors",
    "TimeoutTrap": "dla.isa.errors",
    "Trap": "dla.isa.errors",
    "VerifyError": "dla.isa.errors",
    "Program": "dla.isa.program",
    "verify": "dla.isa.verifier",
}

__all__ = [
    "AssemblyError",
    "BackendError",
    "Compiled",
    "ContainerError",
    "DType",
    "DlaError",
    "GraphBuilder",
    "InputError",
    "Layers",
    "Machine",
    "ModelError",
    "Probe",
    "Program",
    "Result",
    "Session",
    "TimeoutTrap",
    "Trap",
    "VerifyError",
    "Weights",
    "__version__",
    "assemble",
    "compare",
    "compile_model",
    "disassemble",
    "load",
    "save",
    "symbol",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dla' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load(path: str | Path) -> Program:
    """The program in a `.dlab` file (by its suffix or its first bytes) or a `.dla` text. Models: `compile_model`.

    Raises InputError if the file cannot be read, ContainerError or AssemblyError if it is not a program.
    """
    from dla.assembler import assemble_file
    from dla.isa import container
    from dla.isa.container.layout import MAGIC
    from dla.isa.errors import InputError
    from dla.isa.files import map_file
    from dla.isa.names import shown

    path = Path(path)
    if path.suffix.lower() == ".onnx":
        raise InputError(f"'{shown(path)}' is a model, not a program", hint="dla.compile_model makes one of it")
    binary = path.suffix == ".dlab" or bytes(map_file(path)[: len(MAGIC)]) == MAGIC
    return container.load(path) if binary else assemble_file(path)


def save(program: Program, path: str | Path, *, external: str | Path | None = None) -> None:
    """Write `program` to `path` as a `.dlab` file, whole or not at all.

    With `external`, the name of a `.safetensors` file in the same folder, its weights go there instead.
    Raises InputError where that cannot be written or is no program, ContainerError where it has no encoding.
    """
    from dla.isa import container
    from dla.isa.errors import InputError
    from dla.isa.program import Program

    if not isinstance(program, Program):
        raise InputError(f"a .dlab file holds a Program, and this is a {type(program).__name__}",
                         hint="compile_model(...).program is one")  # fmt: skip
    container.save(program, Path(path), external=None if external is None else Path(external))
