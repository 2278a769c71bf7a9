"""The wire format that traces are written in, read by protobuf itself."""

from __future__ import annotations

import numpy as np
import pytest

from dla.profiler import protobuf as pb

trace = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the perfetto package")


@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**35 + 17, 2**63])
def test_a_message_is_read_back(value: int) -> None:
    """Integers of every length, texts and fixed numbers arrive as they were given."""
    event = pb.number(11, value) + pb.string(23, "gr\u00fc\u00df") + pb.fixed(47, value) + pb.double(44, 0.1)
    packet = trace.TracePacket.FromString(pb.message(11, event))
    found = packet.track_event
    assert (found.track_uuid, found.name, list(found.flow_ids), found.double_counter_value) == (
        value, "gr\u00fc\u00df", [value], 0.1,
    )  # fmt: skip


def test_many_messages_are_read_back() -> None:
    """Rows hold the same messages as if each were written alone, though numbers are padded to one width."""
    values = np.array([0, 1, 127, 128, 99_999, 2**40 - 1])
    content = pb.messages(1, [*pb.numbers(8, values, pb.width(2**40)), *pb.messages(11, [pb.number(9, 2)])])
    found = trace.Trace.FromString(pb.rows(content, len(values)).tobytes())
    assert [packet.timestamp for packet in found.packet] == values.tolist()
    assert {packet.track_event.type for packet in found.packet} == {2}


def test_a_width_holds_its_number() -> None:
    """Seven bits to a byte."""
    assert [pb.width(n) for n in (0, 127, 128, 2**14 - 1, 2**14)] == [1, 1, 2, 2, 3]
    assert pb.padded(5, 3) == b"\x85\x80\x00"
