"""Whole networks, exported by torch, compiled and run: the results are torch's and onnxruntime's, at every size."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from dla.compiler.api import compile_model
from dla.emulator.api import Machine
from dla.emulator.compare import reference
from dla.emulator.onnxruntime_backend import Original
from dla.isa.descriptor import Segment
from dla.isa.table import Role
from networks.catalogue import NETWORKS, Case

if TYPE_CHECKING:
    from collections.abc import Callable

    from dla.compiler.pipeline import Compiled
    from networks.conftest import Exported

BOUNDS = {"batch": 4, "sequence": 16, "past_sequence": 12, "total_sequence": 28}
TOLERANCE = 1e-4
"""Of the largest output: torch computes in f32, and its order of sums is another."""


def compiled(network: Exported, **options: object) -> Compiled:
    """The network's program, for every size up to the bounds."""
    return _compiled(network.path, **options)


@functools.lru_cache(maxsize=4)  # the tests of a network follow one another
def _compiled(path: Path, **options: object) -> Compiled:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    names = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    return compile_model(path, bounds={n: BOUNDS[n] for n in names}, **options)


def results(network: Exported, found: Compiled, run: int, **machine: object) -> dict[str, np.ndarray]:
    """Outputs of the compiled network by the model's own names."""
    program = found.program
    places = dict(zip(found.graph.inputs, program.in_segment(Segment.INPUT), strict=True))
    inputs = {places[name].name: network.runs[run].inputs[name] for name in places}
    result = Machine("golden", **machine).run(program, inputs)
    return dict(zip(found.graph.outputs, result.outputs.values(), strict=True))


def test_one_program_gives_what_torch_gives_at_every_size(network: Exported) -> None:
    """One compilation serves the example's sizes and others."""
    found = compiled(network)
    for number, run in enumerate(network.runs):
        got = results(network, found, number)
        for name, expected in run.expected.items():
            assert got[name].shape == expected.shape
            scale = float(np.max(np.abs(expected), initial=1.0))
            np.testing.assert_allclose(got[name], expected, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=name)
            if name == "logits":
                np.testing.assert_array_equal(got[name].argmax(-1), expected.argmax(-1))


def test_the_memory_plan_is_near_the_optimum(network: Exported) -> None:
    """At most 1.10 times the largest sum of what is alive together."""
    plan = compiled(network).memory
    assert plan.size <= 1.10 * plan.lower_bound


def test_no_shape_arithmetic_is_left(network: Exported) -> None:
    """What ONNX computes shapes with, small vectors of integers, never becomes a tensor instruction of any kind."""
    for instruction in compiled(network).program.instructions:
        for spec, view in zip(instruction.row.operands, instruction.operands, strict=True):
            if view is None or spec.role is not Role.OUT or not view.dtype.is_int:
                continue
            # Data that depends on sizes: a count along an axis of symbolic length, and one size as a factor of it.
            data = (instruction.row.mnemonic == "IOTA" and view.is_dynamic) or (
                instruction.row.mnemonic == "FILL" and view.elements == 1
            )
            assert data or view.rank > 1 or view.elements > 8, f"{instruction.name} writes {view}"


def test_onnxruntime_is_within_the_bounds_of_the_instructions(network: Exported) -> None:
    """The bound of each output follows from the instructions' own, carried through the program."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `dev`)")
    found = compiled(network)
    program = found.program
    inputs = dict(zip(found.graph.inputs, (t.name for t in program.in_segment(Segment.INPUT)), strict=True))
    outputs = dict(zip(found.graph.outputs, (t.name for t in program.in_segment(Segment.OUTPUT)), strict=True))
    given = {inputs[name]: network.runs[0].inputs[name] for name in inputs}
    original = Original(network.path, program, (inputs, outputs), {}).run(given)
    wrong = [c for c in reference(program, given).compare(original) if not c.ok]
    assert not wrong, [f"{c.name}: {c.over} of {c.elements} outside, {c.max_ratio:.2f} of the bound" for c in wrong]


def gpu_agrees(network: Exported, dtype: str | None) -> bool:
    """Whether all outputs on the GPU are within the bounds that follow from the instructions, at every size."""
    found = compiled(network, dtype=dtype)
    places = dict(zip(found.graph.inputs, found.program.in_segment(Segment.INPUT), strict=True))
    for run in network.runs:
        inputs = {places[name].name: run.inputs[name] for name in places}
        result = Machine("gpu").run(found.program, inputs)
        if not all(c.ok for c in reference(found.program, inputs).compare(result)):
            return False
    return True


@pytest.mark.gpu
def test_the_gpu_gives_what_the_golden_machine_gives(network: Exported) -> None:
    """In the model's own types."""
    assert gpu_agrees(network, None)


@pytest.mark.parametrize(("name", "right"), [("mlp", 449), ("cnn", 448), ("transformer", 445), ("lstm", 446)])
def test_trained_networks_classify_as_well_as_by_hand(
    name: str, right: int, exported: Callable[[Case], Exported]
) -> None:
    """All 450 held-out images, against the counts of the programs written by hand (and of the LSTM's training)."""
    case = next(c for c in NETWORKS if c.name == f"digits_{name}")
    program = compile_model(exported(case).path, bounds={"batch": 450}).program
    data = load_file(Path(__file__).parents[2] / "programs" / "data" / "digits.safetensors")
    result = Machine("golden").run(program, {"images": data["test_images"].astype(np.float32) / 16})
    assert np.count_nonzero(result["logits"].argmax(-1) == data["test_labels"]) == right


# Types do not depend on how a network was exported.
ONCE = [case for case in NETWORKS if case.exporter == "torchscript" and case.opset is None]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("case", ONCE, ids=str)
def test_the_gpu_agrees_in_sixteen_bits(case: Case, dtype: str, exported: Callable[[Case], Exported]) -> None:
    """Whatever passes put where."""
    assert gpu_agrees(exported(case), dtype)


HALF = {"f16": 0.02, "bf16": 0.15}
"""Largest error of the small networks, of the largest output: 11 and 8 bits of precision, several layers deep."""


@pytest.mark.parametrize("dtype", list(HALF))
@pytest.mark.parametrize("case", ONCE, ids=str)
def test_sixteen_bits_are_enough(case: Case, dtype: str, exported: Callable[[Case], Exported]) -> None:
    """Results stay close to those of f32, and have the types that the model declares."""
    network = exported(case)
    got = results(network, compiled(network, dtype=dtype), 0)
    for name, expected in network.runs[0].expected.items():
        assert got[name].dtype == expected.dtype
        error = np.max(np.abs(got[name] - expected), initial=0.0)
        assert error <= HALF[dtype] * np.max(np.abs(expected), initial=1.0), name
