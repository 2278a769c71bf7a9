"""`make demo`: what a newcomer sees first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "programs" / "demo.py"
FLOORS = {"digits_mlp": 96, "digits_cnn": 98, "digits_transformer": 97}


def test_the_demo_shows_three_accuracies_and_which_machine_ran() -> None:
    """Each network's line has an accuracy above its floor and the name of the backend."""
    out = subprocess.run([sys.executable, str(DEMO)], check=True, capture_output=True, text=True).stdout
    for name, floor in FLOORS.items():
        found = re.findall(rf"{name}\D+\d+\D+([\d.]+)%.*(golden|gpu)", out)
        assert found, out
        assert all(float(accuracy) >= floor for accuracy, _ in found)
    assert "attention_decode" in out
