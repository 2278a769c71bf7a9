"""Output files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dla.isa.errors import InputError

_HINTS = {
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EACCES: "write to a folder of yours",
    errno.EROFS: "write to another folder",
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some space, or write to another disk",
}


@contextlib.contextmanager
def replacing(*targets: Path) -> Iterator[tuple[BinaryIO, ...]]:
    """One binary file per target, open for writing; on success they become the targets, otherwise nothing changes.

    Each is a temporary file in its target's folder: written, fsynced, and renamed when all are complete. A target that
    is not a regular file (a pipe, /dev/stdout) is written directly. The body should do nothing but write: an OSError
    in it counts as a refusal to write. Raises InputError where the system refuses (full disk, no such folder).
    """
    pending: list[tuple[Path, Path]] = []  # (temporary file, file that it replaces)
    files: list[BinaryIO] = []
    current = targets[0]
    try:
        for current in targets:
            temporary, target = _beside(current)
            files.append(temporary.open("wb" if temporary == target else "xb"))
            if temporary != target:
                pending.append((temporary, target))
        yield tuple(files)
        for current, file in zip(targets, files, strict=True):  # noqa: B007  # the handler below names `current`
            _finish(file)
        while pending:
            temporary, current = pending[0]
            temporary.replace(current)
            del pending[0]
    except OSError as error:
        message = f"cannot write '{current}': {error.strerror or error}"
        raise InputError(message, hint=_HINTS.get(error.errno or 0)) from error
    finally:
        for file in files:
            with contextlib.suppress(OSError):  # what a full disk refuses to take is dropped with the file
                file.close()
        for temporary, _ in pending:
            temporary.unlink(missing_ok=True)


def _beside(path: Path) -> tuple[Path, Path]:
    """(temporary file, file that it replaces); `path` twice where it must be written directly."""
    target = path.resolve()  # a symbolic link stays a link: what it points at is replaced
    if target.exists() and not target.is_file():
        return path, path
    return target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp"), target


def _finish(file: BinaryIO) -> None:
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())
    file.close()
