"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import click

from dla.console import Command
from dla.isa.errors import InputError
from dla.isa.names import shown

COMPUTE_TYPES = ("f32", "f16", "bf16")
"""Those of `dla.compile_model`: written again, because NumPy would come with them."""

MATH_MODES = ("exact", "tf32")
"""Those of `isa.math_mode`, for the same reason."""

TRANSPORTS = ("peer", "nccl")
"""Those of `emulator.device.paths`, likewise."""


@dataclass(frozen=True)
class ModelOptions:
    """How an .onnx model is to be compiled, as it was typed."""

    bounds: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    dtype: str | None = None
    math: str = "exact"
    substitute: bool = False

    def refuse(self, name: str) -> None:
        """Raise InputError if an option is given: `name` is a program, compiled already."""
        given = {"--bound": self.bounds, "--fix": self.fixed, "--value": self.values, "--dtype": self.dtype,
                 "--math": self.math != "exact", "--substitute-types": self.substitute}  # fmt: skip
        for option, value in given.items():
            if value:
                raise InputError(f"{option} is for .onnx models, and '{name}' is a program")


@dataclass(frozen=True)
class MachineOptions:
    """The machine that a program is to run on, as it was typed."""

    backend: str = "auto"
    ranks: int | None = None
    gpus: tuple[int, ...] = ()
    transport: str | None = None
    trace: bool = False
    checked: bool = False
    shuffle: int | None = None
    tune: bool = False
    timeout: float | None = None


def _numbers(_ctx: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """`0,1,3` as numbers."""
    parts = text.split(",") if text else []
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise click.BadParameter("write numbers of GPUs, as in 0,1")
    return tuple(map(int, parts))


def machine_options(command: Command) -> Command:
    """Which machine runs a program, and how: the command gets one `MachineOptions`, called `machine`."""
    return _with(_gathered(command, "machine", MachineOptions),
        click.option("--backend", type=click.Choice(["auto", "golden", "gpu"]), default="auto", show_default=True,
                     help="auto: gpu where there is one, else golden (NumPy)."),
        click.option("--ranks", type=click.IntRange(1), metavar="N",
                     help="Run on N ranks, if the program does not say how many it is for."),
        click.option("--gpus", callback=_numbers, metavar="I,J,...",
                     help="Run a rank on each of these GPUs (gpu); without it, ranks share one."),
        click.option("--transport", type=click.Choice(TRANSPORTS),
                     help="How GPUs send to each other: peer, to memory that they reach, or nccl, where they do not. "
                          "Without it, as they can (gpu)."),
        click.option("--trace", is_flag=True,
                     help="Print each instruction with statistics of what it wrote (golden)."),
        click.option("--checked", is_flag=True, help="Check the address of every element (golden always does)."),
        click.option("--shuffle", type=int, metavar="SEED",
                     help="Run in a random legal order, which changes nothing (golden)."),
        click.option("--tune", is_flag=True,
                     help="First measure how each instruction is done best, for all later runs, too (gpu)."),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                     help="End with exit code 5 after so long: the run (golden), or a wait inside it (gpu)."),
    )  # fmt: skip


def input_options(command: Command) -> Command:
    """Where a program's inputs and named dims come from; the same for every command that runs one."""
    return _with(command,
        click.option("-i", "--input", "inputs", multiple=True, metavar="[NAME=]FILE[#KEY]",
                     help="Read inputs from a .npy, .npz or .safetensors file; NAME=- reads .npy from stdin."),
        click.option("--random", "seed", type=click.IntRange(0), metavar="SEED",
                     help="Make up the inputs that are not given."),
        click.option("--set", "dims", multiple=True, metavar="DIM=N",
                     help="Set a named dim; otherwise the inputs' shapes do."),
    )  # fmt: skip


def model_options(command: Command) -> Command:
    """How an .onnx model is compiled: the command gets one `ModelOptions`, called `model`."""
    return _with(_gathered(command, "model", ModelOptions),
        click.option("--bound", "bounds", multiple=True, metavar="DIM=N",
                     help="The largest value of a symbolic dim of an .onnx model."),
        click.option("--fix", "fixed", multiple=True, metavar="DIM=N",
                     help="The only value of a symbolic dim of an .onnx model."),
        click.option("--value", "values", multiple=True, metavar="NAME=FILE[#KEY]",
                     help="Make this input of an .onnx model a constant."),
        click.option("--dtype", type=click.Choice(COMPUTE_TYPES),
                     help="The float type to compute an .onnx model in, if not its own."),
        click.option("--math", type=click.Choice(MATH_MODES), default="exact",
                     help="How an .onnx model multiplies f32: tf32 rounds operands to 10 bits, for tensor cores."),
        click.option("--substitute-types", "substitute", is_flag=True,
                     help="In an .onnx model, hold f64 as f32, i16 and u16 as i32, u32 and u64 as i64."),
    )  # fmt: skip


def plan_options(command: Command) -> Command:
    """What `--plan` plans for: the command gets `dims`, `ranks` and `transport`."""
    return _with(command,
        click.option("--set", "dims", multiple=True, metavar="DIM=N",
                     help="With --plan: for runs where a named dim has this value, not its largest."),
        click.option("--ranks", type=click.IntRange(1), metavar="N",
                     help="With --plan: for N ranks, if the program does not say how many it is for."),
        click.option("--transport", type=click.Choice(TRANSPORTS),
                     help="With --plan: how GPUs send to each other; without it, peer for up to 8 ranks."),
    )  # fmt: skip


def pass_options(command: Command) -> Command:
    """What passes do: `--tensor-parallel N`, `--skip PASS`, and `--explain [PASS]`: None without it, "" for all."""

    def known(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
        if value:
            from dla.compiler.passes import PASSES  # only who asks for a pass waits for the compiler

            if value not in ("import", *PASSES):
                raise InputError(f"--explain: there is no pass '{shown(value)}'",
                                 hint=f"the model goes before it; the passes: import, {', '.join(PASSES)}")  # fmt: skip
        return value

    # Eager, because it may have taken the model for its PASS, and a missing MODEL would be reported first.
    return _with(command,
        click.option("--tensor-parallel", type=click.IntRange(1, 65535), default=1, metavar="N",
                     help="Cut the weights of a Transformer's layers into pieces for N ranks."),
        click.option("--skip", multiple=True, metavar="PASS", help="Leave out this pass."),
        click.option("--explain", is_flag=False, flag_value="", metavar="[PASS]", is_eager=True, callback=known,
                     help="Print the graph after each pass, or after this one."),
    )  # fmt: skip


def _gathered(command: Command, name: str, options: type[ModelOptions] | type[MachineOptions]) -> Command:
    """`command` with the options that are fields of a class in one object of it, called `name`."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        fields = {field: given.pop(field) for field in options.__dataclass_fields__}
        return command(**{name: options(**fields)}, **given)

    return cast(Command, gathered)


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    """`command` with these options, in this order in its help."""
    for option in reversed(options):
        command = option(command)
    return command
