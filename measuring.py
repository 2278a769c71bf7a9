"""`dla profile` and `dla bench`: where the time of a program goes, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dla.console import json_option, json_or_file_option, note, print_json, show, waiting
from dla.isa.errors import BackendError, InputError
from dla.options import ModelOptions, input_options, model_options

if TYPE_CHECKING:
    from dla.arguments import Source
    from dla.profiler.profile import Profile, Whole
    from dla.profiler.stand import Stand
    from dla.profiler.whole import Judge

_BACKEND = click.option(
    "--backend", type=click.Choice(["auto", "golden", "gpu"]), default="auto", show_default=True,
    help="auto: gpu where there is one, else golden (NumPy).",
)  # fmt: skip
_STATE = click.option("--state-in", metavar="FILE", help="Start each run with these `.state` tensors instead of zeros.")


@click.command()
@click.argument("program", default="-")
@input_options
@_STATE
@_BACKEND
@click.option("--repeat", type=click.IntRange(1), default=20, show_default=True, metavar="N",
              help="Time so many runs that are not traced.")  # fmt: skip
@click.option("--native", is_flag=True,
              help="Check and time PyTorch's kernel beside each instruction, or without it NumPy's or CuPy's; "
                   "onnxruntime beside a model.")  # fmt: skip
@click.option("--torch", "network", metavar="FILE.py:NAME",
              help="Time a PyTorch module beside it: NAME() gives it and its example inputs.")  # fmt: skip
@click.option("--instruction", type=click.IntRange(0), metavar="I", help="Show, and compare, this instruction only.")
@click.option("--html", metavar="FILE", help="Write a page that a browser shows, without a network.")
@click.option("--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@model_options
@json_or_file_option
def profile(
    program: str, model: ModelOptions, inputs: tuple[str, ...], seed: int | None, dims: tuple[str, ...],
    state_in: str | None, backend: str, repeat: int, native: bool, network: str | None, instruction: int | None,
    html: str | None, trace: str | None, json_file: str | None,
) -> None:  # fmt: skip
    """Show where the time of a program goes.

    By instruction: time on the critical path of the run, operations and bytes per second, what the hardware allows,
    and with --native the kernel that does the same in PyTorch. A program that traps has the profile of what ran before.

    \b
      dla profile net.dla --random 1
      dla profile model.onnx --random 1 --native --html report.html
      dla profile net.dlab --random 1 --trace net.perfetto-trace --torch net.py:build
    """
    from dla.arguments import inputs_for, parsed_dims, source, state_for
    from dla.profiler import run, whole
    from dla.profiler.native.library import library_for, require_torch
    from dla.profiler.stand import stand_for

    sizes = parsed_dims(dims)
    _check_places(program, {"--html": html, "--trace": trace, "--json": None if json_file == "-" else json_file})
    stand = stand_for(backend, note)
    if network is not None:
        require_torch("--torch", stand.name)
    library = library_for(stand.name) if native else None
    build = whole.factory(network) if network else None
    origin = source(program, model, inputs, sizes)
    _check_index(origin, instruction)
    note(f"backend: {stand.name}")
    if library is not None and library.instead:
        note(f"native kernels are {library.name}'s: {library.instead}")
    tensors, state = inputs_for(origin, inputs, seed, sizes), state_for(origin.program, state_in)
    with waiting("profiling") as tell:
        found, trap = run.measured(stand, origin.program, tensors, sizes, state, repeat=repeat, progress=tell)
        if library is not None:
            found = run.with_natives(found, lambda index: instruction in (None, index), tell, library)
        judge = whole.Judge(origin.program, tensors, found.dims, state)
        if trap is None and native and origin.request is not None:
            found = run.with_wholes(found, _onnxruntime(origin, stand, judge, repeat))
        failed: InputError | None = None
        if trap is None and build is not None:
            tell("PyTorch")
            try:
                found = run.with_wholes(found, whole.of_torch(build, judge, repeat, stand.name))
            except InputError as error:  # a module that fails does not cost what was measured
                failed = error
    shown = found if instruction is None else run.only(found, instruction)
    failed = write_reports(found, shown, html, trace, json_file) or failed
    try:
        if failed is None or json_file != "-":  # stdout has one JSON object: else it is the error
            print_profile(shown, as_json=json_file == "-")
    finally:  # also where nobody reads the tables to their end
        if trap is not None:
            note(str(trap))
        if failed is not None:
            raise failed
        if trap is not None:
            click.get_current_context().exit(trap.exit_code)


def _check_index(origin: Source, instruction: int | None) -> None:
    count = len(origin.program.instructions)
    if instruction is not None and instruction >= count:
        raise InputError(f"--instruction {instruction}: the program has instructions 0 to {count - 1}")


def _check_places(program: str, files: Mapping[str, str | None]) -> None:
    """Raise InputError for a file, by option, that cannot be written, before anything is measured for it."""
    taken = {Path(program).resolve(): "the program"}
    for option, path in ((option, Path(file)) for option, file in files.items() if file is not None):
        if not path.parent.is_dir():
            raise InputError(f"cannot write '{path}': there is no folder '{path.parent}'", hint="make the folder first")
        if path.is_dir():
            raise InputError(f"cannot write '{path}': it is a folder", hint=f"write {option} FILE")
        place = path.resolve()
        if place in taken and (path.is_file() or not path.exists()):  # devices may be written twice
            raise InputError(f"{option} '{path}' would overwrite {taken[place]}", hint="give it a name of its own")
        taken[place] = f"the file of {option}"


def _onnxruntime(origin: Source, stand: Stand, judge: Judge, repeat: int) -> list[Whole]:
    """The original of a model; nothing but a note where onnxruntime is missing or refuses it."""
    from dla.arguments import original
    from dla.profiler import whole

    try:
        return [whole.of_onnxruntime(lambda: original(origin, gpu=stand.name == "gpu"), judge, repeat)]
    except (BackendError, InputError) as error:  # also of a type that it takes from nobody but itself
        note(f"without onnxruntime: {error.message}")
        return []


def write_reports(
    found: Profile, shown: Profile, html: str | None, trace: str | None, json_file: str | None
) -> InputError | None:
    """The files that were asked for, each whole or not at all; why the first of those that cannot be written is not."""
    import json

    from dla.console import jsonable, write_result
    from dla.profiler import facts, page, perfetto

    def write_json(path: str) -> None:
        text = json.dumps(jsonable(facts.facts(shown)), ensure_ascii=False)
        write_result(text.encode() + b"\n", path, binary=False)

    writers: list[tuple[str | None, Callable[[str], None]]] = [
        (html, lambda path: page.write(found, Path(path))),
        (trace, lambda path: perfetto.write(found, Path(path))),
        (json_file, write_json),
    ]
    failed = None
    for path, write in writers:
        if path in (None, "-"):
            continue
        try:
            write(path)
        except InputError as error:  # what was measured goes where there is room
            failed = failed or error
        else:
            note(f"wrote {path}")
    return failed


def print_profile(shown: Profile, *, as_json: bool) -> None:
    """On stdout."""
    from dla.profiler import facts, table

    if as_json:
        print_json(facts.facts(shown))
    else:
        show(*table.parts(shown))


def _finite(ctx: click.Context, option: click.Parameter, value: float) -> float:
    """A range lets infinity through, and NaN: neither is a time after which to end."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no time", ctx, option)
    return value


