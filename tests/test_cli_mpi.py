"""`mpirun -n N dla run`: ranks that are processes. Skipped where mpi4py or an MPI is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dla.emulator.device import build, nccl
from dla.isa.errors import BackendError
from dla.tests.emulator.device.cpu_machine import needs_compiler

LAUNCHER = next((found for name in ("mpiexec", "mpirun")
                 for found in (shutil.which(name, path=str(Path(sys.executable).parent)), shutil.which(name)) if found),
                None)  # fmt: skip
PROGRAM = """\
.program sum
.input x : f32[n <= 4]
.state runs : i32[]
.output y : f32[n]
main:
    ALLREDUCE.sum y, x
    EW.add runs, runs, 1
    HALT
"""
FAILING = """\
.input x : f32[n <= 4]
.output y : f32[n]
main:
    CMP.ne p0, RANK, 1
    ASSERT p0 "rank one"
    ALLREDUCE.sum y, x
    HALT
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _works() -> bool:
    """Whether two processes of this Python can be started."""
    if LAUNCHER is None:
        return False
    code = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2"
    command = [LAUNCHER, "-n", "2", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


pytestmark = pytest.mark.skipif(not _works(), reason="no MPI, or no mpi4py: pip install 'dla[mpi]' mpich")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs and inputs."""
    monkeypatch.chdir(tmp_path)
    Path("sum.dla").write_text(PROGRAM)
    Path("failing.dla").write_text(FAILING)
    Path("two.dla").write_text(".world 2\n" + PROGRAM)
    np.save("both.npy", X)
    np.save("apart.rank0.npy", X[0])
    np.save("apart.rank1.npy", X[1])
    return tmp_path


def mpirun(
    count: int, *arguments: str, code: str = "from dla.cli import main; main()", limit: int = 120
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """`mpirun -n COUNT dla ARGUMENTS`, ended after `limit` seconds."""
    assert LAUNCHER is not None
    command = [sys.executable, "-c", code, *arguments]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run([LAUNCHER, "-n", str(count), *command], capture_output=True, text=True, check=False,
                          timeout=limit, env={**os.environ, **root})  # fmt: skip


@pytest.mark.parametrize("given", ["x=both.npy", "x=apart.npy"])
def test_each_process_is_a_rank(given: str) -> None:
    """It reads its part, or its file, and prints and writes its own."""
    done = mpirun(2, "run", "two.dla", "-i", given)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: y: f32[3] = [3., 5., 7.]" for rank in (0, 1)]
    assert mpirun(2, "run", "two.dla", "-i", given, "-o", "y.npy", "--state-out", "s.npz").returncode == 0
    assert mpirun(2, "run", "two.dla", "-i", given, "--state-in", "s.npz", "--state-out", "s.npz").returncode == 0
    for rank in (0, 1):
        np.testing.assert_array_equal(np.load(f"y.rank{rank}.npy"), X.sum(axis=0))
        assert np.load(f"s.rank{rank}.npz")["runs"] == 2


@pytest.mark.parametrize("ranks", [4, 8])
def test_processes_give_what_one_process_gives(ranks: int) -> None:
    """The same random inputs on each rank, the same bits."""
    args = ("run", "sum.dla", "--random", "7", "--set", "n=2")
    done = mpirun(ranks, *args, "-o", "y.npy")
    assert done.returncode == 0, done.stderr
    code = "from dla.cli import main; main()"
    alone = [sys.executable, "-c", code, *args, "--ranks", str(ranks), "-o", "all.npy"]
    subprocess.run(alone, check=True, capture_output=True)
    for rank, expected in enumerate(np.load("all.npy")):
        assert np.load(f"y.rank{rank}.npy").tobytes() == expected.tobytes()


def test_a_trap_on_one_rank_ends_all_with_its_name() -> None:
    """Every process says so, and nothing is written."""
    done = mpirun(3, "run", "failing.dla", "--random", "1", "-o", "y.npy")
    assert done.returncode != 0
    text = "trap[assert] on rank 1 at instruction 1 (failing.dla:5): assertion failed, code 0: rank one"
    assert done.stderr.count(text) == 3
    assert not list(Path().glob("y*.npy"))


def test_an_error_of_one_process_does_not_leave_the_others_waiting() -> None:
    """A file that one rank lacks ends all."""
    done = mpirun(3, "run", "sum.dla", "-i", "x=apart.npy")
    assert done.returncode != 0
    assert "there is no file 'apart.npy', nor 'apart.rank2.npy'" in done.stderr


STALLING = """
import time
from dla.cli import main
from dla.emulator.golden.process import GoldenRun

def stall(run):
    index = advance(run)
    if run._peers.rank == 1 and index is None:
        time.sleep(600)
    return index

advance, GoldenRun.advance = GoldenRun.advance, stall
def run():
    main()
"""


def test_a_process_that_stalls_ends_all() -> None:
    """Others wait for it as long as they are told to, and say for whom they did."""
    Path("stalling.py").write_text(STALLING)
    args = ("run", "sum.dla", "--random", "7", "--timeout", "2", "-o", "y.npy")
    done = mpirun(3, *args, code="import stalling; stalling.run()")
    assert done.returncode != 0
    assert re.search(r"trap\[timeout\] on rank [02]: waited 2 s for rank 1\n  help: .*--timeout SECONDS", done.stderr)
    assert not list(Path().glob("y*.npy"))


@pytest.mark.parametrize("given", [{"x": X}, {"x.rank0": X[0], "x.rank1": X[1]}, {"x.rank1": X[1]}])
def test_only_what_is_not_given_is_made_up(given: dict[str, np.ndarray]) -> None:
    """Each process decides as one process of all ranks does."""
    np.savez("given.npz", **given)
    args = ("run", "two.dla", "-i", "given.npz", "--random", "5", "--set", "n=3")
    done = mpirun(2, *args, "-o", "y.npy")
    assert done.returncode == 0, done.stderr
    code = "from dla.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *args, "-o", "all.npy"], check=True, capture_output=True)
    for rank, expected in enumerate(np.load("all.npy")):
        assert np.load(f"y.rank{rank}.npy").tobytes() == expected.tobytes()


def test_one_process_runs_all_ranks() -> None:
    """What a launcher starts alone is no world of processes."""
    assert mpirun(1, "run", "two.dla", "-i", "both.npy", "-o", "y.npy").returncode == 0
    np.testing.assert_array_equal(np.load("y.npy"), [X.sum(axis=0)] * 2)


def test_the_number_of_processes_is_that_of_the_program() -> None:
    """Otherwise it is an error, with what to start."""
    done = mpirun(3, "run", "two.dla", "-i", "both.npy")
    assert done.returncode != 0
    assert "3 processes were started" in done.stderr
    assert "mpirun -n 2 dla run" in done.stderr


def test_json_is_one_object_of_each_process() -> None:
    """With the rank that it is of."""
    done = mpirun(2, "run", "two.dla", "-i", "both.npy", "--json")
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((fact["rank"], fact["ranks"]) for fact in facts) == [(0, 2), (1, 2)]


def on_gpus(count: int, *arguments: str, gpus: int) -> subprocess.CompletedProcess[str]:
    """The same where the host has so many GPUs, emulated."""
    code = f"from dla.tests.emulator.device import emulated_process; emulated_process.run({gpus})"
    return mpirun(count, *arguments, code=code)


@needs_compiler
@pytest.mark.parametrize("backend", ["gpu", "auto"])
def test_each_process_has_a_gpu(backend: str) -> None:
    """The bits of golden ranks, from run to run, which the first one has left its state to."""
    args = ("run", "sum.dla", "--random", "7", "--set", "n=3", "--state-out", "s.npz", "-o", "y.npy")
    done = on_gpus(3, *args, "--backend", backend, gpus=3)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("backend: gpu") == 3
    assert done.stderr.count("gpu: ") == 3
    done = on_gpus(3, *args, "--backend", backend, "--state-in", "s.npz", gpus=3)
    assert done.returncode == 0, done.stderr
    assert mpirun(3, *args[:6], "--backend", "golden", "-o", "golden.npy").returncode == 0
    for rank in range(3):
        assert np.load(f"y.rank{rank}.npy").tobytes() == np.load(f"golden.rank{rank}.npy").tobytes()
        assert np.load(f"s.rank{rank}.npz")["runs"] == 2


@needs_compiler
def test_a_trap_on_one_gpu_ends_all_with_its_name() -> None:
    """Every process says so, and nothing is written."""
    done = on_gpus(3, "run", "failing.dla", "--random", "1", "-o", "y.npy", "--backend", "gpu", gpus=3)
    assert done.returncode != 0
    text = "trap[assert] on rank 1 at instruction 1 (failing.dla:5): assertion failed, code 0: rank one"
    assert done.stderr.count(text) == 3
    assert not list(Path().glob("y*.npy"))


@needs_compiler
def test_fewer_gpus_than_processes() -> None:
    """All run on the golden machine, unless GPUs are asked for."""
    args = ("run", "sum.dla", "--random", "7")
    done = on_gpus(2, *args, gpus=1)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("backend: golden") == 2
    done = on_gpus(2, *args, "--backend", "gpu", gpus=1)
    assert done.returncode != 0
    assert "ranks 0 and 1 have the same GPU" in done.stderr
    assert "start as many processes on a host as it has GPUs" in done.stderr


def _needs_real_gpus(count: int) -> None:
    try:
        nccl.library()
    except BackendError as error:
        pytest.skip(str(error))
    if build.import_cupy().cuda.runtime.getDeviceCount() < count:
        pytest.skip(f"fewer than {count} GPUs")


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_process_has_a_real_gpu(ranks: int) -> None:
    """The bits of golden ranks that accumulate in f32; a trap on one ends all."""
    _needs_real_gpus(ranks)
    args = ("run", "sum.dla", "--random", "7", "--set", "n=3", "-o", "y.npy")
    done = mpirun(ranks, *args, "--backend", "gpu", limit=900)
    assert done.returncode == 0, done.stderr
    assert mpirun(ranks, *args[:-1], "golden.npy", "--backend", "golden").returncode == 0
    for rank in range(ranks):
        np.testing.assert_allclose(np.load(f"y.rank{rank}.npy"), np.load(f"golden.rank{rank}.npy"), rtol=1e-6)
    done = mpirun(ranks, "run", "failing.dla", "--random", "1", "--backend", "gpu")
    assert done.stderr.count("trap[assert] on rank 1 at instruction 1") == ranks


FAILING_ON_A_GPU = """
import os
import time
from dla.cli import main
from dla.emulator.device.process import DeviceRun
from dla.tests.emulator.device import emulated_process

def fail(run):
    if run._rank._peers.rank == 1:
        {failure}
    return advance(run)

advance, DeviceRun.advance = DeviceRun.advance, fail
"""
FAILURES = {"dies": "os.write(2, b'I die'), os._exit(9)", "stalls": "time.sleep(600)"}


@pytest.mark.parametrize("where", [
    pytest.param("emulated", marks=needs_compiler), pytest.param("real", marks=pytest.mark.gpu),
])  # fmt: skip
@pytest.mark.parametrize("how", FAILURES)
def test_a_process_that_fails_on_a_gpu_ends_all(where: str, how: str) -> None:
    """Before a collective, without a word: nobody waits for one that has died, nor for ever for one that stalls."""
    if where == "real":
        _needs_real_gpus(2)
    Path("failing.py").write_text(FAILING_ON_A_GPU.format(failure=FAILURES[how]))
    run = "emulated_process.run(3)" if where == "emulated" else "main()"
    args = ("run", "sum.dla", "--random", "7", "--backend", "gpu", "--timeout", "2", "-o", "y.npy")
    done = mpirun(3 if where == "emulated" else 2, *args, code=f"from failing import *; {run}")
    assert done.returncode != 0
    if how == "dies":
        assert "I die" in done.stderr
    else:
        assert re.search(r"trap\[timeout\] on rank [02] at instruction 0 .*: waited 2 s for rank 1", done.stderr)
    assert not list(Path().glob("y*.npy"))
