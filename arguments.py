"""What was typed, turned into what it names: programs, inputs, dims, machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dla
from dla.console import note, read_source
from dla.isa.errors import AssemblyError, Diagnostic, InputError

if TYPE_CHECKING:
    from dla.isa.dtypes import Array
    from dla.isa.program import Program


def loaded(name: str, *, text_only: bool = False) -> Program:
    """The program in file `name` ("-": stdin), text or bytecode. Raises AssemblyError, ContainerError, InputError."""
    from dla.isa.container import read_bytes
    from dla.isa.container.layout import MAGIC

    path = Path(name)
    if path.is_file():
        with path.open("rb") as file:
            data = file.read(len(MAGIC))
    else:
        data = read_source(name)
    if text_only and data.startswith(MAGIC):
        message = "this is bytecode, not text: it is assembled already"
        raise AssemblyError([Diagnostic(name, 1, 1, message, hint="`dla dis` prints its text")])
    if path.is_file():
        return dla.load(path)
    if data.startswith(MAGIC):
        return read_bytes(data)
    shown = "<stdin>" if name == "-" else name
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8 text: this is neither assembly nor bytecode"
        raise AssemblyError([Diagnostic(shown, 1, 1, message)]) from None
    return dla.assemble(text, file=shown, folder=Path())


def inputs_for(
    program: Program, specs: tuple[str, ...], seed: int | None, dims: Mapping[str, int]
) -> dict[str, Array]:  # fmt: skip
    """The inputs that were given and, with a seed, made-up ones for the rest."""
    from dla.emulator.random_inputs import random_inputs
    from dla.emulator.tensorfiles import gather
    from dla.isa.descriptor import Segment

    given = gather(specs, {t.name: t for t in program.in_segment(Segment.INPUT)})
    return given if seed is None else {**random_inputs(program, seed, dims), **given}


def parsed_dims(specs: tuple[str, ...]) -> dict[str, int]:
    """`("batch=64",)` as `{"batch": 64}`."""
    dims: dict[str, int] = {}
    for spec in specs:
        name, equals, value = spec.partition("=")
        if not (equals and value.isascii() and value.isdigit() and len(value) < 20):
            raise InputError(f"--set {spec} does not set a dim", hint="write --set batch=64")
        if dims.setdefault(name, int(value)) != int(value):
            raise InputError(f"--set gives {name} twice: {dims[name]} and {int(value)}", hint="set each dim once")
    return dims


def machine_for(backend: str, **options: Any) -> dla.Machine:
    """The machine that `--backend` and the options ask for; says on stderr which one it is."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    golden_only = [name for name in ("trace", "shuffle") if name in given]
    if golden_only and backend == "gpu":
        raise InputError(f"--{golden_only[0]} needs the golden machine", hint="add --backend golden")
    machine = dla.Machine("golden" if golden_only else backend)
    if machine.name == "golden":
        given.pop("checked", None)  # it always is
    else:
        given["progress"] = note
    note(f"backend: {machine.name}")
    return dla.Machine(machine.name, **given)


def tracer(kept: list[dict[str, Any]] | None) -> Callable[[Any], None]:
    """What to do with each executed instruction: keep its facts, or print it to stderr."""
    from dataclasses import asdict

    from dla.report import trace_line

    return (lambda executed: note(trace_line(executed))) if kept is None else lambda e: kept.append(asdict(e))


def compared_backends(text: str) -> list[str]:
    """What `--backends` names beside the reference."""
    first, *others = text.split(",")
    if first != "golden" or not others or not set(others) <= {"gpu", "golden-f32"}:
        raise InputError(
            f"--backends {text} compares nothing", hint="write golden,gpu or golden,golden-f32: golden is the reference"
        )
    return others


def machine_called(name: str) -> dla.Machine:
    """A machine to compare with the reference."""
    return dla.Machine("golden", accumulate="f32") if name == "golden-f32" else dla.Machine(name, progress=note)
