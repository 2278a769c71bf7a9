"""Graph -> Program: the passes in their order, then lowering, the memory plan and the verifier."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dla.compiler.graph import Graph
from dla.compiler.lower.assembly import assemble
from dla.compiler.lower.lowering import lower
from dla.compiler.memory import Plan
from dla.compiler.passes import PASSES
from dla.compiler.verify import verify_graph
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.errors import InputError, ModelError, VerifyError
from dla.isa.names import shown
from dla.isa.program import Program
from dla.isa.verifier import verify

Explain = Callable[[str, Graph], None]
"""Called with the name of each pass that ran, and the graph that it gave."""
Progress = Callable[[str], None]
"""Called with what is done next."""


@dataclass(frozen=True)
class Compiled:
    """A program, and what is worth knowing of how it came about."""

    program: Program
    graph: Graph
    memory: Plan

    def __str__(self) -> str:
        weights = self.program.segment_bytes.get(Segment.CONST, 0)
        sizes = f"{weights:,} bytes of weights, {self.memory.size:,} of scratch memory"
        return f"{self.program.name}: {len(self.program.instructions)} instructions, {sizes}"


def compile_graph(
    graph: Graph, *, dtype: DType | None = None, math: str = "exact", tensor_parallel: int = 1,
    skip: Collection[str] = (), explain: Explain | None = None,
    progress: Progress = lambda step: None, source: str = "",
) -> Compiled:  # fmt: skip
    """Compile `graph`, which is changed on the way.

    `dtype` is the float type to compute in (None: as the model says), `math` the mode of products of f32,
    `tensor_parallel` the number of ranks that share the weights, `skip` names passes to leave out, `source` is the file
    that the program says it comes from. Raises ModelError; InputError where `skip` names no pass.
    """
    unknown = [name for name in skip if name not in PASSES]
    if unknown:
        raise InputError(f"there is no pass '{shown(unknown[0])}'", hint=f"the passes: {', '.join(PASSES)}")
    verify_graph(graph)
    if explain:
        explain("import", graph)
    for name, run in PASSES.items():
        if name not in skip:
            progress(f"pass {name}")
            if name == "precision":
                graph = run(graph, dtype, math)
            elif name == "tensor_parallel":
                graph = run(graph, tensor_parallel)
            else:
                graph = [run(part) for part in graph.with_steps()][-1]  # steps are changed where they are
            verify_graph(graph, after=name)
            if explain:
                explain(name, graph)
    progress("lowering")
    program, plan = assemble(graph.name, lower(graph), source)
    progress("verifying")
    try:
        verify(program)
    except VerifyError as error:
        raise ModelError(f"the compiled program is not valid; please report this\n{error}") from error
    return Compiled(program, graph, plan)
