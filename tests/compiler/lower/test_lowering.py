"""Lowering: what becomes an instruction, and where results lie."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dla.assembler import assemble, disassemble
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import symbol
from dla.compiler.evaluate import evaluate
from dla.compiler.passes import PASSES
from dla.compiler.pipeline import compile_graph
from dla.emulator.api import Machine
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

F32 = DType.F32


def compiled(b: GraphBuilder):
    """The program of what was built, without passes."""
    return compile_graph(b.graph, skip=[name for name in PASSES if name != "dead"])


def check(b: GraphBuilder, **inputs: np.ndarray) -> list[str]:
    """Run what was built, compare with the graph's meaning, and return the names of its tensor instructions."""
    expected = evaluate(b.graph, inputs)
    program = compiled(b).program
    result = Machine("golden").run(program, inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-5, atol=1e-6)
    assert disassemble(assemble(disassemble(program))) == disassemble(program)
    return [i.name for i in program.instructions if i.row.operands]


def test_views_cost_no_instruction():
    """Reshape, transpose and slice in a row."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 6, 4))
    y = b.transpose(b.reshape(x, (2, 6, 2, 2)), (0, 2, 1, 3))
    y = b.slice(y, {2: 1}, {2: 3}, {2: 2})
    b.output("y", b.act("relu", y))
    assert check(b, x=np.random.default_rng(0).standard_normal((2, 6, 4), np.float32)) == ["ACT.relu"]


def test_a_reshape_that_needs_one_costs_a_copy():
    """A transposed input of the program cannot be written in another order."""
    b = GraphBuilder()
    x = b.input("x", F32, (3, 4))
    b.output("y", b.act("neg", b.reshape(b.swap(x), (12,))))
    assert check(b, x=np.arange(12, dtype=np.float32).reshape(3, 4)) == ["COPY", "ACT.neg"]


def test_parts_are_written_straight_into_their_concatenation():
    """Nested ones are one buffer; a part may have other readers."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3))
    first, second = b.act("neg", x), b.act("abs", x)
    joined = b.concat([first, second], 1)
    nested = b.concat([joined, b.act("exp", x)], 1)
    b.output("y", b.act("relu", nested))
    b.output("first", b.reduce("sum", first))
    names = check(b, x=np.array([[1, -2, 3], [-4, 5, -6]], np.float32))
    assert "COPY" not in names


def test_parts_at_symbolic_places_are_not_read_where_another_is_written():
    """Descriptors cannot tell how far two parts of symbolic sizes are apart: what is read is copied first."""
    b = GraphBuilder()
    x = b.input("x", F32, (symbol("n", 4), 2))
    y = b.act("abs", x)
    b.output("y", b.concat([y, b.input("z", F32, (symbol("m", 3), 2)), b.act("neg", y), y], 0))
    check(b, x=np.array([[1, -2], [-3, 4]], np.float32), z=np.ones((1, 2), np.float32))


def test_a_state_that_stays_is_not_overwritten():
    """WRITE is in place only where the state becomes what is written."""
    b = GraphBuilder()
    kept = b.state("kept", F32, (3,))
    b.output("y", b.write(kept, b.act("exp", b.input("x", F32, (2,))), {0: 1}))
    program = compiled(b).program
    session = Machine("golden").load(program)
    session.set_state({"kept": np.array([1, 2, 3], np.float32)})
    result = session.run({"x": np.zeros(2, np.float32)})
    assert result["y"].tolist() == [1, 1, 1]
    assert result.state["kept"].tolist() == [1, 2, 3]


def test_sizes_that_no_program_has_are_refused():
    """Too many axes, bytes or symbolic sizes; the verifier would refuse the program, but not say why."""
    b = GraphBuilder()
    b.output("y", b.act("abs", b.input("x", F32, (2**20, 2**20))))
    with pytest.raises(ModelError, match="a program's have at most"):
        compiled(b)
    b = GraphBuilder()
    b.input("x", F32, (1,) * 7)
    with pytest.raises(ModelError, match="input 'x' has rank 7"):
        compiled(b)
    b = GraphBuilder()
    for k in range(33):
        b.output(f"y{k}", b.act("abs", b.input(f"x{k}", F32, (symbol(f"n{k}", 4),))))
    with pytest.raises(ModelError, match="more than 32 different symbolic sizes"):
        compiled(b)
    with pytest.raises(ModelError, match="sizes must be from 0"):
        b.input("negative", F32, (-1,))


