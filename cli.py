"""The command line: the one place where assembler, verifier and machines meet. Each command reads as its pipeline.

The other parts are imported inside the commands, so that `dla --help` does not wait for NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from dla.arguments import (
    compared_backends,
    inputs_for,
    loaded,
    machine_for,
    parsed_dims,
    requested,
    runner,
    source,
    tracer,
    world_for,
)
from dla.console import (
    COMPARISON_FAILED,
    Driver,
    abort_with,
    debug_option,
    json_option,
    note,
    print_json,
    show,
    waiting,
    write_result,
)
from dla.isa.errors import InputError
from dla.measuring import bench, profile
from dla.options import (
    MachineOptions,
    ModelOptions,
    input_options,
    machine_options,
    model_options,
    pass_options,
    plan_options,
)
from dla.writing import refuse_to_overwrite, write_program

EPILOG = """\b
A first session, in a clone of the repository:
  dla run programs/vector_add.dla --random 1      run a program on random inputs
  dla asm programs/softmax.dla -o softmax.dlab    text to bytecode
  dla dis softmax.dlab                            and back
  dla compile model.onnx --bound batch=64         a model of yours to bytecode
  dla isa GEMM                                    what an instruction does

\b
Exit codes: 0 ok, 1 comparison failed, 2 usage or input, 3 program rejected,
4 trap, 5 timeout, 6 backend absent, 70 internal error, 130 interrupted.
"""


@click.group(cls=Driver, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(package_name="dla")
@debug_option
def main() -> None:
    """Write tensor assembly (.dla) or compile a model (.onnx), and run the bytecode (.dlab) on NumPy or on a GPU.

    A PROGRAM is a .dla or a .dlab file, or - for stdin; its first bytes tell which of the two it is. It may be an
    .onnx model, too, which is compiled first; the result is kept for the next time.
    """


# -- programs in and out


@main.command()
@click.argument("path", metavar="SOURCE", default="-")
@click.option("-o", "--output", default="-", metavar="FILE", help="Write the .dlab here instead of to stdout.")
@click.option("--external", metavar="NAME", help="Keep named constants in this .safetensors file, beside the output.")
@json_option
def asm(path: str, output: str, external: str | None, as_json: bool) -> None:
    """Turn text into bytecode, and verify it.

    SOURCE is .dla text; - or nothing is stdin. All errors are reported at once, each with its place and a remedy.

    \b
      dla asm net.dla -o net.dlab
      dla asm net.dla | dla inspect -
    """
    from dla.isa.verifier import verify

    program = loaded(path, text_only=True)
    verify(program)
    if external is not None or not (as_json and output == "-"):
        write_program(program, output, external)
    if as_json:
        print_json({"name": program.name, "instructions": len(program.instructions), "output": output})


@main.command()
@click.argument("program", default="-")
@click.option("-o", "--output", default="-", metavar="FILE", help="Write the text here instead of to stdout.")
@model_options
@json_option
def dis(program: str, output: str, model: ModelOptions, as_json: bool) -> None:
    """Turn bytecode into text again.

    The text assembles to the same program, names and comments included, and to the same bytes if the program came from
    text; one that a compiler made gets source lines. The text of an .onnx model looks for its weights beside itself;
    `dla compile` and then `dla dis` gives one that holds them.

    \b
      dla dis net.dlab | less
    """
    from dla.assembler import disassemble

    text = disassemble(source(program, model).program)
    if as_json:
        print_json({"text": text} if output == "-" else {"output": output})
    if not as_json or output != "-":
        write_result(text.encode(), output, binary=False)


@main.command()
@click.argument("program", default="-")
@click.option("--memory", is_flag=True, help="Draw scratch memory over time instead: addresses by instructions.")
@click.option("--plan", is_flag=True, help="Show how the GPU machine executes each instruction instead.")
@plan_options
@model_options
@json_option
def inspect(
    program: str, memory: bool, plan: bool, dims: tuple[str, ...], ranks: int | None,
    transport: Literal["peer", "nccl"] | None, model: ModelOptions, as_json: bool,
) -> None:  # fmt: skip
    """Show what a program contains.

    Tensors, segments, instructions, and the work of a run at its largest dims. Branches are counted as if nothing
    were skipped, functions as if they were called once.
    """
    from dla import report, report_memory, report_plan
    from dla.isa.verifier import verify

    if memory and plan:
        raise click.UsageError("--memory and --plan show different things: give one of them")
    if (dims or ranks or transport) and not plan:
        raise click.UsageError("--set, --ranks and --transport are for --plan")
    found = source(program, model).program
    verify(found)
    if plan:
        facts, parts = report_plan.view(found, parsed_dims(dims), ranks, transport)
    else:
        facts, parts = (report_memory if memory else report).view(found)
    if as_json:
        print_json(facts)
    else:
        show(*parts)


@main.command()
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...")
@model_options
@json_option
def verify(programs: tuple[str, ...], model: ModelOptions, as_json: bool) -> None:
    """Check that every machine may run a program.

    That is: shapes, extents, aliasing, control flow, initialised bytes. Every rejection names its rule, the
    instruction and its source line.
    """
    from dla.isa.verifier import verify as check

    for name in programs:
        program = source(name, model).program
        check(program)
        if not as_json:
            click.echo(f"{name}: ok, {len(program.instructions)} instructions")
    if as_json:
        print_json({"ok": list(programs)})


@main.command("compile")
@click.argument("path", metavar="MODEL.onnx")
@click.option("-o", "--output", metavar="FILE",
              help="Write the .dlab here (- is stdout) instead of to MODEL.dlab in the current folder.")  # fmt: skip
@click.option("--external", metavar="NAME", help="Keep the weights in this .safetensors file, beside the output.")
@model_options
@pass_options
@json_option
def compile_(
    path: str, model: ModelOptions, output: str | None, external: str | None, tensor_parallel: int,
    skip: tuple[str, ...], explain: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Turn an ONNX model into bytecode.

    Symbolic dims need a largest value (--bound): one program then serves all sizes up to it. Nothing is written unless
    the whole model compiles; all operators that dla lacks are named at once.

    \b
      dla compile model.onnx --bound batch=64 -o model.dlab
      dla compile model.onnx --fix batch=1 --dtype f16 --external model.safetensors
      dla compile model.onnx --bound batch=64 --explain fold
      dla compile model.onnx --bound batch=64 --tensor-parallel 4
    """
    from dla import report_compile
    from dla.isa.summary import summarise
    from dla.models import renamed

    target = output or f"{Path(path).stem}.dlab"
    request = requested(path, model)
    refuse_to_overwrite(request, target, external)
    passes = report_compile.Passes(texts=explain is not None)
    try:
        with waiting(f"compiling {path}") as tell:
            compiled = request.compile(tensor_parallel=tensor_parallel, skip=skip, explain=passes, progress=tell)
            names = renamed(request, compiled.program)
    finally:  # up to the pass that failed, too
        if explain is not None and not as_json:
            click.echo(passes.text(explain or None), err=target == "-")
    if external is not None or not (as_json and target == "-"):
        write_program(compiled.program, target, external)
    summary = summarise(compiled.program)
    if as_json:
        print_json(report_compile.compiled_facts(compiled, summary, names, passes) | {"output": target})
        return
    show(*report_compile.compiled_parts(compiled, summary, names), on_stderr=target == "-")
    if target != "-":
        note(f"wrote {target}")


