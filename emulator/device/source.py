"""The machine's CUDA source as one text: includes flattened, generated parts filled in.

One text, because builds are kept under a key of their text (cubin.py): nothing that they include can go stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from dla.emulator.device import generate, layout, wgmma

KERNEL_FOLDER = Path(__file__).parent / "kernel"
KERNEL_NAME = "dla_machine"
PREPARE_NAME = "dla_prepare"
_INCLUDE = re.compile(r'^#include "((?:hopper/)?[a-z_]+\.cuh?)"$', re.MULTILINE)
_GENERATED = {
    "layout.cuh": layout.cuda,
    "generated.cuh": generate.constants_and_views,
    "views.cuh": generate.views,
    "activate.cuh": generate.activate,
    "wgmma.cuh": wgmma.cuda,
}

_QUICK_SINCE = (12, 9)
"""The version of NVRTC from which on it can be told to compile quickly."""

_REPLACED: dict[str, str] = {}


@cache
def source(only: frozenset[str] | None = None) -> str:
    """The whole kernel, ready for NVRTC. Raises FileNotFoundError naming the handler file that a row lacks.

    `only`: mnemonics of the tensor rows to have; all by default.
    """
    return _flatten("machine.cu", set(), only)


@contextmanager
def replacing(files: Mapping[str, str]) -> Iterator[None]:
    """Within, `files` (texts by name) stand in for the kernel's own: so the tests put another machine under it."""
    _REPLACED.update(files)
    try:
        yield
    finally:
        _REPLACED.clear()


def _flatten(name: str, seen: set[str], only: frozenset[str] | None) -> str:
    """The text of `name` with its includes in place, each once."""
    if name in seen:
        return ""
    seen.add(name)
    generated = _GENERATED.get(name)
    if name in _REPLACED:
        text = _REPLACED[name]
    elif name == "handlers.cuh":
        text = generate.handlers(only)
    else:
        text = generated() if generated else (KERNEL_FOLDER / name).read_text()
    text = text.replace("#pragma once\n", "")
    # #line keeps the compiler's messages pointing at the file that people edit.
    return _INCLUDE.sub(
        lambda match: f'{_flatten(match[1], seen, only)}\n#line 1 "{name}"', f'#line 1 "{name}"\n{text}'
    )


def options(
    *, checked: bool = False, traced: bool = False, ranked: bool = False, nvrtc: tuple[int, int]
) -> tuple[str, ...]:
    """Compiler options of a build by this version of NVRTC, without the architecture.

    `checked` bounds-checks every access, and knows its lines. `traced` notes when each block did what.
    `ranked` is for programs of several ranks, which send to each other.

    Line numbers are two thirds of a build, which is kept on disk and loaded by the driver.
    """
    macros = [("-lineinfo", "-DDLA_CHECKED")] * checked + [("-DDLA_TRACED",)] * traced + [("-DDLA_RANKS",)] * ranked
    # 4,800 checks: optimised over all functions at once, they take the assembler hours; so, minutes.
    quick = ("--Ofast-compile=min",) * (checked and nvrtc >= _QUICK_SINCE)
    return ("--std=c++17", *(option for options in macros for option in options), *quick)
