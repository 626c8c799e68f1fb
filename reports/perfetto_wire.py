"""Perfetto's native trace format, TrackEvent protobuf, as bytes: packets, and tracks of slices or counters.

Descriptors are built with Perfetto's own protobuf classes. The packets of slices are encoded by hand, since a
slice of four arguments takes the Python classes some 40 µs and this 3 µs, and a trace of four ranks holds a
million of them. Field numbers are those of perfetto_trace.proto; tests read every packet back with the
classes generated from it.

Times: the trace's clock is BOOTTIME, the UI's default, in ns since the trace's start, so that the UI counts
from 0. The first packet says which REALTIME (ns since the epoch) that start is; the UI shows wall time by it,
and `slice.ts` plus it is the time as it was read, to the ns. Each track is a packet sequence of its own with
an incremental clock (64, the first of those that belong to a sequence): a packet holds the ns since the one
before.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

from isal import isal_zlib

Value = int | float | str  # a bool is shown as one

BOOTTIME, REALTIME, INCREMENTAL = 6, 1, 64
STATE_CLEARED, NEEDS_STATE = 1, 2  # sequence flags
BATCH = 1 << 20  # bytes of packets that are compressed together

# One byte each where the number is below 16: field number << 3 | wire type.
PACKET = b"\x0a"
TIMESTAMP = b"\x40"
SEQUENCE = b"\x50"
NEEDS_STATE_FLAG = b"\x68\x02"
INTERNED_DATA = b"\x62"
COMPRESSED_PACKETS = b"\x92\x03"
TRACK_EVENT = b"\x5a"
SLICE_BEGIN, SLICE_END, COUNTER = b"\x48\x01", b"\x48\x02", b"\x48\x04"
CATEGORY_IID, NAME_IID, ANNOTATION = b"\x18", b"\x50", b"\x22"
FLOW_ID = b"\xf9\x02"
DOUBLE_COUNTER_VALUE = b"\xe1\x02"
ANNOTATION_NAME_IID, BOOL_VALUE, INT_VALUE, DOUBLE_VALUE = b"\x08", b"\x10", b"\x20", b"\x29"
STRING_VALUE_IID = b"\x88\x01"
# The tables of InternedData; in all of them an entry is {1: iid, 2: text}.
CATEGORIES, NAMES, ANNOTATION_NAMES, STRINGS = b"\x0a", b"\x12", b"\x1a", b"\xea\x01"


def _varint(value: int) -> bytes:
    """A protobuf varint; a negative number as its 64-bit two's complement."""
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = tuple(_varint(value) for value in range(1 << 14))


def varint(value: int) -> bytes:
    """A protobuf varint, from a table where it has at most two bytes."""
    return _SMALL[value] if 0 <= value < len(_SMALL) else _varint(value)


def _sized(tag: bytes, body: bytes) -> bytes:
    return tag + varint(len(body)) + body


class TraceWriter:
    """Writes a trace of tracks to a binary file, packets compressed in batches.

    `start` is the earliest time of the trace, in ns; no track may hold an earlier one.
    """

    def __init__(self, file: BinaryIO, start: int) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self.proto: Any = perfetto_trace_pb2
        self.file = file
        self.start = start
        self.batch = bytearray()
        self.tracks = 0
        packet = self.proto.TracePacket()
        packet.trusted_packet_sequence_id = 1
        packet.clock_snapshot.clocks.add(clock_id=BOOTTIME, timestamp=0)
        packet.clock_snapshot.clocks.add(clock_id=REALTIME, timestamp=max(start, 0))
        packet.clock_snapshot.primary_trace_clock = BOOTTIME
        self.message(packet)

    def descriptor(self, parent: int = 0, **fields: Any) -> int:
        """Describe a track by fields of its TrackDescriptor; returns its uuid."""
        self.tracks += 1
        packet = self.proto.TracePacket(trusted_packet_sequence_id=1)
        descriptor = self.proto.TrackDescriptor(uuid=self.tracks, **fields)
        if parent:
            descriptor.parent_uuid = parent
        packet.track_descriptor.CopyFrom(descriptor)
        self.message(packet)
        return self.tracks

    def process(self, name: str, pid: int) -> int:
        """A process that holds tracks in order of their `sibling_order_rank`; returns its track's uuid."""
        process = self.proto.ProcessDescriptor(pid=pid, process_name=name, legacy_sort_index=pid)
        return self.descriptor(process=process, child_ordering=self.proto.TrackDescriptor.EXPLICIT)

    def track(self, parent: int = 0, **fields: Any) -> Track:
        """A new track to write on; `fields` are those of its TrackDescriptor."""
        return Track(self, self.descriptor(parent, **fields))

    def message(self, packet: Any) -> None:
        """Write a TracePacket of Perfetto's classes."""
        self.batch += _sized(PACKET, packet.SerializeToString())

    def flush(self) -> None:
        """Write what is still held back."""
        if self.batch:
            packed = _sized(COMPRESSED_PACKETS, isal_zlib.compress(bytes(self.batch), 2))
            self.file.write(_sized(PACKET, packed))
            self.batch.clear()


