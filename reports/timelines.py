"""The steps' timelines as the page's data: as many as fit, names in one shared table.

The first one is plain JSON: it is drawn at once, and in browsers without DecompressionStream, too. The others
are JSON, gzipped, in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latencylab.model.findings import KindFindings, RankFindings, Step
from latencylab.model.timeline import CAUSES, CallBoxes, HostBoxes, Timeline
from latencylab.model.trace import I64, MISSING, Table
from latencylab.reports import format as fmt
from latencylab.reports import summary
from latencylab.reports.names import short_name

# Of the reasons why a step was slower; the rest is one sum.
_REASONS = 10

# How a gap is coloured: a colour of the page's palette, and what it stands for.
_TONES = (
    ("--host", "host in Python or untraced"),
    ("--host-2", "host in an API call"),
    ("--host-3", "host in a framework op"),
    ("--host-4", "host elsewhere: GC, waiting for others, the profiler"),
    ("--bad-bg", "host in a blocking call, or late because of one"),
    ("--gpu", "GPU, between the ops of one graph"),
    ("--gpu-2", "GPU, queued in time but started late"),
    ("--unknown", "no launch on record"),
)
_OWED = 4
_BY_CAUSE = {"in_graph": 5, "dispatch": 6, "launch_latency": 6, "unknown": 7}
_BY_DOING = {"api": 1, "framework": 2, "sync": _OWED}

# Kernel classes with a colour of their own.
_CLASSES = 5

Data = dict[str, Any]


class Strings:
    """The names in use, each once; `short` has the short form of those that have one."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.short: dict[int, str] = {}

    def row(self, text: str) -> int:
        """The row of a name as the page may show it."""
        return self.rows.setdefault(fmt.without_folders(fmt.clean(text)), len(self.rows))

    def kernel(self, name: str) -> int:
        row = self.row(name)
        short = fmt.without_folders(short_name(name))
        if short != name:
            self.short[row] = short
        return row

    def state(self) -> tuple[int, int]:
        """How many names and short names there are."""
        return len(self.rows), len(self.short)

    def since(self, state: tuple[int, int]) -> list[Any]:
        """All that came since then."""
        return [list(self.rows)[state[0] :], list(self.short.items())[state[1] :]]

    def forget(self, state: tuple[int, int]) -> None:
        """Go back to how it was then."""
        names, shorts = self.since(state)
        for name in names:
            del self.rows[name]
        for row, _ in shorts:
            del self.short[row]


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of step of one rank, with the key that it has in the page."""

    key: str
    rank: RankFindings
    kind: KindFindings

    def timelines(self) -> list[tuple[Timeline, Step]]:
        """The timelines of its steps, those first that say most."""
        steps = {step.index: step for step in summary.own_steps(self.rank, self.kind)}
        return [(line, steps[line.step]) for line in self.rank.timelines if line.step in steps]


def embed(sections: Sequence[Section], room: int) -> Data:
    """The page's data: of each section the median step, then the first section's others, then the rest, as
    long as they fit into so many bytes of a script element.
    """
    strings = Strings()
    views: dict[str, Data] = {}
    page = {"strings": [], "short": strings.short, "tones": _TONES, "views": views}
    room -= _size(page)
    candidates = [
        (0 if place == 0 else 1 if nth == 0 else 2, place, section, line, step)
        for nth, section in enumerate(sections)
        for place, (line, step) in enumerate(section.timelines())
    ]
    smallest = room
    for nth, (_, _, section, line, step) in enumerate(sorted(candidates, key=lambda one: one[:2])):
        if room < smallest / 2:  # full: no other will be as small as that
            break
        known = strings.state()
        view = views.get(section.key)
        made = _view(section, strings) if view is None else view
        plain = encode(line, step, strings)
        size = _size(strings.since(known)) + (_size(made) + len(section.key) + 4 if view is None else 0)
        data: Data | str = plain if nth == 0 and _size(plain) + size <= room else pack(plain)
        size += _size(data) + len(f'"{line.step}":,')
        smallest = min(smallest, size)
        if size <= room:
            room -= size
            views.setdefault(section.key, made)["data"][line.step] = data
        else:
            strings.forget(known)
    return page | {"strings": list(strings.rows)}


def encode(line: Timeline, step: Step, strings: Strings) -> Data:
    """One timeline as columns of integers: ns from the step's start, names as rows of the strings.

    Of the columns `t` (start) and `call` each value is the difference to the one before.
    """
    names = [strings.row(name) for name in line.names]
    kernels = {row: strings.kernel(line.names[row]) for row in np.unique(line.gpu.name).tolist()}
    labels = np.unique(np.concatenate([line.gaps.doing, line.gaps.blame])).tolist()
    words = {row: strings.row(summary.cause(line.names[row])) for row in labels if row >= 0}

    def named(column: I64, table: Mapping[int, int] | None = None) -> list[int]:
        return [
            MISSING if row < 0 else names[row] if table is None else table[row] for row in column.tolist()
        ]

    def boxes(table: Table, **columns: list[int]) -> Data:
        ends = (table.end - table.start).tolist()
        return {"t": np.diff(table.start, prepend=line.start).tolist(), "d": ends, **columns}

    def host(table: HostBoxes | CallBoxes) -> Data:
        return boxes(table, track=table.thread.tolist(), lane=table.lane.tolist(), name=named(table.name))

    calls, gpu, gaps, legs, waits = line.calls, line.gpu, line.gaps, line.legs, line.waits
    return {
        "step": line.step,
        "end": line.end - line.start,
        "first": line.first - line.start,
        "last": line.last - line.start,
        "threads": [strings.row(name) for name in line.threads],
        "streams": list(line.streams),
        "why": _why(step, strings),
        "spans": host(line.spans),
        "ops": host(line.ops),
        "calls": host(calls) | {"ops": calls.ops.tolist()},
        "gpu": boxes(
            gpu,
            track=gpu.stream.tolist(),
            lane=gpu.lane.tolist(),
            name=named(gpu.name, kernels),
            cls=named(gpu.kernel_class),
            call=np.diff(gpu.call, prepend=0).tolist(),
            linked=gpu.linked.astype(int).tolist(),
            own=gpu.own.astype(int).tolist(),
        ),
        "gaps": boxes(
            gaps,
            tone=_tones(line),
            launch=gaps.in_launch.astype(int).tolist(),
            doing=named(gaps.doing, words),
            blame=named(gaps.blame, words),
            op=gaps.op.tolist(),
            own=gaps.own.astype(int).tolist(),
        ),
        "legs": boxes(legs, name=named(legs.name), own=legs.own.astype(int).tolist()),
        "waits": boxes(
            waits,
            track=waits.thread.tolist(),
            site=named(waits.site),
            name=named(waits.waits_for),
            blocked=waits.blocked.tolist(),
        ),
    }


def _tones(line: Timeline) -> list[int]:
    """The row of tones that each gap is coloured with."""
    doing = {row: _doing_tone(line.names[row]) for row in np.unique(line.gaps.doing).tolist() if row >= 0}
    return [
        _OWED if owed else doing.get(row, _BY_CAUSE.get(CAUSES[cause], 0))
        for owed, row, cause in zip(
            line.gaps.owed.tolist(), line.gaps.doing.tolist(), line.gaps.cause.tolist(), strict=True
        )
    ]


def _doing_tone(doing: str) -> int:
    return 0 if doing.startswith("span ") else _BY_DOING.get(doing, 3)


def pack(data: Data) -> str:
    """JSON, gzipped (the same for the same data), in base64."""
    text = json.dumps(data, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()


def _view(section: Section, strings: Strings) -> Data:
    """What the section shows before any step is opened: the strip of steps, and where its sites stand."""
    steps = summary.own_steps(section.rank, section.kind)
    lines = section.timelines()
    return {
        "median": lines[0][0].step if lines else None,
        "steps": [_strip(step) for step in steps[: summary.STEPS_DRAWN]],
        "sites": {
            strings.row(sync.site): [sync.verdict, f"{section.key}-site-{i}"]
            for i, sync in enumerate(summary.ordered_syncs(section.kind))
        },
        "classes": [strings.row(k.name) for k in section.kind.kernels[:_CLASSES]],
        "data": {},
    }


def _strip(step: Step) -> list[Any]:
    """Index, µs of wall, busy, idle for the host, the GPU's own and unknown, and why it was left out."""
    p = step.parts
    parts = (p.wall, p.busy, p.idle_host, p.idle_gpu, p.idle_unknown)
    left_out = step.left_out and fmt.clean(step.left_out)
    return [step.index, *(round(fmt.amount(us), 1) for us in parts), left_out]


def _size(data: Any) -> int:
    """The bytes it takes in a script element."""
    return len(fmt.script_json(data))


def _why(step: Step, strings: Strings) -> list[list[Any]]:
    """The largest differences from the median step in words, with their ns, and the sum of all others."""
    rows = [(summary.difference(d.what), d.us) for d in step.slower_by if fmt.finite(d.us) is not None]
    shown = [[strings.row(what), round(us * 1000)] for what, us in rows[:_REASONS]]
    rest = rows[_REASONS:]
    if rest:
        shown.append(
            [strings.row(fmt.count(len(rest), "smaller difference")), round(sum(us for _, us in rest) * 1000)]
        )
    return shown
