"""Hammer the importer and the compiler with damaged models: a script, run by test_fuzz_models.py.

    python tests/trust/fuzz_models.py --mutations 1500 --seed 0

Models of many kinds, and some of ONNX's own, are changed where it hurts: attributes, inputs, types, ranks, sizes,
constants, operators. Whatever the damage, a model is refused with a DlaError or becomes a program that the verifier
accepts and that ends or traps; quickly, and in little memory. The last line is a JSON object of counts; "problems" has
what broke that promise, by kind, with the number of the mutation.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import hostile_models
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from dla.compiler.api import compile_model
from dla.compiler.onnx import signature
from dla.compiler.onnx.rules import RULES
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.random_inputs import random_inputs
from dla.isa.errors import DlaError, Trap
from dla.isa.program import Program

SECONDS = 2.0
"""What importing, compiling and running one of these models may take."""
_LARGEST_RUN = 2**24  # bytes of a program's segments that is run
_INTS = (0, 1, -1, 2, 3, 7, -7, 100, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)
_FLOATS = (0.0, -1.0, 1e-45, 1e38, -1e38, float("inf"), float("nan"))
_SIZES = (0, 1, 2, 3, 5, 17, 1000, 2**20, 2**31, 2**40, 2**62, -1)
_STRINGS = (b"", b"nearest", b"linear", b"sum", b"SAME_UPPER", b"VALID", b"ij,jk->ik", b"...", b"\xff\x00", b"x" * 3000)
_TYPES = (*range(24), 99)
_OPERATORS = [("", op) for op in (*sorted(op for op in RULES if "::" not in op), "Shape", "Size", "Nonsense")]
_FOREIGN = [tuple(op.split("::")) for op in sorted(RULES) if "::" in op]
F32 = TensorProto.FLOAT


# -- damage


Mutation = Callable[[onnx.ModelProto, random.Random], None]


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice([n for g in _graphs(model.graph) for n in g.node])


def _names(model: onnx.ModelProto) -> list[str]:
    made = [name for node in model.graph.node for name in node.output]
    return [*(i.name for i in model.graph.input), *(t.name for t in model.graph.initializer), *made]


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another value of an attribute."""
    found = [a for g in _graphs(model.graph) for n in g.node for a in n.attribute]
    if not found:
        return
    attribute = rng.choice(found)
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = rng.choice(_INTS)
    elif kind == AttributeProto.FLOAT:
        attribute.f = rng.choice(_FLOATS)
    elif kind == AttributeProto.STRING:
        attribute.s = rng.choice(_STRINGS)
    elif kind == AttributeProto.INTS:
        _list(attribute.ints, rng, _INTS)
    elif kind == AttributeProto.FLOATS:
        _list(attribute.floats, rng, _FLOATS)
    elif kind == AttributeProto.STRINGS:
        _list(attribute.strings, rng, _STRINGS)
    elif kind == AttributeProto.TENSOR:
        _change_tensor(attribute.t, rng)


def _list(values: Any, rng: random.Random, choices: Sequence[Any]) -> None:
    """Another number, one more, one less, or none."""
    kind = rng.randrange(4)
    if kind == 0 or not values:
        values.append(rng.choice(choices))
    elif kind == 1:
        values.pop()
    elif kind == 2:
        del values[:]
    else:
        values[rng.randrange(len(values))] = rng.choice(choices)


def _attribute_kind(model: onnx.ModelProto, rng: random.Random) -> None:
    """An attribute of another type, missing, twice, or one that was not written."""
    node = _node(model, rng)
    kind = rng.randrange(4)
    if node.attribute and kind < 3:
        index = rng.randrange(len(node.attribute))
        name = node.attribute[index].name
        if kind == 0:
            del node.attribute[index]
        elif kind == 1:
            node.attribute.append(node.attribute[index])
        else:
            node.attribute[index].CopyFrom(helper.make_attribute(name, rng.choice([1, 0.5, "x", [1, 2], [0.5], ["a"]])))
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, 18, "")
    except onnx.defs.SchemaError:
        return
    if schema.attributes:
        name, known = rng.choice(sorted(schema.attributes.items()))
        value = {"INT": rng.choice(_INTS), "FLOAT": rng.choice(_FLOATS), "STRING": rng.choice(_STRINGS),
                 "INTS": [rng.choice(_INTS) for _ in range(rng.randint(0, 4))]}.get(known.type.name)  # fmt: skip
        if value is not None:
            made = AttributeProto(name=name, type=known.type.value)
            _set(made, value)
            node.attribute.append(made)


