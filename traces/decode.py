"""The events of a Kineto trace, streamed: text in blocks in, lists of `Event` out.

The text is cut at commas between events and each slice decoded by msgspec, so neither the text nor the
events of a whole file are ever held. A wrong cut cannot pass unseen: what precedes it would not be a valid
list. A slice that does not decode goes to `latencylab.traces.repair`; all others stay fast.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from latencylab.traces.events import ABSENT, KEYS, NO_ARGS, NO_STREAM, Event
from latencylab.traces.header import NoTraceError, find_head, no_events, read_tail
from latencylab.traces.repair import Repairer

_DECODER = msgspec.json.Decoder(list[Event])
_EVENT = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:')
_CUT = re.compile(rb"\}\s*,\s*\Z")
_QUOTE_COLON = int.from_bytes(b'":', "little")
# The last bytes of each key with its opening quote, by how far a word of eight bytes is shifted to show them.
_KEY_WORDS: dict[np.uint64, list[np.uint64]] = {}
for _key in KEYS:
    _ending = f'"{_key}'.encode()[-8:]
    _word = np.uint64(int.from_bytes(_ending, "little"))
    _KEY_WORDS.setdefault(np.uint64(64 - 8 * len(_ending)), []).append(_word)
_CUT_WITHIN = 1 << 20  # of the end; an event that is longer delays the cut by a block
# No event is this long; a longer stretch without one is damage, or no trace at all.
_MAX_HELD = 64 << 20


class EventReader:
    """Iterates over lists of events; `keys` of the root are complete only afterwards, for some may follow.

    `notes` counts what was repaired. Raises NoTraceError if this is no trace.
    """

    def __init__(self, blocks: Iterator[bytes], notes: Counter[str]) -> None:
        self.keys: dict[str, Any] = {}
        self._blocks = blocks
        self._notes = notes
        self._is_array = False

    def __iter__(self) -> Iterator[list[Event]]:
        held = self._skip_head()
        repairer = Repairer(self._is_array, self._notes)
        is_first = True
        while not repairer.closed:
            block = next(self._blocks, None)
            held += block or b""
            cut = len(held) if block is None else _last_cut(held)
            if cut < 0:
                if len(held) < _MAX_HELD:
                    continue
                cut = len(held)
            part, held = held[:cut], held[cut:]
            # Every later slice begins with the comma that it was cut at.
            self._notes["stray_text"] += is_first and part.lstrip().startswith(b",")
            is_first = False
            # The last slice holds what follows the events too, so only the repairer can read it.
            events = _decode_slice(part) if block is not None else None
            if events is None:
                events, rest = repairer.read(part, is_last=block is None)
                held = rest + held
            yield events
            if block is None and not repairer.closed:
                self._notes["truncated"] = 1
                return
        yield from self._read_tail(held, repairer)

    def _skip_head(self) -> bytes:
        held = b""
        for block in self._blocks:
            held += block
            head = find_head(held, self._notes)
            if head is not None:
                self.keys = head.keys
                self._is_array = head.is_array
                return held[head.start :]
            if len(held) > _MAX_HELD:
                break
        raise NoTraceError(no_events(held))

    def _read_tail(self, held: bytes, repairer: Repairer) -> Iterator[list[Event]]:
        parts = [held]
        size = len(held)
        for block in self._blocks:
            parts.append(block)
            size += len(block)
            if size > _MAX_HELD:
                self._notes["trailing_data"] += 1
                break
        tail = b"".join(parts)
        if self._is_array:
            if tail.strip():
                self._notes["trailing_data"] += 1
        else:
            before = self._notes.total()
            self.keys |= read_tail(tail, self._notes)
            if self._notes.total() == before:
                return
        if b'"ph"' in tail:  # the bracket that closed the events was none
            yield repairer.read(tail, is_last=True)[0]


def _last_cut(text: bytes) -> int:
    """Offset of the last comma that seems to stand between two events, or -1."""
    at = len(text)
    lowest = max(0, at - _CUT_WITHIN)
    while (at := text.rfind(b"{", lowest, at)) > 0:
        if _EVENT.match(text, at) and (found := _CUT.search(text, max(0, at - 64), at)):
            return text.index(b",", found.start())
    return -1


def _decode_slice(text: bytes) -> list[Event] | None:
    """The events of a slice; None if it is damaged, or some event may have a field twice."""
    # Padded so that eight bytes precede even the first key.
    array = b"       [" + text.removeprefix(b",") + b"]"
    try:
        # Strings that are skipped, keys among them, are not checked by the decoder.
        if not array.isascii():
            array.decode()
        events = _DECODER.decode(array)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return events if _count_keys(array) == _count_fields(events) else None


def _count_fields(events: list[Event]) -> int:
    """How many of the fields in `KEYS` the events have."""
    args = [event.args for event in events if event.args is not NO_ARGS]
    absent = (
        [event.ph for event in events].count("")
        + [event.cat for event in events].count("")
        + [event.name for event in events].count("")
        + [event.pid for event in events].count(-1)
        + [event.tid for event in events].count(-1)
        + [event.ts for event in events].count(ABSENT)
        + [event.dur for event in events].count(ABSENT)
        + [a.device for a in args].count(-1)
        + [a.stream for a in args].count(NO_STREAM)
        + [a.correlation for a in args].count(-1)
        + [a.name for a in args].count(ABSENT)
    )
    return 7 * len(events) + 4 * len(args) - absent


def _count_keys(text: bytes) -> int:
    """How often any of `KEYS` is a key in a text padded by 8: the 8 bytes before each `":` tell.

    Parsers keep the last of several, so an event with a stretch of text missing can swallow its follower.
    """
    before: npt.NDArray[np.uint64] = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))
    found = 0
    for offset in (0, 1):
        pairs = np.frombuffer(text, "<u2", (len(text) - offset) // 2, offset)
        at = np.flatnonzero(pairs == _QUOTE_COLON) * 2 + (offset - 8)
        endings = before[at]
        for shift, words in _KEY_WORDS.items():
            shifted = endings >> shift
            found += sum(int(np.count_nonzero(shifted == word)) for word in words)
    return found
