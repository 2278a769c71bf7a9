"""The plan that the device machine derives from bytecode; made and checked without a GPU."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import generate, plan
from dla.emulator.device.layout import (
    COUNTERS,
    FIRST_DECODED,
    FIRST_PRODUCT,
    IMAGE_HEADER,
    MAX_WAITS,
    WAIT_FOR_ALL,
)
from dla.emulator.device.paths import Target
from dla.isa.attributes import pack
from dla.isa.descriptor import Segment
from dla.isa.encoding import WORD_BYTES
from dla.isa.errors import InputError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Program
from dla.isa.records import WINDOW
from dla.isa.table import Role

BASES = {segment: segment.value << 40 for segment in Segment}


def planned(text: str) -> tuple[Program, plan.Plan]:
    """A program and its plan."""
    program = assemble(text)
    return program, plan.build(program, BASES, Target())


def operand(made: plan.Plan, instruction: int, slot: int) -> np.void:
    """The resolved tensor in one operand slot."""
    return made.operands[made.slots[instruction][slot]]


def test_operands_are_absolute_views():
    """An operand's address is its segment's base plus its offset, with dims, strides and limits of the descriptor."""
    program, made = planned("""
.input x : f32[4, 6]
.output y : f32[6, 2]
main:
    COPY y, x[1:3].T
    HALT
""")
    x = operand(made, 0, 1)
    base = BASES[Segment.INPUT]
    assert x["data"] == base + 6 * 4
    assert list(x["dims"][:2]) == [6, 2]
    assert list(x["strides"][:2]) == [1, 6]
    assert (x["low"], x["high"]) == (base, base + program.segment_bytes[Segment.INPUT])
    assert not x["contiguous"]
    assert operand(made, 0, 0)["contiguous"]


def test_constant_operands_are_told_from_what_the_program_writes():
    """They may be read before the instruction may begin. State counts as written."""
    _, made = planned("""
.input x : f32[4, 6]
.const g : f32[6] = 1
.state h : f32[6]
.scratch s : f32[6]
.output y : f32[4, 6]
.output z : f32[4, 6]
main:
    COPY s, h
    NORM.layer y, x, g, s
    NORM.rms z, y, h
    HALT
""")
    assert [int(operand(made, 1, slot)["constant"]) for slot in range(4)] == [0, 1, 1, 0]
    assert [int(operand(made, 2, slot)["constant"]) for slot in range(3)] == [0, 0, 0]


def test_broadcast_operands_get_the_shape_they_meet():
    """A bias row broadcast to a matrix is seen as that matrix, with stride 0 along the repeated axis."""
    _, made = planned("""
.input x : f32[batch <= 8, 6]
.input b : f32[6]
.output y : f32[batch, 6]
main:
    EW.add y, x, b
    HALT
""")
    b = operand(made, 0, 2)
    assert b["rank"] == 2
    assert list(b["dims"][:2]) == [8, 6]
    assert list(b["strides"][:2]) == [0, 1]
    assert b["dim_register"][0] == 32  # s31, counted from 1
    assert b["dynamic"]


def test_batch_dims_of_a_product_broadcast():
    """A weight matrix without batch dims is read by every matrix of the batch."""
    _, made = planned("""
.input a : f32[3, 4, 5]
.input w : f32[5, 2]
.output y : f32[3, 4, 2]
main:
    GEMM y, a, w
    HALT
""")
    w = operand(made, 0, 2)
    assert list(w["dims"][:3]) == [3, 5, 2]
    assert list(w["strides"][:3]) == [0, 2, 1]


def test_absent_operands_and_records_are_explicit():
    """Slot 0 is an absent operand; a record left out of bytecode stands in the plan with its defaults."""
    _, made = planned("""
.input x : f32[1, 4, 4, 1]
.input w : f32[1, 1, 1, 1]
.output y : f32[1, 4, 4, 1]
main:
    CONV y, x, w
    HALT
""")
    assert not made.operands[0]["present"]
    assert operand(made, 0, 0)["present"]
    window = made.headers[0]["records"][:16]
    defaults = np.frombuffer(pack(WINDOW.attributes, {}).to_bytes(64, "little"), np.uint32)
    assert list(window) == list(defaults)


def test_huge_dims_are_refused():
    """The GPU machine counts dims in 31 bits, and says so."""
    program = assemble("""
.input x : u8[3000000000]
.output y : u8[]
main:
    REDUCE.max y, x axes=0
    HALT
