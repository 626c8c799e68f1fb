"""An `Event` from the fields of a JSON object of any shape; what cannot be read is noted."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from msgspec import Raw

from latencylab.traces.events import ABSENT, NO_ARGS, Args, Event

_UNSHOWN = re.compile(r"[\x00-\x1f\ud800-\udfff]")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_INTEGERS = {
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "bytes": "bytes",
    "graph node id": "graph_node",
    "wait_on_stream": "wait_stream",
    "wait_on_cuda_event_record_corr_id": "wait_record",
    "In msg nelems": "elements",
}
_TEXTS = {"Process Group Name": "group", "dtype": "dtype"}


class Literal(str):
    """A number, NaN or Infinity of a JSON text, as it was written."""

    __slots__ = ()


def to_event(fields: dict[str, Any], notes: Counter[str]) -> Event:
    """The event; a field of a type that cannot be read is left at its default and noted as `odd_type`."""
    args = fields.get("args", {})
    if not isinstance(args, dict):
        notes["odd_type"] += 1
    return Event(
        ph=_text(fields.get("ph", ""), notes),
        cat=_text(fields.get("cat", ""), notes),
        name=_text(fields.get("name", ""), notes),
        pid=_identity(fields.get("pid", -1), notes),
        tid=_identity(fields.get("tid", -1), notes),
        ts=_time(fields.get("ts", ABSENT)),
        dur=_time(fields.get("dur", ABSENT)),
        args=_args(args, notes) if isinstance(args, dict) else NO_ARGS,
    )


def _args(fields: dict[str, Any], notes: Counter[str]) -> Args:
    name = fields.get("name")
    read: dict[str, Any] = {
        **{attribute: _integer(fields[key], notes) for key, attribute in _INTEGERS.items() if key in fields},
        **{attribute: _text(fields[key], notes) for key, attribute in _TEXTS.items() if key in fields},
    }
    return Args(
        dims=Raw(b"[]") if "Input Dims" in fields else ABSENT,
        name=Raw(b'"%s"' % _text(name, notes).encode()) if isinstance(name, str) else ABSENT,
        **read,
    )


def _time(value: Any) -> Raw:
    if isinstance(value, Raw):
        return value
    if isinstance(value, Literal):
        return Raw(value.encode())
    if isinstance(value, str):
        return Raw(b'"%s"' % value.encode("utf-8", "replace"))
    return Raw(b"null")


def _text(value: Any, notes: Counter[str]) -> str:
    """The string, what cannot be shown replaced."""
    if not isinstance(value, str) or isinstance(value, Literal):
        notes["odd_type"] += 1
        return str(value) if isinstance(value, Literal) else ""
    return _UNSHOWN.sub("\ufffd", value)


def _identity(value: Any, notes: Counter[str]) -> int | str:
    if isinstance(value, Literal) and _INTEGER.fullmatch(value):
        return int(value)
    return value if type(value) in (int, str) else _text(value, notes)


def _integer(value: Any, notes: Counter[str]) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        if not isinstance(value, Literal):
            notes["quoted_number"] += 1
        return int(value)
    if isinstance(value, Literal) and re.fullmatch(r"-?[0-9]{1,18}\.0+", value):
        return int(value.partition(".")[0])
    notes["odd_type"] += 1
    return -1


def count_constants(event: Event) -> int:
    """How many of the event's times are NaN or Infinity."""
    return sum(bytes(time).lstrip(b"-")[:1] in (b"N", b"I") for time in (event.ts, event.dur))
