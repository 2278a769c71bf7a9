"""A profile as a trace for https://ui.perfetto.dev: what each multiprocessor did when, and why not earlier.

Perfetto's own format, compressed by gzip. One process is the machine; its tracks are the run, the critical path, the
rates over time, and one track per block: a slice for each instruction, in it one for the wait before it and one for the
loading of its first operands. A long run has millions of slices, so NumPy writes them, many at once.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dla.isa.atomic import replacing
from dla.isa.dtypes import Array
from dla.profiler import protobuf as pb
from dla.profiler.flows import flows
from dla.profiler.measures import rates
from dla.profiler.profile import Profile
from dla.profiler.texts import printable

POINTS = 4096
"""Of each counter: more than a screen is wide."""
_CHUNK = 2**16  # spans that are written at once
_NAMES = 2**12  # interned in one packet
_LEVEL = 1  # of gzip: higher ones take several times as long, and save a sixth

# Field numbers of Perfetto's messages (protos/perfetto/trace), by message.
_PACKET = 1
_TIMESTAMP, _TRACK_EVENT, _INTERNED, _SEQUENCE_FLAGS, _SEQUENCE, _DESCRIPTOR = 8, 11, 12, 13, 10, 60
_ANNOTATIONS, _CATEGORY_IID, _TYPE, _NAME_IID, _TRACK = 4, 3, 9, 10, 11
_NAME, _DOUBLE_COUNTER, _FLOW, _FLOW_END = 23, 44, 47, 48
_CATEGORY_NAMES, _EVENT_NAMES, _ANNOTATION_NAMES, _STRINGS = 1, 2, 3, 29  # interned
_KEY_IID, _UINT, _DOUBLE, _STRING, _KEY, _STRING_IID = 1, 3, 5, 6, 10, 17  # of an annotation
_UUID, _TRACK_NAME, _PROCESS, _PARENT, _COUNTER, _ORDERING, _RANK = 1, 2, 3, 5, 8, 11, 12
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4  # types of events
_CLEARED, _NEEDED = 1, 2  # flags of a sequence
_EXPLICIT = 3  # ordering of tracks

_MACHINE, _RUN, _CRITICAL, _FLOPS, _BYTES, _FIRST_BLOCK = 1, 2, 3, 4, 5, 16  # tracks
_INSTRUCTION, _WAIT, _LOAD, _COMPUTE, _LAUNCH = 1, 2, 3, 4, 5  # categories, and names of what has no other
_PHASES = {_INSTRUCTION: "instruction", _WAIT: "wait", _LOAD: "load", _COMPUTE: "compute", _LAUNCH: "launch"}
_FIRST_NAME = 16
_KEYS = ("text", "location", "tiles", "wait_ns", "order", "signal_ns", "block", "multiprocessor")
_TEXT, _LOCATION, _TILES, _WAIT_NS, _ORDER, _SIGNAL_NS, _BLOCK, _MULTIPROCESSOR = range(1, len(_KEYS) + 1)


def write(profile: Profile, path: Path) -> None:
    """Write the trace of `profile` to the file `path`, whole or not at all. Raises InputError."""
    with replacing(path) as (file,), gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
        _Trace(profile).write(packed)


@dataclass(frozen=True)
class _Trace:
    profile: Profile

    def write(self, file: BinaryIO | gzip.GzipFile) -> None:
        """Names and tracks first, then the events, track by track."""
        for packet in (*self._interned(), *self._tracks(), *self._run(), *self._counters()):
            file.write(packet)
        file.write(self._critical())
        for chunk in self._blocks():
            file.write(chunk)

    @cached_property
    def _origin(self) -> int:
        """Timestamps are not negative: the launch is before the first block."""
        return min([0, *(step.begin for step in self.profile.critical[:1])])

    @cached_property
    def _end(self) -> int:
        ends = [self.profile.trace.end, *(step.end for step in self.profile.critical[-1:])]
        return max(ends) - self._origin

    @cached_property
    def _time_size(self) -> int:
        spans = self.profile.trace.spans
        return pb.width(max(self._end, int(spans["signalled"].max(initial=0)) - self._origin))

    @cached_property
    def _track_size(self) -> int:
        return pb.width(_FIRST_BLOCK + max(self.profile.trace.blocks, 1))

    @cached_property
    def _name_size(self) -> int:
        return pb.width(_FIRST_NAME + len(self.profile.program.instructions))

    # -- what events refer to

    def _interned(self) -> Iterator[bytes]:
        """The names of instructions and the texts of their arguments, which events refer to by number."""
        first = [pb.message(_CATEGORY_NAMES, pb.number(1, iid), pb.string(2, name)) for iid, name in _PHASES.items()]
        first += [pb.message(_EVENT_NAMES, pb.number(1, iid), pb.string(2, name)) for iid, name in _PHASES.items()]
        first += [
            pb.message(_ANNOTATION_NAMES, pb.number(1, iid), pb.string(2, key)) for iid, key in enumerate(_KEYS, 1)
        ]
        first += [pb.message(_STRINGS, pb.number(1, 1), pb.string(2, ""))]
        yield _packet(pb.number(_SEQUENCE_FLAGS, _CLEARED), pb.message(_INTERNED, *first))
        figures = self.profile.figures
        for start in range(0, len(figures), _NAMES):
            entries = []
            for f in figures[start : start + _NAMES]:
                name, iid = f"{f.index} {printable(f.name)}", pb.number(1, _FIRST_NAME + f.index)
                entries.append(pb.message(_EVENT_NAMES, iid, pb.string(2, name)))
                entries.append(pb.message(_STRINGS, pb.number(1, _text_iid(f.index)), pb.string(2, printable(f.text))))
                place = printable(f.location or "")
                entries.append(pb.message(_STRINGS, pb.number(1, _place_iid(f.index)), pb.string(2, place)))
            yield _packet(pb.number(_SEQUENCE_FLAGS, _NEEDED), pb.message(_INTERNED, *entries))

    def _tracks(self) -> Iterator[bytes]:
        name = printable(self.profile.device.get("name") or self.profile.machine)
        process = pb.message(_PROCESS, pb.number(1, 1), pb.string(6, name))
        yield _track(_MACHINE, pb.string(_TRACK_NAME, name), process, pb.number(_ORDERING, _EXPLICIT))
        # Perfetto's page puts the tracks of a process in the order of their names, whatever their ranks are.
        below = pb.number(_PARENT, _MACHINE)
        yield _track(_RUN, below, pb.string(_TRACK_NAME, "entire run"), pb.number(_RANK, 0))
        yield _track(_CRITICAL, below, pb.string(_TRACK_NAME, "critical path"), pb.number(_RANK, 1))
        for rank, (uuid, title, unit) in enumerate(
            ((_FLOPS, "floating-point operations", "TFLOP/s"), (_BYTES, "bytes moved", "GB/s")), 2
        ):
            counter = pb.message(_COUNTER, pb.string(6, unit))
            yield _track(uuid, below, pb.string(_TRACK_NAME, title), counter, pb.number(_RANK, rank))
        multiprocessors = self.profile.trace.multiprocessors
        alone = len(set(multiprocessors)) == len(multiprocessors)
        places = sorted(range(len(multiprocessors)), key=lambda block: (multiprocessors[block], block))
        digits, more = len(str(max(multiprocessors, default=0))), len(str(len(multiprocessors) - 1))
        for rank, block in enumerate(places, 4):
            title = f"multiprocessor {multiprocessors[block]:0{digits}}" + ("" if alone else f", block {block:0{more}}")
            yield _track(_FIRST_BLOCK + block, below, pb.string(_TRACK_NAME, title), pb.number(_RANK, rank))

    # -- events of the whole machine

    def _run(self) -> Iterator[bytes]:
        """One slice for the run; its arguments say what ran where."""
        profile = self.profile
        facts = {printable(k): printable(v) for k, v in profile.device.items()}
        facts |= {f"dim {printable(k)}": str(v) for k, v in profile.dims.items()}
        notes = [pb.message(_ANNOTATIONS, pb.string(_KEY, k), pb.string(_STRING, v)) for k, v in facts.items()]
        times = {
            "wall_us": profile.wall,
            "traced_us": profile.traced,
            "overhead_us": profile.overhead,
            "launch_us": profile.launch,
        }
        notes += [pb.message(_ANNOTATIONS, pb.string(_KEY, k), pb.double(_DOUBLE, v * 1e6)) for k, v in times.items()]
        notes.append(pb.message(_ANNOTATIONS, pb.string(_KEY, "lost_spans"), pb.number(_UINT, profile.trace.lost)))
        name = pb.string(_NAME, printable(profile.program.name))
        yield _event(0, pb.number(_TYPE, _BEGIN), pb.number(_TRACK, _RUN), name, *notes)
        if profile.trap is not None:
            trap = pb.string(_NAME, f"trap: {printable(profile.trap)}")
            yield _event(self._end, pb.number(_TYPE, _INSTANT), pb.number(_TRACK, _RUN), trap)
        yield _event(self._end, pb.number(_TYPE, _END), pb.number(_TRACK, _RUN))

    def _counters(self) -> Iterator[bytes]:
        found = rates(self.profile, POINTS)
        for uuid, values, unit in ((_FLOPS, found.flops, 1e12), (_BYTES, found.bytes, 1e9)):
            for at, value in zip(found.edges - self._origin, [*values, 0.0], strict=True):
                counter = pb.double(_DOUBLE_COUNTER, float(value) / unit)
                yield _event(int(at), pb.number(_TYPE, _COUNT), pb.number(_TRACK, uuid), counter)

    def _critical(self) -> bytes:
        """The steps of the critical path, one behind the other on a track of their own."""
        steps = self.profile.critical
        if not steps:
            return b""
        names = np.array([_LAUNCH if s.instruction is None else _FIRST_NAME + s.instruction for s in steps])
        block = np.array([s.block for s in steps], np.int64)
        places = np.array([*self.profile.trace.multiprocessors, 0], np.int64)
        numbers = {
            _ORDER: np.array([s.order for s in steps], np.int64),
            _BLOCK: block,
            _MULTIPROCESSOR: places[np.minimum(block, len(places) - 1)],
        }
        track = [pb.number(_TRACK, _CRITICAL)]
        notes = [part for key, values in numbers.items() for part in _note(key, values)]
        begin = np.array([s.begin for s in steps], np.int64) - self._origin
        end = np.array([s.end for s in steps], np.int64) - self._origin
        opened = self._opening(begin, track, pb.numbers(_NAME_IID, names, self._name_size), _INSTRUCTION, notes)
        parts = [pb.rows(content, len(steps)) for content in (opened, self._closing(end, track))]
        return np.concatenate(parts, axis=1).tobytes()

    # -- events of the blocks

    def _blocks(self) -> Iterator[bytes]:
        """All spans, a chunk at a time."""
        spans = self.profile.trace.spans
        arrows = flows(self.profile)
        waited = np.zeros(len(spans), np.bool_)
        waited[arrows[:, 1]] = True
        ids = np.arange(1, len(arrows) + 1)
        leaving = _by_span(arrows[:, 0], ids, len(spans))
        arriving = _by_span(arrows[:, 1], ids, len(spans))
        following = np.full(len(spans), np.iinfo(np.int64).max)
        same = spans["block"][1:] == spans["block"][:-1]
        following[:-1][same] = spans["began"][1:][same]
        for start in range(0, len(spans), _CHUNK):
            here = slice(start, start + _CHUNK)
            rows = _Rows(self, spans[here], following[here], waited[here])
            yield rows.joined(start, leaving, arriving)

    def _opening(
        self, when: Array, track: Sequence[pb.Part], name: Sequence[pb.Part], category: int, notes: Sequence[pb.Part]
    ) -> list[pb.Part]:  # fmt: skip
        event = [pb.number(_TYPE, _BEGIN), *track, pb.number(_CATEGORY_IID, category), *name, *notes]
        return self._at(when, pb.messages(_TRACK_EVENT, event))

    def _closing(self, when: Array, track: Sequence[pb.Part]) -> list[pb.Part]:
        return self._at(when, pb.messages(_TRACK_EVENT, [pb.number(_TYPE, _END), *track]))

    def _at(self, when: Array, event: Sequence[pb.Part]) -> list[pb.Part]:
        return pb.messages(_PACKET, [_SEQUENTIAL, *pb.numbers(_TIMESTAMP, when, self._time_size), *event])


_SEQUENTIAL = pb.number(_SEQUENCE, 1) + pb.number(_SEQUENCE_FLAGS, _NEEDED)
_EVENT_AT = 1 + pb.LENGTH_BYTES + len(_SEQUENTIAL) + 1  # where a packet has its timestamp's value


class _Rows:
    """The packets of some spans: a row of bytes for each, of which those count that are `present`."""

    def __init__(self, trace: _Trace, spans: Array, following: Array, waited: Array) -> None:
        track = pb.numbers(_TRACK, spans["block"].astype(np.int64) + _FIRST_BLOCK, trace._track_size)
        began = spans["began"]
        # A slice ends when its block turns to the next instruction: nested slices may not cross.
        done = np.clip(spans["done"], began, np.maximum(following, began))
        start = np.clip(spans["ready"], began, done)
        loaded = np.clip(spans["loaded"], start, done)
        waits, loads = start > began, loaded > start
        name = pb.numbers(_NAME_IID, spans["instruction"].astype(np.int64) + _FIRST_NAME, trace._name_size)
        everywhere = np.ones(len(spans), np.bool_)
        inner = ((began, start, _WAIT, waits), (start, loaded, _LOAD, loads),
                 (start, done, _COMPUTE, waited & waits & ~loads))  # fmt: skip
        packets = [(trace._opening(began - trace._origin, track, name, _INSTRUCTION, _arguments(spans)), everywhere)]
        for begin, end, phase, where in inner:
            label = pb.number(_NAME_IID, phase)
            packets.append((trace._opening(begin - trace._origin, track, [label], phase, []), where))
            packets.append((trace._closing(end - trace._origin, track), where))
        packets.append((trace._closing(done - trace._origin, track), everywhere))
        written = [pb.rows(content, len(spans)) for content, _ in packets]
        self._bytes = np.concatenate(written, axis=1)
        self._present = np.concatenate(
            [np.broadcast_to(where[:, None], part.shape) for part, (_, where) in zip(written, packets, strict=True)],
            axis=1,
        )
        self._lengths = self._present.sum(axis=1)
        self._event = _EVENT_AT + trace._time_size
        # Arrows arrive where the wait ends: at the first slice in it that is no wait, or at the span itself.
        sizes = [part.shape[1] for part in written]
        self._arrival = np.where(waits, sizes[0] + sizes[1] + sizes[2], 0)

    def joined(self, start: int, leaving: dict[int, list[int]], arriving: dict[int, list[int]]) -> bytes:
        """All packets, with the arrows of spans; `start` is the number of the first."""
        data: bytes = self._bytes[self._present].tobytes()
        ends = np.cumsum(self._lengths)
        special = sorted(i for i in {*leaving, *arriving} if start <= i < start + len(ends))
        if not special:
            return data
        pieces, at = [], 0
        for index in special:
            end = int(ends[index - start])
            begin = end - int(self._lengths[index - start])
            row = bytearray(data[begin:end])
            flow_ends = b"".join(pb.fixed(_FLOW_END, i) for i in arriving.get(index, ()))
            self._extend(row, int(self._arrival[index - start]), flow_ends)
            self._extend(row, 0, b"".join(pb.fixed(_FLOW, i) for i in leaving.get(index, ())))
            pieces += [data[at:begin], bytes(row)]
            at = end
        return b"".join([*pieces, data[at:]])

    def _extend(self, row: bytearray, at: int, more: bytes) -> None:
        """Add fields to the event in the packet at `at`: its event is last in it, and lengths have room."""
        outer, inner = at + 1, at + self._event + 1
        size = _length(row, outer)
        row[outer + pb.LENGTH_BYTES + size : outer + pb.LENGTH_BYTES + size] = more
        for place in (outer, inner):
            row[place : place + pb.LENGTH_BYTES] = pb.padded(_length(row, place) + len(more), pb.LENGTH_BYTES)


def _arguments(spans: Array) -> list[pb.Part]:
    """What a click on a slice shows."""
    index = spans["instruction"].astype(np.int64)
    size = pb.width(_place_iid(int(index.max(initial=0))))
    parts: list[pb.Part] = []
    for key, values in ((_TEXT, 2 * index + _text_iid(0)), (_LOCATION, 2 * index + _place_iid(0))):
        parts += pb.messages(_ANNOTATIONS, [pb.number(_KEY_IID, key), *pb.numbers(_STRING_IID, values, size)])
    wait = (spans["ready"] - spans["began"]).clip(0)
    signal = spans["signalled"] - spans["done"]
    numbers = {_TILES: spans["tiles"], _WAIT_NS: wait, _ORDER: spans["order"], _SIGNAL_NS: signal}
    return parts + [part for key, values in numbers.items() for part in _note(key, values.astype(np.int64))]


def _note(key: int, values: Array) -> list[pb.Part]:
    size = pb.width(int(values.max(initial=0)))
    return pb.messages(_ANNOTATIONS, [pb.number(_KEY_IID, key), *pb.numbers(_UINT, values, size)])


def _text_iid(index: int) -> int:
    return 2 * index + 2


def _place_iid(index: int) -> int:
    return 2 * index + 3


def _by_span(spans: Array, ids: Array, count: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for span, number in zip(spans.tolist(), ids.tolist(), strict=True):
        found.setdefault(span, []).append(number)
    return found


def _length(row: bytearray, at: int) -> int:
    return row[at] & 0x7F | row[at + 1] << 7


def _packet(*content: bytes) -> bytes:
    return pb.message(_PACKET, pb.number(_SEQUENCE, 1), *content)


def _track(uuid: int, *content: bytes) -> bytes:
    return _packet(pb.message(_DESCRIPTOR, pb.number(_UUID, uuid), *content))


def _event(when: int, *content: bytes) -> bytes:
    flags = pb.number(_SEQUENCE_FLAGS, _NEEDED)
    return _packet(flags, pb.number(_TIMESTAMP, when), pb.message(_TRACK_EVENT, *content))
