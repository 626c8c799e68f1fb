"""The page's figures as plotly.js data: plain dicts, so that colours stay names of the page's palette.

A colour is written `var(--host)`; the page's script looks it up when it draws, and when the theme changes.
Times are in µs, on the axes of whole steps in ms.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from latencylab.model.findings import KindFindings, RankFindings, Step, WindowParts
from latencylab.reports import format as fmt
from latencylab.reports import summary

Figure = dict[str, Any]

_TOP_BLAME = 6
_LABEL = 36
_ROW_PX = 44
_ROLE_NAMES = {
    "busy": "busy",
    "wait": "waits in collectives",
    "host": "idle, host late",
    "gpu": "idle, GPU's own",
    "unknown": "idle, unknown",
}
# Drawn in the figure of steps only where there is any.
_IF_ANY = (_ROLE_NAMES["wait"], _ROLE_NAMES["unknown"])


def plot_text(text: str) -> str:
    """A name as plotly shows it: plotly reads markup in texts, so the name's own must not be any."""
    return html.escape(fmt.without_folders(fmt.clean(text)), quote=False)


def waterfall_rows(kind: KindFindings, parts: WindowParts) -> list[summary.Bar]:
    """Wall, busy, of it the wait in collectives, each cause of host idle, each reason of GPU idle, unknown:
    one after the other.
    """
    rows = [b for b in summary.waterfall(parts) if b.role in ("wall", "busy", "wait")]
    at = fmt.amount(parts.busy)
    for name, us in summary.blame_rows(kind, parts.idle_host, _TOP_BLAME):
        rows.append(summary.Bar(name, "host", us, at))
        at += us
    at = fmt.amount(parts.busy) + fmt.amount(parts.idle_host)
    for name, us in summary.gpu_idle_rows(kind.idle_gpu_us):
        if fmt.amount(us) > 0:
            rows.append(summary.Bar(name, "gpu", us, at))
            at += us
    rows += [b for b in summary.waterfall(parts) if b.role == "unknown"]
    return rows


def waterfall(rows: list[summary.Bar], wall: float | None) -> Figure:
    """Horizontal bars, each beginning where the one above ends, with its label over it."""
    labels = [_label(row, wall) for row in rows]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [-i - 0.21 for i in range(len(rows))],
        "x": [_round(row.us) for row in rows],
        "base": [_round(row.start_us) for row in rows],
        "width": 0.36,
        "marker": {"color": [f"var(--{row.role})" for row in rows], "line": {"width": 0}} | _hatching(rows),
        "customdata": [plot_text(f"{row.label}: {fmt.us_unit(row.us)}") for row in rows],
        "hovertemplate": "%{customdata}<extra></extra>",
        "showlegend": False,
    }
    notes = [
        {
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": -i + 0.17,
            "yanchor": "middle",
            "text": label,
            "showarrow": False,
            "align": "left",
            "font": {"size": 12},
        }
        for i, label in enumerate(labels)
    ]
    layout = base_layout(len(rows) * _ROW_PX + 40)
    layout["annotations"] = notes
    layout["xaxis"] |= {"title": {"text": "µs"}, "rangemode": "tozero", "tickformat": ",~r"}
    layout["yaxis"] |= {
        "visible": False,
        "range": [-len(rows) + 0.4, 0.6],
        "fixedrange": True,
    }
    layout["margin"] = {"l": 4, "r": 12, "t": 4, "b": 36}
    layout["dragmode"] = False
    return {"data": [bars], "layout": layout, "config": {"displayModeBar": False}}


def steps_bars(rank: RankFindings, kind: KindFindings) -> Figure | None:
    """A stacked bar a step; steps left out are one grey bar with their cause."""
    steps = summary.own_steps(rank, kind)[: summary.STEPS_DRAWN]
    if not steps:
        return None
    steady = [s for s in steps if s.left_out is None]
    traces = [_stack(role, steady) for role in _ROLE_NAMES]
    traces = [t for t in traces if t["name"] not in _IF_ANY or any(t["y"])]
    others = [s for s in steps if s.left_out is not None]
    if others:
        traces.append(
            {
                "type": "bar",
                "name": "left out",
                "x": [s.index for s in others],
                "y": [_ms(s.parts.wall) for s in others],
                "customdata": [plot_text(f"left out: {s.left_out}") for s in others],
                "hovertemplate": "step %{x}: %{y:.3f} ms<br>%{customdata}<extra></extra>",
                "marker": {
                    "color": "var(--left-out)",
                    "line": {"width": 0},
                    "pattern": {"shape": "/", "fgcolor": "var(--left-out-line)", "size": 6, "solidity": 0.25},
                },
            }
        )
    layout = base_layout(300)
    layout |= {"barmode": "stack", "bargap": 0.12}
    layout["xaxis"] |= {"title": {"text": "step"}, "tickformat": "d"}
    layout["yaxis"] |= {"title": {"text": "ms"}, "rangemode": "tozero"}
    top = axis_top(steps)
    if top is not None:
        layout["yaxis"]["range"] = [0, _ms(top)]
    median = kind.steps.wall_us.median if kind.steps.wall_us else None
    named: dict[str, float | None] = {f"mode {fmt.duration(mode)}": mode for mode in kind.steps.modes_us}
    levels = named or {f"median {fmt.duration(median)}": median}
    drawn = [(name, ms) for name, us in levels.items() if (ms := _ms(us)) is not None]
    layout["shapes"] = [_level(ms) for _, ms in drawn]
    layout["annotations"] = [_level_name(name, ms) for name, ms in drawn]
    layout["margin"]["r"] = 96
    return {"data": traces, "layout": layout}


