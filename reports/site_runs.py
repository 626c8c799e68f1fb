"""The runs of a history as the site shows them: one line a commit of each configuration, and what changed."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from latencylab.analyzers.comparable import conflicts
from latencylab.analyzers.trend import Change, find_changes
from latencylab.model import comparison
from latencylab.model.findings import Analysis
from latencylab.model.gate import Policy, Run
from latencylab.reports import format as fmt
from latencylab.reports.contract import to_contract
from latencylab.reports.summary import focus
from latencylab.traces.history import Record, spread_pct

Word = Literal["slower", "faster", "steady", "unclear", "first", "not measured", "not comparable"]

_SHORT_COMMIT = 10
_PINS = ("pinning", "harmful")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run that the site follows; `of` gives None where the run does not have it.

    `digits` after the point are shown. `floor` says that the axis begins at 0.
    """

    key: str
    title: str
    short: str
    unit: str
    digits: int
    of: Callable[[Record], float | None]
    floor: bool = False

    @property
    def has_share(self) -> bool:
        """Whether a change in % of it means anything: not of a count, nor of what is in % itself."""
        return self.digits > 0 and self.unit != "%"


def _metric(name: str) -> Callable[[Record], float | None]:
    return lambda record: fmt.finite(record.run.metrics.get(name))


def _calibrated(name: str) -> Callable[[Record], float | None]:
    """A figure of the calibration, where that holds."""

    def of(record: Record) -> float | None:
        found = record.calibration or {}
        value = found.get(name)
        if found.get("status") != "calibrated" or isinstance(value, bool):
            return None
        return fmt.finite(value) if isinstance(value, int | float) else None

    return of


def _calibration_error(record: Record) -> float | None:
    """Its size: the sign says only on which side the prediction lay."""
    value = (record.calibration or {}).get("error_pct")
    found = fmt.finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None if found is None else abs(found)


def _pinning_sites(record: Record) -> float | None:
    counted = record.run.metrics.get("pinning_sites")
    return float(sum(s.verdict in _PINS for s in record.run.sites)) if counted is None else counted


STEP = Figure("step", "ms per step, without the profiler", "ms/step", "ms", 3, lambda record: record.step_ms)
TPOT = Figure("tpot", "TPOT", "TPOT", "ms", 3, _metric("tpot"))
HOST = Figure(
    "host", "host idle per step, calibrated", "host idle", "µs", 1, _calibrated("idle_host_us"), True
)
TRACED_HOST = Figure(
    "traced-host",
    "host idle per step in the trace",
    "host idle in the trace",
    "µs",
    1,
    _metric("idle_host"),
    True,
)
SITES = Figure("sites", "pinning sites", "pinning sites", "", 0, _pinning_sites, True)
WAIT = Figure("wait", "wait in collectives per step", "wait", "µs", 1, _metric("wait"), True)
ERROR = Figure("error", "calibration error", "calibration error", "%", 1, _calibration_error)
BUSY = Figure("busy", "GPU busy per step", "busy", "µs", 1, _metric("busy"))
TTFT = Figure("ttft", "TTFT", "TTFT", "ms", 1, _metric("ttft"))
TRACED = Figure("traced", "step in the trace", "step in the trace", "µs", 1, _metric("traced_step"))
ACCEPTED = Figure("accept", "accept length", "accept length", "tokens", 2, _metric("accept_length"))
RUN_AHEAD = Figure("run-ahead", "least run-ahead", "run-ahead", "µs", 1, _metric("run_ahead"))

# Drawn over the commits, from the top, where any run has them.
TREND = (STEP, TPOT, HOST, TRACED_HOST, SITES, WAIT, ERROR)
# Compared on a page of two commits.
ALL = (STEP, TPOT, TTFT, ACCEPTED, TRACED, BUSY, WAIT, HOST, TRACED_HOST, RUN_AHEAD, SITES, ERROR)


@dataclass(frozen=True, slots=True)
class Commit:
    """All runs of one commit in one configuration; `values` are medians over them.

    `front` is the run shown for them all, the one in the middle by ms per step. `word` says how its step
    stands to that of the commit before, and `because` why. `moved` names the conditions that differ from the
    commit before and make the two incomparable, `sites_added` the pinning sites more than there.
    """

    commit: str | None
    records: tuple[Record, ...]
    values: dict[str, float | None]
    front: Record
    change_pct: float | None = None
    word: Word = "first"
    because: str = ""
    moved: tuple[str, ...] = ()
    sites_added: int = 0
    marks: tuple[tuple[Figure, Change], ...] = ()

    @property
    def name(self) -> str:
        return self.commit[:_SHORT_COMMIT] if self.commit else "no commit"

    @property
    def day(self) -> str:
        """When, to the minute, in UTC."""
        return f"{datetime.fromisoformat(self.front.date).astimezone(UTC):%Y-%m-%d %H:%M}"


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration: its commits, oldest first, and its change points by figure.

    `step` is what stands for the step: measured without the profiler, or where no run has that, in the trace.
    """

    name: str
    step: Figure
    commits: tuple[Commit, ...]
    spread_pct: float | None
    changes: dict[str, tuple[Change, ...]]

    @property
    def newest(self) -> Commit:
        return self.commits[-1]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is drawn: what any commit has; the trace's host idle only where none is calibrated."""
        has = [f for f in _trend(self.step) if any(c.values[f.key] is not None for c in self.commits)]
        return tuple(f for f in has if not (f is TRACED_HOST and HOST in has))

    @property
    def last_mark(self) -> tuple[Commit, Change] | None:
        """The newest change point of the step."""
        found = self.changes.get(self.step.key, ())
        return (self.commits[found[-1].index], found[-1]) if found else None


