"""docs/compiler.md: its list of passes is that of the compiler, and what it names exists."""

from __future__ import annotations

import re

import pytest

from dla.compiler import document

TEXT = document.GUIDE.read_text(encoding="utf-8")


def test_the_guide_lists_the_passes() -> None:
    """The list is written from the passes; after a change of them, `python -m dla.compiler.document` does it anew."""
    assert document.with_passes(TEXT) == TEXT


@pytest.mark.parametrize("path", re.findall(r"`(compiler/[\w/.]+)`", TEXT))
def test_what_the_guide_names_exists(path: str) -> None:
    """Files and folders of the compiler."""
    assert (document.GUIDE.parent.parent / path).exists()
