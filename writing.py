"""Programs that commands write: where to, and what must not be replaced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dla.console import write_result
from dla.isa.errors import InputError
from dla.isa.names import shown

if TYPE_CHECKING:
    from dla.isa.program import Program
    from dla.models import Request


def write_program(program: Program, output: str, external: str | None) -> None:
    """`program` as a .dlab file, its weights beside it in the file `external` if that is asked for."""
    from dla.isa.container import save, write_bytes

    if output != "-":
        save(program, Path(output), external=None if external is None else Path(external))
    elif external is not None:
        raise InputError("--external needs a file to stand beside", hint="add -o FILE.dlab")
    else:
        write_result(write_bytes(program), output, binary=True)


def refuse_to_overwrite(request: Request, target: str, external: str | None) -> None:
    """Raise InputError where what is written would replace the model, or one file the other."""
    read = [request.path, *(request.path.parent / name for name in request.model.values.files if name)]
    written = [] if target == "-" else [Path(target)]
    written += [] if external is None else [Path(target).parent / Path(external).name]
    for path in written:
        if any(path.resolve() == other.resolve() for other in read):
            raise InputError(f"'{shown(path)}' is a file of the model, and would be replaced", hint="write elsewhere")
    if len({path.resolve() for path in written}) != len(written):
        raise InputError(f"'{shown(target)}' cannot hold both the program and its weights")
