"""A comparison as one HTML file that needs nothing else: its tables, and both median steps on one axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from latencylab.model.comparison import Comparison, Drawn, KindChange
from latencylab.reports import diff_tables as tables
from latencylab.reports import format as fmt
from latencylab.reports import timelines
from latencylab.reports.boxes import TONES, Data, Strings
from latencylab.reports.html import environment

# Kernel classes with a colour of their own.
_CLASSES = 5
_ROLES = (("busy", "busy"), ("host", "idle_host"), ("gpu", "idle_gpu"), ("unknown", "idle_unknown"))


@dataclass(frozen=True, slots=True)
class _Stack:
    """One side's step as a bar: name, wall in µs, and each part's role with its share of the longer wall."""

    name: str
    wall: float
    basis: str  # what the wall is the mean of
    parts: tuple[tuple[str, float], ...]


def render_diff_html(comparison: Comparison) -> str:
    """The whole page. Names are escaped, folders of absolute paths are left out."""
    main, *others = comparison.kinds
    env = environment()
    env.globals |= {"t": tables, "fmt": fmt}
    env.filters |= {"signed_ms": lambda value: tables.signed(value, ms=True)}
    return env.get_template("diff.html").render(
        comparison=comparison,
        headline=tables.headline(comparison),
        banner=tables.banner(comparison),
        main=main,
        others=others,
        stacks=_stacks(main),
        facts=_facts(comparison),
        timelines_json=Markup(  # noqa: S704  (escaped for a script element)
            fmt.script_json(_embed(*comparison.drawn)) if comparison.drawn else ""
        ),
    )


def _stacks(kind: KindChange) -> tuple[_Stack, _Stack]:
    """Both sides' steps, drawn to one scale."""
    wall = kind.part("wall")
    longest = max(wall.base or 0.0, wall.head or 0.0)

    def stack(name: str, is_head: bool) -> _Stack:
        shares = []
        for role, part in _ROLES:
            delta = kind.part(part)
            us = delta.head if is_head else delta.base
            shares.append((role, (us or 0.0) / longest if longest else 0.0))
        steps = kind.head_steps if is_head else kind.base_steps
        basis = f"mean of {fmt.count(steps, 'step')}" if steps else "the whole window"
        return _Stack(name, (wall.head if is_head else wall.base) or 0.0, basis, tuple(shares))

    return stack("base", False), stack("head", True)


def _facts(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """What stands beside the headline: what was changed, and what is not known."""
    rows = [("changed", tables.changed(comparison) or ["nothing that the captures record"])]
    if unknown := tables.not_known(comparison):
        rows.append(("not known", unknown))
    if comparison.notes:
        rows.append(("left out", list(comparison.notes)))
    return rows


def _embed(base: Drawn, head: Drawn) -> Data:
    """Both timelines as the page's data, in the form of the report's."""
    strings = Strings()
    classes = list(dict.fromkeys((*base.classes[:_CLASSES], *head.classes)))[:_CLASSES]
    pair: dict[str, Any] = {"classes": [strings.row(name) for name in classes]}
    for name, side in (("base", base), ("head", head)):
        pair[name] = {
            "wall": round(side.step.parts.wall, 1),
            "data": timelines.encode(side.line, side.step, strings),
            "sites": {strings.row(site): [verdict, None] for site, verdict in side.verdicts.items()},
        }
    return {"strings": list(strings.rows), "short": strings.short, "tones": TONES, "views": {"pair": pair}}
