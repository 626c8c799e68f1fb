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

from latencylab.traces.events import ABSENT, Event
from latencylab.traces.header import NoTraceError, find_head, no_events, read_tail
from latencylab.traces.repair import Repairer

_DECODER = msgspec.json.Decoder(list[Event])
_EVENT = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|args|id)"\s*:')
_CUT = re.compile(rb"\}\s*,\s*\Z")
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
        while not repairer.closed:
            block = next(self._blocks, None)
            held += block or b""
            cut = len(held) if block is None else _last_cut(held)
            if cut < 0:
                if len(held) < _MAX_HELD:
                    continue
                cut = len(held)
            part, held = held[:cut], held[cut:]
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
    while (at := text.rfind(b"{", 0, at)) > 0:
        if _EVENT.match(text, at) and (found := _CUT.search(text, max(0, at - 64), at)):
            return text.index(b",", found.start())
    return -1


def _decode_slice(text: bytes) -> list[Event] | None:
    """The events of a slice; None if it is damaged, or some event has a field twice."""
    try:
        events = _DECODER.decode(b"[" + text.removeprefix(b",") + b"]")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    timed = len(events) - [e.ts for e in events].count(ABSENT)
    lasting = len(events) - [e.dur for e in events].count(ABSENT)
    if _count_words(text, (b'"ts"', b'dur"')) != [timed, lasting]:
        return None
    return events


def _count_words(text: bytes, words: tuple[bytes, ...]) -> list[int]:
    """How often each word of four bytes occurs: twice as fast as `bytes.count`, which here would be felt."""
    counts = [0] * len(words)
    for offset in range(min(4, len(text) - 3)):
        column = np.frombuffer(text, np.uint32, (len(text) - offset) // 4, offset)
        for i, word in enumerate(words):
            counts[i] += int(np.count_nonzero(column == np.frombuffer(word, np.uint32)))
    return counts
