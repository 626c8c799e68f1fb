"""A comparison as tables that the terminal and the page both show: what differs, largest first, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latencylab.analyzers.comparable import name_mismatches
from latencylab.model.comparison import (
    Comparison,
    Delta,
    KernelChange,
    KindChange,
    Row,
    SideFacts,
    SiteChange,
)
from latencylab.reports import format as fmt
from latencylab.reports import summary
from latencylab.reports.names import collective_name, short_name

# Of what a server is told there are many, and a comparison may change a dozen of them: one line for all.
MANY = {"server argument": "server arguments", "switch": "switches", "package": "packages"}
TOP = 12  # rows of a table; the rest is one row
INTERVAL = (
    "95 % interval: how far the noise of the steps within these two captures moves the difference (circular"
    " block bootstrap over steps). It knows nothing of what differs from one start of a process to the next."
)
PARTS = {
    "wall": ("wall", 0),
    "busy": ("GPU busy", 0),
    "collective_wait": ("of it waiting in collectives", 1),
    "idle": ("idle", 0),
    "idle_host": ("host late", 1),
    "idle_host_in_launch": ("inside launch calls", 2),
    "idle_gpu": ("the GPU's own", 1),
    "idle_unknown": ("of unknown cause", 1),
}
HOW = {
    "appeared": "appeared",
    "vanished": "vanished",
    "verdict": "judged otherwise",
    "same": "",
    "renamed": "renamed or replaced",
    "replaced": "replaced",
    "fused": "fused",
    "split": "split",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One row: its name, its numbers, and what else is to be said of it."""

    name: str
    delta: Delta
    detail: str = ""
    depth: int = 0
    more_is_better: bool = False

    @property
    def sure(self) -> bool:
        """Whether the change is beyond the noise of steps, or cannot be told."""
        return self.delta.interval is None or self.delta.resolved


@dataclass(frozen=True, slots=True)
class Section:
    """One table with its title; `key` is unique among a kind's."""

    key: str
    title: str
    what: str  # the last column's head
    lines: tuple[Line, ...]
    note: str = ""


def headline(comparison: Comparison) -> str:
    """The sentence at the top, with kernels by their short names."""
    text = comparison.headline
    names = {
        name
        for kind in comparison.kinds[:1]
        for one in kind.kernels
        for name in (*one.base, *one.head)
        if name in text
    }
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, short_name(name))
    return text


def banner(comparison: Comparison) -> str:
    """What a forced comparison must say first, or ""."""
    if not comparison.mismatches:
        return ""
    differing = name_mismatches(comparison.mismatches)
    return f"NOT COMPARABLE, compared by --force: {differing}. The differences below measure this, too."


def side(facts: SideFacts, kind: KindChange, is_base: bool) -> str:
    """What one side is, in one line."""
    steps = kind.base_steps if is_base else kind.head_steps
    parts = [
        facts.path,
        facts.device,
        facts.kind,
        f"mean of {fmt.count(steps, 'step')}" if steps else "the whole window: no steps found",
        "" if facts.integrity == "ok" else f"input {facts.integrity}",
    ]
    return " · ".join(part for part in parts if part)


def changed(comparison: Comparison) -> list[str]:
    """What was changed between the two: a line for each, or for three and more of one sort."""
    turned: dict[str, list[str]] = {}
    told: dict[str, list[str]] = {}
    for one in comparison.changes:
        sort = next((its for its in ("ledger", *MANY) if one.field.startswith(f"{its} ")), "")
        name = one.field.removeprefix(f"{sort} ")
        states = [(side or "unknown").partition(" ")[0] for side in (one.base, one.head)]
        if sort == "ledger" and states[0] != states[1]:
            turned.setdefault(f"optimisations {states[0]} to {states[1]}", []).append(name)
        else:
            told.setdefault(sort, []).append(f"{name}: {one.base or 'none'} to {one.head or 'none'}")
    lines = [*told.pop("", []), *(f"{how}: {', '.join(names)}" for how, names in turned.items())]
    for sort, its in told.items():
        lines += (
            [f"{MANY[sort]}: {'; '.join(its)}"]
            if sort in MANY and len(its) > 2
            else [f"{sort} {x}" for x in its]
        )
    return lines


