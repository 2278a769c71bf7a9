"""If, Loop and Scan whose course is known while compiling: branches are chosen, bodies repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dla.compiler.dims import Expr
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context, Item, materialise
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

MOST_STEPS = 1000
"""Steps of a loop: each is as many instructions as the body."""


def branch(c: Context) -> tuple[Item, ...]:
    """The branch that the condition, which must be known, chooses."""
    chosen = c.scalar(0, "condition")
    return tuple(c.body(c.required("then_branch" if chosen else "else_branch"), []))


def loop(c: Context) -> tuple[Item, ...]:
    """The body as often as the trip count says, or until its condition, where that is known, is false."""
    most = c.scalar(0, "trip count") if c.has(0) else MOST_STEPS + 1
    if isinstance(most, Expr):
        raise ModelError(f"its trip count {most} is symbolic", hint="fix this dim: --fix NAME=SIZE")
    going = bool(c.scalar(1, "condition")) if c.has(1) else True
    body = c.required("body")
    carried: list[Item] = [item for item in c.inputs[2:] if item is not None]
    count, step = len(carried), 0
    collected: list[list[Value]] = []
    while going and step < most:
        if step == MOST_STEPS:
            raise ModelError(f"it takes more than {MOST_STEPS} steps")
        given = [c.b.constant(step, DType.I64), c.b.constant(True, DType.BOOL), *carried]
        condition, *made = c.body(body, given)
        if len(made) < count:
            raise ModelError(f"its body has {len(made)} outputs for {count} values that it carries")
        carried, found = made[:count], made[count:]
        collected.append([materialise(c.b, item) for item in found])
        step += 1
        if c.has(1) or not c.has(0):
            going = _is_true(condition)
    if not collected and len(c.outputs) > count and any(c.outputs[count:]):
        raise ModelError("it takes no step, so the shapes of what it collects are not known")
    return (*carried, *(_stacked(c, column, 0) for column in zip(*collected, strict=True)))


def _is_true(condition: Item) -> bool:
    array = condition.constant if isinstance(condition, Value) else None
    if array is None:
        raise ModelError("its condition depends on data: the number of its steps is known only when it runs")
    return bool(array.reshape(-1)[0])


def scan(c: Context) -> tuple[Item, ...]:
    """The body for each slice of the scanned inputs, whose number must be known."""
    if c.opset < 9:
        return _batched_scan(c)
    return _scan(c, list(c.inputs))


def _scan(c: Context, inputs: Sequence[Item | None]) -> tuple[Item, ...]:
    scanned = int(c.required("num_scan_inputs"))
    if not 1 <= scanned <= len(inputs) or None in inputs:
        raise ModelError(f"{len(inputs)} inputs, of which {scanned} are scanned")
    states: list[Item] = [item for item in inputs[: len(inputs) - scanned] if item is not None]
    sources = [materialise(c.b, item) for item in inputs[len(inputs) - scanned :] if item is not None]
    along = _of_length(c, "scan_input_axes", scanned)
    axes = [c.axis(a, v.rank) for a, v in zip(along, sources, strict=True)]
    sizes = {v.dims[a] for a, v in zip(axes, sources, strict=True)}
    count = sizes.pop() if len(sizes) == 1 else None
    if not isinstance(count, int) or count > MOST_STEPS:
        raise ModelError(
            f"the number of its steps must be known and at most {MOST_STEPS}", hint="fix these dims: --fix NAME=SIZE"
        )
    backward = _of_length(c, "directions" if c.opset < 9 else "scan_input_directions", scanned)
    kept = len(states)
    collected: list[list[Value]] = []
    for step in range(count):
        slices = [
            c.b.squeeze(c.b.part(v, a, count - 1 - step if back else step, 1), a)
            for v, a, back in zip(sources, axes, backward, strict=True)
        ]
        made = c.body(c.required("body"), [*states, *slices])
        if len(made) < kept:
            raise ModelError(f"its body has {len(made)} outputs for {kept} states")
        states = made[:kept]
        collected.append([materialise(c.b, item) for item in made[kept:]])
    if not collected:
        raise ModelError("it takes no step, so the shapes of what it collects are not known")
    columns = list(zip(*collected, strict=True))
    turned = _of_length(c, "scan_output_directions", len(columns))
    along = _of_length(c, "scan_output_axes", len(columns))
    stacks = [
        _stacked(c, column[::-1] if back else column, axis)
        for column, back, axis in zip(columns, turned, along, strict=True)
    ]
    return (*states, *stacks)


def _batched_scan(c: Context) -> tuple[Item, ...]:
    """Operator set 8: the first input gives lengths, every other one has a batch axis; one scan for each sample."""
    if c.has(0):
        raise ModelError("sequences of different lengths")
    given = [materialise(c.b, item) for item in c.inputs[1:] if item is not None]
    if not given or min(v.rank for v in given) < 1 or len({v.dims[0] for v in given}) != 1:
        raise ModelError("its inputs must have one batch size")
    batch = given[0].dims[0]
    if not isinstance(batch, int) or not 1 <= batch <= MOST_STEPS:
        raise ModelError(f"its batch must be known and from 1 to {MOST_STEPS}", hint="fix this dim: --fix NAME=SIZE")
    samples = [_scan(c, [c.b.squeeze(c.b.part(v, 0, k, 1), 0) for v in given]) for k in range(batch)]
    return tuple(_stacked(c, [materialise(c.b, item) for item in column], 0) for column in zip(*samples, strict=True))


def _of_length(c: Context, name: str, count: int) -> list[int]:
    """An attribute of `count` integers, by default zeros."""
    given = list(c.attribute(name, [0] * count))
    if len(given) != count:
        raise ModelError(f"attribute '{name}' has {len(given)} numbers instead of {count}")
    return given


def _stacked(c: Context, parts: Sequence[Value], axis: int) -> Value:
    """`parts` along a new axis."""
    axis = c.axis(axis, parts[0].rank + 1)
    return c.b.concat([c.b.unsqueeze(p, axis) for p in parts], axis)


RULES: dict[str, Callable[[Context], Any]] = {"If": branch, "Loop": loop, "Scan": scan}
