"""Events out of damaged JSON: each is decoded by itself, and only those that fail are worked upon."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from latencylab.traces.coerce import Literal, count_constants, to_event
from latencylab.traces.events import KEYS, Event
from latencylab.traces.header import NoTraceError

_EVENT = msgspec.json.Decoder(Event)
_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
_QUOTED_KEYS = tuple(f'"{key}"' for key in KEYS)
_OBJECT = re.compile(r'\{\s*"')
_BRACKET = re.compile(r"\]\s*")
_KEY_FOLLOWS = re.compile(r'\}|,\s*"[^"\\]*(?:"\s*:|"?\s*\Z)')
_LAST_BRACE = re.compile(r'\}\s*\](?=\s*(?:,\s*"|\}\s*\Z|\Z))')
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NAME = re.compile(
    r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"\s*:|\}\s*\Z))', re.DOTALL
)
_QUOTE = re.compile(r'(?<!\\)"')
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_MAX_EVENT = 16 << 20
_MAX_DROPPED = 10_000  # where most events are lost, what is left says nothing


class Repairer:
    """Reads slices of the array of events; `closed` once its closing bracket was met."""

    def __init__(self, is_array: bool, notes: Counter[str]) -> None:
        self.closed = False
        self._is_array = is_array
        self._notes = notes
        self._kept = 0
        self._constants = 0  # NaN and Infinity met in the event at hand
        self._raw_decode = json.JSONDecoder(
            strict=False,
            parse_float=Literal,
            parse_int=Literal,
            parse_constant=self._constant,
            object_pairs_hook=self._pairs,
        ).raw_decode

    def read(self, part: bytes, is_last: bool) -> tuple[list[Event], bytes]:
        """The events of a slice, and its text from where the array ends or from an event cut in two."""
        text = part.decode("utf-8", "surrogateescape")
        events: list[Event] = []
        at, expected = 0, False
        for start, end in _pieces(text):
            if start < at:  # an object inside the event before
                continue
            if (close := self._gap(text, at, start, expected, is_last)) >= 0:
                return events, _encode(text[close:])
            event, at = self._event(text, start, end)
            expected = event is not None
            if event is not None:
                self._kept += 1
                events.append(event)
            elif end < len(text):
                self._drop()
            elif not is_last and end - start < _MAX_EVENT:
                return events, _encode(text[start:])
            elif brace := _LAST_BRACE.search(text, start):
                self._drop()
                at = brace.start() + 1
        if (close := self._gap(text, at, len(text), False, is_last)) >= 0:
            return events, _encode(text[close:])
        return events, b""

    def _drop(self) -> None:
        self._notes["dropped_event"] += 1
        if self._notes["dropped_event"] > max(_MAX_DROPPED, self._kept):
            raise NoTraceError("is damaged beyond repair: most of its events cannot be read")

    def _gap(self, text: str, at: int, start: int, expected: bool, is_last: bool) -> int:
        """Notes what stands between two events and does not belong; where the array ends there, or -1."""
        gap = text[at:start]
        if gap.strip() == "," or not (expected or gap.strip()):
            return -1
        close = -1
        for bracket in _BRACKET.finditer(text, at, start):
            # After an array root nothing follows, after the events of an object its brace or another key.
            ends = is_last and (start if self._is_array else bracket.end()) == len(text)
            if ends or (not self._is_array and _KEY_FOLLOWS.match(text, bracket.end())):
                self.closed = True
                gap, close = text[at : bracket.start()], bracket.end()
                break
        if close < 0 or gap.strip(", \t\r\n"):
            self._notes["stray_text"] += max(1, sum(bool(part.strip()) for part in gap.split(",")))
        return close

    def _event(self, text: str, start: int, end: int) -> tuple[Event | None, int]:
        """The event in text[start:end], repaired if need be, and where it ends; it may reach further."""
        piece = text[start:end].rstrip().removesuffix(",")
        if not any(piece.count(key) > 1 for key in _QUOTED_KEYS):
            try:
                return _EVENT.decode(piece), start + len(piece)
            except _ERRORS:
                pass
        noted = self._notes.total()
        self._constants = 0
        try:
            fields, stop = self._raw_decode(text, start)
        except (ValueError, RecursionError):
            may_close = end < len(text)
            if not may_close and (brace := _LAST_BRACE.search(piece)):
                piece, may_close = piece[: brace.start() + 1], True
            fields, stop = self._mended(piece, may_close), start + len(piece)
        if fields is None:
            return None, end
        whole = text[start:stop]
        self._notes["bad_utf8"] += bool(_SURROGATE.search(whole))
        event = to_event(fields, self._notes)
        if self._constants:
            # Those in times are found when the times are read.
            self._notes["not_a_number"] += self._constants - count_constants(event)
        elif self._notes.total() == noted and _CONTROL.search(whole) and not _is_strict(whole):
            self._notes["control_character"] += 1
        return event, stop

    def _mended(self, piece: str, may_close: bool) -> dict[str, Any] | None:
        """The fields of an event whose JSON is broken in one of the known ways, or None."""
        for codes, fixed in _fixes(piece, may_close):
            self._constants = 0
            try:
                fields, stop = self._raw_decode(fixed)
            except (ValueError, RecursionError):
                continue
            if not fixed[stop:].strip() and isinstance(fields, dict):
                self._notes.update(codes)
                return fields
        return None

    def _constant(self, text: str) -> Literal:
        self._constants += 1
        return Literal(text)

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            times = Counter(key for key, _ in pairs)
            self._notes["duplicate_field"] += any(times[key] > 1 for key in KEYS)
        return fields


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Stretches of text that each begin with an object that is no member's value and in no string."""
    start = -1
    for match in _OBJECT.finditer(text):
        at = match.start()
        before = text[max(0, at - 80) : at].rstrip()
        if before.endswith((":", '"')):
            continue
        if start >= 0:
            yield start, at
        start = at
    if start >= 0:
        yield start, len(text)


def _fixes(piece: str, may_close: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    escaped = _BAD_ESCAPE.sub(r"\\\\", piece)
    codes: tuple[str, ...] = ("bad_escape",) if escaped != piece else ()
    if codes:
        yield codes, escaped
    quoted = escaped
    if name := _NAME.match(escaped, max(0, escaped.find('"name"'))):
        quoted = escaped[: name.start(2)] + _QUOTE.sub(r"\"", name[2]) + escaped[name.end(2) :]
    if quoted != escaped:
        codes += ("bad_quote",)
        yield codes, quoted
    for braces in ("}", "}}") if may_close else ():
        yield (*codes, "unclosed_event"), quoted + braces


def _is_strict(text: str) -> bool:
    try:
        json.loads(text, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
