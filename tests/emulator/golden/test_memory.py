"""The golden machine's memory: the watch on unwritten bytes, and constants that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dla
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.golden.memory import ConstMemory, Memory, Resolved
from dla.isa.descriptor import Descriptor, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import ConstBlock, Instruction, Program
from dla.isa.reach import Reach

Run = Callable[..., dla.Result]


def memory_of(scratch: int, *, watch: bool = True) -> Memory:
    """Memory of a program that has only scratch."""
    program = Program("m", (), segment_bytes={Segment.SCRATCH: scratch})
    return Memory(program, ConstMemory(()), Reach(program), np.zeros(0, np.uint8), watch=watch)


def at(descriptor: Descriptor) -> Resolved:
    """A static descriptor, resolved."""
    return Resolved(descriptor, descriptor.bounds, descriptor.offset)


def test_reading_unwritten_scratch_traps(run: Run) -> None:
    """The verifier cannot prove what data decides; the golden machine sees it: the branch skips the write."""
    text = """
.program t
.input  wanted : bool[]
.scratch h : f32[4]
.output y : f32[4]
main:
    LOADS p0, wanted
    BR skip unless=p0
    FILL h, 1
skip:
    COPY y, h
    HALT
"""
    assert run(text, {"wanted": np.array(True)})["y"].tolist() == [1, 1, 1, 1]
    with pytest.raises(dla.Trap) as caught:
        run(text, {"wanted": np.array(False)})
    assert (caught.value.category, caught.value.instruction) == ("uninitialised", 3)
    unwatched = run(text, {"wanted": np.array(False)}, watch=False)
    assert unwatched["y"].shape == (4,)


def test_delivering_an_output_with_holes_traps(run: Run) -> None:
    """An output that the program wrote only in part is not delivered."""
    text = ".program t\n.input n : i64[]\n.output y : f32[4]\nmain:\nLOADS s0, n\nFILL y[s0], 1\nHALT\n"
    with pytest.raises(dla.Trap, match="output 'y' at HALT: parts of it were never written"):
        run(text, {"n": np.array(2)})


def test_the_watch_sees_single_elements_of_a_strided_view() -> None:
    """Writing the even columns leaves the odd ones unwritten, byte for byte."""
    memory = memory_of(64)
    even = Descriptor(Segment.SCRATCH, DType.F32, (2, 4), (8, 2), 0)
    odd = Descriptor(Segment.SCRATCH, DType.F32, (2, 4), (8, 2), 4)
    memory.write(at(even), np.ones((2, 4), np.float32))
    assert memory.read(at(even)).sum() == 8
    with pytest.raises(dla.Trap, match="uninitialised"):
        memory.read(at(odd))


def test_the_watch_counts_bytes_not_elements() -> None:
    """Half-written elements, seen through a wider type, are not initialised."""
    memory = memory_of(8)
    memory.write(at(contiguous(Segment.SCRATCH, DType.F16, (1,), 0)), np.ones(1, np.float16))
    with pytest.raises(dla.Trap, match="uninitialised"):
        memory.read(at(contiguous(Segment.SCRATCH, DType.F32, (1,), 0)))


def test_broadcast_views_repeat_elements() -> None:
    """A stride of 0 reads one element many times."""
    memory = memory_of(16)
    memory.write(at(contiguous(Segment.SCRATCH, DType.I32, (2,), 0)), np.array([5, 6], np.int32))
    repeated = Descriptor(Segment.SCRATCH, DType.I32, (3, 2), (0, 1), 0)
    assert memory.read(at(repeated)).tolist() == [[5, 6]] * 3


def test_what_is_read_cannot_be_written_through() -> None:
    """Semantics that would change an operand in place fail at once."""
    memory = memory_of(16)
    place = at(contiguous(Segment.SCRATCH, DType.I32, (2,), 0))
    memory.write(place, np.array([5, 6], np.int32))
    with pytest.raises(ValueError, match="read-only"):
        memory.read(place)[0] = 1


def test_constants_inside_one_block_are_not_copied() -> None:
    """A weight that lies in one (memory-mapped) block is used where it is."""
    data = np.arange(16, dtype=np.float32).view(np.uint8)
    const = ConstMemory((ConstBlock(256, data),))
    window, base = const.window(260, 272)
    assert np.shares_memory(window, data)
    assert base == 256


def test_a_constant_is_found_among_many_blocks() -> None:
    """Each block is found by its offset; one without bytes hides nothing."""
    blocks = [ConstBlock(256 * i, np.full(256, i, np.uint8)) for i in range(100)]
    const = ConstMemory((*blocks[:50], ConstBlock(49 * 256, np.empty(0, np.uint8)), *blocks[50:]))
    for i in range(100):
        window, base = const.window(256 * i, 256 * i + 4)
        assert np.shares_memory(window, blocks[i].data)
        assert base == 256 * i


def test_constants_across_blocks_and_gaps_are_joined() -> None:
    """Bytes that no block covers are zero."""
    ones, twos = np.full(4, 1, np.uint8), np.full(4, 2, np.uint8)
    const = ConstMemory((ConstBlock(0, ones), ConstBlock(6, twos)))
    window, base = const.window(2, 12)
    assert base == 2
    assert window.tolist() == [1, 1, 0, 0, 2, 2, 2, 2, 0, 0]


def test_external_weights_are_read_from_beside_the_program(tmp_path: Path) -> None:
    """A program saved with its weights outside runs to the same outputs."""
    text = ".program t\n.const w : f32[4] = [1, 2, 3, 4]\n.output y : f32[4]\nmain:\nEW.add y, w, w\nHALT\n"
    dla.save(dla.assemble(text), tmp_path / "p.dlab", external="w.safetensors")
    program = dla.load(tmp_path / "p.dlab")
    assert program.external
    assert dla.Machine("golden").run(program, {})["y"].tolist() == [2, 4, 6, 8]


def test_nan_weights_are_data_like_any_other(run: Run) -> None:
    """NaN and infinite constants pass through; nothing refuses them."""
    text = ".program t\n.const w : f32[3] = [nan, inf, 1]\n.output y : f32[3]\nmain:\nEW.add y, w, w\nHALT\n"
    np.testing.assert_array_equal(run(text)["y"], np.array([np.nan, np.inf, 2], np.float32))


def test_empty_tensors_touch_nothing() -> None:
    """A zero-size operand needs no memory at all, wherever it points."""
    y = contiguous(Segment.OUTPUT, DType.F32, (0, 3), 1 << 20)
    program = Program(
        "empty", (Instruction(BY_MNEMONIC["EW"], "add", (y, y, y)), Instruction(BY_MNEMONIC["HALT"])), ()
    )  # fmt: skip
    assert GoldenMachine().load(program).run({}).outputs == {}
