"""The benchmark of several GPUs does what it says: tried at small sizes, without a GPU."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dla
from dla.compiler.models.weights import Weights
from dla.emulator import api
from dla.isa.dtypes import DType
from dla.tests.benchmark_scripts import importable
from dla.tests.emulator.device import emulated_gpus
from dla.tests.emulator.device.cpu_machine import needs_compiler

ROOT = Path(__file__).parent.parent


@pytest.fixture
def benchmarks(monkeypatch) -> Iterator[SimpleNamespace]:
    """The scripts in benchmarks/, which are in no package; they measure as little as can be."""
    names = ("ranks", "readme_table", "tensor_parallel")
    with importable():
        modules = SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for module in (modules.ranks, modules.tensor_parallel):
            monkeypatch.setattr(module, "ROUNDS", 1)
        monkeypatch.setattr(modules.ranks, "trips", lambda size: (1, 3))
        monkeypatch.setattr(modules.tensor_parallel, "WARM_UP", 0)
        yield modules


def small(module: Any) -> list[Any]:
    """The benchmark's cases, but for their sizes."""
    sizes = {"width": 32, "heads": 8, "kv_heads": 4, "hidden": 48}
    return [
        replace(case, past=min(case.past, 3), config=replace(
            case.config, **sizes, batch=min(2, case.config.batch), chunk=min(6, case.config.chunk),
            context=min(8, case.config.context),
        )) for case in module.CASES
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
def test_blocks_are_cut_measured_and_right(benchmarks, ranks):
    """Ranks are as near to f32 as one machine is, or nearly; in collectives is a share of what there is."""
    module = benchmarks.tensor_parallel
    weights = Weights.random(0, {}, dtype=DType.BF16)
    for case in small(module):
        facts = module.row(case, dla.Machine("golden"), dla.Machine("golden", ranks=ranks), ranks, weights)
        assert facts["alike"]
        assert 0 < facts["error"] <= 1
        assert facts["one_seconds"] > 0
        assert facts["seconds"] > 0
        assert facts["collectives"] < 1


def test_collectives_are_all_that_is_left_out(benchmarks):
    """Two for each block, in the first pass and in the loop of the others."""
    module = benchmarks.tensor_parallel
    for case in small(module):
        graph = module.blocks(case.config, Weights.random(0))
        compiled = dla.compile_model(graph, tensor_parallel=2)
        names = [instruction.name for instruction in compiled.program.instructions]
        assert names.count("ALLREDUCE.sum") == 2 * 2 * case.config.layers
        silent = module.without_collectives(compiled)
        assert silent.world == 2
        assert [i.name for i in silent.instructions] == [name for name in names if name != "ALLREDUCE.sum"]


def test_caches_are_cut_by_heads(benchmarks):
    """Values of all heads, then keys: of each, a rank has its heads."""
    rows = np.arange(8)[None, None]  # two heads of two columns
    found = benchmarks.tensor_parallel.of_ranks({"cache": rows}, 2)["cache"]
    np.testing.assert_array_equal(found, [[[[0, 1, 4, 5]]], [[[2, 3, 6, 7]]]])


@needs_compiler
def test_everything_on_emulated_gpus(benchmarks, monkeypatch, tmp_path):
    """From the command to the tables of README.md."""
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2)

    monkeypatch.setattr(api, "gpu_missing", lambda: None)
    monkeypatch.setattr(dla, "Machine", lambda gpu, **gpus: api.Machine(gpu if gpus else "golden", **gpus))
    monkeypatch.setattr(benchmarks.tensor_parallel, "CASES", small(benchmarks.tensor_parallel)[1:])
    monkeypatch.setattr(benchmarks.ranks, "Nccl", lambda gpus: None)
    monkeypatch.setattr(benchmarks.ranks, "SIZES", (4096,))
    output = tmp_path / "gpus_ranks.json"
    done = CliRunner().invoke(benchmarks.ranks.main, ["--commit", "c", "--output", str(output)], catch_exceptions=False)
    assert done.exit_code == 0
    facts = json.loads(output.read_text())
    assert [json.loads(line) for line in done.output.splitlines()] == facts["ranks"] + facts["blocks"]
    assert facts["ranks"][0]["right"]
    assert all(row["ranks"] == 2 and row["alike"] and row["error"] <= 1 for row in facts["blocks"])
    table = benchmarks.readme_table.tables(tmp_path).splitlines()
    assert table[0].startswith("2 x No GPU (host: ")
    assert sum(line.startswith("| 4,096 | - | ") for line in table) == 1
    assert table[-2].startswith("| decode, batch 2, 1 token after 3 others | ")
    assert table[-1].startswith("| prefill, batch 1, 6 tokens | ")
    assert {text.count("|") for text in table[-4:]} == {7}
    benchmarks.ranks.main(["--only", "allreduce", "--output", str(output)], standalone_mode=False)
    assert "Llama" not in benchmarks.readme_table.tables(tmp_path)
