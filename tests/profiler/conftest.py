"""What tests of several reports share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: one that is installed, or playwright's own."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    installed = next(filter(None, map(shutil.which, names)), None)
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        except sync_api.Error:
            pytest.skip("needs a browser: `playwright install chromium`")
        yield found
        found.close()
