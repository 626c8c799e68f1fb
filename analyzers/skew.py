"""Who was last at each collective, how long the others waited for it, and why it was late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.clocks import RESOLVED, Clock
from latencylab.analyzers.collectives import RankCollectives
from latencylab.analyzers.host import FIXED, WAITING
from latencylab.analyzers.host_collectives import HostWaits
from latencylab.analyzers.idle import HOST
from latencylab.analyzers.intervals import Intervals, cut
from latencylab.analyzers.pairing import Pairing
from latencylab.analyzers.shares import doing_name
from latencylab.analyzers.slow import GPU_WAITS
from latencylab.analyzers.view import RankView
from latencylab.analyzers.waits import Site
from latencylab.model.trace import I64, Bool

F64 = npt.NDArray[np.float64]

INHERITED = "inherited from another collective"
SWALLOWED_NS = 1_000_000  # a first collective waits at least so long, and so many times the median wait,
SWALLOWED_TIMES = 20  # where it swallowed the later start of a peer's profiler


@dataclass(frozen=True, slots=True, eq=False)
class Skew:
    """Per paired collective and rank, on aligned clocks, in ns (0 where a rank is not in it): `arrival`,
    `end`, `wait` for the last arrival, `transfer` from then to the end. Per collective the `last` rank to
    arrive, the `spread` of arrivals, whether it is `resolved` (spread over three times what residual and
    noise of the clocks are), and `trimmed`, whether it is set aside because a rank's profiler started in it.
    """

    there: Bool
    arrival: I64
    end: I64
    wait: I64
    transfer: I64
    last: I64
    spread: I64
    resolved: Bool
    trimmed: Bool


def measure_skew(ranks: tuple[RankCollectives, ...], pairing: Pairing, clocks: tuple[Clock, ...]) -> Skew:
    """Arrivals, waits and transfers of every paired collective."""
    there = pairing.row >= 0
    arrival, end = (pairing.column(ranks, name) for name in ("arrival", "end"))
    for r, clock in enumerate(clocks):
        arrival[:, r] = np.where(there[:, r], clock.align(arrival[:, r]), 0)
        end[:, r] = np.where(there[:, r], clock.align(end[:, r]), 0)
    lowest = np.iinfo(np.int64).min
    last_at = np.where(there, arrival, lowest).max(axis=1, initial=lowest)
    first_at = np.where(there, arrival, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    wait = np.where(there, last_at[:, None] - arrival, 0)
    wait = np.minimum(wait, np.maximum(end - arrival, 0)) if len(wait) else wait
    spread = last_at - first_at
    # The noise of the ends is in the arrivals that follow them, however well the clocks are known.
    precise = np.array([max(clock.residual, clock.noise) for clock in clocks])
    precision = np.where(there, precise[None, :], 0.0).max(axis=1, initial=0.0)
    return Skew(
        there=there,
        arrival=arrival,
        end=end,
        wait=wait,
        transfer=np.where(there, np.maximum(end - np.maximum(last_at[:, None], arrival), 0), 0),
        last=np.where(there, arrival, lowest).argmax(axis=1) if len(there) else np.zeros(0, np.int64),
        spread=spread,
        resolved=(spread > RESOLVED * precision) & pairing.blocking,
        trimmed=_swallowed(pairing, spread),
    )


def _swallowed(pairing: Pairing, spread: I64) -> Bool:
    """The collectives up to the last in which a rank's record begins while its peers wait out of measure."""
    trimmed = np.zeros(len(pairing), bool)
    begins = np.flatnonzero((pairing.row == 0).any(axis=1))
    usual = float(np.median(spread[pairing.blocking])) if pairing.blocking.any() else 0.0
    for row in begins.tolist():
        if spread[row] > max(SWALLOWED_NS, SWALLOWED_TIMES * usual):
            trimmed[: row + 1] = True
    return trimmed


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """Why the last rank was late: per entry the paired collective (`instance`), the cause (a row of `names`)
    and its ns. The causes of one collective add up to the mean wait of the others.

    As found, each is its excess over the mean of the other ranks since the collective before; `charged` moves
    between them what that alone does not tell.
    """

    instance: I64
    cause: I64
    ns: F64
    names: tuple[str, ...]

    def main_cause(self, count: int) -> list[str]:
        """The largest cause of each of `count` collectives, "" where none is known."""
        main = [""] * count
        for row in np.argsort(self.ns, kind="stable").tolist():
            if self.ns[row] > 0:
                main[int(self.instance[row])] = self.names[int(self.cause[row])]
        return main

    def share_of(self, count: int, begins: str) -> F64:
        """Per each of `count` collectives the share of its causes whose names begin so, 0 to 1."""
        chosen = np.array([name.startswith(begins) for name in self.names], bool)[self.cause]
        total = np.bincount(self.instance, self.ns, count)
        its = np.bincount(self.instance[chosen], self.ns[chosen], count)
        share: F64 = np.clip(np.divide(its, total, out=np.zeros(count), where=total > 0), 0.0, 1.0)
        return share

    def sums(self, rows: I64) -> dict[str, float]:
        """The ns of each cause over these collectives."""
        entries = np.isin(self.instance, rows)
        which, row = np.unique(self.cause[entries], return_inverse=True)
        ns = np.bincount(row, self.ns[entries], len(which))
        return {self.names[cause]: its for cause, its in zip(which.tolist(), ns.tolist(), strict=True)}

    def charged(self, rows: I64, sums: Mapping[str, float]) -> Causes:
        """The causes with those of these collectives adding up to `sums`: ns, as much in all as before.

        What a cause has of its own stays where it is; of each collective what is taken from causes with less
        than before is given to those with more, in proportion. So each collective's causes add up as before.
        """
        before = self.sums(rows)
        changed = [name for name in {**before, **sums} if before.get(name) != sums.get(name)]
        if not changed:
            return self
        names = dict.fromkeys([*self.names, *sums])
        row_of = {name: row for row, name in enumerate(names)}
        kept, more = np.ones(len(names)), {}
        for name in changed:
            was, owed = before.get(name, 0.0), sums.get(name, 0.0)
            stays = min(owed, max(was, 0.0))
            kept[row_of[name]] = stays / was if was else 0.0
            if owed > stays:
                more[name] = owed - stays
        given = more or {name: sums[name] for name in changed if name in sums}
        taken = np.where(np.isin(self.instance, rows), self.ns * (1 - kept[self.cause]), 0.0)
        instance = np.flatnonzero(np.bincount(self.instance, taken != 0))
        pool = np.bincount(self.instance, taken)[instance]
        share = np.array(list(given.values())) / sum(given.values())
        cause = np.array([row_of[name] for name in given], np.int64)
        return Causes(
            *_added_up(
                np.concatenate([self.instance, np.repeat(instance, len(cause))]),
                np.concatenate([self.cause, np.tile(cause, len(instance))]),
                np.concatenate([self.ns - taken, np.outer(pool, share).ravel()]),
            ),
            tuple(names),
        )


