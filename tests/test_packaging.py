"""What is installed: the package list agrees with the tree, and data files travel along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OUTSIDE_THE_WHEEL = {"tests", "docs", "benchmarks", "programs", "build", "dist"}
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_is_listed() -> None:
    """A folder with an __init__.py that pyproject.toml forgets would be missing from the wheel."""
    folders = [path.parent.relative_to(ROOT).parts for path in ROOT.rglob("__init__.py")]
    kept = [parts for parts in folders if not parts or (parts[0] not in OUTSIDE_THE_WHEEL and parts[0][0] != ".")]
    assert sorted(SETUPTOOLS["packages"]) == sorted(".".join(("dla", *parts)) for parts in kept)


def test_every_data_file_is_listed() -> None:
    """A grammar, a CUDA file or part of a page that no pattern of package-data matches would not be in the wheel."""
    listed = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    areas = {package.split(".")[1] for package in SETUPTOOLS["packages"] if "." in package}
    suffixes = {".lark", ".cu", ".cuh", ".html", ".css", ".js"}
    data = {path for area in areas for path in (ROOT / area).rglob("*") if path.suffix in suffixes}
    assert data <= listed


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was unpacked, as pip would; built from a copy, so that nothing is left here."""
    pytest.importorskip("setuptools", minversion="77", reason="building the wheel needs setuptools 77")
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "results")
    shutil.copytree(ROOT, folder / "source", ignore=ignored)
    build = "import setuptools.build_meta as b; b.build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=folder / "source", check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_only_the_package(installed: Path) -> None:
    """Neither tests nor programs nor the README land in site-packages."""
    tops = {path.name for path in installed.iterdir()}
    assert {"dla"} == {name for name in tops if not name.endswith(".dist-info")}
    assert not {"tests", "programs", "benchmarks", "docs", "README.md"} & {
        p.name for p in (installed / "dla").iterdir()
    }


def test_an_installed_package_works_anywhere(installed: Path, tmp_path: Path) -> None:
    """Away from the clone, `dla` assembles (finding its grammar), verifies and runs a program."""
    (tmp_path / "p.dla").write_text(".program p\n.output y : i32[2]\nmain:\n    FILL y, 7\n    HALT\n")
    code = (
        "import dla, sys; assert dla.__file__.startswith(sys.argv.pop(1)); from dla.cli import main; "
        "main(['run', 'p.dla', '--backend', 'golden'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(installed)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stdout == "y: i32[2] = [7, 7]\n", result.stderr
