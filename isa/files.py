"""Reading files safely: regular files only, memory-mapped without copying. Writing is in `atomic.py`."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from dla.isa.errors import InputError
from dla.isa.names import shown

Chunk = bytes | memoryview
"""A piece of a file that is read or written."""


def map_file(path: Path) -> memoryview:
    """The bytes of the regular file `path`, memory-mapped read-only. Raises InputError.

    The map stays valid if the file is replaced by a rename. A FIFO or device is refused without waiting for it.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes would hang otherwise.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise InputError(f"there is no file '{shown(path)}'") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot open '{shown(path)}': {getattr(error, 'strerror', None) or error}") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"'{shown(path)}' is not a regular file")
        if status.st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise InputError(f"cannot read '{shown(path)}': {error.strerror or error}") from None
    finally:
        os.close(handle)
