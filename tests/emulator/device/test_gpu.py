"""Which GPU there is, asked of a driver that is made up, and of one that is not there."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dla.emulator.device import gpu

HOPPER = {16: 132, 75: 9, 76: 0}


class Driver:
    """libcuda, with one device; `fails` names the call that does not succeed."""

    def __init__(self, attributes: dict[int, int], fails: str = "") -> None:
        self.attributes, self.fails = attributes, fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cuDeviceGet":
                arguments[0]._obj.value = 7
                return int(arguments[1] != 0 or name == self.fails)
            if name == "cuDeviceGetName":
                arguments[0].value = b"NVIDIA H200"
                assert arguments[2].value == 7
            elif name == "cuDriverGetVersion":
                arguments[0]._obj.value = 13000
            elif name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = self.attributes[arguments[1]]
            return int(name == self.fails)

        return call


def test_a_gpu_is_what_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, multiprocessors, capability, driver; a Hopper GPU has its own architecture, others the plain one."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(HOPPER))
    found = gpu.present()
    assert found == gpu.Gpu("NVIDIA H200", 132, 90, 13000)
    assert found.architecture == "sm_90a"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver({16: 108, 75: 8, 76: 0}))
    ampere = gpu.present()
    assert ampere is not None
    assert (ampere.capability, ampere.architecture) == (80, "sm_80")


@pytest.mark.parametrize("fails", ["cuInit", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute"])
def test_where_a_call_fails_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """A driver without a device is none."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(HOPPER, fails))
    assert gpu.present() is None


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is there an error."""

    def absent(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert gpu.present() is None