def _set(attribute: AttributeProto, value: Any) -> None:
    if isinstance(value, bytes):
        attribute.s = value
    elif isinstance(value, list):
        attribute.ints.extend(value)
    elif isinstance(value, float):
        attribute.f = value
    else:
        attribute.i = value


def _inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    """Inputs of a node exchanged, left out, or others."""
    node = _node(model, rng)
    kind = rng.randrange(5)
    if not node.input or kind == 0:
        node.input.append(rng.choice(["", *_names(model)]))
    elif kind == 1:
        node.input[rng.randrange(len(node.input))] = ""
    elif kind == 2:
        node.input.pop()
    elif kind == 3:
        node.input[rng.randrange(len(node.input))] = rng.choice(_names(model))
    else:
        given = list(node.input)
        rng.shuffle(given)
        del node.input[:]
        node.input.extend(given)


def _declared(model: onnx.ModelProto, rng: random.Random) -> None:
    """An input of the model with another type, rank or size."""
    if not model.graph.input:
        return
    tensor = rng.choice(model.graph.input).type.tensor_type
    kind = rng.randrange(6)
    shape = tensor.shape.dim
    if kind == 0:
        tensor.elem_type = rng.choice(_TYPES)
    elif kind == 1 or not shape:
        for _ in range(rng.randint(1, 5)):
            shape.add().dim_value = rng.choice((1, 2, 3))
    elif kind == 2:
        del shape[rng.randrange(len(shape))]
    elif kind == 3:
        shape[rng.randrange(len(shape))].dim_value = rng.choice(_SIZES)
    elif kind == 4:
        shape[rng.randrange(len(shape))].dim_param = rng.choice(("batch", "seq", "n", "", "1 + 1"))
    else:
        tensor.ClearField("shape")