class Track:
    """One track: slices that nest or follow each other, or the values of a counter, in order of time."""

    def __init__(self, writer: TraceWriter, uuid: int) -> None:
        self.writer = writer
        self.batch = writer.batch
        self.sequence = uuid + 1  # sequence 1 holds the descriptors
        self.uuid = uuid
        self.last = writer.start
        self.tail = SEQUENCE + varint(self.sequence) + NEEDS_STATE_FLAG
        self.end_event = self.tail + TRACK_EVENT + b"\x02" + SLICE_END
        self.open: list[int] = []  # the ends of the slices around the next one, the innermost last
        self.interned: dict[tuple[bytes, str], bytes] = {}
        self.heads: dict[tuple[str, str], bytes] = {}
        self.annotations: dict[tuple[str, Value], bytes] = {}
        self.new_interned: list[bytes] = []
        self._begin_sequence()

    def _begin_sequence(self) -> None:
        packet = self.writer.proto.TracePacket(
            trusted_packet_sequence_id=self.sequence,
            sequence_flags=STATE_CLEARED,
            first_packet_on_sequence=True,
        )
        clocks = packet.clock_snapshot.clocks
        clocks.add(clock_id=INCREMENTAL, timestamp=0, is_incremental=True)
        clocks.add(clock_id=BOOTTIME, timestamp=0)
        packet.trace_packet_defaults.timestamp_clock_id = INCREMENTAL
        packet.trace_packet_defaults.track_event_defaults.track_uuid = self.uuid
        self.writer.message(packet)

    def slice(
        self,
        start: int,
        end: int,
        name: str,
        category: str,
        args: Mapping[str, Value],
        flow: int = 0,
    ) -> None:
        """A slice from `start` to `end` ns. They come in order of start, outer ones before those within.

        `flow` joins it by an arrow to the other slice of that number. An argument has the same type wherever
        it has the same name.
        """
        while self.open and self.open[-1] <= start:
            self._packet(self.open.pop(), b"")
        head = self.heads.get((name, category))
        if head is None:
            head = self.heads[name, category] = self._head(name, category)
        known = self.annotations
        body = head + b"".join([known.get(item) or self._annotation(item) for item in args.items()])
        if flow:
            body += FLOW_ID + struct.pack("<Q", flow)
        self._packet(start, body)
        self.open.append(end)

    def count(self, time: int, value: float) -> None:
        """The value of a counter from this time on."""
        self._packet(time, COUNTER + DOUBLE_COUNTER_VALUE + struct.pack("<d", value))

    def close(self) -> None:
        """End the slices that are still open."""
        while self.open:
            self._packet(self.open.pop(), b"")

    def _packet(self, time: int, event: bytes) -> None:
        """An event at this time; an empty one ends the innermost slice."""
        if time < self.last:
            raise ValueError(f"{self.last - time} ns before the packet before, on track {self.uuid}")
        packet = TIMESTAMP + varint(time - self.last)
        self.last = time
        if not event:
            packet += self.end_event
        else:
            if self.new_interned:
                packet += _sized(INTERNED_DATA, b"".join(self.new_interned))
                self.new_interned.clear()
            packet += self.tail + TRACK_EVENT + varint(len(event)) + event
        self.batch += PACKET + varint(len(packet)) + packet
        if len(self.batch) > BATCH:
            self.writer.flush()

    def _head(self, name: str, category: str) -> bytes:
        return (
            SLICE_BEGIN
            + CATEGORY_IID
            + self._interned(CATEGORIES, category)
            + NAME_IID
            + self._interned(NAMES, name)
        )

    def _annotation(self, item: tuple[str, Value]) -> bytes:
        name, value = item
        body = ANNOTATION_NAME_IID + self._interned(ANNOTATION_NAMES, name)
        if isinstance(value, bool):
            body += BOOL_VALUE + varint(value)
        elif isinstance(value, int):
            body += INT_VALUE + varint(value)
        elif isinstance(value, float):
            body += DOUBLE_VALUE + struct.pack("<d", value)
        else:
            body += STRING_VALUE_IID + self._interned(STRINGS, value)
        annotation = self.annotations[item] = _sized(ANNOTATION, body)
        return annotation

    def _interned(self, table: bytes, text: str) -> bytes:
        """A text's number in one of the sequence's tables, as a varint; new texts go into the next packet."""
        iid = self.interned.get((table, text))
        if iid is None:
            iid = self.interned[table, text] = varint(len(self.interned) + 1)
            entry = b"\x08" + iid + _sized(b"\x12", text.encode("utf-8", "backslashreplace"))
            self.new_interned.append(_sized(table, entry))
        return iid