@click.command()
@click.argument("program", default="-")
@input_options
@_STATE
@_BACKEND
@click.option("--warmup", type=click.FloatRange(0), callback=_finite, default=200.0, show_default=True, metavar="MS",
              help="Run so long before anything counts: milliseconds.")  # fmt: skip
@click.option("--duration", type=click.FloatRange(0), callback=_finite, default=3.0, show_default=True, metavar="S",
              help="Measure at least so long: seconds.")  # fmt: skip
@click.option("--iterations", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="Measure at least so many runs.")  # fmt: skip
@click.option("--cold", is_flag=True, help="Flush the GPU's second-level cache before each run.")
@model_options
@json_option
def bench(
    program: str, model: ModelOptions, inputs: tuple[str, ...], seed: int | None, dims: tuple[str, ...],
    state_in: str | None, backend: str, warmup: float, duration: float, iterations: int, cold: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a program again and again: latencies and throughput.

    A run starts from the same state each time, and its latency has the launch in, but no copies from or to the host.

    \b
      dla bench net.dlab --random 1
      dla bench model.onnx --random 1 --duration 10 --cold --json
    """
    from dla.arguments import inputs_for, parsed_dims, source, state_for
    from dla.profiler import bench as measure
    from dla.profiler.stand import stand_for

    sizes = parsed_dims(dims)
    origin = source(program, model, inputs, sizes)
    stand = stand_for(backend, note)
    if cold and stand.name == "golden":
        raise InputError("--cold flushes a GPU's cache", hint="--backend gpu says why there is no GPU")
    note(f"backend: {stand.name}")
    tensors, state = inputs_for(origin, inputs, seed, sizes), state_for(origin.program, state_in)
    limits = measure.Limits(warmup / 1e3, duration, iterations)
    with waiting("measuring"):
        found = measure.bench(stand, origin.program, tensors, sizes, state, limits, cold=cold)
    if as_json:
        print_json(measure.facts(found))
    else:
        show(*measure.parts(found))
