"""Traces for Perfetto, read back by the rules of its format: tracks, nested slices, interned names, flows, counters."""

from __future__ import annotations

import gzip
import shutil
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import made_profiles as made
import numpy as np
import pytest

from dla.isa.errors import InputError
from dla.profiler import perfetto
from dla.profiler.flows import flows
from dla.profiler.profile import Profile
from dla.profiler.texts import printable

pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the perfetto package")


@dataclass
class Slice:
    """A slice as Perfetto shows it."""

    name: str
    begin: int
    depth: int
    args: dict[str, Any]
    flows: list[int]
    flow_ends: list[int]
    end: int = -1


@dataclass
class Shown:
    """What is in a trace: by the name of each track its slices, the values of its counter, its instants."""

    process: str = ""
    ranks: dict[str, int] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    slices: dict[str, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    instants: list[str] = field(default_factory=list)


def shown(path: Path) -> Shown:
    """Read a trace as trace_processor does: events by time (in the order of the file, where times are equal)."""
    packets = pb2.Trace.FromString(gzip.decompress(path.read_bytes())).packet
    found, tracks = Shown(), {}
    names, keys, strings = {}, {}, {}
    open_slices: dict[str, list[Slice]] = defaultdict(list)
    assert packets[0].sequence_flags == 1, "incremental state begins"
    for packet in packets:
        assert packet.trusted_packet_sequence_id == 1
        for entries, into in (
            (packet.interned_data.event_names, names), (packet.interned_data.debug_annotation_names, keys),
        ):  # fmt: skip
            into |= {entry.iid: entry.name for entry in entries}
        strings |= {e.iid: e.str.decode() for e in packet.interned_data.debug_annotation_string_values}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks
            assert track.uuid == 1 or track.parent_uuid == 1
            tracks[track.uuid] = track.name
            found.ranks[track.name] = track.sibling_order_rank
            if track.HasField("process"):
                found.process = track.process.process_name
            if track.HasField("counter"):
                found.units[track.name] = track.counter.unit_name
    assert len(set(tracks.values())) == len(tracks), "tracks of one name would be shown as one"
    events = [packet for packet in packets if packet.HasField("track_event")]
    for packet in sorted(events, key=lambda packet: packet.timestamp):
        event, track = packet.track_event, tracks[packet.track_event.track_uuid]
        match event.type:
            case 1:
                name = event.name or names[event.name_iid]
                one = Slice(name, packet.timestamp, len(open_slices[track]), _arguments(event, keys, strings),
                            list(event.flow_ids), list(event.terminating_flow_ids))  # fmt: skip
                open_slices[track].append(one)
                found.slices[track].append(one)
            case 2:
                open_slices[track].pop().end = packet.timestamp
            case 3:
                found.instants.append(event.name)
            case 4:
                found.values[track].append((packet.timestamp, event.double_counter_value))
    assert not any(open_slices.values())
    return found


def _arguments(event: Any, keys: dict[int, str], strings: dict[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for note in event.debug_annotations:
        kind = note.WhichOneof("value")
        value = strings[note.string_value_iid] if kind == "string_value_iid" else getattr(note, kind)
        found[note.name or keys[note.name_iid]] = value
    return found


def written(profile: Profile, folder: Path) -> Shown:
    """`profile`, written and read."""
    perfetto.write(profile, folder / "out.pftrace")
    return shown(folder / "out.pftrace")


@pytest.mark.parametrize("make", [made.chain, made.loop, made.hostile, lambda: made.resnet(60, 20)])
def test_every_span_is_a_slice(tmp_path: Path, make: Any) -> None:
    """On its block's track: its name, its time, its arguments, and what is in it: the wait, the loading."""
    profile = make()
    found = written(profile, tmp_path)
    origin = -profile.critical[0].begin
    for block in range(profile.trace.blocks):
        spans = profile.trace.spans[profile.trace.spans["block"] == block]
        slices = found.slices[f"multiprocessor {block:0{len(str(profile.trace.blocks - 1))}}"]
        outer = [s for s in slices if s.depth == 0]
        assert len(outer) == len(spans)
        for span, one in zip(spans, outer, strict=True):
            figures = profile.figures[span["instruction"]]
            assert one.name == f"{figures.index} {printable(figures.name)}"
            assert (one.begin, one.end) == (span["began"] + origin, span["done"] + origin)
            wait = max(0, span["ready"] - span["began"])
            assert one.args == {
                "text": printable(figures.text), "location": printable(figures.location), "tiles": span["tiles"],
                "wait_ns": wait, "order": span["order"], "signal_ns": span["signalled"] - span["done"],
            }  # fmt: skip
            start = one.begin + wait
            inner = [(s.name, s.begin, s.end) for s in slices if s.depth and one.begin <= s.begin < one.end]
            loaded = span["loaded"] + origin
            assert inner == [("wait", one.begin, start)] * int(wait > 0) + [("load", start, loaded)] * int(
                loaded > start
            )


def test_the_process_is_the_device_and_tracks_are_in_order(tmp_path: Path) -> None:
    """The run, the critical path and the rates above the multiprocessors, these by number."""
    profile = made.chain(3, 3)
    moved = replace(profile, trace=replace(profile.trace, multiprocessors=(7, 1, 7)))
    found = written(moved, tmp_path)
    assert found.process == "NVIDIA H200"
    assert sorted(found.ranks, key=found.ranks.__getitem__)[1:] == [
        "entire run", "critical path", "floating-point operations", "bytes moved",
        "multiprocessor 1, block 1", "multiprocessor 7, block 0", "multiprocessor 7, block 2",
    ]  # fmt: skip


def test_a_slice_ends_when_its_block_turns_to_the_next(tmp_path: Path) -> None:
    """Blocks may begin an instruction before the last tile of the one before is done; slices cannot cross."""
    profile = made.chain(4, 2)
    spans = profile.trace.spans.copy()
    spans["began"][1:4] = spans["done"][:3] - 300
    found = written(replace(profile, trace=replace(profile.trace, spans=spans)), tmp_path)
    outer = [s for s in found.slices["multiprocessor 0"] if s.depth == 0]
    assert len(outer) == 4
    assert [one.end for one in outer[:3]] == [one.begin for one in outer[1:]]


def test_instructions_that_take_no_time_are_shown(tmp_path: Path) -> None:
    """A clock may not tick between begin and end, nor before the next instruction."""
    profile = made.chain(5, 1)
    spans = profile.trace.spans.copy()
    for name in ("began", "ready", "loaded", "done", "signalled"):
        spans[name][1:4] = 20_000
    found = written(replace(profile, trace=replace(profile.trace, spans=spans)), tmp_path)
    outer = [s for s in found.slices["multiprocessor 0"] if s.depth == 0]
    assert [s.end - s.begin for s in outer[1:4]] == [0, 0, 0]


def test_flows_join_what_waited_for_what(tmp_path: Path) -> None:
    """Each arrow leaves the slice of one span and arrives where the other's wait ends, later."""
    profile = made.loop()
    found = written(profile, tmp_path)
    spans, origin = profile.trace.spans, -profile.critical[0].begin
    leaving = {i: (track, s) for track, all_of in found.slices.items() for s in all_of for i in s.flows}
    arriving = {i: (track, s) for track, all_of in found.slices.items() for s in all_of for i in s.flow_ends}
    assert leaving.keys() == arriving.keys()
    expected = []
    for one, other in flows(profile):
        start = max(spans[other]["began"], spans[other]["ready"]) + origin
        expected.append((f"multiprocessor {spans[one]['block']}", spans[one]["began"] + origin,
                         f"multiprocessor {spans[other]['block']}", start))  # fmt: skip
    arrows = [(leaving[i][0], leaving[i][1].begin, arriving[i][0], arriving[i][1].begin) for i in leaving]
    assert sorted(arrows) == sorted(expected)
    assert len(arrows) > len(profile.critical) - 3
    assert all(leaving[i][1].begin < arriving[i][1].begin for i in leaving)


def test_an_arrow_arrives_behind_a_wait_that_no_loading_follows(tmp_path: Path) -> None:
    """There the rest of the slice is one of its own, because the arrow needs a slice that begins then."""
    profile = made.chain(3, 1)
    spans = profile.trace.spans.copy()
    spans["loaded"] = np.maximum(spans["ready"], spans["began"])
    found = written(replace(profile, trace=replace(profile.trace, spans=spans)), tmp_path)
    computing = [s for s in found.slices["multiprocessor 0"] if s.name == "compute"]
    assert [s.begin for s in computing] == [int(span["ready"]) + 4_000 for span in spans[1:]]
    assert all(s.flow_ends for s in computing)


def test_the_critical_path_has_a_track(tmp_path: Path) -> None:
    """Its steps, the launch included, one behind the other from the beginning to the end."""
    profile = made.chain()
    steps = written(profile, tmp_path).slices["critical path"]
    assert [s.name for s in steps] == ["launch", "0 GEMM", "1 GEMM", "2 GEMM", "3 GEMM", "4 GEMM", "5 EW.add", "launch"]
    assert [s.begin for s in steps] == [0, *(s.end for s in steps[:-1])]
    assert steps[-1].end == profile.critical[-1].end - profile.critical[0].begin
    assert steps[2].args == {"order": 1, "block": profile.critical[2].block,
                             "multiprocessor": profile.critical[2].block}  # fmt: skip


def test_counters_hold_all_work(tmp_path: Path) -> None:
    """TFLOP/s and GB/s, summed over time, are the operations and bytes of the run; at its end they are 0."""
    profile = made.loop()
    found = written(profile, tmp_path)
    assert {name: found.units[name] for name in ("floating-point operations", "bytes moved")} == {
        "floating-point operations": "TFLOP/s", "bytes moved": "GB/s",
    }  # fmt: skip
    for name, unit, total in (
        ("floating-point operations", 1e12, sum(f.flops * f.calls for f in profile.figures)),
        ("bytes moved", 1e9, sum(f.bytes * f.calls for f in profile.figures)),
    ):
        times, values = np.array(found.values[name]).T
        assert (values[:-1] * np.diff(times)).sum() * unit * 1e-9 == pytest.approx(total)
        assert values[-1] == 0


def test_the_run_says_what_ran_where(tmp_path: Path) -> None:
    """One slice over everything, with the device, the dims and the times; a trap is marked at its end."""
    profile = replace(made.chain(), trap="instruction 5 (EW.add): no good")
    found = written(profile, tmp_path)
    (run,) = found.slices["entire run"]
    assert (run.name, run.begin, run.end) == ("chain", 0, profile.critical[-1].end + 4_000)
    assert run.args["driver"] == "580.159.04"
    assert run.args["dim batch"] == "32"
    assert run.args["wall_us"] == pytest.approx(profile.wall * 1e6)
    assert found.instants == ["trap: instruction 5 (EW.add): no good"]


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    """Nothing that is shown holds a control character."""
    found = written(made.hostile(), tmp_path)
    texts = [found.process, *found.ranks, *found.instants]
    for slices in found.slices.values():
        texts += [text for s in slices for text in (s.name, *s.args, *s.args.values()) if isinstance(text, str)]
    assert any("<script>" in text for text in texts)
    assert all(text.isprintable() for text in texts)


def test_a_run_without_spans_is_a_trace(tmp_path: Path) -> None:
    """It trapped at once: the trace says that and no more."""
    found = written(made.nothing(), tmp_path)
    assert found.instants == ["trap: instruction 0 (GEMM): nothing works"]
    assert set(found.slices) == {"entire run"}


def test_long_runs_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More spans than are written at once: all are there, and each has its own name, times and arrows."""
    monkeypatch.setattr(perfetto, "_CHUNK", 2**12)  # of 2**16, reading the trace takes most of the time
    profile = made.long(5_000, 2)
    assert len(profile.trace.spans) > 2 * perfetto._CHUNK
    found = written(profile, tmp_path)
    for block in range(2):
        spans = profile.trace.spans[profile.trace.spans["block"] == block]
        outer = [s for s in found.slices[f"multiprocessor {block}"] if s.depth == 0]
        assert [s.begin - 4_000 for s in outer] == spans["began"].tolist()
        assert [s.args["order"] for s in outer] == spans["order"].tolist()
        assert [int(s.name.split()[0]) for s in outer] == spans["instruction"].tolist()
    arrows = [i for slices in found.slices.values() for s in slices for i in s.flows]
    assert sorted(arrows) == list(range(1, len(flows(profile)) + 1))


def test_spans_take_few_bytes(tmp_path: Path) -> None:
    """100,000 instructions of 10 spans fit 200 MB, and so do those of a machine whose names are longer."""
    profile = made.long(4_000, 10)
    perfetto.write(profile, tmp_path / "out.pftrace")
    assert (tmp_path / "out.pftrace").stat().st_size < 100 * len(profile.trace.spans)


def test_the_same_profile_makes_the_same_bytes(tmp_path: Path) -> None:
    """No date is in it."""
    for name in ("a", "b"):
        perfetto.write(made.chain(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_full_disk_is_an_input_error() -> None:
    """/dev/full refuses every write, as a full disk does."""
    with pytest.raises(InputError, match="cannot write '/dev/full': No space left on device"):
        perfetto.write(made.resnet(20, 20), Path("/dev/full"))


def test_nothing_partial_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing ends early, the old file stands and no other is there."""
    target = tmp_path / "out.pftrace"
    target.write_text("old")
    monkeypatch.setattr(perfetto, "rates", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        perfetto.write(made.chain(), target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_trace_processor_reads_it(tmp_path: Path) -> None:
    """Perfetto's own reader finds every slice, every flow and no error."""
    binary = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if binary is None:
        pytest.skip("needs trace_processor_shell in PATH (https://get.perfetto.dev/trace_processor)")
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    profile = made.resnet(20, 20)
    mine = written(profile, tmp_path)
    with TraceProcessor(trace=str(tmp_path / "out.pftrace"), config=TraceProcessorConfig(bin_path=binary)) as reader:

        def count(what: str) -> int:
            return int(next(iter(reader.query(f"select count(*) as n from {what}"))).n)

        assert count("slice") == sum(map(len, mine.slices.values()))
        assert count("flow") == len(flows(profile))
        assert count("counter") == sum(map(len, mine.values.values()))
        assert count("stats where severity = 'error' and value > 0") == 0
