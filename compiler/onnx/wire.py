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

# What is looked into, beside messages of the kinds below.
_INITIALISER = "initialiser"  # a TensorProto of a graph
_RAW, _SEGMENT = "raw data of an initialiser", "segment"
_VALUES = "other values of a tensor"
_IGNORED = "documentation"  # exporters put stack traces there, for every node

_MAX_DEPTH = 96  # messages within messages; the parser's own limit is 100
_MAX_FIELDS = 1_000_000  # a field of two bytes becomes an object of some hundred
_MAX_GRAPH_BYTES = 2**26  # of a file without its tensors' values and its documentation


def without_raw_data(data: memoryview, onnx: ModuleType) -> bytes:
    """The ModelProto in `data`, each initialiser's `raw_data` replaced by a `segment`: its first byte and its end.

    Documentation and metadata are left out. Raises ModelError where `data` is truncated or damaged, or its graph is
    too large, or has segments.
    """
    return b"".join(_Cutter(data, onnx).message("ModelProto", 0, len(data), 0))


def _children(onnx: ModuleType) -> dict[str, dict[int, str]]:
    """By kind of message, the fields to look into: number -> what it is."""
    kinds = ("ModelProto", "GraphProto", "NodeProto", "AttributeProto", "FunctionProto", "TensorProto")
    special = {"doc_string": _IGNORED, "metadata_props": _IGNORED, "segment": _SEGMENT}
    special |= {f"{of}_data": _VALUES for of in ("raw", "float", "double", "int32", "int64", "uint64", "string")}
    children: dict[str, dict[int, str]] = {kind: {} for kind in kinds}
    for kind in kinds:
        for field in getattr(onnx, kind).DESCRIPTOR.fields:
            if field.name in special:
                children[kind][field.number] = special[field.name]
            elif field.message_type is not None and field.message_type.name in kinds:
                children[kind][field.number] = field.message_type.name
    children["GraphProto"][_number(onnx.GraphProto, "initializer")] = _INITIALISER
    children[_INITIALISER] = children["TensorProto"] | {_number(onnx.TensorProto, "raw_data"): _RAW}
    return children


def _number(message: Any, field: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return number


class _Cutter:
    """One walk over a file. Offsets are those in the file."""

    def __init__(self, data: memoryview, onnx: ModuleType) -> None:
        self._data = data
        self._children = _children(onnx)
        self._segment: Any = onnx.TensorProto.Segment
        self._segment_number = _number(onnx.TensorProto, "segment")
        self._fields = 0
        self._kept = 0  # bytes of the graph itself

    def message(self, kind: str, begin: int, end: int, depth: int) -> list[bytes | memoryview]:
        """The message in bytes `begin` to `end` without raw data, in pieces."""
        if depth > _MAX_DEPTH:
            raise ModelError(f"its graphs are nested more than {_MAX_DEPTH // 3} deep")
        children = self._children[kind]
        pieces: list[bytes | memoryview] = []
        position = copied = begin
        while position < end:
            start = position
            tag, position = self._varint(position, end)
            first, position = self._payload(tag & 7, position, end)
            child = children.get(tag >> 3) if tag & 7 == _BYTES else None
            self._count(position - start if child is None else 0)
            if child is not None and child != _VALUES:
                pieces.append(self._data[copied:start])
                pieces += self._instead(child, tag >> 3, first, position, depth)
                copied = position
        pieces.append(self._data[copied:end])
        return pieces

    def _instead(self, child: str, number: int, begin: int, end: int, depth: int) -> list[bytes | memoryview]:
        """What stands in the place of field `number`, whose value is in bytes `begin` to `end`."""
        if child == _IGNORED:
            return []
        if child == _SEGMENT:
            raise ModelError("a tensor is split into segments, which dla does not read")
        if child == _RAW:
            number, inner = self._segment_number, [self._segment(begin=begin, end=end).SerializeToString()]
        else:
            inner = self.message(child, begin, end, depth + 1)
        return [_varint(number << 3 | _BYTES) + _varint(sum(map(len, inner))), *inner]

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
        if position < end and self._data[position] < 0x80:  # nearly always
            return self._data[position], position + 1
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
