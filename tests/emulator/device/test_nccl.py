"""NCCL as the machine uses it: what is missing is said, and what fails leaves nothing open."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dla.emulator.device import nccl
from dla.emulator.device.nccl import Communicators, Round, Transfer
from dla.isa.errors import BackendError, InputError, Trap
from dla.tests.emulator.device import fake_cupy, fake_nccl

STREAMS = {rank: SimpleNamespace(ptr=0) for rank in range(2)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_nccl.Library:
    """In NCCL's place."""
    found = fake_nccl.Library()
    monkeypatch.setattr(nccl, "library", lambda: found)
    return found


@pytest.mark.parametrize("module", [None, SimpleNamespace(nccl=SimpleNamespace(available=False))])
def test_nccl_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    """Whether CuPy is, or what it needs; with how to get it."""
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda", module)
    with pytest.raises(BackendError, match="need NCCL") as caught:
        nccl.version()
    assert "nvidia-nccl" in str(caught.value.hint)


def test_its_version_is_readable(fake: fake_nccl.Library) -> None:
    """NCCL has it as one number."""
    assert nccl.version() == "2.28.3"


def test_a_rank_has_a_gpu_for_itself(fake: fake_nccl.Library) -> None:
    """NCCL would say so less clearly."""
    with pytest.raises(InputError, match="GPU 3 has several"):
        Communicators.of_gpus(fake_cupy.make(), [1, 3, 3])


def test_ranks_that_do_not_connect(fake: fake_nccl.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a missing backend, with what NCCL says."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: no route")

    monkeypatch.setattr(fake_nccl.Library, "NcclCommunicator", SimpleNamespace(initAll=fail))
    with pytest.raises(BackendError, match="NCCL does not connect the ranks: NCCL_ERROR_SYSTEM_ERROR: no route"):
        Communicators.of_gpus(fake_cupy.make(), [0, 1])


def test_bytes_go_from_rank_to_rank(fake: fake_nccl.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways at the same time; several between two ranks keep their order."""
    cupy = fake_cupy.make()
    monkeypatch.setattr(cupy.cuda.runtime, "streamQuery", lambda stream: 600 if fake.is_busy() else 0)
    communicators = Communicators.of_gpus(cupy, [0, 1])
    memory = np.arange(40, dtype=np.uint8)
    at = memory.ctypes.data
    rounds = {
        0: Round([Transfer(1, at, 3), Transfer(1, at + 3, 2)], [Transfer(1, at + 20, 4)]),
        1: Round([Transfer(0, at + 8, 4)], [Transfer(0, at + 30, 3), Transfer(0, at + 34, 2)]),
    }
    communicators.exchange(rounds, STREAMS)
    communicators.wait(STREAMS, 5.0)
    assert memory[20:24].tolist() == [8, 9, 10, 11]
    assert memory[30:36].tolist() == [0, 1, 2, 33, 3, 4]
    assert fake.wire.is_empty


def test_an_order_that_fails_leaves_no_group_open(fake: fake_nccl.Library) -> None:
    """NCCL would put all later orders into it, and never begin."""
    cupy = fake_cupy.make()
    fake.fails = True
    with pytest.raises(Trap, match="planted"):
        Communicators.of_gpus(cupy, [0, 1]).exchange({0: Round([Transfer(1, 0, 1)], [])}, STREAMS)
    fake.fails = False
    Communicators.of_gpus(cupy, [0, 1]).exchange({}, STREAMS)
