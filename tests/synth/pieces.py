"""What is true of each instant of a run, found by looking at it by itself.

Time is cut wherever anything starts or ends. Between two cuts nothing changes, so each piece is judged once
by asking plainly: is an op running, which op comes next, had its launch returned, what was its thread doing.
Every question scans all rows; nothing is sorted, merged or carried along, save the debts of the blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from synth.engine import Call, Mark, Op, Run, Wait

Label = Literal["busy", "in_graph", "dispatch", "launch_latency", "host", "unknown"]

LAYERS = ("profiler", "call", "gc", "framework", "span")  # whatever comes first here has the instant


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which nothing changes.

    `owner` is the op that has the time (busy), or the op that ends the gap. For host pieces: the launching
    thread, what it did, whether it was inside the owner's launch call, and the wait that is to blame.
    """

    start: int
    end: int
    label: Label
    owner: Op
    thread: int = -1
    doing: str = ""
    in_launch: bool = False
    blame: Wait | None = None


@dataclass(slots=True)
class Parts:
    """Sums of pieces in ns: wall = busy + idle, idle = in_graph + dispatch + launch_latency + host + unknown.

    `doing` adds up to `host`; so do `blame` (correlation of the blocking call) and `blame_rest` (doing).
    `exclusive` (op index) adds up to busy.
    """

    wall: int = 0
    busy: int = 0
    in_graph: int = 0
    dispatch: int = 0
    launch_latency: int = 0
    host: int = 0
    host_in_launch: int = 0
    unknown: int = 0
    doing: Counter[str] = field(default_factory=Counter)
    blame: Counter[int] = field(default_factory=Counter)
    blame_rest: Counter[str] = field(default_factory=Counter)
    exclusive: Counter[int] = field(default_factory=Counter)

    @property
    def idle(self) -> int:
        return self.wall - self.busy

    @property
    def gpu(self) -> int:
        return self.in_graph + self.dispatch + self.launch_latency


def running(ops: Iterable[Op], t: int) -> Op | None:
    """The op that has the instant from t on: of all that run, the one that started first."""
    return min((o for o in ops if o.start <= t < o.end), key=lambda o: o.key, default=None)


def blocked_until(wait: Wait) -> int:
    """When the waited-for op ended, kept within the call; the call's start where nothing was waited for."""
    if wait.waited is None:
        return wait.start
    return min(max(wait.waited.end, wait.start), wait.end)


def counts_for(marks: Iterable[Mark], mark: Mark, thread: int) -> bool:
    """Whether a mark is the thread's: profiler work is, if none of its events starts or ends within it."""
    if mark.layer != "profiler":
        return mark.thread == thread
    own = [m for m in marks if m.thread == thread and m.layer != "profiler"]
    edges = [e for m in own for e in (m.start, m.end)]
    return not any(mark.start < e < mark.end for e in edges)


class Judge:
    """Answers the questions about one instant, each by a scan over the rows."""

    def __init__(self, run: Run) -> None:
        self.ops, self.marks, self.waits = run.ops, run.marks, run.waits

    def label(self, t: int) -> tuple[Label, Op]:
        now = running(self.ops, t)
        if now is not None:
            return "busy", now
        gap_start = max(o.end for o in self.ops if o.start <= t)
        ender = min((o for o in self.ops if o.start > t), key=lambda o: o.key)
        mates = [o for o in self.ops if o.call is ender.call]
        if min(mates, key=lambda o: o.key) is not ender:
            return "in_graph", ender
        if ender.call.lost:
            return "unknown", ender
        if ender.call.end <= gap_start:
            return "dispatch", ender
        if t >= ender.call.end:
            return "launch_latency", ender
        outstanding = [o for o in self.ops if not o.call.lost and o.call.end <= t < o.start]
        return ("dispatch" if outstanding else "host"), ender

    def doing(self, thread: int, t: int) -> str:
        """What the thread did at t; see the keys in `synth`."""
        now = [m for m in self.marks if m.start <= t < m.end and counts_for(self.marks, m, thread)]
        if not now:
            return "span:"
        top = min(now, key=lambda m: (LAYERS.index(m.layer), -m.depth))
        if top.layer == "span":
            return f"span:{top.name}"
        if top.layer == "call":
            return self._call_doing(top.call, t)
        return top.layer

    def _call_doing(self, call: Call | None, t: int) -> str:
        for wait in self.waits:
            if call is not None and any(c is call for c in wait.calls):
                return "sync" if t < blocked_until(wait) else "sync_tail"
        return "api"


