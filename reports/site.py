"""The site of a history: an index with the trend of each configuration, the report of every run, and a page
for each pair of neighbouring commits.

Static files with relative links alone: any web server takes them, and so does a browser without one.
"""

from __future__ import annotations

import itertools
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from latencylab.model.findings import Analysis
from latencylab.model.gate import Policy
from latencylab.reports import format as fmt
from latencylab.reports import site_diff, site_runs
from latencylab.reports.html import environment, render_html
from latencylab.reports.site_figure import trend
from latencylab.reports.site_runs import Commit, Config
from latencylab.traces.history import History, Record

ASSETS, REPORTS, DIFFS = "assets", "reports", "diffs"
INDEX = "index.html"
_HEADLINES = 2
_BADGES = {
    "slower": "harmful",
    "faster": "high",
    "unclear": "medium",
    "not comparable": "medium",
}


def plotly_name() -> str:
    """The file of the plotly.js that this version draws with."""
    return f"plotly-{get_plotlyjs_version()}.min.js"


def plotly_text() -> str:
    """That file's text."""
    return str(get_plotlyjs())


def render_report(analysis: Analysis) -> str:
    """The report as the site holds it: plotly.js is a file of the site."""
    return render_html(analysis, plotly=f"../{ASSETS}/{plotly_name()}", home=f"../{INDEX}")


def write_site(history: History, records: tuple[Record, ...], folder: Path) -> None:
    """Write all pages of these runs of a history into a folder.

    Raises InputError where a run cannot be read, and OSError where a page cannot be written.
    """
    configs = site_runs.configs_of(records)
    for name in (ASSETS, REPORTS, DIFFS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in {record.plotly for record in records} - {plotly_name()}:
        (folder / ASSETS / name).write_bytes(history.asset(name))
    (folder / ASSETS / plotly_name()).write_text(plotly_text(), "utf-8")
    (folder / ASSETS / "site.css").write_text(_template("page.css") + _template("site/site.css"), "utf-8")
    (folder / ASSETS / "site.js").write_text(_template("site/site.js"), "utf-8")
    for record in records:
        (folder / REPORTS / f"{record.id}.html").write_bytes(history.report(record))
    env = _environment()
    for config in configs:
        _write_diffs(history, config, env, folder)
    (folder / INDEX).write_text(render_index(configs, env), "utf-8", errors="replace")


def render_index(configs: tuple[Config, ...], env: Environment | None = None) -> str:
    """The first page: what is newest of each configuration, then its trend and its commits."""
    plots = {f"trend-{number}": trend(config) for number, config in enumerate(configs, start=1)}
    return (
        (env or _environment())
        .get_template("site/index.html")
        .render(
            configs=configs,
            headline=headline(configs),
            runs=sum(len(commit.records) for config in configs for commit in config.commits),
            figures_json=Markup(fmt.script_json(plots)),  # noqa: S704  (escaped for a script element)
        )
    )


def render_diff(
    config: str, before: Commit, after: Commit, found: site_diff.Difference, env: Environment | None = None
) -> str:
    """The page of two neighbouring commits."""
    template = (env or _environment()).get_template("site/diff.html")
    return template.render(config=config, before=before, after=after, d=found)


def headline(configs: tuple[Config, ...]) -> str:
    """What to look at first, in a sentence or two."""
    said = [*_slower_now(configs), *_slower_since(configs), *_pinned_now(configs)]
    if not said:
        return "No configuration is known to be slower at its newest commit"
    rest = len(said) - _HEADLINES
    return "; ".join(said[:_HEADLINES]) + (
        f"; and {fmt.count(rest, 'more finding')} below" if rest > 0 else ""
    )


def diff_name(before: Commit, after: Commit) -> str:
    """The file of the page of two commits."""
    return f"{before.front.id}-{after.front.id}.html"


def _slower_now(configs: tuple[Config, ...]) -> list[str]:
    return [
        f"{config.name} is {_amount(config.newest.change_pct)} slower at {config.newest.name} than before"
        for config in configs
        if config.newest.word == "slower"
    ]


def _slower_since(configs: tuple[Config, ...]) -> list[str]:
    """Where the newest change point of the step went up, and nothing has taken it back since."""
    found = []
    for config in configs:
        mark = config.last_mark
        if mark and mark[1].after > mark[1].before and mark[0] is not config.newest:
            found.append(f"{config.name} is {_amount(mark[1].pct)} slower since {mark[0].name}")
    return found


def _pinned_now(configs: tuple[Config, ...]) -> list[str]:
    found = [(config, config.newest) for config in configs if config.newest.sites_added > 0]
    return [
        f"{config.name} has {fmt.count(newest.sites_added, 'more pinning site')} at {newest.name}"
        for config, newest in found
    ]


def _amount(pct: float | None) -> str:
    return site_runs.signed_percent(pct).lstrip("+")


def _write_diffs(history: History, config: Config, env: Environment, folder: Path) -> None:
    last: tuple[Record, site_diff.Json] | None = None
    for before, after in itertools.pairwise(config.commits):
        base = last[1] if last and last[0] is before.front else history.analysis(before.front)
        head = history.analysis(after.front)
        last = after.front, head
        found = site_diff.difference(before.front, base, after.front, head)
        page = render_diff(config.name, before, after, found, env)
        (folder / DIFFS / diff_name(before, after)).write_text(page, "utf-8", errors="replace")


def _environment() -> Environment:
    env = environment()
    env.globals |= {
        "plain_number": site_runs.plain_number,
        "number": site_runs.number,
        "signed_percent": site_runs.signed_percent,
        "mark_text": site_runs.mark_text,
        "diff_name": diff_name,
        "plotly_name": plotly_name(),
        "version": version("latencylab"),
        "BADGES": _BADGES,
        "POLICY": Policy(),
        "F": {figure.key: figure for figure in site_runs.ALL},
    }
    return env


def _template(name: str) -> str:
    return resources.files("latencylab.reports").joinpath(f"templates/{name}").read_text("utf-8")
