"""The rows of the speed table put together what they say: tried at small sizes on the golden machine, without a GPU."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dla.tests.benchmark_scripts import importable

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODULES = ("attention", "bench", "chains", "check", "compiling", "convolution", "decode", "matrix", "measure",
           "networks", "others", "pointwise", "prepared", "results", "row")  # fmt: skip


@pytest.fixture(scope="module")
def speed() -> Iterator[SimpleNamespace]:
    """The modules of benchmarks/speed/, which import each other by that name, and speed_table."""
    with importable():
        modules = {name: importlib.import_module(f"speed.{name}") for name in MODULES}
        yield SimpleNamespace(table=importlib.import_module("speed_table"), **modules)


def _matrix(s: Any, dtype: str, fused: bool) -> list[Callable[..., Any]]:
    p = s.matrix.Product(8, 24, 16, dtype, fused)
    return [lambda b: s.matrix.single_case(b, p), lambda b: s.matrix.chain_case(b, p, 2, 2)]


def _small(s: Any) -> Any:
    return dataclasses.replace(
        s.decode.LLAMA, vocabulary=50, width=32, layers=2, heads=4, kv_heads=2, hidden=48, context=16
    )


def _loaded(s: Any, bench: Any) -> Any:
    program = s.matrix.single(s.matrix.Product(8, 8, 8))
    return s.decode.load_case(bench, program, {"a": bench.normal(8, 8), "b": bench.normal(8, 8)}, {}, "y")


CASES: dict[str, Callable[[Any], list[Callable[..., Any]]]] = {
    "GEMM bf16": lambda s: _matrix(s, "bf16", fused=False),
    "GEMM f32": lambda s: _matrix(s, "f32", fused=False),
    "GEMM tf32": lambda s: _matrix(s, "tf32", fused=False)[:1],
    "GEMM fused": lambda s: _matrix(s, "bf16", fused=True),
    "CONV": lambda s: [
        lambda b, layer=layer, case=case: case(b, layer, 2)
        for layer in (s.convolution.Layer(9, 4, 8, 3, 2), s.convolution.Layer(8, 8, 16, 1))
        for case in (s.convolution.single_case, s.convolution.chain_case)
    ],
    "ATTENTION": lambda s: [
        lambda b, causal=causal, count=count: s.attention.case(b, s.attention.Shape(2, 2, 300, 16, causal), count)
        for causal in (True, False)
        for count in (None, 2)
    ] + [lambda b: s.attention.case(b, s.attention.Shape(1, 4, 37, 16, False, queries=1, shared=2), 2)],
    "others": lambda s: [
        lambda b, case=case: s.others.case(b, s.row.Row("f", "n", case), ("GEMM",))
        for case in _matrix(s, "bf16", fused=False)
    ],
    "pointwise": lambda s: [
        lambda b, kind=kind: s.pointwise.case(b, kind, 80, 32) for kind in s.pointwise.INSTRUCTIONS
    ],
    "chains": lambda s: [
        lambda b: s.chains.gemv_case(b, 32, 3), lambda b: s.chains.tiny_case(b, 4),
        lambda b: s.chains.mlp_case(b, (12, 16, 10), 3),
    ],
    "transformers": lambda s: [
        lambda b, causal=causal: s.networks.transformer_case(b, s.networks.Transformer(50, 16, 2, 2, 32, 2, 6, causal))
        for causal in (True, False)
    ],
    "ResNet": lambda s: [
        lambda b: s.networks.resnet_case(b, 1, s.networks.ResNetConfig(
            depths=(1, 2), width=8, classes=10, size=32, batch=1, dtype=s.decode.DType.BF16))
    ],
    "Llama": lambda s: [
        lambda b: s.decode.step_case(b, _small(s), 5), lambda b: s.decode.generate_case(b, _small(s), 5, 6),
        lambda b: _loaded(s, b),
    ],
}  # fmt: skip


@pytest.mark.parametrize("family", CASES)
def test_small_cases_are_right_and_measured(speed, family):
    """Ours agrees with the reference within the limit that the table states, and every time is there."""
    bench = speed.bench.Bench(quick=True, device="cpu")
    for case in CASES[family](speed):
        row = speed.row.Row(family, family, case, (speed.row.Bar("nobody", 1.0),))
        facts = speed.measure.measured(bench, row)
        assert facts["right"], facts
        assert facts["error"] >= 0
        assert facts["bars"][0]["met"] is None
        assert "ours" in facts["cold_us"]


def test_a_wrong_result_is_found_out(speed):
    """A product that is 2 % too large is outside the bound; so is one whose error is thrice that of native."""
    bench = speed.bench.Bench(quick=True, device="cpu")
    a, b = bench.normal(8, 16), bench.normal(16, 24)
    wrong = speed.matrix.dla.assemble(
        ".input a : bf16[8, 16]\n.input b : bf16[16, 24]\n.output y : bf16[8, 24]\nmain:\nGEMM y, a, b alpha=1.02\nHALT"
    )
    right = speed.matrix.single(speed.matrix.Product(8, 24, 16)).instructions[0]
    ours = bench.ours(wrong, {"a": a, "b": b})
    ours()
    found = speed.check.within_bound(ours, "y", right, [{"a": a, "b": b, "got": ours.output("y")}])
    assert found.identical
    assert found.error > 1
    exact = ours.output("y").double()
    assert speed.check.beside_native(ours, "y", exact + 1, exact - 3).error == pytest.approx(3 / 8)
    assert speed.check.beside_native(ours, "y", exact + 1, exact + 3).error == pytest.approx(3 / 4)
    assert speed.check.beside_native(ours, "y", exact, exact + 0.5 * 0).error == 0
    assert speed.check.beside_native(ours, "y", exact - 2.5, exact - 3).error == pytest.approx(3)


def test_rows_have_names_of_their_own_and_the_sizes_that_the_issue_states(speed):
    """Means find the rows that they are of, and programs of full size are accepted by the verifier."""
    families = (speed.chains, speed.matrix, speed.attention, speed.pointwise, speed.convolution, speed.decode,
                speed.networks)  # fmt: skip
    rows = [row for family in families for row in family.ROWS]
    assert len({row.name for row in rows}) == len(rows)
    assert len(speed.convolution.layers()) == 23
    for mean in speed.convolution.SUMMARIES:
        assert sum(row.name.startswith(mean.prefix) for row in rows) == 23
    for layer in speed.convolution.layers():
        speed.matrix.dla.verify(speed.convolution.chain(layer, 1, 8))
        speed.matrix.dla.verify(speed.convolution.single(layer, 32))
    for product, _, count, distinct in speed.matrix.SMALL:
        speed.matrix.dla.verify(speed.matrix.chain(product, 2 * count, distinct))
    for m in speed.row.sizes(speed.matrix.SWEEP_MOST):
        speed.matrix.dla.verify(speed.matrix.chain(speed.matrix.Product(m, 4096, 4096), 8, 2))
    for shape in speed.attention.SHAPES:
        speed.matrix.dla.verify(speed.attention.chain(shape, 1))
    for kind in speed.pointwise.INSTRUCTIONS:
        speed.matrix.dla.verify(speed.pointwise.program(kind, *speed.pointwise.ROWS_COLUMNS))


def facts(name: str, ours: float, native: float, **more: Any) -> dict[str, Any]:
    """A measured row."""
    times = {"ours": ours, "cuBLAS": native}
    return {"name": name, "family": "f", "cold_us": times, "warm_us": times, "error": 0.5, "error_limit": "bound",
            "identical": True, "right": True, "bars": [], **more}  # fmt: skip


def test_bars_are_judged_from_both_sides(speed):
    """A ratio must be large, a time small; a native kernel that was left out says nothing."""
    times = {"ours": 10.0, "cuBLAS": 9.0}
    bar = speed.row.Bar
    bars = (bar("cuBLAS", 0.9), bar("cuBLAS", 0.91), bar("", 10), bar("", 9), bar("compiled", 1))
    judged = [facts for b in bars for facts in speed.measure.judged(b, times, times, "us")]
    assert [j["met"] for j in judged] == [True, False, True, False, None]


def test_what_could_not_be_tuned_in_full_stands_beside_its_bar(speed):
    """The bar stays open: it is against another native."""
    times = {"ours": 10.0, "compiled (mode default) + CUDA graph": 12.0}
    missing, instead = speed.measure.judged(speed.row.Bar(speed.row.COMPILED, 1.1), times, times, "us")
    assert (missing["reached"], missing["met"]) == (None, None)
    assert (instead["reached"], instead["must"], instead["met"]) == (1.2, None, None)
    assert instead["against"] in times


def test_a_mean_is_geometric_over_what_is_there(speed):
    """Ratios 2 and 1/2 make 1."""
    row = speed.row.Summary("f", "mean", "CONV", (speed.row.Bar("cuBLAS", 0.9),))
    found = speed.measure.summary(row, [facts("CONV a", 1, 2), facts("CONV b", 2, 1), facts("GEMM", 1, 9)])
    assert found["bars"][0]["reached"] == pytest.approx(1)
    assert found["of"] == 2
    assert speed.measure.summary(row, []) is None
    row = dataclasses.replace(row, worst=True, bars=(speed.row.Bar(speed.row.FASTEST, 0.9),))
    found = speed.measure.summary(row, [facts("CONV a", 1, 2), facts("CONV b", 2, 1)])
    assert (found["bars"][0]["reached"], found["bars"][0]["met"]) == (0.5, False)


def test_a_row_is_a_line_for_each_bar_and_a_wrong_one_is_marked(speed):
    """Markdown has as many cells as columns; sweeps are points by size."""
    bar = {"against": "cuBLAS", "must": 0.9, "aim": None, "unit": "x", "reached": 0.95, "warm": 1.0, "met": True}
    rows = [facts("GEMM", 10, 9.5, bars=[bar], right=False),
            *(facts(f"M={m}", 2 * m, m, sweep={"title": "GEMM by M", "size": m}) for m in (4, 2))]  # fmt: skip
    lines = speed.table.markdown({"speed": rows}, "x_speed")
    assert "| GEMM | cuBLAS | 9.50 | 10.0 | 0.950 | 1.00 | 0.900 | - | yes | ! 0.500 |" in lines
    assert lines[-3].endswith("(benchmarks/results/x_speed.svg)")
    assert lines[-1].startswith("- GEMM by M: native / dla is 0.500 at the worst (size 2)")
    assert speed.table.sweeps(rows) == {"GEMM by M": [(2, 4, 2), (4, 8, 4)]}
    assert len(speed.table.text(rows)) == 4


def test_parts_of_one_commit_add_up_and_others_do_not(speed, tmp_path):
    """Rows come in the table's order, replace older ones of their name, and summaries follow."""
    bar = speed.row.Bar("cuBLAS", 0.9)
    rows = [speed.row.Row("f", name, lambda bench: None, (bar,)) for name in ("a", "b", "c")]
    summaries = [speed.row.Summary("f", "all", "", (bar,))]
    about = {"device": "gpu", "commit": "1", "host": "h"}
    path = tmp_path / "x_speed.json"

    def results(**other: str) -> Any:
        return speed.results.Results(path, about | other, rows, summaries)

    judged = {"bars": [{"met": True}]}
    results().add(facts("c", 1, 2, **judged))
    results().add(facts("a", 1, 2, bars=[{"met": None}]), facts("gone", 1, 1))
    results().add(facts("c", 1, 4, **judged))
    again = results()
    assert [row["name"] for row in again.rows] == ["a", "c", "all"]
    assert again.rows[1]["cold_us"]["cuBLAS"] == 4
    assert again.rows[2]["bars"][0]["reached"] == pytest.approx(8**0.5)
    assert [again.has(name) for name in "abc"] == [False, False, True]
    assert results(commit="2").rows == []


@pytest.mark.parametrize("before", [True, False])
def test_precision_is_as_in_a_new_process_when_natives_are_compiled(speed, before):
    """torch.compile finds what it made earlier only under the settings of then, which checks of rows change."""
    asked = "import torch; print(torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision())"
    fresh = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = before
    assert matmul.fp32_precision != fresh[0]
    speed.compiling.reset_precision()
    assert [matmul.fp32_precision, torch.get_float32_matmul_precision()] == fresh
    assert not matmul.allow_tf32


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*_speed.json")), ids=lambda path: path.stem)
def test_plots_are_of_the_committed_measurements(speed, path):
    """Each plot says which points it shows."""
    rows = json.loads(path.read_text())["speed"]
    if speed.table.sweeps(rows):
        assert f"sweeps {speed.table.digest(rows)}" in path.with_suffix(".svg").read_text()