def not_known(comparison: Comparison) -> list[str]:
    """What could have told the two apart but was not recorded, by side."""
    sides = {"both": "neither side", "base": "base", "head": "head"}
    said = []
    for lacking, who in sides.items():
        fields = [one.field for one in comparison.unknowns if one.lacking == lacking]
        if fields:
            said.append(f"{who} {'says' if lacking == 'both' else 'does not say'}: {', '.join(fields)}")
    return said


def sections(kind: KindChange) -> list[Section]:
    """All tables of one kind of step but the blocking sites; those without rows are left out."""
    unit = "step" if kind.base_steps and kind.head_steps else "window"
    made = [
        Section("parts", f"Where a {unit} goes, µs", "part of it", _parts(kind)),
        Section("blame", "Host idle by blame, µs", "because of", _top(kind.blame, summary.cause)),
        Section("gpu-idle", "The GPU's own idle, µs", "cause", _top(kind.gpu_idle, _gpu_cause)),
        Section("legs", "Legs and seams, µs", "leg", _legs(kind)),
        Section("classes", "Kernel classes, exclusive µs", "class", _top(kind.classes, str)),
        Section("kernels", "Kernels, exclusive µs", "kernel", _kernels(kind.kernels)),
    ]
    return [one for one in made if one.lines]


def collective_sections(comparison: Comparison) -> list[Section]:
    """Skew and waits, where ranks are joined on both sides."""
    found = comparison.collectives
    if found is None:
        return []
    totals = (
        Line("waiting for the last rank", found.wait),
        Line("from the last arrival to the end", found.transfer),
    )
    return [
        Section("collectives", "Collectives, µs per step, mean over ranks", "part", totals),
        Section(
            "waits", "Waits by kind of collective, µs per step", "kind", _top(found.kinds, collective_name)
        ),
        Section(
            "skews", "Skew of arrivals, median µs", "kind", _top(found.skews, collective_name, rest=False)
        ),
        Section("late", "Waits that a late rank caused, µs per step", "late", _top(found.late, str)),
    ]


def calibration_sections(comparison: Comparison) -> list[Section]:
    """What calibration says of both sides."""
    found = comparison.calibration
    if found is None:
        return []
    rows = (
        ("profiled step", found.profiled_step_us),
        ("unprofiled step, measured", found.unprofiled_step_us),
        ("unprofiled step, predicted", found.predicted_step_us),
        ("idle, host late", found.idle_host_us),
        ("idle, the GPU's own", found.idle_gpu_us),
    )
    lines = tuple(Line(name, delta) for name, delta in rows if (delta.base, delta.head) != (None, None))
    before, after = found.base_status or "none", found.head_status or "none"
    title = f"Calibration ({before if before == after else f'{before} to {after}'}), µs per step"
    made = [
        Section("calibration", title, "without the profiler", lines),
        Section(
            "calibrated-blame",
            "Host idle without the profiler, µs",
            "because of",
            _top(found.blame, summary.cause),
        ),
        Section(
            "calibrated-sites",
            "What removing a wait gives without the profiler, µs",
            "site",
            _top(found.sites, str),
        ),
    ]
    return [one for one in made if one.lines]


def site_detail(site: SiteChange) -> str:
    """`appeared, pinning`, `pinning instead of hidden`, or the verdict that both have."""
    if site.how == "verdict":
        return f"{site.head_verdict} instead of {site.base_verdict}"
    verdict = site.head_verdict or site.base_verdict
    return ", ".join(part for part in (HOW[site.how], verdict) if part)


