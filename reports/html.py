"""The analysis as one HTML file that needs nothing else: no network, no fonts, no second file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from latencylab.model.findings import Analysis, KindFindings, RankFindings, Step, Sync, WindowParts
from latencylab.reports import calibration, figures, rank_data, summary, timelines
from latencylab.reports import format as fmt
from latencylab.reports import ranks as ranks_of
from latencylab.reports.names import collective_name, short_name
from latencylab.reports.provenance import capture_name, first_facts, manifest_rows

# Of each kind of step; the CSV tables hold all of them.
STEP_ROWS = 200

# Bytes of the page, so that mail and chat take it.
LIMIT = 6_000_000

_MANIFEST_ROWS = 120
# No name can be that: what a template prints is escaped.
_TIMELINES = "<timelines>"


@dataclass(frozen=True, slots=True)
class KindView:
    """One kind of step of one rank, with what its section draws.

    `key` is unique in the page; a kind is `measured` where it has steady steps, or the window in their place.
    """

    key: str
    rank: RankFindings
    kind: KindFindings
    measured: bool
    parts: WindowParts
    rows: list[summary.Bar]
    syncs: list[Sync]
    steps: list[Step]
    slowest: Step | None
    median: Step | None
    figures: dict[str, figures.Figure]


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank with its kinds of step, the main one first."""

    rank: RankFindings
    main: KindView
    others: list[KindView]


def render_html(analysis: Analysis, *, plotly: str | None = None, home: str | None = None) -> str:
    """The whole page. Names are escaped, folders of absolute paths are left out.

    `plotly` is the address of plotly.js, seen from the page; None puts all of it into the page. `home` is the
    address of the page that lists this report among others, if there is one.
    """
    front = summary.focus(analysis)
    ordered = sorted(analysis.ranks, key=lambda r: (r is not front, r.rank, r.device))
    ranks = [_rank_view(i, r) for i, r in enumerate(ordered)]
    drawn = {
        f"plot-{view.key}-{name}": figure
        for rank in ranks
        for view in (rank.main, *rank.others)
        for name, figure in view.figures.items()
    }
    arrivals = rank_data.arrivals_figure(analysis.rank_timeline) if analysis.rank_timeline else None
    if arrivals is not None:
        drawn["plot-ranks-arrivals"] = arrivals
    sections = [
        timelines.Section(view.key, view.rank, view.kind)
        for rank in ranks
        for view in (rank.main, *rank.others)
        if view.median is not None
    ]
    page = (
        environment()
        .get_template("page.html")
        .render(
            analysis=analysis,
            ranks=ranks,
            capture=capture_name(analysis),
            facts=first_facts(analysis.manifest) if analysis.manifest else [],
            manifest=list(manifest_rows(analysis.manifest or {})),
            arrivals=arrivals is not None,
            timed=bool(sections),
            figures_json=Markup(fmt.script_json(drawn)),  # noqa: S704  (escaped for a script element)
            timelines_json=Markup(_TIMELINES),  # noqa: S704  (replaced below)
            plotly=plotly,
            plotly_js=Markup(get_plotlyjs() if plotly is None else ""),  # noqa: S704  (plotly's own file)
            home=home,
        )
    )
    if not sections:
        return page
    # Beside the page, plotly.js takes as much of its limit as within it: both pages show the same.
    outside = 0 if plotly is None else len(get_plotlyjs())
    embedded = timelines.embed(sections, LIMIT - outside - len(page.encode("utf-8")), analysis.rank_timeline)
    return page.replace(_TIMELINES, fmt.script_json(embedded))


def _rank_view(number: int, rank: RankFindings) -> RankView:
    main, *others = [
        _kind_view(f"r{number}-k{i}", rank, kind, rank.window_us if i == 0 else None)
        for i, kind in enumerate(summary.kinds(rank))
    ]
    return RankView(rank, main, others)


def _kind_view(key: str, rank: RankFindings, kind: KindFindings, window: WindowParts | None) -> KindView:
    parts = kind.step_us or window or WindowParts(*([float("nan")] * 7))
    rows = figures.waterfall_rows(kind, parts)
    made = {
        "waterfall": figures.waterfall(rows, parts.wall) if fmt.amount(parts.wall) > 0 else None,
        "run-ahead": figures.run_ahead(rank, kind),
        "steps": figures.steps_bars(rank, kind),
    }
    return KindView(
        key=key,
        rank=rank,
        kind=kind,
        measured=kind.step_us is not None or window is not None,
        parts=parts,
        rows=rows,
        syncs=summary.ordered_syncs(kind),
        steps=summary.own_steps(rank, kind),
        slowest=summary.slowest(rank, kind),
        median=_median(rank, kind),
        figures={name: figure for name, figure in made.items() if figure is not None},
    )


def _median(rank: RankFindings, kind: KindFindings) -> Step | None:
    """The median step of a kind, whose timeline leads those of the kind; None without timelines."""
    steps = {step.index: step for step in summary.own_steps(rank, kind)}
    return next((steps[line.step] for line in rank.timelines if line.step in steps), None)


def environment() -> Environment:
    """What renders the templates: it escapes, and shows values as `reports.format` writes them."""
    env = Environment(
        loader=PackageLoader("latencylab.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "us": fmt.us,
        "us_unit": fmt.us_unit,
        "signed_us": fmt.signed_us,
        "duration": fmt.duration,
        "percent": fmt.percent,
        "per_step": fmt.per_step,
        "bytes": fmt.size,
        "short_name": short_name,
        "collective_name": collective_name,
        "amount": fmt.amount,
        "css_percent": css_percent,
    }
    env.globals |= {
        "s": summary,
        "cal": calibration,
        "rk": ranks_of,
        "share": fmt.share,
        "count": fmt.count,
        "axis_top": figures.axis_top,
        "STEP_ROWS": STEP_ROWS,
        "KERNELS_SHOWN": summary.KERNELS_SHOWN,
        "STEPS_DRAWN": summary.STEPS_DRAWN,
        "MANIFEST_ROWS": _MANIFEST_ROWS,
    }
    return env


def css_percent(fraction: float | None) -> str:
    """A fraction as a CSS length, from 0 to 100 %."""
    return f"{100 * min(max(fmt.amount(fraction), 0.0), 1.0):.3f}%"


def _shown(value: Any) -> Any:
    """What a page may show of a value: applied to all that a template prints, before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return fmt.without_folders(fmt.clean(value))
    return value