# -- machines


@main.command()
@click.argument("program", default="-")
@input_options
@click.option("-o", "--output", "outputs", multiple=True, metavar="[NAME=]FILE",
              help="Write outputs to a .npz or .safetensors file, or one of them to a .npy file.")  # fmt: skip
@click.option("--state-in", metavar="FILE", help="Start with these `.state` tensors instead of zeros.")
@click.option("--state-out", metavar="FILE", help="Write the `.state` tensors as they are after the run.")
@machine_options
@model_options
@json_option
def run(
    program: str, model: ModelOptions, machine: MachineOptions, inputs: tuple[str, ...], seed: int | None,
    dims: tuple[str, ...], outputs: tuple[str, ...], state_in: str | None, state_out: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a program once; print its outputs, or write them.

    \b
      dla run net.dla --input x=images.npy --output out.npz
      dla run net.dlab -i images=data.safetensors#test_images -i more.npz
      dla run net.dla --random 1 --set batch=64 --trace
      dla run model.onnx --input x=images.npy --bound batch=64 --tune
      dla run chat.dla -i prompt=p.npy --state-in cache.npz --state-out cache.npz
      dla run allreduce.dla --ranks 4 -i x=x.npy
      dla run allreduce.dla --gpus 0,1,2,3 -i x=x.npy

    On several ranks, tensors have a leading axis of all ranks; an input without it is the same for each. Where there is
    no x.npy, x.rank0.npy, x.rank1.npy and so on will do. Ranks may be processes, too: mpirun -n 4 dla run ...

    Inputs have exactly the declared dtype; nothing is cast. NumPy's formats have no bf16: .npy and .npz hold it as two
    raw bytes per element (dtype V2).
    """
    from dla.emulator.device.context import prepare
    from dla.emulator.launcher import launched

    if machine.backend != "golden" and not launched():  # processes have GPUs of their own, not the first one
        prepare()  # takes as long as the imports that follow
    from dla import report
    from dla.emulator.tensorfiles import destinations, gather, save
    from dla.isa.descriptor import Segment

    sizes = parsed_dims(dims)
    origin = source(program, model, inputs, sizes)
    found = origin.program
    states = {t.name: t for t in found.in_segment(Segment.STATE)}
    places = destinations(outputs, [t.name for t in found.in_segment(Segment.OUTPUT)], aliases=origin.outputs)
    state_places = destinations([state_out] if state_out else [], list(states), "state")
    traced: list[dict[str, Any]] = []
    world = world_for(found, machine)
    chosen = machine_for(
        machine.backend, checked=machine.checked, shuffle=machine.shuffle, tune=machine.tune, timeout=machine.timeout,
        ranks=world.option, gpus=machine.gpus or None, transport=machine.transport,
        trace=tracer(traced if as_json else None) if machine.trace else None,
    )  # fmt: skip
    with waiting("loading the program"):
        session = chosen.load(found)
    if state_in:
        session.set_state(gather([state_in], states, "state", ranks=world.size, mine=world.mine))
    tensors = inputs_for(origin, inputs, seed, sizes, world)
    with waiting(f"running on {chosen.name}"):
        result = session.run(tensors, sizes)
    abort_with(None)  # nobody waits for this process any more
    note(f"{result.backend}: {result.elapsed * 1e3:.3f} ms" + (f", {world.size} ranks" if world.size > 1 else ""))
    for name in report.with_nans(result):
        note(f"warning: output '{name}' has NaN elements; --trace shows where they first appear")
    save(places + state_places, {**result.state, **result.outputs}, world.mine)
    if as_json:
        print_json(report.run_facts(result) | world.facts | ({"trace": traced} if machine.trace else {}))
        return
    for line in report.run_lines(result, with_outputs=not places):
        click.echo(world.prefix + line)


@main.command()
@click.argument("program", default="-")
@input_options
@click.option("--state-in", metavar="FILE", help="Start with these `.state` tensors instead of zeros.")
@click.option("--backends", default="golden,gpu", show_default=True, metavar="LIST",
              help="golden, the f64 reference, and those to compare with it: gpu, golden-f32, and onnxruntime for an "
                   ".onnx model.")  # fmt: skip
@model_options
@json_option
def compare(
    program: str, model: ModelOptions, inputs: tuple[str, ...], seed: int | None, dims: tuple[str, ...],
    state_in: str | None, backends: str, as_json: bool,
) -> None:  # fmt: skip
    """Run a program on several machines, and compare.

    Exit code 1 unless all outputs are within their bounds. The bound of each output follows from the error bounds of
    the instructions (`dla isa`), carried through the program.

    \b
      dla compare net.dla --input x=images.npy
      dla compare net.dla --random 1 --backends golden,golden-f32
      dla compare model.onnx --fix batch=1 --random 1 --backends golden,onnxruntime
    """
    from dla import report
    from dla.emulator.compare import reference
    from dla.emulator.tensorfiles import gather
    from dla.isa.descriptor import Segment
    from dla.isa.verifier import verify

    others = compared_backends(backends)
    sizes = parsed_dims(dims)
    origin = source(program, model, inputs, sizes)
    found = origin.program
    runners = {name: runner(name, origin) for name in others}
    verify(found)
    tensors = inputs_for(origin, inputs, seed, sizes)
    states = {t.name: t for t in found.in_segment(Segment.STATE)}
    state = gather([state_in], states, "state") if state_in else {}
    with waiting("running the reference"):
        oracle = reference(found, tensors, sizes, state)
    rows = []
    for name, run_on in runners.items():
        with waiting(f"running on {name}"):
            rows += [(name, c) for c in oracle.compare(run_on(tensors, sizes, state))]
    for name in report.with_nans(oracle.oracle):
        note(f"warning: output '{name}' has NaN elements, of which nothing can be compared; give other inputs")
    note(f"backends: golden (reference), {', '.join(others)}")
    if as_json:
        print_json(report.comparison_facts(rows))
    else:
        show(report.comparison_table(rows))
    if not all(comparison.ok for _, comparison in rows):
        click.get_current_context().exit(COMPARISON_FAILED)


main.add_command(profile)
main.add_command(bench)


# -- reference


@main.command("isa")
@click.argument("mnemonic", required=False)
@json_option
def isa_(mnemonic: str | None, as_json: bool) -> None:
    """List the instructions, or explain one.

    The explanation has operands, constraints, encoding, semantics and an example.

    \b
      dla isa
      dla isa softmax
    """
    from dla import report
    from dla.isa.instructions import BY_MNEMONIC, ROWS

    if mnemonic is None:
        if as_json:
            print_json([report.row_facts(row) for row in ROWS])
        else:
            show(report.isa_table(ROWS))
        return
    name = mnemonic.upper().partition(".")[0]
    if name not in BY_MNEMONIC:
        import difflib

        near = difflib.get_close_matches(name, BY_MNEMONIC, n=1)
        raise InputError(f"there is no instruction {mnemonic}",
                         hint=f"did you mean {near[0]}?" if near else "`dla isa` lists them")  # fmt: skip
    if as_json:
        print_json(report.row_facts(BY_MNEMONIC[name]))
    else:
        from dla.isa.document import page

        click.echo(page(BY_MNEMONIC[name]))


@main.command()
@click.option("--topology", is_flag=True, help="Measure copies between all GPUs, and say which need NCCL.")
@json_option
def doctor(topology: bool, as_json: bool) -> None:
    """Say what this computer offers, and what is missing.

    Looks at Python, packages, MPI, driver, CuPy, NVRTC, NCCL and GPUs, and says how to get what is missing.
    """
    from dla import report
    from dla.emulator.doctor import Finding, Level, examine
    from dla.isa.folders import cache_folder

    with waiting("examining"):
        findings = [*examine(), Finding("model cache", str(cache_folder()), Level.INFO)]
    found = None
    if topology:
        from dla.emulator.topology import links

        with waiting("copying between GPUs"):
            found = links()
    if as_json:
        print_json(report.doctor_facts(findings, found))
        return
    show(report.doctor_table(findings))
    if found is not None:
        show(report.topology_table(found))


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
      bash:  eval "$(dla completion bash)"      in ~/.bashrc
      zsh:   eval "$(dla completion zsh)"       in ~/.zshrc
      fish:  dla completion fish > ~/.config/fish/completions/dla.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None, "click knows every shell of the choice above"
    click.echo(script(main, {}, "dla", "_DLA_COMPLETE").source())
