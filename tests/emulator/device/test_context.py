"""Starting CUDA early must never be noticed where there is no CUDA."""

from __future__ import annotations

import ctypes

import pytest

from dla.emulator.device import context


def test_no_driver_is_no_error(monkeypatch):
    """Whoever asks for a GPU later is told properly."""

    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    context._retain()


@pytest.mark.parametrize("failing", ["cuInit", "cuDeviceGet"])
def test_a_driver_that_fails_is_left_alone(monkeypatch, failing):
    """No call follows one that failed."""
    called = []

    class Driver:
        """The CUDA driver, of which one function fails."""

        def __getattr__(self, name: str):
            return lambda *arguments: called.append(name) or int(name == failing)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    context._retain()
    assert called[-1] == failing
