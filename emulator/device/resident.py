"""Constants on the device: copied there once per program, however many sessions run it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dla.emulator.device.laid_out import Matrix, transpose
from dla.emulator.ranks import constants_of
from dla.isa.dtypes import Array
from dla.isa.program import Program

PIECE_BYTES = 2**23
"""A large block goes in pieces of this size: into pinned memory by a thread of the host, from there by the GPU."""
THREADS = 4
"""Threads that fill pinned memory or transpose: one reads or copies at a fraction of what the bus takes."""
_STAGED_BYTES = 8 * PIECE_BYTES
"""Below this much in all, the driver's own copy is as fast as starting threads."""


@dataclass(eq=False)
class Constants:
    """The const segment of `program` in device memory, as one rank has it, with some of its matrices transposed."""

    program: Program  # keeps the key of _RESIDENT its own
    memory: Any


_RESIDENT: weakref.WeakValueDictionary[tuple[int, int, int, bool], Constants] = weakref.WeakValueDictionary()
"""By (device, id of the program, rank where ranks have pieces, whether matrices are transposed); an entry goes with the
last session that uses it."""


def resident(
    cupy: Any, program: Program, rank: int, matrices: Sequence[Matrix], allocate: Callable[[], Any]
) -> Constants:
    """The constants that `rank` has of `program`, on the current device, with `matrices` transposed (laid_out.py).

    They are copied into memory from `allocate` if no session has them yet.

    Raises InputError or ContainerError where external weights are missing or do not fit.
    """
    key = cupy.cuda.Device().id, id(program), rank if program.shards else 0, bool(matrices)
    found = _RESIDENT.get(key)
    if found is None:
        found = Constants(program, allocate())
        cupy.cuda.runtime.deviceSynchronize()  # the zeros are there before other streams copy over them
        blocks = [(found.memory.ptr + b.offset, b.data) for b in constants_of(program, rank) if b.data.nbytes]
        if sum(data.nbytes for _, data in blocks) > _STAGED_BYTES:
            _copy_staged(cupy, blocks)
        else:
            for address, data in blocks:
                _copy(cupy, address, np.ascontiguousarray(data))
        cupy.cuda.runtime.deviceSynchronize()  # a copy from pageable memory returns before it has arrived
        _transpose(cupy, found.memory.ptr, matrices)
        _RESIDENT[key] = found
    return found


def _transpose(cupy: Any, start: int, matrices: Sequence[Matrix]) -> None:
    """Transpose matrices of the const segment at device address `start`; on the host: a GPU may not have the room."""
    device = cupy.cuda.Device().id

    def turn(m: Matrix) -> None:
        held = np.empty(m.nbytes, np.uint8)
        runtime = cupy.cuda.runtime
        with cupy.cuda.Device(device):
            runtime.memcpy(held.ctypes.data, start + m.offset, m.nbytes, runtime.memcpyDeviceToHost)
            transpose(held, [replace(m, offset=0)])
            _copy(cupy, start + m.offset, held)
            runtime.deviceSynchronize()  # a copy from pageable memory returns before it has arrived

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(turn, matrices))


def _copy(cupy: Any, address: int, data: Array) -> None:
    cupy.cuda.runtime.memcpy(address, data.ctypes.data, data.nbytes, cupy.cuda.runtime.memcpyHostToDevice)


def _copy_staged(cupy: Any, blocks: list[tuple[int, Array]]) -> None:
    """Copy `blocks` (device address, u8 array) in pieces, several of which are on their way at a time."""
    device = cupy.cuda.Device().id
    pieces = list(_pieces(blocks))

    def carry(first: int) -> None:
        runtime = cupy.cuda.runtime
        with cupy.cuda.Device(device):
            stream = cupy.cuda.Stream(non_blocking=True)
            # Two places: one is filled while the GPU reads the other.
            memories = [cupy.cuda.alloc_pinned_memory(PIECE_BYTES) for _ in range(2)]
            places = [np.frombuffer(memory, np.uint8, PIECE_BYTES) for memory in memories]
            events = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]
            for turn, (address, data) in enumerate(pieces[first::THREADS]):
                place, event = places[turn % 2], events[turn % 2]
                event.synchronize()  # at once where it has never been recorded
                place[: data.nbytes] = data
                kind = runtime.memcpyHostToDevice
                runtime.memcpyAsync(address, place.ctypes.data, data.nbytes, kind, stream.ptr)
                event.record(stream)
            stream.synchronize()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(carry, range(THREADS)))


def _pieces(blocks: list[tuple[int, Array]]) -> Iterator[tuple[int, Array]]:
    for address, data in blocks:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        for start in range(0, flat.nbytes, PIECE_BYTES):
            yield address + start, flat[start : start + PIECE_BYTES]