""")
    with pytest.raises(InputError, match="2\\*\\*31 - 1"):
        plan.build(program, BASES, Target())


def test_an_instruction_with_very_many_dependencies_waits_for_all():
    """More producers than one warp can poll are waited for by draining."""
    n = MAX_WAITS + 8
    fills = "\n".join(f"    FILL y[{i}], {i}" for i in range(n))
    _, made = planned(
        f".output y : f32[{n}]\n.output z : f32[]\nmain:\n{fills}\n    REDUCE.sum z, y axes=0\n    HALT\n"
    )
    assert made.waits[n, 1] == WAIT_FOR_ALL


def test_every_probe_reports_in_a_slot_of_its_own():
    """Reports are numbered densely, whatever the tags."""
    _, made = planned("""
.input x : f32[3]
main:
    PROBE x, tag=70000
    NOP
    PROBE x, tag=70000
    HALT
""")
    at = BY_MNEMONIC["PROBE"].all_attributes["tag"].at // 32
    assert made.probes == (0, 2)
    assert [made.headers[i]["word"][at] for i in made.probes] == [0, 1]


def test_what_the_controller_goes_by_lies_in_three_pieces():
    """Head in decode.cuh takes them apart by their places."""
    place = {name: at for name, (_, at, *_) in IMAGE_HEADER.dtype.fields.items()}
    assert place["tiles"] == 12
    order = 16 + 3 * WORD_BYTES
    assert [place[name] - order for name in ("path", "first_block", "signal", "waits")] == [0, 4, 8, 12]
    assert [place[name] - order for name in ("present", "dynamic", "granules", "scalar_count")] == [16, 20, 24, 28]
    assert place["handler"] - place["dynamic"] == 2  # which the controller takes for the lower half of a word


def test_a_header_names_the_handler_of_its_row():
    """Numbers without gaps, and 0 for what the controller executes itself."""
    _, made = planned("""
.input x : f32[3]
.output y : f32[3]
main:
    MOV s0, 1
    ACT.relu y, x
    PROBE y, tag=1
    HALT
""")
    numbers = generate.handler_numbers()
    assert [header["handler"] for header in made.headers] == [0, numbers["ACT"], numbers["PROBE"], 0]
    assert sorted(numbers.values()) == list(range(1, len(numbers) + 1))


# ---- the order that the counters keep ----


class Simulation:
    """Blocks that follow a plan in any interleaving: what the kernel does, at the grain of instructions."""

    def __init__(self, program: Program, made: plan.Plan, blocks: int, rng: random.Random) -> None:
        self.program, self.plan, self.rng = program, made, rng
        self.counters = np.zeros(COUNTERS + 1, np.int64)  # nobody looks at the last one
        self.expected = [np.zeros(COUNTERS + 1, np.int64) for _ in range(blocks)]
        self.at = [0] * blocks
        self.path = self.execution_path()
        self.shares = [rng.randint(1, blocks) for _ in program.instructions]
        self.arrivals = [0] * len(self.path)
        self.started: list[int] = []

    def execution_path(self) -> list[int]:
        """Instruction indices in the order that the program executes them (constant loops only)."""
        path, at, stack = [], 0, []
        while self.program.instructions[at].row.mnemonic != "HALT":
            instruction = self.program.instructions[at]
            if instruction.row.mnemonic == "LOOP":
                stack.append([at, instruction.attributes["count"]])
            elif instruction.row.mnemonic == "ENDLOOP":
                stack[-1][1] -= 1
                if stack[-1][1]:
                    at = stack[-1][0]
                else:
                    stack.pop()
            else:
                path.append(at)
            at += 1
        return path

    def ready(self, block: int) -> bool:
        step = self.at[block]
        if step == len(self.path):
            return False
        index = self.path[step]
        if block >= self.shares[index]:
            return True
        first, count, _, _ = (int(v) for v in self.plan.waits[index])
        counters = range(COUNTERS) if count == WAIT_FOR_ALL else self.plan.wait_lists[first : first + count]
        return all(self.counters[c] >= self.expected[block][c] for c in counters)

    def step(self, block: int) -> None:
        step = self.at[block]
        index = self.path[step]
        signal = int(self.plan.waits[index, 2])
        if block < self.shares[index]:
            self.check_order(step)
            self.counters[signal] += 1
            self.arrivals[step] += 1
        self.expected[block][signal] += self.shares[index]
        self.at[block] += 1

    def check_order(self, step: int) -> None:
        """Everything earlier that touches the same bytes, one of the two writing, is complete."""
        for earlier in range(step):
            if self.arrivals[earlier] < self.shares[self.path[earlier]]:
                assert not self.overlap(self.path[earlier], self.path[step]), (self.path[earlier], self.path[step])

    def overlap(self, i: int, j: int) -> bool:
        """Whether instructions i and j conflict, by brute force over byte addresses."""
        reads_i, writes_i = touched(self.program, i)
        reads_j, writes_j = touched(self.program, j)
        return bool(writes_i & (reads_j | writes_j) or reads_i & writes_j)

    def run(self) -> None:
        while any(at < len(self.path) for at in self.at):
            able = [b for b in range(len(self.at)) if self.ready(b)]
            assert able, "deadlock"
            self.step(self.rng.choice(able))


def touched(program: Program, index: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """(read, written) bytes of an instruction as (segment, byte)."""
    reads: set[tuple[int, int]] = set()
    writes: set[tuple[int, int]] = set()
    instruction = program.instructions[index]
    for spec, d in zip(instruction.row.operands, instruction.operands, strict=True):
        if d is None:
            continue
        for element in np.ndindex(*d.bounds):
            start = d.offset + sum(i * s for i, s in zip(element, d.strides, strict=True)) * d.dtype.itemsize
            bytes_ = {(int(d.segment), b) for b in range(start, start + d.dtype.itemsize)}
            (writes if spec.role is Role.OUT else reads).update(bytes_)
    return reads, writes


def random_text(rng: random.Random) -> str:
    """A small program of overlapping reads and writes, with a loop."""

    def view() -> str:
        a = rng.randint(0, 6)
        return f"h[{a}:{a + 2}]" if rng.random() < 0.7 else "h[::4]"

    def some(n: int) -> list[str]:
        lines = []
        while len(lines) < n:
            out, a, b = view(), view(), view()
            lines.append(f"    SELECT {out}, c, {a}, {b}" if out not in (a, b) else f"    FILL {out}, {len(lines)}")
        return lines

    body = [*some(5), "    LOOP s0, 3", *some(4), "    ENDLOOP", *some(4)]
    return "\n".join([".input c : bool[2]", ".state h : f32[8]", "main:", *body, "    HALT", ""])


@pytest.mark.parametrize("seed", range(40))
def test_every_interleaving_keeps_conflicting_instructions_in_order(seed):
    """Blocks that run at any speed never start an instruction before what it conflicts with is complete."""
    rng = random.Random(seed)
    program, made = planned(random_text(rng))
    Simulation(program, made, blocks=4, rng=rng).run()


FIRST = """
.input x : bf16[64, 64]
.input m : bf16[n <= 64, 64]
.input i : i64[1]
.scratch s : bf16[64, 64]
.output y : bf16[64, 64]
main:
    {first}
    COPY y, s
    HALT
