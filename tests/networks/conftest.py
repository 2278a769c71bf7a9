"""Exported networks for tests: `network` runs a test on each of the catalogue, `exported` gives a particular one.

A file is written once per session, however many tests and processes use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from networks.catalogue import NETWORKS, OTHER_SIZES, Case

OLDEST_TORCH = (2, 13)
"""The one with which every case of the catalogue can be exported."""


@dataclass(frozen=True)
class Run:
    """Arrays by name: what goes in and what torch says must come out."""

    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Exported:
    """An ONNX file and runs of it: the example that it was exported with, then other sizes if it allows them.

    `input_names` and `output_names` are the graph's, in order.
    """

    case: Case
    path: Path
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    runs: tuple[Run, ...]


@pytest.fixture(scope="session")
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Exported]:
    """Exports a case (`exported(case)`) unless this session has done so; skips where torch is not installed."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent  # one for all processes of pytest-xdist
    folder = folder / "networks"
    folder.mkdir(exist_ok=True)

    def export(case: Case) -> Exported:
        pytest.importorskip("torch", reason="networks are built by torch, which is not installed (extra `dev`)")
        if case.exporter == "dynamo":
            pytest.importorskip("onnxscript", reason="torch's newer exporter needs onnxscript (extra `dev`)")
        from filelock import FileLock  # torch depends on it

        path = folder / str(case) / "model.onnx"
        with FileLock(f"{path.parent}.lock"):
            if not (path.parent / "runs.npz").exists():
                path.parent.mkdir(exist_ok=True)
                _write_or_skip(case, path)
        return _read(case, path)

    return export


@pytest.fixture(scope="session", params=NETWORKS, ids=str)
def network(request: pytest.FixtureRequest, exported: Callable[[Case], Exported]) -> Exported:
    """Each case of the catalogue in turn."""
    return exported(request.param)


def _write_or_skip(case: Case, path: Path) -> None:
    """`_write`; skips where a torch older than the one of the extra `dev` cannot export the case."""
    import torch

    try:
        _write(case, path)
    except torch.onnx.OnnxExporterError as error:
        if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= OLDEST_TORCH:
            raise
        pytest.skip(f"torch {torch.__version__} cannot export {case}: {str(error).splitlines()[0]}")


def _write(case: Case, path: Path) -> None:
    """Write the ONNX file to `path` and the runs beside it, as the last."""
    import torch

    from networks.export import export
    from networks.network import leaves, resized

    network = case.build()
    names = {"input_names": network.input_names, "output_names": network.output_names}
    dynamic = network.dynamic if case.dynamic else None
    options = {"exporter": case.exporter, "opset": case.opset, "optimize": case.optimize}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # an operator of its own, which torch takes without gradients only
    try:
        with torch.no_grad():  # saves the newer exporter a fifth of its time
            export(network.model, network.inputs, path, dynamic=dynamic, **options, **names)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    arrays = {}
    examples = [network.inputs, resized(network, OTHER_SIZES)] if case.dynamic else [network.inputs]
    for index, inputs in enumerate(examples):
        with torch.no_grad():
            results = network.model(*inputs)
        for kind, keys, tree in (("in", network.input_names, inputs), ("out", network.output_names, results)):
            for key, tensor in zip(keys, leaves(tree), strict=True):
                arrays[f"{index}/{kind}/{key}"] = tensor.numpy()
    np.savez(path.parent / "part.npz", **arrays)
    (path.parent / "part.npz").rename(path.parent / "runs.npz")


def _read(case: Case, path: Path) -> Exported:
    """What `_write` has written."""
    runs: list[Run] = []
    with np.load(path.parent / "runs.npz") as arrays:
        for key in arrays:
            index, kind, name = key.split("/")
            if int(index) == len(runs):
                runs.append(Run({}, {}))
            run = runs[int(index)]
            (run.inputs if kind == "in" else run.expected)[name] = arrays[key]
    return Exported(case, path, tuple(runs[0].inputs), tuple(runs[0].expected), tuple(runs))
