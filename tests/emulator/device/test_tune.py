"""Tuning: which ways are timed, what is kept on disk, what later loads make of it. A function stands for the clock."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import plan, tune, tuned
from dla.emulator.device.gpu import H200, Gpu
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target
from dla.emulator.device.paths.choices import Measured, fields_of
from dla.emulator.device.tune import Only, Trial
from dla.emulator.device.tuned import Store
from dla.isa.descriptor import Segment
from dla.isa.program import Program, Tensor
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare

BASES = {segment: 2**30 * segment.value for segment in Segment}
TARGET = Target(132, hopper=True)
LAYERS = """
.input x : bf16[n <= 128, 1024]
.input w : bf16[4, 1024, 1024]
.input image : f16[2, 14, 14, 64]
.input kernel : f16[128, 3, 3, 64]
.scratch h : bf16[n, 1024]
.scratch g : bf16[n, 1024]
.output y : bf16[n, 1024]
.output z : f16[2, 14, 14, 128]
main:
    GEMM h, x, w[0] act=relu
    GEMM g, h, w[1] act=relu
    GEMM h, g, w[2] act=relu
    GEMM y, h, w[3]
    CONV z, image, kernel pads=[1, 1, 1, 1]
    HALT
"""


class Clock:
    """A timer in which a way takes `seconds(way)`; it keeps the trials that it was given."""

    def __init__(self, seconds: Callable[[object], float]) -> None:
        self.seconds = seconds
        self.trials: list[Trial] = []

    def __call__(self, trial: Trial) -> list[float]:
        self.trials.append(trial)
        return [self.seconds(way) for way in trial.ways]


def prefer_last() -> Clock:
    """A timer for which every way is quicker than those before."""
    return Clock(lambda way: 1e-3 / (1 + len(str(way)) + sum(map(ord, str(way)))))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, which does not exist yet."""
    monkeypatch.setenv("DLA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def measured(clock: Clock, text: str = LAYERS, store: Store | None = None) -> tuple[Store, list[str]]:
    """A store that knows `text`, and what was said meanwhile."""
    said: list[str] = []
    store = store or tuned.store(H200, said.append)
    tune.measure(assemble(text), TARGET, store, clock, said.append)
    return store, said


def decisions(store: Store | None, text: str = LAYERS) -> list:
    """Of each instruction, as a load has them."""
    return [schedule.decision for schedule in plan.build(assemble(text), BASES, TARGET, store).schedules[:-1]]


# ---- what is measured, and what comes of it ----


def test_the_quickest_way_is_what_later_loads_take(cache):
    """From the same store, and from what another process finds on disk."""
    clock = prefer_last()
    measured(clock)
    modelled = decisions(None)
    for decision, before in zip(decisions(tuned.store(H200, pytest.fail)), modelled, strict=True):
        offered = {offer.choice for offer in decision.offers}
        alike = (t for t in clock.trials if decision.key.startswith(t.program.instructions[0].name))
        trial = next(t for t in alike if t.ways[0] == before.choice and offered.issuperset(t.ways))
        assert decision.seconds is not None
        assert before.seconds is None
        assert clock.seconds(decision.choice) == min(clock.seconds(way) for way in trial.ways)
    assert [d.choice for d in decisions(tuned.store(H200, pytest.fail))] != [d.choice for d in modelled]


def test_instructions_that_are_alike_are_measured_once(cache):
    """Of the four products two are alike; and what was measured before is not measured again."""
    clock = prefer_last()
    store, said = measured(clock)
    assert len(clock.trials) == len({d.key for d in decisions(None)}) == 4
    assert said[0].startswith("tuning: ")
    again = Clock(lambda way: pytest.fail("measured twice"))
    assert measured(again)[1] == measured(again, store=store)[1] == ["tuning: nothing that has not been measured"]


def test_what_was_measured_before_an_interrupt_is_kept(cache):
    """Whoever loses patience goes on from there the next time."""
    clock = prefer_last()

    def impatient(trial: Trial) -> list[float]:
        if len(clock.trials) == 2:
            raise KeyboardInterrupt
        return clock(trial)

    with pytest.raises(KeyboardInterrupt):
        measured(impatient)
    measured(clock)
    assert len(clock.trials) == 4


def test_only_cheap_ways_are_tried(cache):
    """The model's own choice comes first; what it finds twice as expensive is left out."""
    clock = prefer_last()
    measured(clock)
    known = decisions(None)
    for trial in clock.trials:
        assert 1 < len(trial.ways) <= tune.MOST_WAYS
        costs = {offer.choice: offer.clocks for d in known for offer in d.offers if d.choice == trial.ways[0]}
        assert set(trial.ways) <= costs.keys()


def test_a_trial_repeats_the_instruction_with_other_weights_each_time(cache):
    """What nothing writes lies in many places, what is computed in one, so that each waits for the one before."""
    clock = prefer_last()
    measured(clock)
    trial = clock.trials[1]
    body = trial.program.instructions[:-1]
    assert len(body) == trial.repeats >= 4
    assert {i.attributes["act"] for i in body} == {"relu"}, [i.attributes for i in body]
    assert len({i.operand("b").offset for i in body}) == trial.repeats  # 2 MiB each
    assert {i.operand("a") for i in body} == {body[0].operand("a")}
    assert body[0].operand("a").segment is Segment.STATE
    assert {i.operand("out") for i in body} == {body[0].operand("out")}
    made = plan.build(trial.program, BASES, TARGET, Only(trial.ways[-1]))
    assert {s.decision.choice for s in made.schedules[:-1]} == {trial.ways[-1]}
    assert made.waits[1:-1, 1].all()


@cpu_machine.needs_compiler
def test_trials_compute_what_the_instruction_says(cache):
    """The kernel, on the CPU, executes the programs that are timed, in every way, within their bounds."""
    text = """
.input a : f16[100, 128]
.input b : f16[128, 136]
.input bias : f16[136]
.output y : f16[100, 136]
main:
    GEMM y, a, b bias=bias act=gelu
    HALT
"""
    clock = prefer_last()
    tune.measure(assemble(text), Target(cpu_machine.BLOCKS, hopper=True), tuned.store(H200, print), clock, print)
    trial = clock.trials[0]
    last = trial.program.instructions[trial.repeats - 1]
    names = {"out": "y", "a": "a", "b": "b", "bias": "bias"}
    tensors = tuple(Tensor(names[n], last.operand(n)) for n in names)
    named = Program("t", trial.program.instructions, tensors, segment_bytes=trial.program.segment_bytes)
    rng = np.random.default_rng(0)
    given = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in tensors[1:]}
    for way in trial.ways:
        session = CpuSession(named, hopper=True, choices=Only(way))
        assert session.plan.schedules[0].decision.choice == way
        assert all(c.ok for c in compare(assemble(text), given, session.run(given)))


