"""Starting CUDA in the background: a fifth of a second that needs no Python, while Python imports and reads."""

from __future__ import annotations

import ctypes
import threading


def prepare() -> None:
    """Begin to make the context of device 0, which CuPy will use; at once, and without a word where there is no GPU."""
    threading.Thread(target=_retain, name="dla-cuda-context", daemon=True).start()


def _retain() -> None:
    """CUDA Driver API: cuInit, then the primary context, kept until the process ends."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
