"""Where instructions begin: independent ones side by side, chains of single tiles on one block."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import PATH_CONV, PATH_FLASH, PATH_GEMM, PATH_STREAM
from dla.emulator.device.paths import Target
from dla.emulator.device.placement import Share, expected_tiles, first_blocks
from dla.isa.descriptor import Segment
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession

BLOCKS = 132
BASES = {segment: 2**30 * segment.value for segment in Segment}


def spans(text: str) -> list[set[int]]:
    """The blocks of each instruction but the last, as the plan has them."""
    program = assemble(text)
    made = plan.build(program, BASES, Target(BLOCKS, hopper=True))
    pairs = zip(made.headers["first_block"][:-1], made.schedules[:-1], strict=True)
    return [{(int(first) + k) % BLOCKS for k in range(max(1, schedule.tiles))} for first, schedule in pairs]


QKV = """
.input x : bf16[64, 512]
.input g : bf16[512]
.input w : bf16[3, 512, 512]
.scratch n : bf16[64, 512]
.output q : bf16[64, 512]
.output k : bf16[64, 512]
.output v : bf16[64, 512]
main:
    NORM.rms n, x, g
    GEMM q, n, w[0]
    GEMM k, n, w[1]
    GEMM v, n, w[2]
    HALT
"""


def test_products_that_do_not_depend_on_each_other_do_not_share_blocks():
    """Each of q, k and v has some tiles; together they are fewer than there are blocks."""
    _, q, k, v = spans(QKV)
    assert 1 < len(q) <= BLOCKS // 3
    assert not q & k | k & v | q & v


def test_products_go_round_all_blocks():
    """Each begins where the one before ended, whatever it waits for: its weights come ahead of that."""
    many, few = (Share(n, ahead=True) for n in (140, 50))
    assert first_blocks([[], [0], [1], [2], []], [few, few, few, many, few], BLOCKS) == [0, 50, 100, 18, 26]


def test_what_follows_a_product_has_other_blocks():
    """Or, where all blocks had a part in it, the first blocks, unless it has something for all of them itself."""
    shares = [Share(18, ahead=True), Share(4), Share(140, ahead=True), Share(1), Share(1), Share(BLOCKS, ahead=True)]
    assert first_blocks([[], [0], [1], [2], [3], [4]], shares, BLOCKS) == [0, 18, 18, 0, 0, 26]
    assert first_blocks([[], [0]], [Share(140, ahead=True), Share(BLOCKS)], BLOCKS) == [1, 9]


@pytest.mark.parametrize(
    ("tiles", "behind", "place"),
    [
        (100, 32, 100),
        (100, 33, 0),  # there are not enough blocks for both
        (2, 1, 2),
        (1, 1, 0),  # its own block needs no signal
    ],
)
def test_what_follows_a_product_takes_its_place_where_that_is_better(tiles, behind, place):
    """Of what follows something else than a product, that is so anyway."""
    assert first_blocks([[], [0]], [Share(tiles, ahead=True), Share(behind)], BLOCKS) == [0, place]
    assert first_blocks([[], [0]], [Share(tiles), Share(behind)], BLOCKS) == [0, 0]


@pytest.mark.parametrize(
    ("text", "tiles"),
    [
        ("NORM.rms y, x, g", 32),
        ("NORM.layer y[:6], x[:6], g, g", 6),  # whose warps share them
        ("NORM.layer y[:34], x[:34], g, g", 9),
        ("SOFTMAX y, x axis=1", 32),
        ("SOFTMAX y, x axis=0", 48),
        ("EW.add y, x, x", 48),
        ("ACT.relu y[0], x[0]", 1),
    ],
)
def test_what_handlers_make_of_an_instruction_is_estimated(text, tiles):
    """By elements, or of whole rows by these."""
    declared = ".input x : bf16[128, 768]\n.input g : bf16[768]\n.output y : bf16[128, 768]\nmain:\n"
    program = assemble(f"{declared}    {text}\n    HALT\n")
    assert expected_tiles(program.instructions[0], BLOCKS) == tiles
    assert expected_tiles(program.instructions[0], 1) == 1


def test_the_first_block_has_fewer_tiles_of_a_product_on_all_blocks():
    """What waits for such a product goes there."""
    many = Share(256, ahead=True)  # 8 blocks have one tile, the others two
    places = first_blocks([[], [0], [1], [2]], [many, Share(1), many, Share(1)], BLOCKS)
    assert places == [1, 0, 1, 0]
    for place in (places[0], places[2]):
        assert (0 - place) % BLOCKS >= 256 - BLOCKS
    # Where a pair of blocks works together, it begins with its first one.
    assert first_blocks([[]], [Share(256, ahead=True, together=2)], BLOCKS) == [0]


def test_a_product_beside_something_else_begins_behind_it():
    """Both wait for instruction 0, and can go on at the same time."""
    shares = [Share(1), Share(20), Share(5, ahead=True), Share(5, ahead=True)]
    assert first_blocks([[], [0], [0], [2]], shares, BLOCKS) == [0, 0, 20, 25]


CHAIN = """
.input x : f32[64]
.scratch h : f32[64]
.scratch g : f32[64]
.scratch u : f32[64]
.scratch t : f32[64]
.output y : f32[64]
main:
    EW.add h, x, 1
    EW.mul u, x, 2
    EW.add g, h, 1
    EW.mul t, u, 2
    EW.add h, g, 1
    EW.mul u, t, 2
    EW.add y, h, u
    HALT
