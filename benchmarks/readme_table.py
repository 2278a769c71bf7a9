"""The table of measurements in README.md, made from benchmarks/results/*.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import speed_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks: begin (written by `make bench`) -->", "<!-- benchmarks: end -->"


def shown(seconds: float) -> str:
    """Three digits and the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def tables(results: Path = RESULTS) -> str:
    """One table per result file: what was measured, and where."""
    parts = []
    for path in sorted(results.glob("*.json")):
        facts = json.loads(path.read_text())
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        where = f"{facts['device']} (host: {facts['host']}; {versions}; commit {facts['commit']}):"
        if "speed" in facts:
            body = speed_table.markdown(facts, path.stem)
        elif "networks" in facts:
            body = _network_table(facts["networks"])
        elif facts.keys() & {"ranks", "blocks"}:
            body = _ranks_table(facts.get("ranks", ())) + _blocks_table(facts.get("blocks", ()))
        else:
            body = _time_table(facts["measurements"])
        parts.append("\n".join([where, "", *body]))
    return "\n\n".join(parts)


def _time_table(measurements: list[dict[str, Any]]) -> list[str]:
    lines = [f"| {m['what']} | {shown(m['seconds'])} |" for m in measurements]
    return ["| what | median time |", "|---|---|", *lines]


def _ranks_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each size of ALLREDUCE; none where it was not measured."""
    if not rows:
        return []
    about = (
        "ALLREDUCE.sum of f32 inside the kernel, each of what the one before made, beside NCCL's in a CUDA graph "
        "(`python benchmarks/ranks.py`). Share: of NCCL's time."
    )
    lines = [about, "", "| bytes | NCCL | ours | share | must | right |", "|---|---|---|---|---|---|"]
    for r in rows:
        native, share, must = (r[key] for key in ("nccl_seconds", "share", "must"))
        cells = (
            f"{r['bytes']:,}", "-" if native is None else shown(native), shown(r["seconds"]),
            "-" if share is None else f"{share:.2f}", "-" if must is None else f"{must:.2f}",
            "yes" if r["right"] else "no",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _blocks_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each use of blocks whose weights are cut; none where they were not measured."""
    if not rows:
        return []
    about = (
        "A block of Llama-3-8B's sizes in bf16 (width 4096, 32 heads, 8 of keys and values, MLP 14336), its weights "
        f"cut for {rows[0]['ranks']} GPUs (docs/ranks.md): what each of many blocks in one launch adds to it. In "
        "collectives: the share of the time that is gone where the program has no ALLREDUCE; waiting for the slowest "
        "GPU is part of it. Error: the largest, as a share of twice that of one GPU in bf16, both beside f32; `!` "
        "marks a row in which GPUs have different bits."
    )
    lines = ["", about, "", "| work | one GPU | all | speed-up | in collectives | error |", "|---|---|---|---|---|---|"]
    for r in rows:
        after = f" after {r['past']} others" if r["past"] else ""
        tokens = f"{r['tokens']} token{'s' if r['tokens'] > 1 else ''}"
        cells = (
            f"{r['work']}, batch {r['batch']}, {tokens}{after}", shown(r["one_seconds"]), shown(r["seconds"]),
            f"{r['speed_up']:.2f}", f"{r['collectives']:.0%}", f"{r['error']:.2f}{'' if r['alike'] else ' !'}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


NETWORK_COLUMNS = (
    "network", "compile", "memory / weights", "instructions", "per layer", "arena / bound", "golden, f32", "GPU",
    "onnxruntime", "error",
)  # fmt: skip


def _network_table(networks: list[dict[str, Any]]) -> list[str]:
    """A line for each full network; what is not measured is a dash."""
    threads = networks[0]["threads"]
    about = (
        f"Full networks on {threads} processors, as many threads. Compile: from the ONNX file to the verified program. "
        "Memory: what compiling and writing need at most, pages of the model's file included. Per layer: instructions "
        "from one attention to the next. Error: the largest difference of the golden machine from onnxruntime, "
        "relative to the largest output."
    )
    return [
        about,
        "",
        f"| {' | '.join(NETWORK_COLUMNS)} |",
        f"|{'---|' * len(NETWORK_COLUMNS)}",
        *map(network_line, networks),
    ]


def network_line(facts: dict[str, Any]) -> str:
    """The line of a full network in the table."""
    sizes = ", ".join(f"{name} {size}" for name, size in facts["sizes"].items() if name != "total_sequence")
    cells = (
        f"{facts['network']} ({sizes})",
        shown(facts["compile_seconds"]),
        f"{facts['memory_bytes'] / facts['weights_bytes']:.2f}",
        str(facts["instructions"]),
        str(facts["per_layer"] or "-"),
        f"{facts['arena_bytes'] / facts['lower_bound_bytes']:.3f}",
        shown(facts["golden_seconds"]),
        shown(facts["gpu_seconds"]) if "gpu_seconds" in facts else "-",
        shown(facts["onnxruntime_seconds"]),
        f"{facts['error']:.1e}",
    )
    return f"| {' | '.join(cells)} |"


def replaced(readme: str, table: str) -> str:
    """`readme` with `table` between its markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    """Write the tables into README.md."""
    path = ROOT / "README.md"
    path.write_text(replaced(path.read_text(), tables()))


if __name__ == "__main__":
    main()
