"""Compile the natives of whole networks, all at the same time: `python benchmarks/compile_natives.py`.

torch.compile's max-autotune takes minutes for one of them, nearly all on processors. Here each has a process, and they
take turns where they time kernels on the GPU. What comes of it is kept in a folder (build/natives), from which speed.py
loads it when it times them, alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from speed.prepared import FALLBACK, FOLDER, FULL, Prepared

CHILD = Path(__file__).parent / "compile_native.py"
TICK_SECONDS = 0.2


def run_all(
    commands: Mapping[str, Sequence[str]], logs: Callable[[str], Path], seconds: float, environment: Mapping[str, str]
) -> dict[str, float | None]:
    """Run commands side by side; by name, the seconds until each succeeded, None where it failed or had to be ended."""
    began = time.perf_counter()
    found: dict[str, float | None] = {}
    running = {}
    for name, command in commands.items():
        with logs(name).open("w") as log:
            running[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
            )
    try:
        while running and time.perf_counter() - began < seconds:
            time.sleep(TICK_SECONDS)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                taken = time.perf_counter() - began
                status = running.pop(name).returncode
                found[name] = taken if status == 0 else None
                click.echo(f"{name}: " + (f"{taken:.0f} s" if status == 0 else f"failed, see {logs(name)}"))
    finally:
        for name, process in running.items():
            os.killpg(process.pid, signal.SIGKILL)  # its own session: with the processes that compile for it
            process.wait()
            found[name] = None
            click.echo(f"{name}: ended after {time.perf_counter() - began:.0f} s")
    return found


def compile_all(names: Sequence[str], folder: Path, mode: str, seconds: float, threads: int) -> list[str]:
    """Compile the natives of these rows in `mode`; the names of those that did not get there."""
    prepared = Prepared(folder)
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(prepared.cache), "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    }  # fmt: skip
    commands = {name: (sys.executable, str(CHILD), str(folder), mode, name) for name in names}
    found = run_all(commands, prepared.log, seconds, environment)
    return [name for name in names if found[name] is None]


@click.command()
@click.option("--rows", default="", metavar="REGEX", help="Only rows whose name this finds.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True, help="Where to.")
@click.option("--seconds", default=480.0, show_default=True, help="The most that max-autotune may take.")
@click.option("--threads", type=int, help="Processes that compile for each network. [default: half the processors]")
@click.option("--again", is_flag=True, help="Compile what is there already, too.")
def main(rows: str, folder: Path, seconds: float, threads: int | None, again: bool) -> None:
    """Compile natives ahead of speed.py; those that max-autotune does not end for get the default mode."""
    import compile_native  # imports torch, which tests of what is above do without

    version = compile_native.torch.__version__

    wanted = [name for name in compile_native.ROWS if re.search(rows, name, re.IGNORECASE)]
    left = [name for name in wanted if again or Prepared(folder).mode(name, version) != FULL]
    threads = threads or max(2, (os.cpu_count() or 2) // 2)
    left = compile_all(left, folder, FULL, seconds, threads)
    left = compile_all(left, folder, FALLBACK, seconds / 4, threads)
    if left:
        click.echo(f"not compiled: {', '.join(left)}")


if __name__ == "__main__":
    main()