"""


def test_chains_of_single_tiles_stay_on_their_block():
    """Two branches, instruction by instruction in turns: one block each, and where they meet, one of the two."""
    a, b, *rest, last = spans(CHAIN)
    assert len(a) == len(b) == 1
    assert a != b
    assert rest == [a, b, a, b]
    assert last in (a, b)


def test_branches_one_after_the_other_have_their_blocks_too():
    """The second branch waits for what the first one waits for, and has its own chain from there."""
    before = [[], [0], [1], [0], [3], [0], [2, 4, 5]]
    assert first_blocks(before, [Share(1)] * 7, BLOCKS) == [0, 0, 0, 1, 1, 2, 2]


def test_a_branch_begins_behind_what_goes_on_beside_it_and_no_further():
    """What was placed before its common ancestor is done: those blocks are free."""
    shares = [Share(BLOCKS), Share(50), Share(50), Share(25)]
    assert first_blocks([[], [0], [1], [1]], shares, BLOCKS) == [0, 0, 0, 50]


@pytest.mark.parametrize(
    ("before", "shares", "places"),
    [
        ([[], [0, 2], [1]], [1, 1, 1], [0, 0, 0]),  # a loop: what comes later in the program was not placed yet
        ([[], [0], [0]], [1, None, 1], [0, 0, 0]),  # what the controller executes takes nobody's place
        ([[0], [1]], [1, 1], [0, 1]),  # each waits for itself in a trip before
        ([[], [], []], [1, 1, 1], [0, 1, 2]),
    ],
)
def test_loops_and_control_take_no_places(before, shares, places):
    """Only earlier instructions for workers are followed."""
    assert first_blocks(before, [tiles and Share(tiles) for tiles in shares], BLOCKS) == places


HOT = """
.input x : bf16[64, 512]
.input w : bf16[96, 512]
.input q : bf16[2, 3, 200, 64]
.input i : bf16[2, 14, 14, 64]
.input k : bf16[128, 3, 3, 64]
.scratch h : bf16[64, 96]
.scratch s : bf16[4, 96]
.output o : bf16[2, 3, 200, 64]
.output y : bf16[2, 14, 14, 128]
.output z : bf16[4, 96]
main:
    GEMM h, x, w.T
    GEMM s, x[:4], w.T
    ATTENTION o, q, q, q
    CONV y, i, k pads=[1, 1, 1, 1]
    EW.add z, h[:4], s
    HALT
"""


@cpu_machine.needs_compiler
def test_the_tiles_that_places_are_derived_from_are_those_that_the_kernel_counts():
    """Of every hot path; of handlers, they are about right."""
    session = CpuSession(assemble(HOT), hopper=True)
    counted = [int(header["tiles"]) - 1 for header in session.headers()]
    hot = session.plan.schedules[:4]
    assert counted[:5] == [*(schedule.tiles for schedule in hot), 1]
    assert [schedule.path for schedule in hot] == [PATH_GEMM, PATH_STREAM, PATH_FLASH, PATH_CONV]


def test_pairs_of_blocks_begin_at_an_even_block():
    """And what follows begins behind them."""
    shares = [Share(3, ahead=True), Share(4, ahead=True, together=2), Share(2, ahead=True)]
    assert first_blocks([[], [], []], shares, BLOCKS) == [0, 4, 8]
