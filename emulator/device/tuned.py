"""What was measured, on disk: one file for each GPU, driver and build of the machine, in the cache folder.

    tuned-nvidia_h200-<digest>.json
    {"gpu": ..., "kernel": ..., "measured": {"GEMM of 30 out:bf16[128,4096]...": {"way": {...}, "us": 14.2}, ...}}

Nothing there is trusted: a way counts only where the path still offers it, and a file that is not as described here is
left alone until the next measurement replaces it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dla.emulator.device import source
from dla.emulator.device.gpu import Gpu
from dla.emulator.device.paths.choices import Measured
from dla.isa.folders import alone, cache_folder

_DIGITS = 16


class Store:
    """Choices that were measured, in the file `path`, which need not exist; it is read when somebody first asks.

    `about` says what they were measured on, and stands in the file. `warn` hears of a file that cannot be used.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        self.path = path
        self._about = json.loads(json.dumps(about))
        self._warn = warn

    def measured(self, key: str) -> Measured | None:
        """The quickest way of the instruction that `key` describes; None where nobody measured it."""
        return self._known.get(key)

    def add(self, found: Mapping[str, Measured]) -> None:
        """Keep what was found, beside what this and other processes found before. A full disk is only warned of."""
        self._known.update(found)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with alone(self.path.parent):
                self._known = {**self._read(), **self._known}
                self._write()
        except OSError as error:
            self._warn(f"warning: what was measured cannot be kept: {error}")

    @cached_property
    def _known(self) -> dict[str, Measured]:
        return self._read()

    def _read(self) -> dict[str, Measured]:
        """What the file has; nothing where there is none, or where it is damaged."""
        try:
            held = json.loads(self.path.read_bytes())
            if {name: held[name] for name in self._about} != self._about:
                raise ValueError("it is about something else")
            return {str(key): _entry(fields) for key, fields in held["measured"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._warn(
                f"warning: '{self.path}' is damaged ({error}): what was measured on this GPU is not used. "
                "The next run with --tune measures again, and replaces it"
            )
            return {}

    def _write(self) -> None:
        entries = {key: {"way": known.fields, "us": known.seconds * 1e6} for key, known in sorted(self._known.items())}
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({**self._about, "measured": entries}, file, indent=1)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _entry(fields: Any) -> Measured:
    """One entry of the file. Raises ValueError, KeyError or TypeError where it is none."""
    microseconds = float(fields["us"])
    if not isinstance(fields["way"], dict) or not 0 < microseconds < math.inf:
        raise ValueError("an entry has no way, or no time")
    return Measured(fields["way"], microseconds / 1e6)


def store(
    gpu: Gpu, warn: Callable[[str], None], *, architecture: str | None = None, checked: bool = False,
    only: frozenset[str] | None = None,
) -> Store:  # fmt: skip
    """What was measured on `gpu` with the build of these options; see `build.kernel`."""
    built_for = architecture or gpu.architecture
    about = {**asdict(gpu), "architecture": built_for, "checked": checked, "kernel": _digest(only)}
    digits = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    plain = re.sub(r"[^a-z0-9]+", "_", gpu.name.lower())
    return Store(cache_folder() / f"tuned-{plain}-{digits}.json", about, warn)


@cache
def _digest(only: frozenset[str] | None) -> str:
    """Of the kernel's source, and of the paths that decide how it is used: both say what a measured time is of."""
    digest = hashlib.sha256(source.source(only).encode())
    for path in sorted((Path(__file__).parent / "paths").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[: 2 * _DIGITS]
