"""One network's native, compiled by a process of its own: `python compile_native.py FOLDER MODE ROW`.

Started by compile_natives.py, beside others of its kind.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from speed import chains, compiling, decode, networks
from speed.bench import Bench, Ours
from speed.prepared import Prepared
from speed.row import Action, Row

from dla.isa.program import Program

ROWS: dict[str, Row] = {row.name: row for family in (chains, networks, decode) for row in family.ROWS if row.compiled}


@dataclass
class Preparing(Bench):
    """A bench that compiles natives, and runs nothing else."""

    def ours(
        self, program: Program, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int] | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> Ours:  # fmt: skip
        """Nothing that could be run."""
        return Ours()

    def compiled(self, function: Callable[..., Any], *given: Any) -> Mapping[str, Action]:
        """Compile, and run: kernels without matrix products are tuned when they run first."""
        assert self.compile_mode is not None
        told = functools.partial(_told, time.perf_counter())
        made = compiling.optimised(function, self.compile_mode)
        for turn in range(2):
            made(*given)
            if self.device == "cuda":
                torch.cuda.synchronize()
            told(f"run {turn + 1}")
        return {}


def _told(began: float, what: str) -> None:
    print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    """Compile the native that the arguments name, and keep what comes of it."""
    folder, mode, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    began = time.perf_counter()
    compiling.take_turns(folder / "measuring.lock")
    bench = Preparing(compile_mode=mode)
    with bench.stream():
        ROWS[name].case(bench)
    about = {"mode": mode, "seconds": time.perf_counter() - began, "torch": torch.__version__}
    Prepared(folder).keep(name, compiling.artifacts(), about)
    _told(began, "all")


if __name__ == "__main__":
    main()