def find_causes(
    views: tuple[RankView, ...],
    ranks: tuple[RankCollectives, ...],
    pairing: Pairing,
    skew: Skew,
    host_waits: tuple[HostWaits, ...],
) -> Causes:
    """The causes of each resolved collective's lateness, of all but those that begin a rank's record."""
    names = _Names()
    before = _before(skew.there)
    judged = skew.resolved & ~skew.trimmed & (before >= 0)
    others = skew.there.sum(axis=1) - 1
    found: list[tuple[I64, I64, I64, F64]] = []  # instance, cause, site or -1, ns
    for r, (view, rank) in enumerate(zip(views, ranks, strict=True)):
        mine = np.flatnonzero(judged & skew.there[:, r])
        weight = np.where(skew.last == r, 1.0, -1.0 / np.maximum(others, 1))
        since = rank.end[pairing.row[before[mine], r]]
        until = rank.arrival[pairing.row[mine, r]]
        # Where a rank arrived before the collective before was over there is no time to explain but its lead.
        lead = skew.end[before[mine], r] - skew.end[before[mine]].max(axis=1, initial=0)
        lead = lead + np.minimum(until - since, 0)
        inherited = np.full(len(mine), names.row(INHERITED))
        found.append((mine, inherited, np.full(len(mine), -1), lead * weight[mine]))
        tiles = _tiles(view, rank, pairing.row[:, r], skew.wait[:, r], names)
        tiles = _name_peers(tiles, view, host_waits[r], [other.trace.rank for other in views], names)
        window, tile, ns = _tiles_within(tiles.start, tiles.end, since, np.maximum(until, since))
        instance = mine[window]
        found.append((instance, tiles.cause[tile], tiles.site[tile], ns * weight[instance]))
    instance, cause, site, ns = (np.concatenate(column) for column in zip(*found, strict=True))
    owed = _owed(instance, site, ns, _excess_blocked(views, ranks, pairing, skew, names))
    return Causes(
        *_added_up(
            np.concatenate([instance, instance]),
            np.concatenate([cause, np.where(site >= 0, site, cause)]),
            np.concatenate([ns * (1 - owed), ns * owed]),
        ),
        tuple(names.rows),
    )