def _constant(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another initialiser."""
    found = [t for g in _graphs(model.graph) for t in g.initializer]
    if found:
        _change_tensor(rng.choice(found), rng)


def _change_tensor(tensor: TensorProto, rng: random.Random) -> None:
    """Another shape, type or value of a tensor."""
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return
    kind, name = rng.randrange(6), tensor.name
    changed = np.array(array)
    if kind == 0 and changed.size and changed.dtype.kind in "iuf":
        limits = _FLOATS if changed.dtype.kind == "f" else _INTS
        with np.errstate(all="ignore"):
            changed.reshape(-1)[rng.randrange(changed.size)] = np.array(rng.choice(limits)).astype(changed.dtype)
    elif kind == 1:
        types = [np.float32, np.float16, np.float64, np.int64, np.int32, np.uint8, np.bool_]
        with np.errstate(all="ignore"):
            changed = changed.astype(rng.choice(types))
    elif kind == 2:
        changed = changed.reshape([1] * rng.randint(0, 7) + list(changed.shape))
    elif kind == 3:
        changed = changed.reshape(-1)
    elif kind == 4:
        shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 6))]
        changed = np.resize(changed, shape) if changed.size else np.zeros(shape, changed.dtype)
    elif changed.ndim:
        changed = np.take(changed, range(rng.randint(0, changed.shape[0])), axis=0)
    if changed.dtype.kind in "iufb":
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed).reshape(changed.shape), name))


def _operator(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another operator."""
    node = _node(model, rng)
    node.domain, node.op_type = rng.choice(_OPERATORS) if rng.random() < 0.8 else rng.choice(_FOREIGN)


def _nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node twice, missing, elsewhere, or a new one of any operator."""
    nodes = model.graph.node
    kind = rng.randrange(4)
    if kind == 0:
        nodes.add().CopyFrom(rng.choice(nodes))
    elif kind == 1:
        del nodes[rng.randrange(len(nodes))]
    elif kind == 2:
        moved = list(nodes)
        rng.shuffle(moved)
        del nodes[:]
        nodes.extend(moved)
    else:
        given = [rng.choice(_names(model)) for _ in range(rng.randint(1, 3))]
        nodes.add().CopyFrom(helper.make_node(rng.choice(_OPERATORS)[1], given, ["extra"]))
        model.graph.output.append(helper.make_tensor_value_info("extra", F32, None))


def _results(model: onnx.ModelProto, rng: random.Random) -> None:
    """Outputs of nodes or of the model that are others, or fewer, or more."""
    kind = rng.randrange(4)
    if kind == 0:
        _node(model, rng).output.append(f"more{rng.randrange(9)}")
    elif kind == 1 and (node := _node(model, rng)).output:
        node.output.pop()
    elif model.graph.output:
        rng.choice(model.graph.output).name = rng.choice(_names(model))


def _version(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another version of the operators."""
    if model.opset_import:
        rng.choice(model.opset_import).version = rng.choice([*range(11, 29), 0, -1, 2**40])


_MUTATIONS: tuple[Mutation, ...] = (
    _attribute, _attribute, _attribute, _attribute_kind, _inputs, _inputs, _declared, _declared, _constant, _constant,
    _constant, _operator, _nodes, _results, _version,
)  # fmt: skip


def mutated(given: Sequence[onnx.ModelProto], number: int, seed: int) -> onnx.ModelProto:
    """One of the models with one to three changes: the same for the same numbers."""
    rng = random.Random(seed * 1_000_003 + number)
    model = onnx.ModelProto()
    model.CopyFrom(rng.choice(given))
    for _ in range(rng.choice([1, 1, 2, 3])):
        if model.graph.node:
            try:
                rng.choice(_MUTATIONS)(model, rng)
            except (ValueError, OverflowError):  # a number that the field cannot hold
                continue
    return model


# -- what becomes of it


class Hang(BaseException):
    """It takes too long."""


def _alarm(signum: int, frame: FrameType | None) -> None:
    raise Hang


def outcome(model: onnx.ModelProto) -> str:
    """refused, ran, trapped or unrun; raises what must not be raised."""
    try:
        declared = signature.inputs(model.graph)
        bounds = {d.text: 4 for given in declared for d in given.dims or () if isinstance(d, signature.Symbol)}
        program = compile_model(model, bounds=bounds, substitute=True).program
    except DlaError as error:
        if "please report" in str(error) or "is not sound: " in str(error):
            raise AssertionError(str(error)) from error
        return "refused"
    if not _is_small(program):
        return "unrun"
    try:
        inputs = random_inputs(program, 0)
        GoldenMachine(timeout=SECONDS / 4).load(program).run(inputs)
    except Trap:
        return "trapped"
    return "ran"


def _is_small(program: Program) -> bool:
    return sum(program.segment_bytes.values()) <= _LARGEST_RUN


def _kind(error: BaseException) -> str:
    """An error by its type and the innermost lines of dla that it came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/dla/" in f.filename or "onnx" in f.filename]
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[:-4:-1])
    return f"{type(error).__name__} {where}: {str(error)[:200]}"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Damage models, and print what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--node-tests", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, help="this one, with its traceback")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    sources = hostile_models.models(given.node_tests)
    if given.only is not None:
        model = mutated(sources, given.only, given.seed)
        print(onnx.printer.to_text(model)[:6000])
        print(outcome(model))
        return
    signal.signal(signal.SIGALRM, _alarm)
    compile_model(hostile_models.cnn(), bounds={"batch": 2})
    counts: collections.Counter[str] = collections.Counter()
    problems: dict[str, list[int]] = collections.defaultdict(list)
    start = _peak_bytes()
    for number in range(given.first, given.first + given.mutations):
        model = mutated(sources, number, given.seed)
        before, began = _peak_bytes(), time.process_time()
        signal.setitimer(signal.ITIMER_REAL, 4 * SECONDS)
        try:
            counts[outcome(model)] += 1
        except (Exception, Hang) as error:  # noqa: BLE001  # whatever it is, it is a finding
            problems[_kind(error)].append(number)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if time.process_time() - began > SECONDS:
            problems["more than 2 s"].append(number)
        if _peak_bytes() - before > 300 * 2**20:
            problems["more than 300 MB"].append(number)
    found = {"problems": problems, "memory_growth": _peak_bytes() - start}
    print(json.dumps({**counts, **found}))


if __name__ == "__main__":
    main()
