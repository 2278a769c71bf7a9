"""What `dla compile` tells: the passes, and the program that came out, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dla.isa.descriptor import Segment
from dla.isa.summary import Summary
from dla.report import quantity, shape_text, table

if TYPE_CHECKING:
    from dla.compiler.graph import Graph
    from dla.compiler.pipeline import Compiled
    from dla.isa.program import Program


@dataclass(frozen=True)
class Step:
    """What one pass left, and what it changed."""

    name: str
    nodes: int
    changed: Mapping[str, int]  # operation -> how many more there are than before
    text: str

    @property
    def line(self) -> str:
        """`fold: 12 nodes (-2 RESHAPE)`."""
        changes = ", ".join(f"{count:+d} {name}" for name, count in sorted(self.changed.items()))
        return f"-- {self.name}: {self.nodes} nodes ({changes or 'as many of each'})"


class Passes:
    """Keeps what each pass did, and with `texts` the graph as well. Give it to the compiler as `explain`."""

    def __init__(self, *, texts: bool = True) -> None:
        self.steps: list[Step] = []
        self._texts = texts
        self._before: Counter[str] = Counter()

    def __call__(self, name: str, graph: Graph) -> None:
        """Note the graph after pass `name`."""
        now = Counter(node.name for node in graph.nodes)
        changed = {op: now[op] - self._before[op] for op in now | self._before if now[op] != self._before[op]}
        self.steps.append(Step(name, len(graph.nodes), changed, str(graph) if self._texts else ""))
        self._before = now

    def text(self, chosen: str | None = None) -> str:
        """The graph after each pass, or after the pass `chosen` only; once where a pass left it as it was."""
        parts = []
        for step, previous in zip(self.steps, [None, *self.steps], strict=False):
            if chosen in (None, step.name):
                same = chosen is None and previous is not None and previous.text == step.text
                parts.append(f"-- {step.name}: no change\n" if same else f"{step.line}\n{step.text}")
        return "\n".join(parts)


Renamed = tuple[Mapping[str, str], Mapping[str, str]]
"""The program's name of each input and of each output of the model."""


def compiled_facts(compiled: Compiled, summary: Summary, renamed: Renamed, passes: Passes) -> dict[str, Any]:
    """A compiled model."""
    program, memory = compiled.program, compiled.memory
    return {
        "name": program.name,
        "instructions": len(program.instructions),
        "mix": summary.mix,
        "flops": summary.total.flops,
        "operand_bytes": summary.total.nbytes,
        "weight_bytes": program.segment_bytes.get(Segment.CONST, 0),
        "scratch_bytes": memory.size,
        "scratch_lower_bound": memory.lower_bound,
        "ranks": program.world or 1,
        "notes": list(compiled.graph.notes),
        "dims": [asdict(symbol) for symbol in program.dims],
        "inputs": dict(renamed[0]),
        "outputs": dict(renamed[1]),
        "passes": [{"name": s.name, "nodes": s.nodes, "changed": dict(s.changed)} for s in passes.steps],
    }


def compiled_parts(compiled: Compiled, summary: Summary, renamed: Renamed) -> list[Table | str]:
    """The summary that people get."""
    program, memory = compiled.program, compiled.memory
    mix = table("instruction", "written", "flops", "operand bytes")
    for name, count in summary.mix.items():
        work = summary.work[name]
        mix.add_row(name, str(count), quantity(work.flops, "flop"), quantity(work.nbytes, "B"))
    total = summary.total
    mix.add_section()
    mix.add_row("all", str(len(program.instructions)), quantity(total.flops, "flop"), quantity(total.nbytes, "B"))
    facts = table("what", "size")
    ranks = f" for each of {program.world} ranks" if program.world else ""
    facts.add_row("weights", f"{program.segment_bytes.get(Segment.CONST, 0):,} bytes{ranks}")
    ratio = f", {memory.size / memory.lower_bound:.3f} x the lower bound" if memory.lower_bound else ""
    facts.add_row("scratch memory", f"{memory.size:,} bytes{ratio}")
    for symbol in program.dims:
        facts.add_row(f"dim {symbol.name}", f"at most {symbol.bound:,}")
    return [mix, facts, _interface(program, renamed), *compiled.graph.notes]


def _interface(program: Program, renamed: Renamed) -> Table:
    """Inputs and outputs, with the model's names if there is one that a program cannot have."""
    renames = any(ours != name for names in renamed for name, ours in names.items())
    found = table("tensor", "segment", "type", *(["in the model"] if renames else []))
    for segment, names in zip((Segment.INPUT, Segment.OUTPUT), renamed, strict=True):
        theirs = {ours: name for name, ours in names.items()}
        for tensor in program.in_segment(segment):
            shape = tensor.descriptor.dtype.text + shape_text(program, tensor.descriptor.dims)
            name = theirs.get(tensor.name, tensor.name)
            found.add_row(tensor.name, segment.text, shape, *([name if name != tensor.name else ""] if renames else []))
    return found