"""


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("COPY s, x", FIRST_DECODED),
        ("SOFTMAX s, x axis=-1", FIRST_DECODED),
        ("GEMM s[0:2, :], x[0:2, :], x", FIRST_DECODED),  # streamed
        ("GEMM s, x, x", FIRST_PRODUCT),
        ("FILL s, 1.0", 0),
        ("FILL s, s1", 0),
        ("COPY s[0:n, :], m", 0),
        ("MOV s1, 0", 0),
        ("LOADS s1, i", 0),
        ("\n    ".join(["COPY s, x"] * (COUNTERS + 1)), FIRST_DECODED),  # counters are shared
    ],
)
def test_which_first_work_is_decoded_when_the_program_is_loaded(first, expected):
    """One that neither registers nor scalars have a say in, and which waits for nothing."""
    program = assemble(FIRST.format(first=first))
    assert plan.build(program, BASES, Target(hopper=True)).first_work == expected


def test_what_nobody_waits_for_signals_nobody():
    """The last instructions; in a loop, the next round may wait for what comes later in the text."""
    text = ".state h : f32[8]\n.output y : f32[8]\n.output z : f32[8]\nmain:\n"
    _, made = planned(text + "    FILL h, 1\n    COPY y, h\n    FILL z, 2\n    HALT\n")
    assert (made.waits[:3, 2] == COUNTERS).tolist() == [False, True, True]
    _, made = planned(text + "    LOOP s0, 3\n    FILL h, 1\n    COPY y, h\n    ENDLOOP\n    FILL z, 2\n    HALT\n")
    assert (made.waits[[1, 2, 4], 2] == COUNTERS).tolist() == [False, False, True]


@pytest.mark.parametrize("seed", range(60))
def test_shared_counters_keep_the_order_too(seed, monkeypatch):
    """With fewer counters than instructions, a block that runs ahead does not pass for one that lags behind."""
    monkeypatch.setattr(plan, "COUNTERS", 3)
    pairs = "".join(f"    FILL h[{i}], {i}\n    COPY g[{i}], h[{i}]\n" for i in range(8))
    program, made = planned(f".state h : f32[8, 2]\n.state g : f32[8, 2]\nmain:\n{pairs}    HALT\n")
    Simulation(program, made, blocks=4, rng=random.Random(seed)).run()


def test_the_simulation_notices_a_missing_wait():
    """With the waits taken out of a plan, the order check fails: it can fail."""
    rng = random.Random(0)
    program, made = planned(random_text(rng))
    made.waits[:, 1] = 0

    def simulate() -> None:
        for seed in range(20):
            Simulation(program, made, blocks=4, rng=random.Random(seed)).run()

    with pytest.raises(AssertionError):
        simulate()