def configs_of(records: Iterable[Record]) -> tuple[Config, ...]:
    """The configurations of a history in order of name; `records` are in their order."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(record.config, []).append(record)
    return tuple(_config(name, tuple(its)) for name, its in sorted(grouped.items()))


def record_of(analysis: Analysis, run: Run, **facts: Any) -> Record:
    """The record of a run; `facts` are what the analysis does not know: id, config, commit and the like."""
    contract = to_contract(analysis)
    front = focus(analysis)
    return Record(
        run=run,
        verdict=contract["verdict"]["text"],
        confidence=contract["verdict"]["confidence"],
        gpu=contract["ranks"][analysis.front]["device_name"] if front else "",
        front=front.rank if front else 0,
        calibration=contract["calibration"],
        **facts,
    )


def mark_text(figure: Figure, change: Change) -> str:
    """A change point in a few characters: `+3.1 %`, or from what to what where that is easier to grasp."""
    if change.pct is None or not figure.has_share:
        return f"{plain_number(change.before, figure)} → {plain_number(change.after, figure)}"
    return signed_percent(change.pct)


def number(value: float | None, figure: Figure) -> str:
    """A figure's value with its unit."""
    return f"{plain_number(value, figure)} {figure.unit}".strip() if value is not None else fmt.MISSING


def plain_number(value: float | None, figure: Figure) -> str:
    """A figure's value without its unit; a median of counts may be halves."""
    found = fmt.finite(value)
    if found is None:
        return fmt.MISSING
    digits = figure.digits if figure.digits or found == round(found) else 1
    return f"{found:,.{digits}f}"


def signed_percent(value: float | None) -> str:
    """A change in %, with its sign, or a dash."""
    found = fmt.finite(value)
    return fmt.MISSING if found is None else comparison.signed_percent(found)


def _trend(step: Figure) -> tuple[Figure, ...]:
    return (step, *TREND[1:])


def _config(name: str, records: tuple[Record, ...]) -> Config:
    step = STEP if any(r.step_ms is not None for r in records) else TRACED
    spread = spread_pct(records) if step is STEP else None
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.commit or record.id, []).append(record)
    commits = [_commit(tuple(group), step) for group in groups.values()]
    changes = {
        figure.key: find_changes([commit.values[figure.key] for commit in commits]) for figure in _trend(step)
    }
    told = [commits[0], *(_compared(*pair, step, spread) for pair in itertools.pairwise(commits))]
    config = Config(name, step, tuple(told), spread, changes)
    marked = tuple(
        replace(commit, marks=tuple((f, c) for f in config.figures for c in changes[f.key] if c.index == i))
        for i, commit in enumerate(told)
    )
    return replace(config, commits=marked)


def _commit(records: tuple[Record, ...], step: Figure) -> Commit:
    values = {figure.key: _median(figure.of(record) for record in records) for figure in ALL}
    ordered = sorted(records, key=lambda r: (fmt.amount(step.of(r)), r.id))
    return Commit(records[0].commit, records, values, ordered[len(ordered) // 2])


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _compared(before: Commit, after: Commit, step: Figure, spread: float | None) -> Commit:
    """The commit, and how its step stands to that of the commit before."""
    differing = conflicts(before.front.run.conditions, after.front.run.conditions)
    moved = tuple(sorted(one.field for one in differing))
    base, head = before.values[step.key], after.values[step.key]
    added = int(fmt.amount(after.values[SITES.key]) - fmt.amount(before.values[SITES.key]))
    if base is None or head is None:
        because = "no requests without the profiler, here or before"
        return replace(after, word="not measured", because=because, moved=moved, sites_added=added)
    change = 100 * (head / base - 1)
    counts = (len(before.records), len(after.records))
    word, because = _word(change, spread, counts, moved)
    return replace(after, change_pct=change, word=word, because=because, moved=moved, sites_added=added)


def _word(
    change: float, spread: float | None, runs: tuple[int, int], moved: tuple[str, ...]
) -> tuple[Word, str]:
    """What to call a change in % between commits of so many runs: a change is what exceeds
    `few_runs_factor` standard deviations of their difference.
    """
    if moved:
        return "not comparable", f"other {', '.join(moved)} than before"
    policy = Policy()
    if spread is None:
        if abs(change) <= policy.min_effect_pct:
            return "steady", f"less than {policy.min_effect_pct:g} %"
        return "unclear", "too few runs to know how much runs differ by themselves"
    noise = spread * math.sqrt(1 / runs[0] + 1 / runs[1])
    limit = max(policy.min_effect_pct, policy.few_runs_factor * noise)
    if abs(change) <= limit:
        return "steady", f"runs may differ by {limit:.1f} %"
    return ("slower" if change > 0 else "faster"), f"more than the {limit:.1f} % by which runs may differ"
