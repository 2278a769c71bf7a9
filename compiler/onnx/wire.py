"""The wire format of protobuf, as far as it takes to keep weights out of the parser.

The parser copies every byte of a model. So the initialisers' `raw_data` are cut out first and stay in the mapped file;
where each one lies is written into its `segment`, a field that nobody uses. The rest is walked message by message, so
that a damaged file is refused with its place, and a hostile one before anything large is allocated.
Format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dla.isa.errors import ModelError

if TYPE_CHECKING:
    from types import ModuleType

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types

_INITIALISER = "initialiser"  # a TensorProto of a graph

_MAX_DEPTH = 96  # messages within messages; the parser's own limit is 100
_MAX_FIELDS = 4_000_000  # a field of two bytes becomes an object of some hundred
_MAX_GRAPH_BYTES = 2**28  # of a file without its tensors' values


def without_raw_data(data: memoryview, onnx: ModuleType) -> bytes:
    """The ModelProto in `data`, each initialiser's `raw_data` replaced by a `segment`: its first byte and its end.

    Raises ModelError where `data` is truncated or damaged, or its graph is too large, or it has segments already.
    """
    return _Cutter(data, onnx).message("ModelProto", 0, len(data), 0)


def _children(onnx: ModuleType) -> dict[str, dict[int, str]]:
    """By kind of message, the fields to look into: number -> kind of message."""
    kinds = ("ModelProto", "GraphProto", "NodeProto", "AttributeProto", "FunctionProto", "TensorProto")
    children = {
        kind: {
            field.number: field.message_type.name
            for field in getattr(onnx, kind).DESCRIPTOR.fields
            if field.message_type is not None and field.message_type.name in kinds
        }
        for kind in kinds
    }
    children["GraphProto"][onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number] = _INITIALISER
    return children | {_INITIALISER: {}}


class _Cutter:
    """One walk over a file. Offsets are those in the file."""

    def __init__(self, data: memoryview, onnx: ModuleType) -> None:
        self._data = data
        self._children = _children(onnx)
        tensor: Any = onnx.TensorProto
        numbers = {name: field.number for name, field in tensor.DESCRIPTOR.fields_by_name.items()}
        self._raw, self._segment = numbers["raw_data"], numbers["segment"]
        self._values = {number for name, number in numbers.items() if name.endswith("_data")}
        self._new_segment = tensor.Segment
        self._fields = 0
        self._kept = 0  # bytes that are not values of tensors

    def message(self, kind: str, begin: int, end: int, depth: int) -> bytes:
        """The message in bytes `begin` to `end`, without raw data."""
        if depth > _MAX_DEPTH:
            raise ModelError(f"its graphs are nested more than {_MAX_DEPTH // 3} deep")
        children, is_tensor = self._children[kind], kind in ("TensorProto", _INITIALISER)
        pieces: list[bytes | memoryview] = []
        position = copied = begin
        while position < end:
            start = position
            tag, position = self._varint(position, end)
            number, wire = tag >> 3, tag & 7
            first, position = self._payload(wire, position, end)
            is_large = number in children or (is_tensor and number in self._values)
            self._count(0 if is_large else position - start)
            if wire != _BYTES:
                continue
            if is_tensor and number == self._segment:
                raise ModelError("a tensor is split into segments, which dla does not read")
            if kind == _INITIALISER and number == self._raw:
                number, inner = self._segment, self._new_segment(begin=first, end=position).SerializeToString()
            elif number in children:
                inner = self.message(children[number], first, position, depth + 1)
            else:
                continue
            pieces += (self._data[copied:start], _varint(number << 3 | _BYTES), _varint(len(inner)), inner)
            copied = position
        pieces.append(self._data[copied:end])
        return b"".join(pieces)

    def _count(self, size: int) -> None:
        self._fields += 1
        self._kept += size
        if self._fields > _MAX_FIELDS:
            raise ModelError(f"its graph has more than {_MAX_FIELDS:,} fields")
        if self._kept > _MAX_GRAPH_BYTES:
            raise ModelError(f"its graph, without the weights, has more than {_MAX_GRAPH_BYTES:,} bytes")

    def _payload(self, wire: int, position: int, end: int) -> tuple[int, int]:
        """Where a field's value begins and ends."""
        if wire == _BYTES:
            size, position = self._varint(position, end)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        elif wire == _VARINT:
            return position, self._varint(position, end)[1]
        else:
            raise ModelError(f"it is damaged, or no ONNX model: no field begins at byte {position}")
        if size > end - position:
            raise ModelError(f"it is truncated or damaged: byte {position} begins a field of {size:,} bytes, "
                             f"and {end - position:,} are there")  # fmt: skip
        return position, position + size

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """The number at `position`, seven bits to a byte, and where it ends."""
        value = 0
        for i in range(min(10, end - position)):
            byte = self._data[position + i]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value, position + i + 1
        raise ModelError(f"it is truncated or damaged: no number ends at byte {min(position + 10, end)}")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
