"""Random programs of several ranks: those that the verifier accepts never leave a rank waiting for another."""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.errors import Trap, VerifyError
from dla.isa.verifier import verify

HEAD = """
.world 3
.pairs ring [[0, 1], [1, 2], [2, 0]]
.group some [[0, 2], [1]]
.input x : i32[4]
.state kept : i32[4]
.const cut : i32[1] = [2, 0, 1] shard axis=0
.const same : i32[4] = [1, 0, 2, 1]
.scratch a : i32[4]
.scratch b : i32[4]
.scratch c : i32[4]
main:
    COPY a, same
    COPY b, same
    COPY c, same
    MOV s8, 0
    MOV s9, 0
"""
TENSORS = ("a", "b", "c", "kept")
SOURCES = (*TENSORS, "x", "same")


class Writer:
    """Draws a program: registers, loads, branches, loops, calls and collectives, some of which depend on the rank."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._labels = 0
        self._lines: list[str] = []

    def text(self) -> str:
        """The program, with a function at its end."""
        self._block(0, self._rng.randint(2, 6))
        self._lines.insert(self._rng.choice([0, len(self._lines)]), "CALL helper")
        self._lines.append("HALT")
        self._lines.append("helper:")
        self._block(2, self._rng.randint(1, 3))
        self._lines.append("RET")
        return HEAD + "".join(f"    {line}\n" for line in self._lines)

    def _scalar(self) -> str:
        counters = ["s8", "s9"]
        return self._rng.choice(["s0", "s1", "s2", *counters, "RANK", "WORLD", "1", "0"])

    def _element(self, name: str) -> str:
        if name == "cut":
            return "cut[0]"
        return f"{name}[{self._rng.choice(['0', '1', '3'])}]"

    def _plain(self) -> str:
        pick = self._rng.choice
        target = pick(["s0", "s1", "s2"])
        return pick([
            f"MOV {target}, {self._scalar()}",
            f"ALU.add {target}, {pick(['s0', 's1', 's2'])}, {self._scalar()}",
            f"LOADS {target}, {self._element(pick([*SOURCES, 'cut']))}",
            f"FILL {pick(TENSORS)}, {self._scalar()}",
            f"COPY {pick(TENSORS)}, {pick(['x', 'same'])}",
            f"EW.max {(out := pick(TENSORS))}, {out}, {pick(['x', 'same'])}",
        ])  # fmt: skip

    def _collective(self) -> str:
        pick = self._rng.choice
        out, x = pick(TENSORS), pick(SOURCES)
        kind = pick(["ALLREDUCE.max", "ALLREDUCE.min", "BROADCAST", "PERMUTE"])
        words = " pairs=ring" if kind == "PERMUTE" else pick(["", "", " group=some"])
        return f"{kind} {out}, {x}{words}"

    def _block(self, depth: int, count: int) -> None:
        pick = self._rng.choice
        for _ in range(count):
            kind = self._rng.random()
            if kind < 0.4:
                self._lines.append(self._plain())
            elif kind < 0.65:
                self._lines.append(self._collective())
            elif kind < 0.9 and depth < 3:
                self._structure(depth, pick(["branch", "else", "loop", "leave"]))
            elif kind < 0.95 and depth < 2:
                self._lines.append("CALL helper")
            elif depth == 2:
                self._lines.append(pick(["NOP", "NOP", "HALT"]))

    def _structure(self, depth: int, kind: str) -> None:
        pick, self._labels = self._rng.choice, self._labels + 1
        label = f"l{self._labels}"
        register = pick(["s0", "s1", "s2", "s8", "s9", "RANK", "WORLD"])
        condition = f"CMP.{pick(['lt', 'eq', 'ne'])} p0, {register}, {pick('0123')}"
        if kind in ("branch", "else"):
            self._lines += [condition, f"BR {label} {pick(['if', 'unless'])}=p0"]
            self._block(depth + 1, self._rng.randint(1, 2))
            if kind == "else":
                self._lines += [f"BR {label}e", f"{label}:"]
                self._block(depth + 1, 1)
                self._lines.append(f"{label}e:")
            else:
                self._lines.append(f"{label}:")
            self._lines.append("NOP")
            return
        count = pick(["2", "3", "s1 max=4"])
        self._lines.append(f"LOOP s{8 + depth}, {count}")
        self._block(depth + 1, self._rng.randint(1, 2))
        if kind == "leave":
            self._lines += [condition, f"BR {label} if=p0"]
            self._block(depth + 1, 1)
        self._lines += ["ENDLOOP", f"{label}:", "NOP"]


@pytest.mark.parametrize("seed", range(4))
def test_accepted_programs_never_part_at_a_collective(seed: int) -> None:
    """Whatever ranks make of their data: one lockstep run each, where a mismatch is a trap "internal"."""
    counts = collections.Counter(became(f"{seed}/{number}") for number in range(900))
    assert counts.keys() <= {"V-RANKS", "ran", "loop"}
    assert counts["V-RANKS"] > 100
    assert counts["ran"] > 100


def became(seed: str) -> str:
    """What became of a random program: the rule that refuses it, the category of a trap, or "ran"."""
    program = assemble(Writer(random.Random(seed)).text())
    try:
        verify(program)
    except VerifyError as error:
        return error.rejections[0].rule
    session = GoldenMachine().load(program)
    values = np.random.default_rng(1)
    try:
        session.set_state({"kept": values.integers(0, 4, (3, 4)).astype(np.int32)})
        session.run({"x": values.integers(0, 4, (3, 4)).astype(np.int32)})
    except Trap as trap:
        return trap.category
    return "ran"
