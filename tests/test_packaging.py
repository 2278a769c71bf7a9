"""What is installed: the package list agrees with the tree, and data files travel along."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUTSIDE_THE_WHEEL = {"tests", "docs", "benchmarks", "programs", "build", "dist"}
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_is_listed() -> None:
    """A folder with an __init__.py that pyproject.toml forgets would be missing from the wheel."""
    folders = [path.parent.relative_to(ROOT).parts for path in ROOT.rglob("__init__.py")]
    kept = [parts for parts in folders if not parts or (parts[0] not in OUTSIDE_THE_WHEEL and parts[0][0] != ".")]
    assert sorted(SETUPTOOLS["packages"]) == sorted(".".join(("dla", *parts)) for parts in kept)


def test_every_data_file_is_listed() -> None:
    """A grammar or CUDA file that no pattern of package-data matches would be missing from the wheel."""
    listed = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    areas = {package.split(".")[1] for package in SETUPTOOLS["packages"] if "." in package}
    data = {path for area in areas for path in (ROOT / area).rglob("*") if path.suffix in {".lark", ".cu", ".cuh"}}
    assert data <= listed
