"""Native kernels: for each tensor instruction, the call in PyTorch that does the same work.

`NATIVE[mnemonic](given)` gives a `Call`, or raises `NoNativeError` with the reason; `WHY_NOT` has those of whole rows.
Importing this package imports PyTorch; `dla.profiler.native.measure` says so where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable

from dla.profiler.native import data, matrix, networks, pointwise
from dla.profiler.native.given import Call, Given

NATIVE: dict[str, Callable[[Given], Call]] = {
    "COPY": data.copy, "FILL": data.fill, "IOTA": data.iota, "PAD": data.pad, "GATHER": data.gather,
    "SCATTER": data.scatter, "ACT": pointwise.act, "EW": pointwise.ew, "SELECT": pointwise.select,
    "REDUCE": pointwise.reduce, "SCAN": pointwise.scan, "GEMM": matrix.gemm, "CONV": matrix.conv,
    "POOL": networks.pool, "NORM": networks.norm, "SOFTMAX": networks.softmax, "ATTENTION": matrix.attention,
    "ROPE": networks.rope, "RNN": networks.rnn, "TOPK": networks.topk,
}  # fmt: skip

_BETWEEN_RANKS = "it works between ranks, and the machine that is measured is the only one"
WHY_NOT: dict[str, str] = {
    "RESIZE": "PyTorch resamples by a rule (torch.nn.functional.interpolate), not by a table of indices and weights",
    "ALLREDUCE": _BETWEEN_RANKS, "ALLGATHER": _BETWEEN_RANKS, "REDUCESCATTER": _BETWEEN_RANKS,
    "ALLTOALL": _BETWEEN_RANKS, "BROADCAST": _BETWEEN_RANKS, "PERMUTE": _BETWEEN_RANKS,
}  # fmt: skip
"""Rows without a counterpart. Together with NATIVE, every tensor instruction: a test holds that."""
