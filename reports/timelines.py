"""The steps' timelines as the page's data: as many as fit, names in one shared table.

The first one is plain JSON: it is drawn at once, and in browsers without DecompressionStream, too. The others
are JSON, gzipped, in base64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latencylab.model.findings import KindFindings, RankFindings, Step
from latencylab.model.rank_timeline import RankTimeline
from latencylab.model.timeline import CallBoxes, HostBoxes, Timeline
from latencylab.model.trace import I64, MISSING, Table
from latencylab.reports import format as fmt
from latencylab.reports import rank_data, summary
from latencylab.reports.boxes import TONES, Data, Strings, encode_boxes, gap_tones, pack

# Of the reasons why a step was slower; the rest is one sum.
_REASONS = 10

# Kernel classes with a colour of their own.
_CLASSES = 5


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


def embed(sections: Sequence[Section], room: int, ranks: RankTimeline | None = None) -> Data:
    """The page's data: the step of all ranks, of each section the median step, then the first section's
    others, then the rest, as long as they fit into so many bytes of a script element.
    """
    strings = Strings()
    views: dict[str, Data] = {}
    page = {"strings": [], "short": strings.short, "tones": TONES, "views": views}
    room -= _size(page)
    if ranks is not None:
        known = strings.state()
        packed = pack(rank_data.encode_ranks(ranks, strings))
        size = _size(strings.since(known)) + _size({"ranks": packed})
        if size <= room:
            room -= size
            page["ranks"] = packed
        else:
            strings.forget(known)
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
        return encode_boxes(table, line.start, **columns)

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
            tone=gap_tones(gaps, line.names),
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
