"""Locks between processes that share a folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dla.isa.folders import alone


@pytest.mark.parametrize("name", ["", "file"])
def test_one_is_there_at_a_time(tmp_path: Path, name: str) -> None:
    """A folder, or a file that need not exist."""
    here, most = 0, 0
    counting = threading.Lock()

    def enter() -> None:
        nonlocal here, most
        with alone(tmp_path / name):
            with counting:
                here += 1
                most = max(most, here)
            threading.Event().wait(0.005)
            with counting:
                here -= 1

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (here, most) == (0, 1)


def test_what_cannot_be_locked_is_not(tmp_path: Path) -> None:
    """Whoever writes there afterwards says so."""
    with alone(tmp_path / "absent" / "file"):
        assert not (tmp_path / "absent").exists()
