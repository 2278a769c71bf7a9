"""The memory plan: sound for any lifetimes, and near the lower bound for those of networks."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla.compiler.memory import Block, Plan, plan
from dla.isa.errors import InputError


class Trace:
    """Lifetimes of the results of a straight-line program, written down instruction by instruction."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._first: list[int] = []
        self._last: list[int] = []
        self._instructions = 0

    def op(self, inputs: Sequence[int], elements: int, itemsize: int = 4) -> int:
        """Append an instruction that reads results `inputs`; the index of its own result."""
        for index in inputs:
            self._last[index] = self._instructions
        self._sizes.append(elements * itemsize)
        self._first.append(self._instructions)
        self._last.append(self._instructions)
        self._instructions += 1
        return len(self._sizes) - 1

    def chain(self, x: int, *elements: int) -> int:
        """Instructions one after another, each of which reads the result before."""
        for size in elements:
            x = self.op([x], size)
        return x

    @property
    def blocks(self) -> list[Block]:
        return [Block(*b) for b in zip(self._sizes, self._first, self._last, strict=True)]


def resnet50(batch: int) -> list[Block]:
    """Convolutions with everything after them fused in; the shortcut is read by the last one of a block."""
    trace, side = Trace(), 56
    x = trace.chain(trace.op([], batch * 112 * 112 * 64), batch * 56 * 56 * 64)
    for stage, (depth, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for block in range(depth):
            inner = side // 2 if stage and block == 0 else side
            branch = trace.chain(x, batch * side**2 * width, batch * inner**2 * width)
            shortcut = trace.op([x], batch * inner**2 * width * 4) if block == 0 else x
            side = inner
            x = trace.op([branch, shortcut], batch * side**2 * width * 4)
    trace.chain(x, batch * 2048, batch * 1000)
    return trace.blocks


def densenet121(batch: int, copies: bool) -> list[Block]:
    """Every layer reads all earlier ones of its block, by way of a concatenated copy or directly."""
    trace, side, channels = Trace(), 56, 64
    x = trace.chain(trace.op([], batch * 112 * 112 * 64), batch * 56 * 56 * 64)
    for depth in (6, 12, 24, 16):
        features = [x]
        for _ in range(depth):
            pixels = batch * side**2
            inputs = [trace.op(features, pixels * channels)] if copies and len(features) > 1 else features
            x = trace.chain(trace.op(inputs, pixels * channels), pixels * 128, pixels * 32)
            features.append(x)
            channels += 32
        joined = trace.op(features, batch * side**2 * channels)
        channels //= 2
        side //= 2
        x = trace.chain(joined, batch * 4 * side**2 * channels, batch * side**2 * channels)
    return trace.blocks


def transformer(tokens: int, vocabulary: int, fused: bool) -> list[Block]:
    """Twelve layers 768 wide; unfused, with scores, softmax and activation as results of their own."""
    trace, d = Trace(), tokens * 768
    mask = trace.op([], tokens * tokens)
    x = trace.op([trace.op([], d), trace.op([], d)], d)
    for _ in range(12):
        h = trace.op([x], d)
        if fused:
            attended = trace.op([trace.op([h], 3 * d), mask], d)
        else:
            q, k, v = (trace.op([h], d) for _ in range(3))
            masked = trace.op([trace.op([q, k], 12 * tokens**2), mask], 12 * tokens**2)
            attended = trace.chain(trace.op([trace.op([masked], 12 * tokens**2), v], d), d)
        x = trace.op([attended, x], d)
        inner = trace.chain(x, d, 4 * d) if fused else trace.chain(x, d, 4 * d, 4 * d)
        x = trace.op([inner, x], d)
    trace.chain(x, d, tokens * vocabulary)
    return trace.blocks


def cells(seed: int) -> list[Block]:
    """An irregular network, as searches for architectures find them: each result is read by some later ones."""
    rng, trace = random.Random(seed), Trace()
    recent = [trace.op([], 4096)]
    for _ in range(400):
        inputs = rng.sample(recent, min(len(recent), rng.randint(1, 3)))
        recent = [*recent[-11:], trace.op(inputs, rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64]) * 4096)]
    return trace.blocks


NETWORKS = {
    "ResNet-50": resnet50(1),
    "ResNet-50, batch 64": resnet50(64),
    "DenseNet-121": densenet121(1, copies=True),
    "DenseNet-121 without copies": densenet121(8, copies=False),
    "BERT-base": transformer(128, 2, fused=True),
    "BERT-base, unfused": transformer(128, 2, fused=False),
    "GPT-2": transformer(1024, 50257, fused=True),
    "GPT-2, unfused": transformer(1024, 50257, fused=False),
    "GPT-2, 17 tokens": transformer(17, 50257, fused=False),
    "cells 1": cells(1),
    "cells 2": cells(2),
}


