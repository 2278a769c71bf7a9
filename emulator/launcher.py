"""What launchers of several processes, MPI's or Slurm's, tell those that they start. Costs no import."""

from __future__ import annotations

import os

RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Variables that MPICH's, Open MPI's and other launchers give to the processes that they start: which one it is."""
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""How many there are, if the launcher says so (PMIx does not)."""


def launched() -> bool:
    """Whether a launcher started this process, and maybe others with it."""
    return any(name in os.environ for name in RANKS)


def started_several() -> bool | None:
    """Whether the launcher started several processes; None where nothing says how many."""
    sizes = [os.environ[name] for name in SIZES if name in os.environ]
    return any(size != "1" for size in sizes) if sizes else None


def is_first() -> bool:
    """Whether this is the first process, as far as the launcher says."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)
