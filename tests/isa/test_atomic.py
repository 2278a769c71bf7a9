"""Output files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from dla.isa.atomic import replacing
from dla.isa.errors import InputError


def test_a_file_appears_only_when_complete(tmp_path: Path) -> None:
    """Until the body ends the old content stands; then the new one does, and no temporary file is left."""
    target = tmp_path / "out"
    target.write_text("old")
    with replacing(target) as (file,):
        file.write(b"new")
        file.flush()
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    """Whatever ends the body early, the target keeps its content and the temporary file goes."""
    target = tmp_path / "out"
    target.write_text("old")

    def write_half() -> None:
        with replacing(target) as (file,):
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_an_input_error() -> None:
    """/dev/full refuses every write, as a full disk does."""
    message = "cannot write '/dev/full': No space left on device"
    with pytest.raises(InputError, match=message), replacing(Path("/dev/full")) as (file,):
        file.write(b"x" * 100_000)


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    """Writing through a link replaces what it points at."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with replacing(tmp_path / "link") as (file,):
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize(("path", "reason"), [("none/out", "No such file"), ("file/out", "Not a directory")])
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, path: str, reason: str) -> None:
    """The message has the path and the system's reason."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=f"cannot write '.*{path}': {reason}"), replacing(tmp_path / path):
        pass
