"""A plan in device memory: the tables that the kernel reads, and what launches of it leave for one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.emulator.device.build import Kernel
from dla.emulator.device.layout import COUNTER_WORDS, FIRST_TILE_BYTES, FIRST_WORK_BYTES, PROBE, WARP
from dla.emulator.device.memory import DeviceMemory
from dla.emulator.device.plan import Plan
from dla.isa.dtypes import Array


class LoadedPlan:
    """A plan with its tables, completion counters, workspace and probes, all its own."""

    def __init__(self, plan: Plan, memory: DeviceMemory, blocks: int) -> None:
        self.plan = plan
        self._memory = memory
        upload = memory.upload
        self._tables = {
            "images": upload(plan.images),
            "image_places": upload(plan.image_places),
            "maps": upload(np.frombuffer(b"".join(m.encode() for m in plan.maps), np.uint8)),
            "first": upload(np.zeros(FIRST_WORK_BYTES + blocks * FIRST_TILE_BYTES, np.uint8)),
            "workspace": upload(np.zeros(plan.workspace_bytes, np.uint8)),
            "exchange": upload(np.full(2 * plan.exchange_bytes, 0xFF, np.uint8)),
            "counters": upload(np.zeros(COUNTER_WORDS, np.uint32)),
            "probes": upload(np.zeros(max(1, len(plan.probes)), PROBE.dtype)),
        }

    @property
    def nbytes(self) -> int:
        """Of device memory, but for small tables."""
        return self.plan.images.nbytes + self.plan.workspace_bytes + 2 * self.plan.exchange_bytes

    def describe(self, record: Any) -> None:
        """Enter it in the LAUNCH `record` that the kernel is given."""
        for name, table in self._tables.items():
            record[name] = table.ptr
        record["instructions"] = len(self.plan.executed.instructions)
        record["first_pieces"], record["pairs"] = self.plan.first_pieces, self.plan.pairs
        record["first_work"], record["exchange_bytes"] = self.plan.first_work, self.plan.exchange_bytes

    def prepare(self, kernel: Kernel, blocks: int, record: Any) -> None:
        """Let the GPU fill in what it alone knows of the images, once; `record` describes this plan. Not waited for."""
        with self._memory.stream:
            given = kernel.parameter([record])
            kernel.prepare((blocks,), (WARP,), (given,), shared_mem=kernel.shared_bytes)

    def clear(self) -> None:
        """Make the next launch start afresh; not waited for."""
        clear, tables = self._memory.clear, self._tables
        clear(tables["counters"].ptr, 4 * COUNTER_WORDS)
        clear(tables["workspace"].ptr, self.plan.workspace_bytes)
        clear(tables["exchange"].ptr, 2 * self.plan.exchange_bytes, 0xFF)

    def clear_probes(self) -> None:
        """Forget what PROBE has reported; not waited for."""
        if self.plan.probes:
            self._memory.clear(self._tables["probes"].ptr, len(self.plan.probes) * PROBE.dtype.itemsize)

    def probes(self) -> Array:
        """What PROBE has reported: PROBE records, one for each of `plan.probes`."""
        return self._memory.fetch(self._tables["probes"].ptr, PROBE.dtype, len(self.plan.probes))