def cut(run: Run) -> list[int]:
    """Every instant of the window at which anything starts or ends."""
    points = {e for o in run.ops for e in (o.start, o.end)}
    lo, hi = min(points), max(points)
    points |= {e for m in run.marks for e in (m.start, m.end)}
    points |= {blocked_until(w) for w in run.waits}
    return sorted(p for p in points if lo <= p <= hi)


def judge(run: Run) -> list[Piece]:
    """The window in pieces, blame not yet laid."""
    asked, pieces = Judge(run), []
    for start, end in pairwise(cut(run)):
        label, owner = asked.label(start)
        if label != "host":
            pieces.append(Piece(start, end, label, owner))
            continue
        call = owner.call
        doing = asked.doing(call.thread, start)
        in_launch = call.start <= start < call.end
        pieces.append(Piece(start, end, label, owner, call.thread, doing, in_launch))
    return pieces


def lay_blame(run: Run, pieces: list[Piece]) -> list[Piece]:
    """Each blocking call lends its time blocked; later host pieces of its thread draw on it, newest first."""
    left = {id(w): blocked_until(w) - w.start for w in run.waits}
    out: list[Piece] = []
    for p in pieces:
        if p.label != "host":
            out.append(p)
            continue
        mine = [w for w in run.waits if w.call.thread == p.thread and blocked_until(w) <= p.start]
        start = p.start
        for wait in sorted(mine, key=lambda w: (blocked_until(w), w.start), reverse=True):
            take = min(left[id(wait)], p.end - start)
            if take > 0:
                left[id(wait)] -= take
                out.append(_part(p, start, start + take, wait))
                start += take
        if start < p.end:
            out.append(_part(p, start, p.end, None))
    return out


def _part(p: Piece, start: int, end: int, blame: Wait | None) -> Piece:
    return Piece(start, end, p.label, p.owner, p.thread, p.doing, p.in_launch, blame)


def add_up(pieces: Iterable[Piece], lo: int, hi: int) -> Parts:
    out = Parts()
    for p in pieces:
        ns = min(p.end, hi) - max(p.start, lo)
        if ns <= 0:
            continue
        out.wall += ns
        setattr(out, p.label, getattr(out, p.label) + ns)
        if p.label == "busy":
            out.exclusive[p.owner.index] += ns
        if p.label == "host":
            out.host_in_launch += ns * p.in_launch
            out.doing[p.doing] += ns
            if p.blame is None:
                out.blame_rest[p.doing] += ns
            else:
                out.blame[p.blame.call.correlation] += ns
    return out


def union_ns(ops: Iterable[Op], since: int | None = None) -> int:
    """Length of the union of the ops' intervals, from `since` on."""
    ops = [o for o in ops if o.end > o.start]
    points = sorted({e for o in ops for e in (o.start, o.end)} | ({since} if since is not None else set()))
    spans = [(p, q) for p, q in pairwise(points) if since is None or p >= since]
    return sum(q - p for p, q in spans if running(ops, p) is not None)


def fold(doing: Counter[str], tail: Literal["api", "sync"] = "api") -> Counter[str]:
    """The same time with the tails of blocking calls counted as API time, or as waiting."""
    out: Counter[str] = Counter()
    for key, ns in doing.items():
        out[tail if key == "sync_tail" else key] += ns
    return out