def test_a_part_that_occurs_twice_is_copied_once():
    """Its first place is written directly, an input is copied as well."""
    b = GraphBuilder()
    x = b.input("x", F32, (2,))
    part = b.act("neg", x)
    b.output("y", b.concat([part, x, part], 0))
    assert Counter(check(b, x=np.array([1, 2], np.float32)))["COPY"] == 2


def test_outputs_are_written_in_place_through_views():
    """A transpose and a reshape are undone."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3))
    b.output("y", b.reshape(b.swap(b.act("neg", x)), (3, 1, 2)))
    assert check(b, x=np.arange(6, dtype=np.float32).reshape(2, 3)) == ["ACT.neg"]


def test_one_value_may_be_two_outputs_or_an_input():
    """Constants may be outputs, too."""
    b = GraphBuilder()
    x = b.input("x", F32, (2,))
    y = b.act("neg", x)
    for name, value in (("a", y), ("b", y), ("c", x), ("d", b.constant(np.array([7.0, 8.0]), F32))):
        b.output(name, value)
    check(b, x=np.array([1, 2], np.float32))


def test_a_source_is_written_in_the_order_that_a_reshape_needs():
    """Attention's heads come out side by side, so that joining them is a view."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3, 4, 5))
    joined = b.reshape(b.transpose(b.act("neg", x), (0, 2, 1, 3)), (2, 4, 15))
    b.output("y", b.softmax(joined))
    assert check(b, x=np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32)) == ["ACT.neg", "SOFTMAX.soft"]


def test_elementwise_chains_work_in_place():
    """All four steps share one kilobyte-aligned piece of memory."""
    b = GraphBuilder()
    x = b.input("x", F32, (1000,))
    y = x
    for kind in ("neg", "abs", "sqrt", "relu"):
        y = b.act(kind, y)
    b.output("y", b.reduce("sum", y, keepdims=True))
    result = compiled(b)
    assert result.memory.size == 4096
    check(b, x=np.ones(1000, np.float32))


def test_what_is_read_later_is_not_overwritten():
    """A view counts as a reader."""
    b = GraphBuilder()
    x = b.input("x", F32, (4,))
    y = b.act("neg", x)
    view = b.reshape(y, (2, 2))
    z = b.act("exp", y)
    b.output("out", b.add(b.reduce("sum", view), b.reduce("sum", z)))
    check(b, x=np.array([1, 2, 3, 4], np.float32))


def test_one_program_serves_every_size_up_to_the_bound():
    """Concatenation and slices at symbolic places, sizes as numbers."""
    b = GraphBuilder()
    batch, past = symbol("batch", 4), symbol("past", 6)
    x, cache = b.input("x", F32, (batch, 2, 3)), b.input("cache", F32, (batch, past, 3))
    joined = b.concat([cache, x], 1)
    b.output("sum", b.reduce("sum", joined, [2]))
    b.output("last", b.part(joined, 1, past + 1, 1))
    b.output("count", b.fill((), (past + 2) * batch, DType.I64))
    b.output("half", b.fill((), past // 2, DType.I64))
    program = compiled(b).program
    for sizes in ((1, 0), (3, 5), (4, 6)):
        given = {
            "x": np.random.default_rng(1).standard_normal((sizes[0], 2, 3), np.float32),
            "cache": np.random.default_rng(2).standard_normal((sizes[0], sizes[1], 3), np.float32),
        }
        result, expected = Machine("golden").run(program, given), evaluate(b.graph, given)
        for name, value in expected.items():
            np.testing.assert_allclose(result[name], value, rtol=1e-5, atol=1e-6)


BATCH, SEQ = symbol("batch", 4), symbol("seq", 6)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((BATCH, SEQ, 3), (BATCH * SEQ, 3)),
        ((BATCH * SEQ, 3), (BATCH, SEQ, 3)),
        ((BATCH, 2, SEQ, SEQ), (BATCH * 2 * SEQ * SEQ, 1)),
        ((BATCH, SEQ, SEQ), (SEQ, BATCH, SEQ)),
        ((BATCH, SEQ, 4), (BATCH, SEQ * 4)),
        ((SEQ, 2, BATCH), (2, SEQ * BATCH)),
    ],
)
def test_rows_of_symbolic_length_are_packed_where_they_must_be(before, after):
    """A reshape that no view can say is done row by row, for every size."""
    b = GraphBuilder()
    x = b.input("x", F32, (BATCH, SEQ))  # gives the sizes
    y = b.iota((*before[:-1], before[-1]), F32, axis=len(before) - 1, start=1)
    y = b.add(y, b.iota((before[0], *(1,) * (len(before) - 1)), F32, start=10, step=100))
    b.output("y", b.act("neg", b.reshape(y, after)))
    b.output("x2", b.act("neg", x))
    program = compiled(b).program
    for sizes in ((4, 6), (2, 3), (1, 1), (3, 0)):
        given = {"x": np.ones(sizes, np.float32)}
        result, expected = Machine("golden").run(program, given), evaluate(b.graph, given)
        np.testing.assert_array_equal(result["y"], expected["y"])


