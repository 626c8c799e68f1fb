"""The trend of one configuration as plotly.js data: a panel a figure, the commits from left to right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from latencylab.analyzers.trend import Change
from latencylab.reports import figures
from latencylab.reports.site_runs import Commit, Config, Figure, mark_text, number

Plot = dict[str, Any]

_PANEL_PX = 122
_GAP_PX = 56
_BOTTOM_PX = 40
_TOP_PX = 38
_TICKS = 4
_TICK_TEXT = 7
_LINES = {"step": "var(--link)", "host": "var(--host)", "traced-host": "var(--host)", "wait": "var(--wait)"}
_LONGEST_MESSAGE = 70
# Marks that stand closer than this share of the axis, which is the width of their text on a phone, share one.
_CLOSE = 0.17
_MARKS_IN_TEXT = 2


def trend(config: Config) -> Plot:
    """The figure; `pages` holds the report of each commit, by its place on the axis."""
    shown = config.figures
    inner = len(shown) * _PANEL_PX + (len(shown) - 1) * _GAP_PX
    layout = figures.base_layout(inner + _BOTTOM_PX + _TOP_PX)
    axis = layout.pop("yaxis")
    count = len(config.commits)
    layout["xaxis"] |= {
        "range": [-0.5, count - 0.5],
        "tickvals": (places := _ticks(count)),
        "ticktext": [figures.plot_text(config.commits[place].name[:_TICK_TEXT]) for place in places],
        "tickangle": 0,
        "ticklabeloverflow": "allow",
        "anchor": f"y{len(shown)}",
        "showgrid": False,
        "zeroline": False,
    }
    layout |= {"margin": {"l": 8, "r": 28, "t": _TOP_PX, "b": _BOTTOM_PX}, "showlegend": False}
    layout |= {"hovermode": "closest", "shapes": [], "annotations": []}
    data: list[Plot] = []
    for row, figure in enumerate(shown, start=1):
        top = 1 - (row - 1) * (_PANEL_PX + _GAP_PX) / inner
        domain = [max(0.0, top - _PANEL_PX / inner), top]
        layout[f"yaxis{row}"] = axis | {"domain": domain, "nticks": 4, "zeroline": False, "fixedrange": True}
        if figure.floor:
            layout[f"yaxis{row}"] |= {"rangemode": "tozero"}
            if not any(c.values[figure.key] for c in config.commits):  # plotly would centre a line of zeros
                layout[f"yaxis{row}"] |= {"range": [-0.05, 1]}
        layout["annotations"].append(_title(figure, top))
        data += _levels(config, figure, row)
        data += _runs(config, figure, row)
        data.append(_line(config, figure, row))
        changes = config.changes.get(figure.key, ())
        layout["shapes"] += [_mark(change, domain) for change in changes]
        layout["annotations"] += [_mark_text(figure, near, top, count) for near in _groups(changes, count)]
    return {"data": data, "layout": layout, "pages": [f"reports/{c.front.id}.html" for c in config.commits]}


def _ticks(count: int) -> list[int]:
    """A few places, the newest always among them."""
    if count <= _TICKS:
        return list(range(count))
    return [round(i * (count - 1) / (_TICKS - 1)) for i in range(_TICKS)]


def _line(config: Config, figure: Figure, row: int) -> Plot:
    marked = {change.index: _colour(change) for change in config.changes.get(figure.key, ())}
    values = [commit.values[figure.key] for commit in config.commits]
    many = len(values) > 80
    colour = _LINES.get(figure.key, "var(--text)")
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(range(len(values))),
        "y": [None if value is None else round(value, 5) for value in values],
        "yaxis": f"y{row}",
        "line": {"color": colour, "width": 1.5},
        "marker": {
            "color": [marked.get(place, colour) for place in range(len(values))],
            "size": [9 if place in marked else 3 if many else 6 for place in range(len(values))],
            "opacity": 1,
            "symbol": ["diamond" if place in marked else "circle" for place in range(len(values))],
        },
        "text": [_hover(commit, figure) for commit in config.commits],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _runs(config: Config, figure: Figure, row: int) -> list[Plot]:
    """The single runs of commits that have several."""
    points = [
        (place, value)
        for place, commit in enumerate(config.commits)
        if len(commit.records) > 1
        for record in commit.records
        if (value := figure.of(record)) is not None
    ]
    if not points:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [place for place, _ in points],
            "y": [round(value, 5) for _, value in points],
            "yaxis": f"y{row}",
            "marker": {"color": "var(--left-out-line)", "size": 4},
            "hoverinfo": "skip",
        }
    ]


def _levels(config: Config, figure: Figure, row: int) -> list[Plot]:
    """The level between change points, where there is any."""
    changes = config.changes.get(figure.key, ())
    if not changes:
        return []
    edges = [0, *(change.index for change in changes), len(config.commits)]
    levels = [changes[0].before, *(change.after for change in changes)]
    x: list[float | None] = []
    y: list[float | None] = []
    for (first, last), level in zip(itertools.pairwise(edges), levels, strict=True):
        x += [first - 0.5, last - 0.5, None]
        y += [round(level, 5), round(level, 5), None]
    line = {"color": "var(--quiet)", "width": 1, "dash": "dot"}
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": y,
            "yaxis": f"y{row}",
            "line": line,
            "hoverinfo": "skip",
        }
    ]


def _title(figure: Figure, top: float) -> Plot:
    unit = f", {figure.unit}" if figure.unit and not figure.title.startswith(figure.unit) else ""
    return {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yref": "paper",
        "y": top,
        "yanchor": "bottom",
        "yshift": 18,
        "text": f"<b>{figures.plot_text(figure.title + unit)}</b>",
        "showarrow": False,
        "font": {"size": 12},
    }


def _mark(change: Change, domain: list[float]) -> Plot:
    return {
        "type": "line",
        "xref": "x",
        "x0": change.index - 0.5,
        "x1": change.index - 0.5,
        "yref": "paper",
        "y0": domain[0],
        "y1": domain[1],
        "line": {"color": _colour(change), "width": 1.5, "dash": "dash"},
    }


def _groups(changes: Sequence[Change], count: int) -> list[list[Change]]:
    """The change points, those that stand close together in one list."""
    groups: list[list[Change]] = []
    for change in changes:
        if groups and change.index - groups[-1][0].index < _CLOSE * count:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _mark_text(figure: Figure, near: list[Change], top: float, count: int) -> Plot:
    """What the change points are, above the panel."""
    texts = [mark_text(figure, change) for change in near[:_MARKS_IN_TEXT]]
    text = ", ".join(texts) + (" …" if len(near) > _MARKS_IN_TEXT else "")
    is_right = near[0].index > count / 2
    return {
        "xref": "x",
        "x": near[-1 if is_right else 0].index - 0.5,
        "xanchor": "right" if is_right else "left",
        "yref": "paper",
        "y": top,
        "yanchor": "bottom",
        "text": figures.plot_text(text),
        "showarrow": False,
        "font": {"size": 11, "color": _colour(near[0])},
    }


def _colour(change: Change) -> str:
    """Of all that is drawn, less is better."""
    return "var(--bad)" if change.after > change.before else "var(--good)"


def _hover(commit: Commit, figure: Figure) -> str:
    message = commit.front.message
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 1] + "…"
    lines = [f"{commit.name} · {commit.day}", *([message] if message else [])]
    lines.append(f"{figure.title}: {number(commit.values[figure.key], figure)}")
    return "<br>".join(figures.plot_text(line) for line in lines)
