"""Hammer the reader, the verifier and the golden machine with damaged files: a script, run by test_fuzz.py.

    python tests/trust/fuzz.py --mutations 25000 --seed 0 --flips 0/2

Whatever the damage, a file is refused with a DlaError or is a program that writes the same bytes again; a program that
the verifier accepts ends or traps. Anything else ends the script with a traceback and the file that did it. The last
line is a JSON object of counts, with the growth of the process's peak memory in bytes.
"""

from __future__ import annotations

import argparse
import base64
import collections
import hashlib
import json
import random
import resource
import struct
import sys
import time
from collections.abc import Iterator

import numpy as np

from dla.assembler import assemble
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.container import read_bytes, write_bytes
from dla.isa.container.layout import ENTRY, HASHED_FROM, HEADER, Kind
from dla.isa.descriptor import Segment
from dla.isa.errors import DlaError, Trap, VerifyError
from dla.isa.program import Program
from dla.isa.verifier import control, verify
from dla.isa.verifier.rules import Report

SOURCES = (
    """
.program layers
.input x : f32[batch <= 3, 4]
.const w : f32[4, 5] = 0.5
.const b : f32[5] = [1, 2, 3, 4, 5]
.scratch h : f32[batch, 5]
.output y : f16[batch, 5]
main:
    GEMM    h, x, w bias=b act=leaky_relu act_alpha=0.1 clamp=[-1, 9]
    SOFTMAX y, h axis=-1        ; the last layer
    HALT
""",
    """
.program control
.state kv : f32[8, 4]
.input x : f32[4]
.output y : f32[8, 4]
main:
    MOV     s1, 2
    LOOP    s0, s1 max=4
    CALL    append
    CMP.gt  p0, s0, 6
    BR      done if=p0
    ENDLOOP
done:
    ASSERT  p1 code=3 "never set"
    COPY    y, kv
    HALT
append:
    COPY    kv[s0], x
    ALU.add s2, s2, 1
    RET
""",
    """
.program windows
.input x : f32[1, 6, 6, 2]
.input w : f32[3, 3, 3, 2]
.output y : f32[1, 6, 6, 3]
.output z : f32[1, 3, 3, 3]
main:
    CONV     y, x, w pads=[1, 1, 1, 1] act=relu
    POOL.max z, y window=[2, 2] strides=[2, 2]
    PROBE    z, tag=4
    HALT
""",
    """
.program rows
.input x : f32[2, 6]
.input i : i32[2]
.output y : f32[2, 6]
.output z : i64[2]
.output t : f32[2, 3]
.scratch m : bool[2, 6]
.scratch h : f32[2, 6]
main:
    EW.gt         m, x, x[0]
    SELECT        h, m, x, x
    NORM.layer    h, h
    SCAN.sum      y, h axis=1 reverse
    REDUCE.argmax z, h axes=[1]
    TOPK          t, h
    GATHER        h[0:2], x, i axis=0
    HALT
""",
    """
.program heads
.input q : f16[1, 2, 3, 4]
.input k : f16[1, 1, 5, 4]
.output o : f16[1, 2, 3, 4]
main:
    LOADS     f1, q[0, 0, 0, 0]
    ATTENTION o, q, k, k causal
    ACT.gelu  o, o
    FILL      o[0, 0], f1
    PAD.constant o[0, 1], q[0, 0, :2, :] high=[1, 0, 0, 0, 0, 0]
    HALT
""",
    """
.program ranks
.world 4
.group tp [[0, 1], [2, 3]]
.pairs next [[0, 1], [1, 2], [2, 3]]
.input x : f32[3]
.const w : f32[3] = [1, 2, 3, 4, 5, 6] shard axis=0 group=tp
.const go : i32[1] = [1, 2, 3, 4] shard axis=0
.scratch any : i32[1]
.scratch parts : f32[2, 3]
.output y : f32[3]
main:
    ALLREDUCE.max any, go
    LOADS s0, any[0]
    LOOP s1, s0 max=5
    ALLGATHER parts, w group=tp
    ALLTOALL parts, parts group=tp
    REDUCESCATTER y, parts group=tp
    ENDLOOP
    CMP.lt p0, RANK, 2
    BR skip if=p0
    EW.add y, y, x
skip:
    PERMUTE y, y pairs=next
    BROADCAST y, y root=1 group=tp
    ALLREDUCE.mean y, y
    HALT
""",
)
MAX_STEPS = 2_000
MAX_ELEMENTS = 100_000
MAX_RANKS = 8
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63,
    2**64 - 1,
)


def seed_files() -> list[bytes]:
    """The files that are damaged: 1 to 5 KiB each."""
    return [write_bytes(assemble(source)) for source in SOURCES]


def check(data: bytes) -> str:
    """What became of one file. Raises whatever is not supposed to happen."""
    try:
        program = read_bytes(data)
    except DlaError:
        return "refused"
    if not _is_of_later_version(data) and write_bytes(program) != data:
        raise AssertionError("the file was read, but is not what writing gives")
    try:
        verify(program)
    except VerifyError:
        return "rejected"
    if not _is_small(program):
        return "accepted"
    try:
        inputs = {
            t.name: np.zeros(t.descriptor.bounds, t.descriptor.dtype.numpy) for t in program.in_segment(Segment.INPUT)
        }
        GoldenMachine().load(program).run(inputs)
    except Trap as trap:
        if trap.category in ("bounds", "internal"):
            raise
        return "trapped"
    except DlaError:
        return "unbound"  # a dim that no input tells
    return "ran"