def test_a_state_is_updated_in_place():
    """One copy of what is new, and the state lives on."""
    b = GraphBuilder()
    cache = b.state("cache", F32, (8, 2))
    x, at = b.input("x", F32, (1, 2)), 3
    after = b.write(cache, x, {0: at})
    b.set_state("cache", after)
    b.output("sum", b.reduce("sum", after, [0]))
    program = compiled(b).program
    assert [i.name for i in program.instructions if i.row.operands] == ["COPY", "REDUCE.sum"]
    session = Machine("golden").load(program)
    session.run({"x": np.array([[1, 2]], np.float32)})
    result = session.run({"x": np.array([[5, 6]], np.float32)})
    np.testing.assert_array_equal(result["sum"], [5, 6])
    np.testing.assert_array_equal(session.state["cache"][3], [5, 6])


def test_states_may_change_places():
    """Neither is overwritten before it is read."""
    b = GraphBuilder()
    first, second = b.state("first", F32, (2,)), b.state("second", F32, (2,))
    b.set_state("first", second)
    b.set_state("second", b.add(first, 1))
    session = Machine("golden").load(compiled(b).program)
    session.run({})
    session.run({})
    assert [session.state[n][0] for n in ("first", "second")] == [1, 1]


def test_writing_over_something_that_is_read_later_copies_it_first():
    """The old value stays whole."""
    b = GraphBuilder()
    x, part = b.input("x", F32, (4,)), b.input("part", F32, (2,))
    y = b.act("neg", x)
    written = b.write(y, part, {0: 1})
    b.output("out", b.add(written, y))
    check(b, x=np.arange(4, dtype=np.float32), part=np.array([9, 9], np.float32))


def test_batched_products_with_one_right_matrix_become_one_product():
    """Rows of all samples together."""
    b = GraphBuilder()
    x, w = b.input("x", F32, (3, 4, 5)), b.constant(np.ones((5, 2), np.float32))
    b.output("y", b.matmul(x, w))
    program = compiled(b).program
    (product,) = (i for i in program.instructions if i.row.mnemonic == "GEMM")
    assert product.operand("out").dims == (12, 2)


def test_constants_are_stored_once_and_names_are_identifiers():
    """Whatever the model calls them."""
    b = GraphBuilder("my model!")
    w = b.constant(np.ones((4, 4), np.float32), name="layer.1/weight:0")
    x = b.input("x y", F32, (4, 4))
    b.output("out put", b.matmul(b.matmul(x, w), w))
    program = compiled(b).program
    assert program.name == "my_model_"
    assert [t.name for t in program.in_segment(Segment.CONST)] == ["layer.1_weight_0"]
    assert [t.name for t in program.in_segment(Segment.OUTPUT)] == ["out_put"]


def test_two_compilations_give_equal_programs():
    """Nothing depends on addresses or hashes."""

    def build():
        b = GraphBuilder()
        x = b.input("x", F32, (symbol("n", 5), 4))
        w = b.constant(np.arange(16, dtype=np.float32).reshape(4, 4))
        b.output("y", b.softmax(b.act("gelu", b.matmul(x, w))))
        return compile_graph(b.graph).program

    assert build() == build()
