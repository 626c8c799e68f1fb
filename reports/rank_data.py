"""One step of all ranks as the page's data: its timeline, and the figure of who arrives when."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latencylab.model.rank_timeline import RankLane, RankTimeline
from latencylab.model.trace import I64, MISSING
from latencylab.reports import format as fmt
from latencylab.reports import summary
from latencylab.reports.boxes import Data, Strings, encode_boxes, gap_tones
from latencylab.reports.figures import Figure, base_layout, plot_text
from latencylab.reports.names import collective_name

# How much a collective says: nothing beyond the clocks' precision; only if the clocks' fit is right; surely.
UNRESOLVED, FITTED, SURE = range(3)
COLOURS = 8  # of ranks, in the page's palette
_FIGURE_PX = 320
_FLOOR = 0.05  # µs: the logarithmic axis ends there, and the first to arrive lies on it


def encode_ranks(line: RankTimeline, strings: Strings) -> Data:
    """The lanes as columns of integers: ns from the start of the reference's step, names as strings' rows."""
    collectives = line.collectives
    kernels = {row for lane in line.lanes for row in np.unique(lane.work.name).tolist()}
    kinds = np.unique(collectives.kind).tolist()
    causes = {row for row in np.unique(collectives.cause).tolist() if row >= 0}
    words = {row: strings.row(summary.difference(line.names[row])) for row in causes}
    rows = {row: strings.kernel(line.names[row]) for row in kernels}
    kind_rows = {row: strings.kernel(line.names[row], collective_name) for row in kinds}
    classes = {row for lane in line.lanes for row in np.unique(lane.work.kernel_class).tolist()}
    rows |= {row: strings.row(line.names[row]) for row in classes}
    return {
        "kind": strings.row(line.kind),
        "end": line.end - line.start,
        "first": min(lane.start for lane in line.lanes) - line.start,
        "last": max(lane.end for lane in line.lanes) - line.start,
        "lanes": [_lane(lane, line, rows, strings) for lane in line.lanes],
        "shared": encode_boxes(
            collectives,
            line.start,
            kind=_looked_up(collectives.kind, kind_rows),
            last=collectives.last.tolist(),
            spread=collectives.spread.tolist(),
            least=collectives.least.tolist(),
            told=told(line),
            blocking=collectives.blocking.astype(int).tolist(),
            cause=_looked_up(collectives.cause, words),
            ns=collectives.cause_ns.tolist(),
        ),
    }


def _lane(lane: RankLane, line: RankTimeline, rows: Mapping[int, int], strings: Strings) -> Data:
    gaps, legs, work, arrivals = lane.gaps, lane.legs, lane.work, lane.arrivals
    labels = np.unique(np.concatenate([gaps.doing, gaps.blame])).tolist()
    words = {row: strings.row(summary.cause(line.names[row])) for row in labels if row >= 0}
    names = {row: strings.row(line.names[row]) for row in np.unique(legs.name).tolist()}
    return {
        "rank": lane.rank,
        "step": lane.step,
        "start": lane.start - line.start,
        "end": lane.end - line.start,
        "residual": lane.residual,
        "legs": encode_boxes(legs, line.start, name=_looked_up(legs.name, names)),
        "work": encode_boxes(
            work, line.start, name=_looked_up(work.name, rows), cls=_looked_up(work.kernel_class, rows)
        ),
        "gaps": encode_boxes(
            gaps,
            line.start,
            tone=gap_tones(gaps, line.names),
            launch=gaps.in_launch.astype(int).tolist(),
            doing=_looked_up(gaps.doing, words),
            blame=_looked_up(gaps.blame, words),
            op=gaps.op.tolist(),
        ),
        "arrivals": encode_boxes(
            arrivals, line.start, wait=arrivals.wait.tolist(), row=arrivals.collective.tolist()
        ),
    }


def _looked_up(column: I64, rows: Mapping[int, int]) -> list[int]:
    return [MISSING if row < 0 else rows[row] for row in column.tolist()]


def told(line: RankTimeline) -> list[int]:
    """Per collective how much it says."""
    its = line.collectives
    says: list[int] = np.where(its.sure, SURE, np.where(its.resolved, FITTED, UNRESOLVED)).tolist()
    return says


def arrivals_figure(line: RankTimeline) -> Figure | None:
    """Per blocking collective of the step each rank's arrival after the first; what is not resolved is grey,
    and lies within the band. The axis is logarithmic: skews of a µs and of a ms stand side by side.
    """
    its = line.collectives
    rows = np.flatnonzero(its.blocking)
    if not len(rows):
        return None
    place = np.full(len(its), MISSING, np.int64)
    place[rows] = np.arange(len(rows))
    say = told(line)
    traces = []
    for number, lane in enumerate(line.lanes):
        its_rows = lane.arrivals.collective
        chosen = place[its_rows] >= 0
        after = (lane.arrivals.start - its.start[its_rows])[chosen] / 1000
        at = its_rows[chosen].tolist()
        colour = f"var(--r{number % COLOURS})"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"rank {lane.rank}",
                "x": (place[its_rows][chosen] + 1).tolist(),
                "y": np.round(np.maximum(after, _FLOOR), 3).tolist(),
                "marker": {
                    "color": ["var(--left-out-line)" if say[i] == UNRESOLVED else colour for i in at],
                    "size": [5 if say[i] == UNRESOLVED else 8 for i in at],
                    "line": {"color": colour, "width": 1},
                },
                "customdata": [_hover(line, i, lane) for i in at],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    layout = base_layout(_FIGURE_PX)
    layout["xaxis"] |= {
        "title": {"text": "blocking collective of the step, in order"},
        "tickformat": "d",
        "dtick": max(1, 5 * round(len(rows) / 50)),
        "range": [0.5, len(rows) + 0.5],
    }
    # Without a clock nothing is resolved, however far apart: the band is as high as the plot.
    top = 1.6 * max(float(its.spread[rows].max()) / 1000, 1.0)
    least = np.clip(its.least[rows] / 1000, _FLOOR, top).round(3).tolist()
    layout["yaxis"] |= {
        "title": {"text": "µs after the first"},
        "type": "log",
        "range": [float(np.log10(0.8 * _FLOOR)), float(np.log10(top))],
        "dtick": 1,
    }
    band = {
        "type": "scatter",
        "mode": "lines",
        "name": "not resolved below",
        "x": [edge for i in range(len(rows)) for edge in (i + 0.5, i + 1.5)],
        "y": [value for value in least for _ in range(2)],
        "fill": "tozeroy",
        "fillcolor": "var(--left-out)",
        "line": {"color": "var(--left-out-line)", "width": 1},
        "hoverinfo": "skip",
    }
    layout["hovermode"] = "closest"
    return {"data": [band, *traces], "layout": layout}


def _hover(line: RankTimeline, i: int, lane: RankLane) -> str:
    its = line.collectives
    last = line.lanes[its.last[i]].rank if its.last[i] >= 0 else None
    start = lane.arrivals.start[lane.arrivals.collective == i][0]
    head = f"rank {lane.rank} at {plot_text(collective_name(line.names[its.kind[i]]))}"
    residual = fmt.us(lane.residual / 1000) if lane.residual >= 0 else "unknown"
    after = f"{fmt.us(int(start - its.start[i]) / 1000)} µs after the first, ± {residual}"
    if not its.resolved[i]:
        return f"{head}<br>{after}<br>not resolved"
    why = f", for {plot_text(summary.difference(line.names[its.cause[i]]))}" if its.cause[i] >= 0 else ""
    return f"{head}<br>{after}<br>last: rank {last}{why}"
