"""When the GPU came to given places of its stream, on the host's clock, without ever waiting for it.

Timing events from a pool that is allocated once are recorded in the model's stream and read much later, when
they have long been reached. `elapsed_time` is a float32 of milliseconds, so it is asked only for short
differences, from an anchor that moves along. The host's time comes from references: an event recorded and
synchronised while the device is idle, between two readings of the host's clock. Two references enclose each
busy period; between them the GPU's clock is mapped linearly, so its drift against the host's falls out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from latencylab.model.trace import I64

POOL = 4096  # events
REFERENCE_TRIES = 5
ANCHOR_MS = 50.0  # at 64 ms a float32 of ms still resolves 8 ns
UNKNOWN = -1


class GpuClock:
    """Timing events of one stream. `make_event` gives an event with `record(stream)`, `query()`,
    `synchronize()` and `elapsed_time(later) -> ms`; it is called `pool` times, at once.

    A ticket stands for a recorded event; the times of the newest `capacity` tickets are kept.
    """

    def __init__(
        self, make_event: Callable[[], Any], stream: Any, *, capacity: int, pool: int = POOL
    ) -> None:
        self._stream = stream
        self._times = np.full(capacity, UNKNOWN, np.int64)
        self._free = deque(make_event() for _ in range(pool))
        for event in self._free:
            event.record(stream)  # the event itself is made at its first recording
        self._pending: deque[tuple[int, Any]] = deque()
        self._tickets = 0
        self._anchor: Any = None
        self._anchor_ns = 0.0  # after the reference
        self._reference_ns = 0  # on the host's clock
        self._first = 0  # ticket of the period that the newest reference opened
        self._resolved = 0  # tickets up to here have their time after the reference
        self.skipped = 0  # events not recorded because none was free
        self.uncertainty_ns = 0  # of the newest reference: half of the time it took

    def record(self) -> int:
        """Record an event in the stream now; returns its ticket, or -1 where no event is free."""
        if not self._free:
            self._resolve(8)
            if not self._free:
                self.skipped += 1
                return UNKNOWN
        event = self._free.popleft()
        event.record(self._stream)
        ticket = self._tickets
        self._pending.append((ticket, event))
        self._tickets = ticket + 1
        return ticket

    def reference(self) -> None:
        """Tie the GPU's clock to the host's. Only while the device is idle, for it synchronises."""
        while len(self._free) < REFERENCE_TRIES and self._pending:
            self._resolve(len(self._pending))
        events = [self._free.popleft() for _ in range(min(REFERENCE_TRIES, len(self._free)))]
        best: tuple[int, int, Any] | None = None
        for event in events:
            before = time.perf_counter_ns()
            event.record(self._stream)
            event.synchronize()
            after = time.perf_counter_ns()
            if best is None or after - before < best[0]:
                best = (after - before, (before + after) // 2, event)
        if best is None:
            return
        took, host_ns, chosen = best
        self._resolve(len(self._pending))
        if self._anchor is not None:
            self._place(host_ns, self._anchor_ns + self._anchor.elapsed_time(chosen) * 1e6)
            self._free.append(self._anchor)
        self._free.extend(event for event in events if event is not chosen)
        self._anchor, self._anchor_ns, self._reference_ns = chosen, 0.0, host_ns
        self._first = self._resolved = self._tickets
        self.uncertainty_ns = took // 2

    def times(self, tickets: I64) -> I64:
        """The host's `perf_counter_ns` of each ticket, -1 where it is not known (yet, or any more)."""
        self._resolve(len(self._pending))
        known = (
            (tickets >= max(0, self._tickets - len(self._times)))
            & (tickets < self._resolved)
            & (self._anchor is not None)
        )
        found = np.where(known, self._times[tickets % len(self._times)], UNKNOWN)
        # Those since the newest reference have only their time after it; no later one corrects the drift.
        return np.where(
            known & (found != UNKNOWN) & (tickets >= self._first), found + self._reference_ns, found
        )

    def _resolve(self, most: int) -> None:
        """Read up to so many of the oldest events, as far as the GPU has come."""
        for _ in range(most):
            if not self._pending or not self._pending[0][1].query():
                return
            ticket, event = self._pending.popleft()
            self._resolved = ticket + 1
            if self._anchor is None:
                self._times[ticket % len(self._times)] = UNKNOWN
                self._free.append(event)
                continue
            since = self._anchor.elapsed_time(event)
            at = self._anchor_ns + since * 1e6
            self._times[ticket % len(self._times)] = round(at)
            if since > ANCHOR_MS:
                self._free.append(self._anchor)
                self._anchor, self._anchor_ns = event, at
            else:
                self._free.append(event)

    def _place(self, host_ns: int, gpu_ns: float) -> None:
        """Move the period between two references onto the host's clock."""
        oldest = max(self._first, self._tickets - len(self._times))
        slots = np.arange(oldest, self._resolved) % len(self._times)
        after = self._times[slots]
        rate = (host_ns - self._reference_ns) / gpu_ns if gpu_ns > 0 else 1.0
        placed = self._reference_ns + np.rint(after * rate).astype(np.int64)
        self._times[slots] = np.where(after == UNKNOWN, UNKNOWN, placed)
