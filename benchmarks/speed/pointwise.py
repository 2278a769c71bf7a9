"""Work that only moves memory: its share of the bandwidth of a copy."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

import dla
from dla.isa.program import Program
from speed.bench import Bench
from speed.check import Check, within_bound
from speed.row import Action, Bar, Case, Row, Work

ROWS_COLUMNS = (16384, 8192)
SAMPLED_ROWS = 64
COPY, TORCH = "copy", "torch"
INSTRUCTIONS = {
    "relu": "ACT.relu y, x",
    "gelu": "ACT.gelu y, x",
    "softmax": "SOFTMAX y, x axis=-1",
    "layernorm": "NORM.layer y, x, gain, bias eps=1e-5",
    "rmsnorm": "NORM.rms y, x, gain eps=1e-5",
    "transpose": "COPY y, x.T",
}


def program(kind: str, rows: int, columns: int) -> Program:
    """One instruction: x (and gain, bias) -> y."""
    parts = [name for name in ("gain", "bias") if name in INSTRUCTIONS[kind]]
    declared = "".join(f".input {name} : bf16[{columns}]\n" for name in parts)
    out = (columns, rows) if kind == "transpose" else (rows, columns)
    return dla.assemble(f""".program {kind}
.input x : bf16[{rows}, {columns}]
{declared}.output y : bf16[{out[0]}, {out[1]}]
main:
    {INSTRUCTIONS[kind]}
    HALT
""")


def case(bench: Bench, kind: str, rows: int, columns: int) -> Case:
    """One instruction in one launch, beside a copy of as many bytes, and torch's kernel."""
    x = bench.normal(rows, columns)
    gain, bias = bench.normal(columns), bench.normal(columns)
    made = program(kind, rows, columns)
    given = {"x": x, "gain": gain, "bias": bias}
    names = [tensor.name for tensor in made.tensors if tensor.name in given]
    ours = bench.ours(made, {name: given[name] for name in names})
    target = torch.empty_like(x)
    native: dict[str, Action] = {
        "relu": lambda: F.relu(x),
        "gelu": lambda: F.gelu(x),
        "softmax": lambda: torch.softmax(x, -1),
        "layernorm": lambda: F.layer_norm(x, (columns,), gain, bias),
        "rmsnorm": lambda: F.rms_norm(x, (columns,), gain, 1e-5),
        "transpose": lambda: x.T.contiguous(),
    }

    def check() -> Check:
        ours()
        chosen = torch.randperm(rows)[:SAMPLED_ROWS].to(x.device)
        got = ours.output("y")[:, chosen] if kind == "transpose" else ours.output("y")[chosen]
        rows_of_x = x[chosen].T if kind == "transpose" else x[chosen]  # the instruction's operand is the view x.T
        sample = {name: given[name] for name in names} | {"x": rows_of_x, "got": got}
        return within_bound(ours, "y", made.instructions[0], [sample])

    return Case(Work(ours, {COPY: lambda: target.copy_(x), TORCH: native[kind]}), check)


ROWS = [
    Row("pointwise", f"{kind} {ROWS_COLUMNS[0]}x{ROWS_COLUMNS[1]} bf16",
        lambda bench, kind=kind: case(bench, kind, *ROWS_COLUMNS), (Bar(COPY, 0.85, 0.95),))
    for kind in INSTRUCTIONS
]  # fmt: skip
