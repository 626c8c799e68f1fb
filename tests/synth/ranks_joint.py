"""What ranks wait for: values that are not there yet, and collectives that not all have joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from synth.actions import MEMCPY
from synth.engine import Mark, Op, _Tail
from synth.ranks_actions import Comm

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Cell(Generic[T]):
    """A value that is not there yet, and who waits for it."""

    value: T | None = None
    waiters: list[Callable[[], None]] = field(default_factory=list)


Queued = Iterator["Cell[bool] | Cell[_Tail]"]  # yields what it waits for


@dataclass(slots=True)
class Record(_Tail):
    """An event's latest record, in the queue of its stream until the cell is settled."""

    cell: Cell[_Tail] = field(default_factory=Cell)


def mixed(*numbers: int) -> int:
    """A 64-bit hash of small numbers, the same in every run."""
    out = 0x9E3779B97F4A7C15
    for n in numbers:
        out = (out ^ (n & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        out ^= out >> 29
        out = out * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        out ^= out >> 32
    return out


@dataclass(slots=True, eq=False)
class Joint:
    """One collective across its ranks, the n-th of its group. `rows` are GPU ops, or marks of hosts."""

    comm: Comm
    ranks: tuple[int, ...]
    number: int
    seeds: tuple[int, ...]
    noise: int
    arrivals: dict[int, int] = field(default_factory=dict)
    rows: dict[int, Op | Mark] = field(default_factory=dict)
    cell: Cell[bool] = field(default_factory=Cell)

    def arrive(self, rank: int, row: Op | Mark, at: int) -> None:
        self.arrivals[rank], self.rows[rank] = at, row

    @property
    def bytes(self) -> int:
        """Of the row: copies alone carry bytes."""
        return self.comm.size if self.comm.way.op == MEMCPY else -1

    @property
    def free(self) -> bool:
        """Whether all have arrived that anybody waits for."""
        sync = self.comm.way.sync
        return sync == "none" or self.arrivals.keys() >= set(self.whom)

    @property
    def whom(self) -> tuple[int, ...]:
        """Those that the members wait for."""
        return (self.comm.root,) if self.comm.way.sync == "root" else self.ranks

    def leave(self, rank: int, dur: int) -> int:
        """When the rank is done: after the others' data has flown in."""
        way = self.comm.way
        if way.sync == "none":
            return self.arrivals[rank] + dur
        fly = way.early + mixed(*self.seeds, -1) % (way.spread + 1)
        if self.comm.early is not None:
            fly = self.comm.early
        sent = {q: self.arrivals[q] for q in {rank, *self.whom}}  # when each has what the others wait for
        for _ in range(way.flights - 1):
            sent = {p: max(t + fly * (q != p) for q, t in sent.items()) for p in sent}
        ready = max(t + fly * (q != rank) for q, t in sent.items())
        return ready + dur + mixed(*self.seeds, rank) % (self.noise + 1)