def axis_top(steps: list[Step]) -> float | None:
    """Where the axis of the steps ends, in µs, so that one step of many times the usual length does not
    flatten all others; None where all fit.
    """
    walls = [fmt.amount(s.parts.wall) for s in steps]
    usual = [fmt.amount(s.parts.wall) for s in steps if s.left_out is None]
    limit = 1.5 * max(usual, default=0.0)
    return limit if 0 < limit < max(walls) else None


def run_ahead(rank: RankFindings, kind: KindFindings) -> Figure | None:
    """The least run-ahead of each step over its index."""
    steps = [
        s
        for s in summary.own_steps(rank, kind)[: summary.STEPS_DRAWN]
        if fmt.finite(s.run_ahead_us) is not None
    ]
    if not steps:
        return None
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [s.index for s in steps],
        "y": [_round(s.run_ahead_us) for s in steps],
        "line": {"color": "var(--text)", "width": 1},
        "marker": {
            "color": ["var(--left-out-line)" if s.left_out else "var(--text)" for s in steps],
            "size": 5,
        },
        "customdata": [plot_text(f"left out: {s.left_out}" if s.left_out else "steady") for s in steps],
        "hovertemplate": "step %{x}: %{y:,.1f} µs<br>%{customdata}<extra></extra>",
        "showlegend": False,
    }
    layout = base_layout(220)
    layout["xaxis"] |= {"title": {"text": "step"}, "tickformat": "d"}
    layout["yaxis"] |= {"title": {"text": "µs"}, "rangemode": "tozero", "tickformat": ",~r"}
    if not any(fmt.amount(s.run_ahead_us) for s in steps):  # plotly would centre a line of zeros
        layout["yaxis"]["range"] = [-0.05, 1]
    return {"data": [line], "layout": layout}


def _stack(role: str, steps: list[Step]) -> Figure:
    parts: dict[str, Callable[[WindowParts], float]] = {
        "busy": summary.working,
        "wait": summary.waiting,
        "host": attrgetter("idle_host"),
        "gpu": attrgetter("idle_gpu"),
        "unknown": attrgetter("idle_unknown"),
    }
    hatched = {"pattern": {"shape": "/", "fgcolor": "var(--bg)", "size": 6, "solidity": 0.35}}
    return {
        "type": "bar",
        "name": _ROLE_NAMES[role],
        "x": [s.index for s in steps],
        "y": [_ms(parts[role](s.parts)) for s in steps],
        "hovertemplate": "step %{x}: %{y:.3f} ms " + _ROLE_NAMES[role] + "<extra></extra>",
        "marker": {"color": f"var(--{role})", "line": {"width": 0}} | (hatched if role == "wait" else {}),
    }


def _label(row: summary.Bar, wall: float | None) -> str:
    name = f"of it {row.label}" if row.depth else row.label
    if len(name) > _LABEL:
        name = name[: _LABEL - 1] + "…"
    return f"<b>{fmt.us(row.us)}</b> ({fmt.percent(fmt.share(row.us, wall))}) {plot_text(name)}"


def _hatching(rows: list[summary.Bar]) -> Figure:
    """The pattern of waits, which are no work though busy includes them."""
    if not any(row.role == "wait" for row in rows):
        return {}
    shapes = ["/" if row.role == "wait" else "" for row in rows]
    return {"pattern": {"shape": shapes, "fgcolor": "var(--bg)", "size": 6, "solidity": 0.35}}


def _level(ms: float) -> Figure:
    """A dashed line across the plot at the median."""
    line = {"color": "var(--text)", "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": ms, "y1": ms, "line": line}


def _level_name(text: str, ms: float) -> Figure:
    """What a level is, right of the plot."""
    place = {"xref": "paper", "x": 1, "xanchor": "left", "y": ms, "yanchor": "middle"}
    return {**place, "text": text, "showarrow": False, "font": {"size": 11}}


def base_layout(height: int) -> Figure:
    """What all figures have alike, at this height in pixels."""
    axis = {
        "gridcolor": "var(--line)",
        "zerolinecolor": "var(--line)",
        "linecolor": "var(--line)",
        "tickcolor": "var(--line)",
        "automargin": True,
    }
    return {
        "height": height,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 12, "color": "var(--text)"},
        "hoverlabel": {
            "bgcolor": "var(--surface)",
            "bordercolor": "var(--line)",
            "font": {"family": "var(--font)", "color": "var(--text)"},
            "align": "left",
        },
        "margin": {"l": 8, "r": 12, "t": 8, "b": 36},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "dragmode": "zoom",
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }


def _round(us: float | None) -> float | None:
    number = fmt.finite(us)
    return None if number is None else round(number, 3)


def _ms(us: float | None) -> float | None:
    number = fmt.finite(us)
    return None if number is None else round(number / 1e3, 5)