def kernel_name(one: KernelChange) -> str:
    """`a`, or `a + b → c` where something else stands in its place."""
    before, after = (_joined(names) for names in (one.base, one.head))
    if one.how == "same" or before == after:
        return after or before
    return f"{before} → {after}" if before and after else after or before


def _joined(names: Sequence[str]) -> str:
    return " + ".join(short_name(name) for name in names)


def _parts(kind: KindChange) -> tuple[Line, ...]:
    found = [Line(PARTS[row.name][0], row.us, depth=PARTS[row.name][1]) for row in kind.parts if _counts(row)]
    median = Line("median wall", kind.median_wall)
    return (found[0], *([median] if kind.base_steps and kind.head_steps else []), *found[1:])


def _counts(row: Row) -> bool:
    return row.name != "idle_unknown" or bool(row.us.base or row.us.head)


def _legs(kind: KindChange) -> tuple[Line, ...]:
    found: list[Line] = []
    for leg in kind.legs:
        found += [
            Line(f"seam before {leg.name}", leg.seam_us),
            Line("of it host late", leg.seam_idle_host_us, depth=1),
            Line(leg.name, leg.gpu_us, detail=_ops(leg.ops)),
            Line("of it busy", leg.busy_us, depth=1),
            Line("run-ahead, mean", leg.run_ahead_us, depth=1, more_is_better=True),
        ]
    least = kind.run_ahead_least
    if (least.base, least.head) != (None, None):
        found.append(Line("least run-ahead of a step, mean", least, more_is_better=True))
    return tuple(found)


def _kernels(kernels: Sequence[KernelChange]) -> tuple[Line, ...]:
    """What was renamed, fused, new or gone, and the largest of the others; the rest as one row."""
    structural = [one for one in kernels if one.how != "same"]
    others = [one for one in kernels if one.how == "same"]
    shown = [*structural[:TOP], *others[: max(TOP - len(structural), TOP // 2)]]
    rest = [one for one in kernels if not any(one is its for its in shown)]
    lines = [
        Line(
            kernel_name(one),
            one.us,
            ", ".join(
                part for part in (HOW[one.how], f"in {one.segment}", one.kernel_class, _ops(one.ops)) if part
            ),
        )
        for one in shown
    ]
    return (*lines, *_rest([one.us for one in rest], "other kernel"))


def _ops(ops: Delta) -> str:
    if ops.base is None or ops.head is None:
        return ""
    before, after = fmt.per_step(ops.base), fmt.per_step(ops.head)
    return f"{after} ops" if before == after else f"{before} to {after} ops"


def _top(rows: Sequence[Row], name: Callable[[str], str], *, rest: bool = True) -> tuple[Line, ...]:
    lines = [Line(name(row.name), row.us) for row in rows[:TOP]]
    return (*lines, *(_rest([row.us for row in rows[TOP:]], "smaller change") if rest else ()))


def _rest(deltas: Sequence[Delta], noun: str) -> tuple[Line, ...]:
    if not deltas:
        return ()
    total = Delta(sum(one.base or 0.0 for one in deltas), sum(one.head or 0.0 for one in deltas))
    return (Line(fmt.count(len(deltas), noun), total),)


def _gpu_cause(name: str) -> str:
    return summary.difference(f"GPU idle: {name}").removeprefix("GPU idle: ")


def interval(delta: Delta, *, ms: bool = False) -> str:
    """The interval with signs, `+1.2 to +3.4`, or a dash."""
    if delta.interval is None:
        return fmt.MISSING
    return " to ".join(signed(edge, ms=ms) for edge in delta.interval)


def signed(value: float | None, *, ms: bool = False) -> str:
    """A change with its sign, in µs or, where `ms`, in ms to three decimals."""
    if not ms or value is None:
        return fmt.signed_us(value)
    text = f"{abs(value):.3f}"
    return f"{'+' if value > 0 else '−'}{text}" if text.strip("0.") else text
