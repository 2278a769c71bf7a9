"""What the doctor finds: each missing thing has a remedy, and nothing it meets makes it fail."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dla.emulator import doctor, mpi
from dla.emulator.device import nccl
from dla.emulator.doctor import Finding, Level, examine
from dla.isa.folders import cache_folder


class RuntimeErrorOfCuda(Exception):
    """Stands for cupy.cuda.runtime.CUDARuntimeError."""


def fake_cupy(devices: list[tuple[int, int]], *, peers: bool = True, error: str | None = None) -> Any:
    """A CuPy that sees GPUs of these compute capabilities, or fails with `error`."""

    def count() -> int:
        if error:
            raise RuntimeErrorOfCuda(error)
        return len(devices)

    def properties(index: int) -> dict[str, Any]:
        major, minor = devices[index]
        facts = {"name": b"Some GPU", "multiProcessorCount": 132, "totalGlobalMem": 80 * 2**30}
        return facts | {"major": major, "minor": minor}

    runtime = SimpleNamespace(
        CUDARuntimeError=RuntimeErrorOfCuda, getDeviceCount=count, getDeviceProperties=properties,
        deviceCanAccessPeer=lambda a, b: peers,
    )  # fmt: skip
    nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
    return SimpleNamespace(__version__="14.0", cuda=SimpleNamespace(runtime=runtime, nvrtc=nvrtc))


def found(monkeypatch: pytest.MonkeyPatch, cupy: Any, driver: str | None = "580.1") -> dict[str, Finding]:
    """The findings on a computer with this CuPy (None: not installed) and driver, by subject."""
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(doctor, "driver_version", lambda: driver)
    return {finding.subject: finding for finding in examine()}


def test_a_good_computer_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs that reach each other: nothing is missing."""
    findings = found(monkeypatch, fake_cupy([(9, 0), (9, 0)]))
    assert [f for f in findings.values() if f.level is Level.MISSING] == []
    assert findings["GPU 1"].value == "Some GPU, sm_90, 132 SMs, 80 GiB"
    assert findings["peer access"].value == "between all 2 GPUs"
    assert findings["NVRTC"].value == "12.9"


@pytest.mark.parametrize(("driver", "cuda"), [("580.95.05", 13), ("570.1", 12), (None, 13)])
def test_without_cupy_the_one_that_fits_the_driver_is_named(
    monkeypatch: pytest.MonkeyPatch, driver: str | None, cuda: int
) -> None:
    """CUDA 13 needs driver 580; older drivers get CUDA 12."""
    findings = found(monkeypatch, None, driver)
    assert findings["CuPy"].level is Level.MISSING
    assert findings["CuPy"].remedy == f"pip install 'cupy-cuda{cuda}x[ctk]'"
    assert (findings["NVIDIA driver"].level is Level.MISSING) == (driver is None)


def test_an_old_gpu_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below sm_80 the machine does not run, and the doctor says so."""
    finding = found(monkeypatch, fake_cupy([(7, 5)]))["GPU 0"]
    assert finding.level is Level.MISSING
    assert finding.remedy == "the machine needs sm_80 (Ampere) or later"


@pytest.mark.parametrize("cupy", [fake_cupy([]), fake_cupy([], error="no CUDA-capable device")])
def test_cupy_without_a_gpu_is_a_finding(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    """No device, or a driver that fails, is reported and not raised."""
    assert found(monkeypatch, cupy)["GPU"].level is Level.MISSING


def test_gpus_that_do_not_reach_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peer access is listed pair by pair where it is missing."""
    finding = found(monkeypatch, fake_cupy([(8, 0), (8, 0)], peers=False))["peer access"]
    assert finding.value == "not between 0-1, 1-0: ranks there use NCCL"


def test_what_ranks_need_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL and MPI: their versions, or how to get them."""
    finding = found(monkeypatch, fake_cupy([(9, 0)]))["NCCL"]
    assert (finding.level, finding.remedy) == (
        Level.INFO,
        "pip install nvidia-nccl-cu12 (or cu13, as the CUDA of CuPy)",
    )
    monkeypatch.setattr(nccl, "library", lambda: SimpleNamespace(get_version=lambda: 22803))
    monkeypatch.setattr(mpi, "library", lambda: "MPICH Version: 4.3")
    monkeypatch.setattr(doctor, "_version", lambda name: "1.0")
    findings = found(monkeypatch, fake_cupy([(9, 0)]))
    assert findings["NCCL"] == Finding("NCCL", "2.28.3")
    assert findings["MPI"] == Finding("MPI", "MPICH Version: 4.3")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Sep  2 2025\nGCC version: 12.2\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder)\n",
    ],
)
def test_the_driver_version_is_not_taken_for_the_architecture(line: str) -> None:
    """Both kinds of kernel module name their version behind the architecture or in front of it."""
    assert doctor._version_in(line) == "580.159.04"


def test_packages_that_nothing_needs_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnx nothing is broken: the doctor says what it would add, and how to get it."""
    monkeypatch.setattr(doctor, "_version", lambda name: None if name.startswith("onnx") else "1.0")
    findings = found(monkeypatch, None)
    assert findings["onnx"] == Finding(
        "onnx", "not installed; it compiles .onnx models", Level.INFO, "pip install 'dla[onnx]'"
    )


@pytest.mark.gpu
def test_a_real_gpu_lacks_nothing() -> None:
    """With the CuPy that is installed, which a made-up one may have more than."""
    findings = {finding.subject: finding for finding in examine()}
    for subject in ("CuPy", "NVRTC", "GPU 0", "peer access"):
        assert findings[subject].level is not Level.MISSING, findings[subject]
    assert findings["kernel cache"].value == str(cache_folder())