class _Names:
    """Rows of names, in order of their first use."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def row(self, name: str) -> int:
        return self.rows.setdefault(name, len(self.rows))


def _owed(instance: I64, site: I64, ns: F64, blocked: dict[int, F64]) -> F64:
    """Per entry the share of it that is owed to its blocking site, the rest being what the thread did.

    A site explains no more of a rank's lateness than the time by which it blocked that rank longer than the
    others (`blocked`, by site and collective): where all were blocked alike, what the late one did counts.
    """
    owed = np.zeros(len(ns))
    for one, limit in blocked.items():
        rows = np.flatnonzero(site == one)
        excess = np.bincount(instance[rows], ns[rows], len(limit))
        share = np.clip(limit / np.where(excess > 0, excess, 1.0), 0.0, 1.0)
        owed[rows] = np.where(excess > 0, share, 1.0)[instance[rows]]
    return owed


def _excess_blocked(
    views: tuple[RankView, ...],
    ranks: tuple[RankCollectives, ...],
    pairing: Pairing,
    skew: Skew,
    names: _Names,
) -> dict[int, F64]:
    """Per blocking site and collective, how much longer the last rank was blocked there in that step than
    any other, in ns and at least 0. (Not than the mean: a rank that was late before is blocked less after.)
    """
    own: dict[int, F64] = {}
    most: dict[int, F64] = {}
    for r, (view, rank) in enumerate(zip(views, ranks, strict=True)):
        waits = view.waits
        step = np.full(len(pairing), -1)
        step[skew.there[:, r]] = rank.step[pairing.row[skew.there[:, r], r]]
        call_step = view.steps.of_host(waits.calls.start)
        for number, site in enumerate(waits.sites):
            calls = (waits.site == number) & (call_step >= 0)
            blocked = np.bincount(call_step[calls], waits.blocked[calls], max(len(view.steps), 1))
            here = np.where(step >= 0, blocked[np.maximum(step, 0)], 0.0)
            row = names.row(_site_name(site))
            none = np.zeros(len(pairing))
            own[row] = np.where(skew.last == r, here, own.get(row, none))
            most[row] = np.where(skew.last == r, most.get(row, none), np.maximum(here, most.get(row, none)))
    return {row: np.maximum(its - most[row], 0.0) for row, its in own.items()}


def _site_name(site: Site) -> str:
    return f"host idle: {site}"


def _before(there: Bool) -> I64:
    """For each paired collective the last one before it that all its ranks took part in, or -1."""
    before = np.arange(len(there), dtype=np.int64) - 1
    for i in np.flatnonzero((there[1:] & ~there[:-1]).any(axis=1)) + 1:
        at = i - 1
        while at >= 0 and (there[i] & ~there[at]).any():
            at -= 1
        before[i] = at
    return before


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """A rank's window in disjoint tiles, in order: what each was spent on, and for host idle that is owed
    to a blocking site also that (else -1); both rows of names.
    """

    start: I64
    end: I64
    cause: I64
    site: I64


def _tiles(view: RankView, rank: RankCollectives, row: I64, wait: I64, names: _Names) -> _Tiles:
    trace, pieces, work = view.trace, view.pieces, view.work
    idle = np.zeros(len(pieces), np.int64)
    for cause, text in GPU_WAITS.items():
        idle[pieces.cause == cause] = names.row(text)
    host = pieces.cause == HOST
    for code in np.unique(pieces.doing[host]).tolist():
        idle[host & (pieces.doing == code)] = names.row(f"host idle: {doing_name(code, pieces.spans)}")
    owed = np.full(len(pieces), -1)
    for number in np.unique(pieces.site[host & (pieces.site >= 0)]).tolist():
        owed[host & (pieces.site == number)] = names.row(_site_name(view.waits.sites[number]))
    last_at = np.full(len(trace.gpu), np.iinfo(np.int64).min)
    paired = row >= 0
    last_at[rank.op[row[paired]]] = rank.arrival[row[paired]] + wait[paired]
    start, end, piece = cut(work.start, work.end, np.unique(last_at[rank.op]))
    op = work.op[piece]
    kernel = trace.gpu.name[op]
    kernels = np.flatnonzero(np.bincount(kernel))
    row_of = np.zeros(len(trace.names), np.int64)
    row_of[kernels] = [names.row(f"GPU work: {trace.names[kernel]}") for kernel in kernels.tolist()]
    busy = row_of[kernel]
    busy[start < last_at[op]] = names.row(INHERITED)
    starts = np.concatenate([pieces.start, start])
    order = np.argsort(starts, kind="stable")
    return _Tiles(
        starts[order],
        np.concatenate([pieces.end, end])[order],
        np.concatenate([idle, busy])[order],
        np.concatenate([owed, np.full(len(op), -1)])[order],
    )


def _name_peers(tiles: _Tiles, view: RankView, waits: HostWaits, numbers: list[int], names: _Names) -> _Tiles:
    """The tiles in which the host waited in a collective of the hosts, named after whom it waited for."""
    waiting = np.flatnonzero(tiles.cause == names.row(f"host idle: {FIXED[WAITING]}"))
    row = waits.at(tiles.start[waiting])
    cause = tiles.cause.copy()
    for one in np.unique(row[row >= 0]).tolist():
        peer = int(waits.rank[one])
        whom = f" for rank {numbers[peer]}" if peer >= 0 else ""
        text = f"host idle: waiting in {view.trace.names[waits.name[one]]}{whom}"
        cause[waiting[row == one]] = names.row(text)
    return replace(tiles, cause=cause)


def _tiles_within(start: I64, end: I64, since: I64, until: I64) -> tuple[I64, I64, F64]:
    """The tiles' parts within each window [since, until), as (window, tile, ns); windows may overlap."""
    first = np.searchsorted(end, since, side="right")
    stop = np.searchsorted(start, until, side="left")
    count = np.maximum(stop - first, 0)
    window = np.repeat(np.arange(len(since)), count)
    tile = np.arange(len(window)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    ns = np.minimum(end[tile], until[window]) - np.maximum(start[tile], since[window])
    return window, tile, ns.astype(np.float64)


def _added_up(instance: I64, cause: I64, ns: F64) -> tuple[I64, I64, F64]:
    base = np.int64(cause.max(initial=0) + 1)
    key = instance * base + cause
    if key.max(initial=0) > 8 * len(key):  # too sparse for a table of all
        keys, row = np.unique(key, return_inverse=True)
        return keys // base, keys % base, np.bincount(row, ns, len(keys)).astype(np.float64)
    keys = np.flatnonzero(np.bincount(key))
    return keys // base, keys % base, np.bincount(key, ns)[keys].astype(np.float64)


def lone_waits(view: RankView, rank: RankCollectives, row: I64, wait: I64) -> tuple[I64, I64]:
    """Per paired collective of a rank the ns that it waited while no other stream ran, and its step.

    An op that overlaps on the collective's own stream waits along under programmatic dependent launch, and
    does not count as running.
    """
    gpu = view.trace.gpu
    paired = np.flatnonzero(row >= 0)
    rows = row[paired]
    start = rank.arrival[rows]
    alone = wait[paired].copy()
    stream = gpu.stream[rank.op[rows]]
    for one in np.unique(stream).tolist():
        here = stream == one
        elsewhere = gpu.stream != one
        others = Intervals.union(gpu.start[elsewhere], gpu.end[elsewhere])
        alone[here] -= others.within(start[here], start[here] + wait[paired][here])
    return alone, view.steps.of_gpu(start)