# ---- the file ----


def test_other_gpus_drivers_and_kernels_have_files_of_their_own(cache, monkeypatch):
    """What was measured on one says nothing of another."""
    stores = [
        tuned.store(gpu, print, checked=checked)
        for gpu, checked in [
            (H200, False), (H200, True), (Gpu("NVIDIA H100", 132, 90, 0), False),
            (Gpu("NVIDIA H200", 132, 90, 13000), False), (Gpu("NVIDIA H200", 114, 90, 0), False),
        ]
    ]  # fmt: skip
    monkeypatch.setattr(tuned, "_digest", lambda only: "another kernel")
    assert len({store.path for store in [*stores, tuned.store(H200, print)]}) == 6
    assert "nvidia_h200" in stores[0].path.name


def test_the_file_can_be_read_by_people(cache):
    """It says what it is of, which way is the quickest, and what it took."""
    store, _ = measured(prefer_last())
    held = json.loads(store.path.read_text())
    assert held["name"] == "NVIDIA H200"
    key, entry = next(iter(held["measured"].items()))
    assert key.startswith("CONV")
    assert entry["way"].keys() >= {"tile", "splits"}
    assert entry["us"] > 0
    assert [path.name for path in cache.iterdir()] == [store.path.name]


DAMAGES: dict[str, Callable[[str], str]] = {
    "cut short": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "not JSON": lambda text: "\x00\xff",
    "a list": lambda text: "[1]",
    "another GPU": lambda text: text.replace("H200", "H100"),
    "no times": lambda text: text.replace('"us"', '"ms"'),
    "times of text": lambda text: text.replace('"us": ', '"us": "x" '),
    "no number": lambda text: text.replace('"us": ', '"us": -'),
    "ways that are none": lambda text: text.replace('"way": {', '"way": 7, "x": {'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_warned_of_and_replaced(cache, damage):
    """The model decides until somebody measures again; then all is well."""
    store, _ = measured(prefer_last())
    sound = store.path.read_text()
    store.path.write_text(DAMAGES[damage](sound))
    said: list[str] = []
    damaged = tuned.store(H200, said.append)
    assert [d.choice for d in decisions(damaged)] == [d.choice for d in decisions(None)]
    assert len(said) == 1
    assert "damaged" in said[0]
    assert "--tune" in said[0]
    measured(prefer_last(), store=damaged)
    assert decisions(tuned.store(H200, pytest.fail)) == decisions(store)
    assert json.loads(store.path.read_text()) == json.loads(sound)


def test_what_another_process_found_meanwhile_is_kept(cache):
    """Both files' entries are there in the end; of one instruction, the last word counts."""
    one, other = (tuned.store(H200, pytest.fail) for _ in range(2))
    assert one.measured("a") is other.measured("b") is None  # both have read the file
    one.add({"a": Measured({"n": 1}, 1e-6), "both": Measured({"n": 1}, 1e-6)})
    other.add({"b": Measured({"n": 2}, 1e-6), "both": Measured({"n": 2}, 1e-6)})
    found = tuned.store(H200, pytest.fail)
    assert [found.measured(key).fields["n"] for key in ("a", "b", "both")] == [1, 2, 2]
    assert other.measured("a") is not None


def _add_some(number: int) -> None:
    for k in range(20):
        tuned.store(H200, pytest.fail).add({f"{number}.{k}": Measured({"n": number}, 1e-6)})


def test_processes_that_write_at_once_lose_nothing(cache):
    """Four of them, twenty times each."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(_add_some, range(4), chunksize=1)
    found = tuned.store(H200, pytest.fail)
    assert all(found.measured(f"{number}.{k}") for number in range(4) for k in range(20))


def test_where_nothing_can_be_written_the_run_goes_on(cache):
    """The choices serve this process."""
    cache.write_text("a file where the folder should be")
    store, said = measured(prefer_last())
    assert any("cannot be kept" in line for line in said)
    assert all(d.seconds is not None for d in decisions(store))


@pytest.mark.gpu
@pytest.mark.hopper
def test_the_gpu_is_measured_and_the_choices_serve_later_loads(cache):
    """Times are those of products: more than a microsecond, less than a millisecond."""
    said: list[str] = []
    program = assemble(LAYERS)
    DeviceMachine(tune=True, progress=said.append).load(program)
    assert any(line.startswith("tuned in") for line in said)
    found = [s.decision for s in DeviceMachine().load(program).plan.schedules if s.decision]
    assert len(found) == 5
    assert all(1e-6 < d.seconds < 1e-3 for d in found)
    assert fields_of(found[0].choice)


def test_what_was_measured_is_not_measured_again_where_another_way_is_taken(cache):
    """A product that does a NORM is executed in tiles that can, whatever was quickest by itself."""
    text = """
    .input x : bf16[128, 256]
    .const w : bf16[512, 256] = 0
    .scratch s : bf16[128, 256]
    .scratch h : bf16[128, 256]
    .output y : bf16[128, 512]
    main:
        COPY s, x
        NORM.layer h, s
        GEMM y, h, w.T
        HALT
    """
    clock = prefer_last()
    store, _ = measured(clock, text)
    assert plan.build(assemble(text), BASES, TARGET, store).fused
    assert len(clock.trials) == 1
    _, said = measured(clock, text, store)
    assert said == ["tuning: nothing that has not been measured"]
