"""The step clock: what each step takes while no profiler is on, at a cost of some tens of µs a step.

Every step and every blocking call has a row; the spans within a step have one in the first `DETAIL_STEPS` of
every `DETAIL_EVERY` steps, since recording them costs several times as much as all the rest.

Rows go into a ring that is allocated once, each with one `struct.pack_into`: setting the elements of numpy
arrays would cost several times as much. Times are `time.perf_counter_ns` inside (it is monotonic, and never
set by NTP while a step is measured); when the ring is read they become epoch ns by the difference of
`time.time_ns` at the start and now, between which the two clocks drift apart linearly.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import numpy as np

from latencylab.model.trace import I64
from latencylab.model.unprofiled import PROBE, StepClock

CAPACITY = 1 << 18  # rows, five a step on average: some 50,000 steps, 21 MB
PROBE_EVERY = 32  # steps
PROBE_TURNS = 600  # about 20 µs in CPython 3.12 at 3 GHz; fixed, so that times compare between hosts
DETAIL_STEPS, DETAIL_EVERY = 8, 64  # in a row, as a step depends on the one before
MEASURE_EVERY = 5  # steps: how often the recording measures itself, which costs too; prime to DETAIL_EVERY
MISSING = -1

_ROW = struct.Struct("=7q")
_SHORT = struct.Struct("=4q")  # the first columns of a row, its span negated; the others then hold nothing
(_STEP, _SPAN, _START, _END, _WAITING, _CPU, _TICKET) = range(7)
_PER_STEP = struct.Struct("=3q")
(_OF_STEP, _KIND, _REQUEST) = range(3)


_ROW_SIZE = _ROW.size
_pack, _pack_short = _ROW.pack_into, _SHORT.pack_into


class StepRing:
    """The rows of one process. Only the thread that runs the steps may write.

    `on` says whether to record, `detail` whether the spans within this step, too. Steps and waits always are,
    but for a wait in a turn without a step, where a request's last result is read.
    `own_ns` is the time spent in the recording itself, as measured by those who record while `measuring`,
    over `own_steps` steps; `layers_ns` is what a row costs beside that, in the calls around its hook.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._rows = np.full((capacity, 7), MISSING, np.int64)
        self._steps = np.full((capacity, 3), MISSING, np.int64)
        self._row_bytes, self._step_bytes = self._rows.data.cast("B"), self._steps.data.cast("B")
        self.capacity = capacity
        self.on = False
        self.detail = False
        self.stopped_by = ""
        self.step = MISSING
        self.measuring = False
        self.own_ns = 0
        self.own_steps = 0
        self._own_rows = self._began = 0
        self._in_detail = False
        self.layers_ns = 0.0
        self.count = 0  # rows written so far and not taken back
        self._most = 0  # rows written so far, some of which were taken back
        self._kept = 0
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._started = clocks_now()

    def intern(self, name: str) -> int:
        """The number that stands for a name in the rows."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self._names)
            self._names.append(name)
        return found

    def switch(self, on: bool) -> None:
        """Record or not, from here on."""
        self.on = on
        self.detail = on and self._in_detail

    def begin_turn(self) -> None:
        """A turn of the engine's loop begins, which may run the next step."""
        self._in_detail = (self.step + 1) % DETAIL_EVERY < DETAIL_STEPS
        self.detail = self.on and self._in_detail

    def begin_step(self, kind: int, request: int) -> None:
        """What follows belongs to the next step."""
        if self.measuring:
            self._own_rows += self.count - self._began
        self.step += 1
        self._began = self.count
        self.measuring = self.on and self.step % MEASURE_EVERY == 0
        self.own_steps += self.measuring
        at = self.step % self.capacity * _PER_STEP.size
        _PER_STEP.pack_into(self._step_bytes, at, self.step, kind, request)

    def append(self, span: int, start_ns: int, end_ns: int) -> None:
        """A row of a span that has nothing but its times, those of `time.perf_counter_ns`.

        The row is counted before it is written, with no call between: a garbage collection, which may begin
        at any call and has a row of its own, then takes the next one.
        """
        count = self.count
        self.count = count + 1
        at = count % self.capacity * _ROW_SIZE
        _pack_short(self._row_bytes, at, self.step, ~span, start_ns, end_ns)

    def append_full(
        self,
        span: int,
        start_ns: int,
        end_ns: int,
        waiting_ns: int = MISSING,
        cpu_ns: int = MISSING,
        ticket: int = MISSING,
    ) -> None:
        """A row with all it may have. `ticket` is that of a timing event of the GPU."""
        count = self.count
        self.count = count + 1
        at = count % self.capacity * _ROW_SIZE
        _pack(self._row_bytes, at, self.step, span, start_ns, end_ns, waiting_ns, cpu_ns, ticket)

    def keep(self) -> None:
        """What was written so far belongs to a step."""
        self._kept = self.count

    def rewind(self) -> None:
        """Take back what was not kept: a turn of the engine's loop in which no step was run."""
        if self.count > self._kept:
            self._most = max(self._most, self.count)
            self.count = self._kept

    @property
    def overwritten(self) -> int:
        """How many rows were lost because the ring is too short."""
        return max(0, max(self._most, self.count) - self.capacity)

    def __len__(self) -> int:
        return max(0, self.count - self.overwritten)

    def probe(self, turns: int = PROBE_TURNS) -> None:
        """Record a loop of fixed work, which tells how fast the host is at this moment."""
        start = time.perf_counter_ns()
        total = 0
        for turn in range(turns):
            total += turn
        self.append(self.intern(PROBE), start, time.perf_counter_ns())

    def own_us_per_step(self) -> float | None:
        """What recording costs a step, in µs; None before the first."""
        if not self.own_steps:
            return None
        rows = self._own_rows + (self.count - self._began if self.measuring else 0)
        return (self.own_ns + self.layers_ns * rows) / self.own_steps / 1e3

    def read(self, gpu_time: Callable[[I64], I64]) -> StepClock:
        """All rows, oldest first, in epoch ns; `gpu_time` turns tickets into `perf_counter_ns` times."""
        rows = self._rows[np.arange(self.overwritten, self.count) % self.capacity]
        short = rows[:, _SPAN] < 0
        rows[short, _WAITING:] = MISSING
        span = np.where(short, ~rows[:, _SPAN], rows[:, _SPAN])
        step = rows[:, _STEP]
        of_step = self._steps[step % self.capacity]
        known = (of_step[:, _OF_STEP] == step) & (step >= 0)
        to_epoch = _epoch_of(self._started, clocks_now())
        gpu = gpu_time(rows[:, _TICKET])
        start = to_epoch(rows[:, _START])
        names = self._names
        return StepClock(
            step=step.copy(),
            span=tuple(names[i] for i in span),
            start_ns=start,
            end_ns=start + (rows[:, _END] - rows[:, _START]),  # a duration stays exactly as it was measured
            waiting_ns=rows[:, _WAITING].copy(),
            cpu_ns=rows[:, _CPU].copy(),
            gpu_start_ns=np.where(gpu == MISSING, MISSING, to_epoch(gpu)),
            kind=tuple(names[i] if there else "" for i, there in zip(of_step[:, _KIND], known, strict=True)),
            request=np.where(known, of_step[:, _REQUEST], MISSING),
        )


def clocks_now(tries: int = 9) -> tuple[int, int]:
    """`perf_counter_ns` and `time_ns` of one moment: of several tries, the one closest together."""
    seen = [(time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()) for _ in range(tries)]
    before, epoch, after = min(seen, key=lambda one: one[2] - one[0])
    return (before + after) // 2, epoch


def _epoch_of(first: tuple[int, int], last: tuple[int, int]) -> Callable[[I64], I64]:
    """From `perf_counter_ns` to epoch ns, through two moments at which both were read."""
    offset = first[1] - first[0]
    drift = (last[1] - last[0]) - offset
    took = max(last[0] - first[0], 1)

    def convert(times: I64) -> I64:
        # The drift is small: it is rounded by itself, for a float64 cannot hold epoch ns.
        drifted: I64 = np.rint((times - first[0]) * (drift / took)).astype(np.int64)
        return times + offset + drifted

    return convert
