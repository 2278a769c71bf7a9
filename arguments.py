"""What was typed, turned into what it names: programs, inputs, dims, machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dla
from dla.console import abort_with, note, read_source, waiting
from dla.isa.errors import AssemblyError, Diagnostic, InputError
from dla.isa.names import shown

if TYPE_CHECKING:
    from dla.emulator.onnxruntime_backend import Original
    from dla.emulator.result import Result
    from dla.isa.dtypes import Array
    from dla.isa.program import Program
    from dla.models import Request
    from dla.options import MachineOptions, ModelOptions


@dataclass(frozen=True)
class Source:
    """What a PROGRAM argument came to: a program, and the .onnx model that it was compiled from.

    `inputs` and `outputs` give the program's name for each of the model's: an identifier.
    """

    program: Program
    request: Request | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


def source(
    name: str, model: ModelOptions, inputs: tuple[str, ...] = (), sizes: Mapping[str, int] | None = None
) -> Source:  # fmt: skip
    """The program in file `name`, or the compiled .onnx model; see `loaded`, `dla.models`.

    What has no bound in the model takes it from `sizes`, or from the shapes of `inputs`. Raises ModelError too.
    """
    from dla import models

    if not models.is_model(name):
        model.refuse(name)
        return Source(loaded(name))
    with waiting(f"loading {name}") as tell:
        request = requested(name, model)
        bounds = _missing_bounds(request, inputs, sizes or {})
        if bounds:
            given = ", ".join(f"{dim} <= {size}" for dim, size in bounds.items())
            note(f"{given}, as this run needs it; --bound gives other limits")
            request = replace(request, bounds={**request.bounds, **bounds})
        program = models.program_of(request, tell)
    return Source(program, request, *models.renamed(request, program))


def requested(name: str, model: ModelOptions) -> Request:
    """The .onnx file `name`, and the options as the compiler takes them. Raises InputError."""
    from dla.models import Request

    bounds, fixed = parsed_dims(model.bounds, "--bound"), parsed_dims(model.fixed, "--fix")
    return Request(Path(name), bounds, fixed, _values(model.values), model.dtype, model.math, model.substitute)


def _values(specs: tuple[str, ...]) -> dict[str, Array]:
    from dla.emulator.tensorfiles import chosen

    found: dict[str, Array] = {}
    for spec in specs:
        name, stored = chosen(spec)
        if name in found:
            raise InputError(f"--value gives {name} twice", hint="give each input once")
        found[name] = stored.read()
    return found


def _missing_bounds(request: Request, specs: tuple[str, ...], sizes: Mapping[str, int]) -> dict[str, int]:
    """A bound for every dim of the model that has none, as far as the sizes of a run tell them."""
    from dla.emulator.tensorfiles import shapes

    found: dict[str, int] = {}
    open_dims = list(request.open_dims())
    given = shapes(specs, request.spellings) if open_dims else {}
    for dim, name, axis in open_dims:
        shape = given.get(name, ())
        size = sizes.get(dim, shape[axis] if axis < len(shape) else 0)
        if size:
            found[dim] = max(size, found.get(dim, 0))
    return found


def loaded(name: str, *, text_only: bool = False) -> Program:
    """The program in file `name` ("-": stdin), text or bytecode. Raises AssemblyError, ContainerError, InputError."""
    from dla.isa.container import read_bytes
    from dla.isa.container.layout import MAGIC
    from dla.models import is_model

    path = Path(name)
    if text_only and is_model(name):
        message = "this is a model, not text"
        raise AssemblyError([Diagnostic(name, 1, 1, message, hint="`dla compile` takes models")])
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
    where = "<stdin>" if name == "-" else name
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8 text: this is neither assembly nor bytecode"
        hint = "a model is known by its name: NAME.onnx"
        raise AssemblyError([Diagnostic(where, 1, 1, message, hint=hint)]) from None
    return dla.assemble(text, file=where, folder=Path())


@dataclass(frozen=True)
class World:
    """How many ranks run a program, and which one this process is: None if it is all of them."""

    size: int = 1
    mine: int | None = None

    @property
    def option(self) -> int | str:
        """What machines call it."""
        return self.size if self.mine is None else "mpi"

    @property
    def prefix(self) -> str:
        """What stands before a line that this process prints beside others."""
        return "" if self.mine is None else f"rank {self.mine}: "

    @property
    def facts(self) -> dict[str, int]:
        """The same for programs."""
        return {} if self.mine is None else {"rank": self.mine, "ranks": self.size}


def world_for(program: Program, machine: MachineOptions) -> World:
    """The ranks that run `program`: --ranks, --gpus, as it declares, or the processes that an MPI launcher started.

    Raises InputError where these contradict each other. In one of several processes, errors from now on end all.
    """
    from dla.emulator import mpi
    from dla.emulator.distributed import world_matches
    from dla.emulator.ranks import world_of

    ranks = machine.ranks or len(machine.gpus) or None
    if machine.gpus and len(machine.gpus) != ranks:
        raise InputError(
            f"--ranks {ranks} and {len(machine.gpus)} GPUs contradict each other", hint="leave --ranks out"
        )
    if not mpi.started():
        return World(world_of(program, ranks))
    if machine.gpus:
        raise InputError("--gpus is for one process, and an MPI launcher started several")
    peers = mpi.peers()
    abort_with(peers.abort)
    world_matches(program, ranks, peers)
    return World(peers.world, peers.rank)


def inputs_for(
    found: Source, specs: tuple[str, ...], seed: int | None, dims: Mapping[str, int], world: World | None = None
) -> dict[str, Array]:  # fmt: skip
    """The inputs that were given and, with a seed, made-up ones for the rest, others on each rank."""
    from dla.emulator.random_inputs import made_up, random_inputs
    from dla.emulator.tensorfiles import gather
    from dla.isa.descriptor import Segment

    expected = {t.name: t for t in found.program.in_segment(Segment.INPUT)}
    ranks, mine = (1, None) if world is None else (world.size, world.mine)
    given = gather(specs, expected, aliases=found.inputs, ranks=ranks, mine=mine)
    if seed is None:
        return given
    if ranks == 1:
        return random_inputs(found.program, seed, dims) | given
    return made_up(found.program, given, seed, dims, ranks, mine) | given


def state_for(program: Program, path: str | None) -> dict[str, Array]:
    """The `.state` tensors in the file `path`, none where no file was given."""
    from dla.emulator.tensorfiles import gather
    from dla.isa.descriptor import Segment

    states = {t.name: t for t in program.in_segment(Segment.STATE)}
    return dict(gather([path], states, "state")) if path else {}


def parsed_dims(specs: tuple[str, ...], option: str = "--set") -> dict[str, int]:
    """`("batch=64",)` as `{"batch": 64}`."""
    dims: dict[str, int] = {}
    for spec in specs:
        name, equals, value = spec.partition("=")
        if not (equals and value.isascii() and value.isdigit() and len(value) < 20):
            raise InputError(f"{option} {spec} does not set a dim", hint=f"write {option} batch=64")
        if dims.setdefault(name, int(value)) != int(value):
            raise InputError(f"{option} gives {name} twice: {dims[name]} and {int(value)}", hint="set each dim once")
    return dims


def machine_for(backend: str, **options: Any) -> dla.Machine:
    """The machine that `--backend` and the options ask for; says on stderr which one it is."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    golden_only = [f"--{name}" for name in ("trace", "shuffle") if name in given]
    gpu_only = [f"--{name}" for name in ("gpus", "transport") if name in given]
    if gpu_only:
        if backend == "golden":
            raise InputError(f"{gpu_only[0]} needs the GPU machine",
                             hint=f"leave one of {gpu_only[0]} and --backend out")  # fmt: skip
        backend = "gpu"
    if golden_only and backend == "gpu":
        hint = f"leave {gpu_only[0]} out" if gpu_only else "add --backend golden"
        raise InputError(f"{golden_only[0]} needs the golden machine", hint=hint)
    together = {"ranks": "mpi"} if given.get("ranks") == "mpi" else {}  # these decide together
    machine = dla.Machine("golden" if golden_only else backend, **together)
    if machine.name == "golden":
        if "tune" in given:
            raise InputError("--tune measures on a GPU", hint="--backend gpu says why there is none")
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
    hint = "write golden,gpu (or golden-f32, onnxruntime): golden is the reference"
    unknown = [name for name in (first, *others) if name not in ("golden", "gpu", "golden-f32", "onnxruntime")]
    if unknown:
        raise InputError(f"--backends {text}: there is no backend '{shown(unknown[0])}'", hint=hint)
    if first != "golden" or not others or "golden" in others:
        raise InputError(f"--backends {text} compares nothing", hint=hint)
    return others


Runner = Callable[[Mapping[str, "Array"], Mapping[str, int], Mapping[str, "Array"]], "Result"]
"""Inputs, dims and states of a run -> its result."""


def runner(name: str, found: Source) -> Runner:
    """What runs the program `found` on the machine called `name`, to be compared with the reference."""
    if name == "onnxruntime":
        return _on_onnxruntime(found)
    machine = dla.Machine("golden", accumulate="f32") if name == "golden-f32" else dla.Machine(name, progress=note)
    return lambda inputs, dims, state: machine.run(found.program, inputs, dims, state)


def _on_onnxruntime(found: Source) -> Runner:
    model = original(found)
    return lambda inputs, dims, state: model.run(inputs, dims)


def original(found: Source, *, gpu: bool = False) -> Original:
    """The original model on onnxruntime, its inputs and outputs called as in the program."""
    from dla.emulator.onnxruntime_backend import Original

    if found.request is None:
        raise InputError("onnxruntime runs .onnx models, and this is a program", hint="leave it out of --backends")
    names = found.inputs, found.outputs
    return Original(found.request.path, found.program, names, found.request.values, gpu=gpu)
