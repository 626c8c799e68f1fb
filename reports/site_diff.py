"""What differs between two runs of a history, from their records and stored analyses: rows to be shown.

It compares what the analyses say and judges nothing: whether a difference is more than chance is the gate's
and the change points' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from latencylab.analyzers.comparable import changed, conflicts
from latencylab.model.comparison import LEAST_US
from latencylab.reports import format as fmt
from latencylab.reports.site_runs import ALL, Figure
from latencylab.reports.summary import cause
from latencylab.traces.history import Record

Json = dict[str, Any]

_CAUSES = 12
_CLASSES = 24
_PARTS = (
    ("wall", "step"),
    ("busy", "busy"),
    ("collective_wait", "of it waits in collectives"),
    ("idle_host", "idle, host late"),
    ("idle_gpu", "idle, GPU's own"),
    ("idle_unknown", "idle, unknown"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One thing before and after: numbers, None where a side does not have it."""

    name: str
    before: float | None
    after: float | None
    note: str = ""

    @property
    def delta(self) -> float | None:
        """After minus before; what one side lacks altogether counts as nothing there."""
        if self.before is None and self.after is None:
            return None
        return fmt.amount(self.after) - fmt.amount(self.before)

    @property
    def pct(self) -> float | None:
        return _change_pct(self.before, self.after)


@dataclass(frozen=True, slots=True)
class FigureRow(Row):
    figure: Figure = ALL[0]

    @property
    def pct(self) -> float | None:
        return _change_pct(self.before, self.after) if self.figure.has_share else None


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A blocking site on both sides; a verdict is "" where a side does not have it."""

    site: str
    before: str
    after: str
    per_step: Row
    idle: Row


@dataclass(frozen=True, slots=True)
class Moved:
    """Something about how the runs were made; `blocks` where it makes their times incomparable."""

    field: str
    before: str
    after: str
    blocks: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that a page of two runs shows. Times are µs per step of the main kind of one rank."""

    before: Record
    after: Record
    rank: int
    figures: tuple[FigureRow, ...]
    moved: tuple[Moved, ...]
    parts: tuple[Row, ...]
    sites: tuple[SiteRow, ...]
    legs: tuple[Row, ...]
    classes: tuple[Row, ...]
    causes: tuple[Row, ...]


def difference(before: Record, base: Json, after: Record, head: Json) -> Difference:
    """Compare two runs; `base` and `head` are their analyses by the output contract.

    Both sides speak of the rank that stands in front after, or before where that has none such.
    """
    numbers = {rank.get("rank") for rank in _dicts(base.get("ranks"))}
    number = after.front if after.front in numbers else before.front
    ours, theirs = _rank(base, number), _rank(head, number)
    return Difference(
        before,
        after,
        number,
        tuple(
            FigureRow(figure.title, was, is_, figure=figure)
            for figure in ALL
            if (was := figure.of(before), is_ := figure.of(after)) != (None, None)
        ),
        _moved(before, after),
        tuple(
            row
            for key, title in _PARTS
            if (row := _row(title, ours.get("step_us"), theirs.get("step_us"), key)).delta is not None
        ),
        _sites(ours, theirs),
        _legs(ours, theirs),
        _largest(
            _matched(ours, theirs, "kernels", lambda k: (str(k.get("class")), _number(k, "us"))), _CLASSES
        ),
        _largest(_causes(ours, theirs), _CAUSES),
    )


def _change_pct(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before == 0 else 100 * (after - before) / abs(before)


def _moved(before: Record, after: Record) -> tuple[Moved, ...]:
    ours, theirs = before.run, after.run
    shared = {*ours.recorded} & {*theirs.recorded}
    moved = [Moved(o.field, o.base, o.head, True) for o in conflicts(ours.conditions, theirs.conditions)]
    moved += [
        Moved(one.field, one.base or "", one.head or "", False)
        for one in changed(ours.circumstances, theirs.circumstances, shared)
    ]
    return tuple(sorted(moved, key=lambda one: (not one.blocks, one.field)))


def _sites(ours: Json, theirs: Json) -> tuple[SiteRow, ...]:
    base = {str(s.get("site")): s for s in _dicts(ours.get("syncs"))}
    head = {str(s.get("site")): s for s in _dicts(theirs.get("syncs"))}
    rows = [
        SiteRow(
            site,
            str(base[site].get("verdict", "")) if site in base else "",
            str(head[site].get("verdict", "")) if site in head else "",
            _row("calls per step", base.get(site), head.get(site), "per_step"),
            _row("idle charged", base.get(site), head.get(site), "idle_us"),
        )
        for site in dict.fromkeys([*head, *base])
    ]
    return tuple(
        sorted(rows, key=lambda row: (row.before == row.after, -abs(fmt.amount(row.idle.delta)), row.site))
    )


def _legs(ours: Json, theirs: Json) -> tuple[Row, ...]:
    """Each leg and the seam before it, in the order of the step after."""
    rows: list[Row] = []
    seams = _matched(ours, theirs, "legs", lambda leg: (str(leg.get("name")), _number(leg, "seam_us")))
    legs = _matched(ours, theirs, "legs", lambda leg: (str(leg.get("name")), _number(leg, "gpu_us")))
    for seam, leg in zip(seams, legs, strict=True):
        rows.append(Row(f"seam before {seam.name}", seam.before, seam.after, "seam"))
        rows.append(leg)
    return tuple(rows)


def _causes(ours: Json, theirs: Json) -> list[Row]:
    base, head = ours.get("idle_host_blame_us"), theirs.get("idle_host_blame_us")
    names = dict.fromkeys([*(head or {}), *(base or {})])
    return [_row(cause(name), base, head, name) for name in names]


def _matched(
    ours: Json, theirs: Json, key: str, read: Callable[[Json], tuple[str, float | None]]
) -> list[Row]:
    """The entries of both sides by name: those of the side after first, in its order."""
    base, head = (dict(map(read, _dicts(side.get(key)))) for side in (ours, theirs))
    return [Row(name, base.get(name), head.get(name)) for name in dict.fromkeys([*head, *base])]


def _largest(rows: Iterable[Row], most: int) -> tuple[Row, ...]:
    """The rows that differ, those that differ most first."""
    differing = [row for row in rows if abs(fmt.amount(row.delta)) >= LEAST_US]
    return tuple(sorted(differing, key=lambda row: (-abs(fmt.amount(row.delta)), row.name))[:most])


def _rank(analysis: Json, number: int) -> Json:
    """The rank of this number, or the first, or nothing."""
    ranks = _dicts(analysis.get("ranks"))
    return next((rank for rank in ranks if rank.get("rank") == number), ranks[0] if ranks else {})


def _dicts(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _row(name: str, base: Any, head: Any, key: str) -> Row:
    """One key of both sides."""
    return Row(name, _number(base, key), _number(head, key))


def _number(holder: Any, key: str) -> float | None:
    value = holder.get(key) if isinstance(holder, dict) else None
    return fmt.finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