def largest_sum(blocks: Sequence[Block], alignment: int) -> int:
    """The lower bound by its definition."""
    times = range(max((b.last for b in blocks), default=-1) + 1)
    return max((sum(-(-b.size // alignment) * alignment for b in blocks if b.first <= t <= b.last) for t in times),
               default=0)  # fmt: skip


def check(blocks: Sequence[Block], made: Plan, alignment: int) -> None:
    """Every block lies in the arena, aligned, and shares no byte with another at any instruction."""
    assert all(offset % alignment == 0 and offset >= 0 for offset in made.offsets)
    assert made.size >= made.lower_bound
    assert all(o + b.size <= made.size for b, o in zip(blocks, made.offsets, strict=True))
    # A sweep over the instructions: what is in use, sorted by offset, so that only neighbours need comparing.
    events = sorted((t, kind, i) for i, b in enumerate(blocks) if b.size for t, kind in ((b.first, 1), (b.last + 1, 0)))
    in_use: list[tuple[int, int]] = []  # (offset, end)
    for _, begins, i in events:
        span = made.offsets[i], made.offsets[i] + blocks[i].size
        at = bisect.bisect_left(in_use, span)
        if begins:
            assert at == 0 or in_use[at - 1][1] <= span[0], f"{blocks[i]} overlaps what lies below it"
            assert at == len(in_use) or span[1] <= in_use[at][0], f"{blocks[i]} overlaps what lies above it"
            in_use.insert(at, span)
        else:
            del in_use[at]


BLOCKS = st.lists(
    st.builds(
        lambda size, first, length: Block(size, first, first + length),
        st.one_of(st.integers(0, 2000), st.sampled_from([0, 256, 512, 2**40])),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(BLOCKS, st.sampled_from([1, 16, 256]))
def test_blocks_in_use_together_never_overlap(blocks: list[Block], alignment: int) -> None:
    """Whatever the lifetimes, and the lower bound is the one of the definition."""
    made = plan(blocks, alignment)
    check(blocks, made, alignment)
    assert made.lower_bound == largest_sum(blocks, alignment)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_stay_near_the_lower_bound(name: str) -> None:
    """The promise is 10 per cent above the bound; these are at most 3 above it, all but the irregular ones 2."""
    blocks = NETWORKS[name]
    made = plan(blocks)
    check(blocks, made, 256)
    assert made.lower_bound == largest_sum(blocks, 256)
    assert made.size <= made.lower_bound * (1.03 if name.startswith("cells") else 1.02)


def test_random_lifetimes_are_repaired_within_a_bound() -> None:
    """Lifetimes of no structure are the hard case, which no greedy order solves: still within 10 per cent."""
    rng = random.Random(3)
    starts = [rng.randrange(200) for _ in range(500)]
    blocks = [Block(rng.randint(1, 10**6), t, t + int(rng.expovariate(1 / 20))) for t in starts]
    made = plan(blocks)
    check(blocks, made, 256)
    assert made.size <= made.lower_bound * 1.10


def test_many_blocks() -> None:
    """20,000 blocks are planned, soundly, and still within the promise."""
    rng = random.Random(5)
    starts = [rng.randrange(20_000) for _ in range(20_000)]
    blocks = [Block(rng.randint(1, 10**6), t, t + int(rng.expovariate(1 / 5))) for t in starts]
    made = plan(blocks)
    check(blocks, made, 256)
    assert made.size <= made.lower_bound * 1.10


def test_the_same_blocks_give_the_same_plan() -> None:
    """So that two compiles of a model give the same bytes."""
    blocks = NETWORKS["DenseNet-121 without copies"]  # which takes repairs
    assert plan(blocks) == plan(list(blocks))


def test_what_is_not_in_use_together_shares_memory() -> None:
    """Two results, one after the other, need the memory of one; at the same instruction, that of both."""
    assert plan([Block(256, 0, 1), Block(256, 2, 3)]) == Plan((0, 0), 256, 256)
    assert plan([Block(256, 0, 1), Block(200, 1, 3)]).size == 512


def test_nothing_to_place() -> None:
    """No blocks, or blocks without bytes."""
    assert plan([]) == Plan((), 0, 0)
    assert plan([Block(0, 0, 5), Block(1, 2, 3)]) == Plan((0, 0), 256, 256)


@pytest.mark.parametrize("values", [(-1, 0, 0), (1, 2, 1), (1, -1, 0)])
def test_what_is_not_a_block(values: tuple[int, int, int]) -> None:
    """Negative sizes and lifetimes that end before they begin are a defect of the caller."""
    with pytest.raises(ValueError, match="not a block"):
        Block(*values)


def test_sizes_beyond_64_bits_are_refused() -> None:
    """Bounds that a user gave may multiply to anything; that is an error and not an overflow."""
    with pytest.raises(InputError, match=r"2\*\*62 bytes or more"):
        plan([Block(2**61, 0, 0), Block(2**61, 1, 1)])