def _is_of_later_version(data: bytes) -> bool:
    """Whether `data` has what a reader of version 1.0 skips: a minor version, optional features or sections."""
    _, _, _, minor, count, _, optional, _ = HEADER.unpack_from(data)
    kinds = [ENTRY.unpack_from(data, HEADER.size + i * ENTRY.size)[0] for i in range(count)]
    return bool(minor or optional or set(kinds) - set(Kind))


def _is_small(program: Program) -> bool:
    """Whether the golden machine is done with `program` in no time."""
    flow = control.check(program, Report(program))
    views = (d for i in program.instructions for d in i.operands if d is not None)
    return (
        flow is not None
        and flow.functions[0].steps <= MAX_STEPS
        and sum(program.segment_bytes.values()) <= 2**20
        and all(d.elements <= MAX_ELEMENTS for d in views)
        and program.world <= MAX_RANKS
    )


def repaired(data: bytes | bytearray) -> bytes:
    """`data` with the size and the SHA-256 that it should have."""
    fixed = bytearray(data)
    if len(fixed) >= HEADER.size:
        struct.pack_into("<Q", fixed, 64, len(fixed))
        fixed[8:HASHED_FROM] = hashlib.sha256(fixed[HASHED_FROM:]).digest()
    return bytes(fixed)


def truncations(files: list[bytes]) -> Iterator[bytes]:
    """Every beginning of every file."""
    return (data[:end] for data in files for end in range(len(data)))


def flips(files: list[bytes]) -> Iterator[bytes]:
    """Every file with every single bit inverted."""
    for data in files:
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            yield bytes(changed)


def mutate(files: list[bytes], rng: random.Random) -> bytes:
    """One file, damaged in one to four places; every second one has its hash repaired."""
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_MUTATIONS)(data, files, rng)
    return repaired(data) if rng.random() < 0.5 else bytes(data)


def _place(data: bytearray, rng: random.Random, size: int = 1) -> int:
    """Somewhere in `data`: in half of all cases inside the sections that are full of meaning."""
    if rng.random() < 0.5 and len(data) > HEADER.size + ENTRY.size * 4:
        entry = ENTRY.unpack_from(data, HEADER.size + ENTRY.size * rng.randrange(4))
        if entry[3] > 0 and entry[2] + entry[3] + size <= len(data):
            return int(entry[2] + rng.randrange(entry[3]))
    return rng.randrange(max(1, len(data) - size))


def _set_byte(data: bytearray, files: list[bytes], rng: random.Random) -> None:
    if data:
        data[_place(data, rng)] = rng.randrange(256)


def _flip_bit(data: bytearray, files: list[bytes], rng: random.Random) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def _set_number(data: bytearray, files: list[bytes], rng: random.Random) -> None:
    size = rng.choice((1, 2, 4, 8))
    if len(data) > 8:
        at = _place(data, rng, 8) // size * size
        data[at : at + size] = (rng.choice(NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _copy_block(data: bytearray, files: list[bytes], rng: random.Random) -> None:
    source = rng.choice(files)
    size = rng.choice((1, 8, 24, 64, 128))
    start, at = rng.randrange(len(source)) // 8 * 8, rng.randrange(max(1, len(data))) // 8 * 8
    data[at : at + size] = source[start : start + size]


def _swap_words(data: bytearray, files: list[bytes], rng: random.Random) -> None:
    if len(data) > 256:
        a, b = (_place(data, rng, 64) // 64 * 64 for _ in range(2))
        data[a : a + 64], data[b : b + 64] = data[b : b + 64], data[a : a + 64]


def _cut(data: bytearray, files: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(max(1, len(data)))
    del data[at : at + rng.choice((1, 8, 64, len(data)))]


def _insert(data: bytearray, files: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 8, 64)))


_MUTATIONS = (_set_byte, _flip_bit, _set_number, _set_number, _copy_block, _swap_words, _cut, _insert)


def hammer(cases: Iterator[bytes], counts: collections.Counter[str]) -> None:
    """Check every case; on failure print the file before the traceback."""
    for data in cases:
        try:
            counts[check(data)] += 1
        except BaseException:
            print(base64.b64encode(data).decode(), file=sys.stderr)
            raise


def main() -> None:
    """Run the cases asked for and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mutations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--flips", default="0/0", help="I/N: every N-th of the truncations and bit flips, from the I-th"
    )
    parser.add_argument("--repair", action="store_true", help="repair the hash after each bit flip, too")
    options = parser.parse_args()
    files = seed_files()
    counts: collections.Counter[str] = collections.Counter()
    hammer(iter(files), counts)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    share, shares = map(int, options.flips.split("/"))
    if shares:
        hammer((d for i, d in enumerate(truncations(files)) if i % shares == share), counts)
        flipped = (d for i, d in enumerate(flips(files)) if i % shares == share)
        hammer(map(repaired, flipped) if options.repair else flipped, counts)
    rng = random.Random(options.seed)
    hammer((mutate(files, rng) for _ in range(options.mutations)), counts)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({**counts, "memory_growth": growth, "largest_file": max(map(len, files)), "seconds": seconds}))


if __name__ == "__main__":
    main()
