"""The site: commits grouped and compared, every link leading somewhere, every name escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latencylab.model.findings import Analysis
from latencylab.model.gate import Run, RunSite
from latencylab.reports import site, site_runs
from latencylab.reports.contract import to_contract
from latencylab.reports.html import render_html
from latencylab.reports.site_diff import Difference, difference
from latencylab.reports.site_figure import trend
from latencylab.reports.site_runs import STEP, Commit, Config, configs_of, record_of, signed_percent
from latencylab.traces.history import History, Record

HOSTILE = "<script>alert('x')</script> \x1b[31m \ud800 \u202e </td> /home/somebody/secret/file"
START = datetime(2026, 5, 1, 12, tzinfo=UTC)


def record(number: int, step_ms: float | None, commit: str | None = "", **changes: Any) -> Record:
    """The run of a commit of its own, unless `commit` says of which."""
    metrics = {"tpot": (step_ms or 6.0) / 3, "idle_host": 2900.0, "pinning_sites": 1.0, "traced_step": 8900.0}
    run = Run(
        "nextn",
        requests_step_ms=() if step_ms is None else (step_ms,) * 6,
        metrics=metrics | changes.pop("metrics", {}),
        conditions=changes.pop("conditions", {"GPU": "NVIDIA H200"}),
        circumstances=changes.pop("circumstances", {}),
        recorded=changes.pop("recorded", ()),
        calibration=changes.pop("status", "uncalibrated"),
        sites=(RunSite("cudaFree", "pinning", "blocked", 1.0, 3.2),),
    )
    made = Record(
        id=f"{number:04x}",
        config="nextn",
        commit=f"{number:040x}" if commit == "" else commit,
        message=f"Commit {number}",
        date=(START + timedelta(hours=number)).isoformat(),
        added_ns=number,
        run=run,
        plotly=site.plotly_name(),
    )
    return replace(made, **changes)


def steady(count: int, seed: int = 1, noise: float = 0.005) -> list[Record]:
    random = np.random.default_rng(seed)
    return [record(i, float(6 * (1 + noise * random.standard_normal()))) for i in range(count)]


def one(records: list[Record]) -> Config:
    (config,) = configs_of(records)
    return config


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., tuple[History, Path]]:
    """A history of these records, and the site made of it."""

    def make(
        records: list[Record], analysis: Analysis, report: str = "<p>report</p>"
    ) -> tuple[History, Path]:
        history = History.create(tmp_path / "history")
        for its in records:
            assert history.add(its, to_contract(analysis), report, plotly=site.plotly_text())
        folder = tmp_path / "site"
        folder.mkdir()
        site.write_site(history, history.runs(), folder)
        return history, folder

    return make


# Commits


def test_runs_of_a_commit_are_one_line_with_their_median() -> None:
    records = [*steady(6), record(10, 6.0, "c"), record(11, 6.6, "c"), record(12, 6.1, "c")]
    config = one(records)
    assert len(config.commits) == 7
    assert [r.id for r in config.newest.records] == ["000a", "000b", "000c"]
    assert config.newest.values[STEP.key] == pytest.approx(6.1)
    assert config.newest.front.id == "000c"


def test_runs_without_a_commit_stand_alone() -> None:
    assert len(one([record(i, 6.0, None) for i in range(3)]).commits) == 3


@pytest.mark.parametrize(
    ("step_ms", "word"), [(6.0, "steady"), (6.3, "slower"), (5.7, "faster"), (None, "not measured")]
)
def test_the_word_for_a_commit(step_ms: float | None, word: str) -> None:
    config = one([*steady(20), record(30, 6.0), record(31, step_ms)])
    assert config.newest.word == word
    assert config.commits[0].word == "first"
    assert config.spread_pct == pytest.approx(0.5, abs=0.2)
    if step_ms is not None:
        assert config.newest.change_pct == pytest.approx(100 * (step_ms / 6 - 1))


def test_what_runs_may_differ_by_is_no_change() -> None:
    noisy = one([*steady(20, noise=0.03), record(30, 6.0), record(31, 6.3)])
    assert noisy.newest.word == "steady"
    several = [record(i, 6.3, "n") for i in range(40, 49)]
    before = [record(i, 6.0, "b") for i in range(30, 39)]
    random = np.random.default_rng(3)
    spread = [
        replace(r, run=replace(r.run, requests_step_ms=(float(r.step_ms or 0) * f,)))
        for r, f in zip([*before, *several], 1 + 0.02 * random.standard_normal(18), strict=True)
    ]
    assert one(spread).newest.word == "slower"  # the same difference, of nine runs each


def test_few_runs_are_unclear() -> None:
    assert one([record(1, 6.0), record(2, 6.5)]).newest.word == "unclear"
    assert one([record(1, 6.0), record(2, 6.02)]).newest.word == "steady"


def test_other_conditions_are_not_comparable() -> None:
    other = record(31, 9.0, conditions={"GPU": "NVIDIA B200", "driver": "580"})
    config = one([*steady(20), other])
    assert config.newest.word == "not comparable"
    assert config.newest.moved == ("GPU",)  # what the others do not say is no difference
    assert "GPU" in config.newest.because


def test_pinning_sites_are_counted_against_the_commit_before() -> None:
    records = [*steady(9), record(20, 6.0, metrics={"pinning_sites": 3.0})]
    assert one(records).newest.sites_added == 2


def test_without_requests_the_trace_stands_for_the_step() -> None:
    config = one([record(i, None) for i in range(4)])
    assert config.step is site_runs.TRACED
    assert config.newest.values["traced"] == 8900.0
    assert config.newest.word == "steady"
    assert next(f.key for f in config.figures) == "traced"


def test_host_idle_is_calibrated_only_where_calibration_holds() -> None:
    calibration = {"status": "calibrated", "error_pct": 2.0, "idle_host_us": 12.5}
    held = record(1, 6.0, calibration=calibration)
    broken = record(2, 6.0, calibration=calibration | {"status": "untrusted", "error_pct": -11.0})
    config = one([held, broken])
    assert [c.values["host"] for c in config.commits] == [12.5, None]
    assert [c.values["error"] for c in config.commits] == [2.0, 11.0]
    assert "traced-host" not in [f.key for f in config.figures]


def test_change_points_are_marked_on_their_commit() -> None:
    records = steady(40)
    slower = [record(i, (r.step_ms or 0) * 1.04) if i >= 25 else r for i, r in enumerate(records)]
    config = one(slower)
    marked = [i for i, commit in enumerate(config.commits) if commit.marks]
    assert marked == [25]
    assert {figure.key for figure, _ in config.commits[25].marks} == {"step", "tpot"}
    assert config.last_mark is not None
    assert config.last_mark[0] == config.commits[25]
    assert "4.0 % slower since" in site.headline((config,))


def test_the_headline_names_what_got_slower_and_what_pins() -> None:
    slow = one([*steady(20), record(30, 7.0)])
    pinned = replace(one([*steady(9), record(20, 6.0, metrics={"pinning_sites": 2.0})]), name="dspark")
    said = site.headline((slow, pinned))
    assert "nextn is 1" in said
    assert "slower at 0000000000 than before" in said
    assert "dspark has 1 more pinning site" in said
    assert "known to be slower" in site.headline((one(steady(20)),))


def test_percentages() -> None:
    assert [signed_percent(v) for v in (3.14, -2.0, 0.01, None, 1400.0)] == [
        "+3.1 %",
        "\N{MINUS SIGN}2.0 %",
        "0.0 %",
        "–",
        "× 15",
    ]


def test_record_of_takes_the_front_rank(analysis: Analysis) -> None:
    its = record_of(
        analysis,
        record(1, 6.0).run,
        **dict.fromkeys(("id", "config", "commit", "message", "date"), "x"),
        added_ns=1,
    )
    assert its.gpu == "NVIDIA H200"
    assert its.front == 0
    assert its.verdict == analysis.verdict.text


# The figure


def test_the_figure_holds_every_commit(analysis: Analysis) -> None:
    config = one([*steady(30), *(record(i, 7.0) for i in range(40, 60))])
    figure = trend(config)
    line = next(t for t in figure["data"] if t["mode"] == "lines+markers" and t["yaxis"] == "y1")
    assert line["y"] == [pytest.approx(c.values["step"], abs=1e-5) for c in config.commits]
    assert len(figure["pages"]) == 50
    assert figure["layout"]["shapes"][0]["x0"] == 29.5
    panels = len(config.figures)
    assert figure["layout"][f"yaxis{panels}"]["domain"][0] == pytest.approx(0, abs=1e-6)
    assert "+1" in "".join(a["text"] for a in figure["layout"]["annotations"])


# Two commits


def compare(a: Record, b: Record, base: Analysis, head: Analysis) -> Difference:
    return difference(a, to_contract(base), b, to_contract(head))


def test_a_difference_is_after_minus_before(analysis: Analysis) -> None:
    rank = analysis.ranks[0]
    main = replace(
        rank.main,
        syncs=rank.main.syncs[:1],
        kernels=(replace(rank.main.kernels[0], us=2310.0), *rank.main.kernels[1:4]),
        legs=(replace(rank.main.legs[0], gpu_us=600.0), *rank.main.legs[1:]),
    )
    head = replace(analysis, ranks=(replace(rank, main=main),))
    found = compare(
        record(1, 6.0, circumstances={"torch": "2.14", "x": "1"}, conditions={"GPU": "H200"}),
        record(2, 6.6, circumstances={"torch": "2.15", "x": "1"}, conditions={"GPU": "B200"}),
        analysis,
        head,
    )
    assert [(m.field, m.before, m.after, m.blocks) for m in found.moved] == [
        ("GPU", "H200", "B200", True),
        ("torch", "2.14", "2.15", False),
    ]
    assert found.figures[0].pct == pytest.approx(10)
    assert [(r.name, r.delta) for r in found.classes] == [("elementwise", -283.5), ("moe", 100.0)]
    assert [(r.name, r.delta) for r in found.legs][:2] == [("seam before draft", 0.0), ("draft", -12.5)]
    assert {(s.before, s.after) for s in found.sites} == {
        ("harmful", ""),
        ("pinning", ""),
        ("unclear", ""),
        ("hidden", "hidden"),
    }
    assert found.sites[-1].before == found.sites[-1].after == "hidden"


def test_both_sides_speak_of_one_rank(four_ranks: Analysis) -> None:
    found = compare(record(1, 6.0), record(2, 6.0, front=2), four_ranks, four_ranks)
    assert found.rank == 2
    wall = four_ranks.ranks[2].main.step_us
    assert wall is not None
    assert found.parts[0].after == pytest.approx(wall.wall)
    gone = compare(record(1, 6.0), record(2, 6.0, front=9), four_ranks, four_ranks)
    assert gone.rank == 0


def test_analyses_that_hold_nothing_or_anything_are_shown(analysis: Analysis) -> None:
    odd: dict[str, Any] = {"ranks": [{"rank": 0, "syncs": [None, {"site": 5}], "legs": "x", "step_us": []}]}
    for base, head in (({}, odd), (odd, to_contract(analysis)), (to_contract(analysis), {})):
        found = difference(record(1, 6.0), base, record(2, 6.0), head)
        commits = one([record(1, 6.0), record(2, 6.0)]).commits
        assert "<h1>" in site.render_diff("nextn", *commits, found)


# The pages


class _Links(HTMLParser):
    """What a page points to, its ids, and its script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.to: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and not value.startswith("data:"):
                self.to.append(value)
            if name == "id" and value:
                self.ids.append(value)


def links(path: Path) -> _Links:
    parsed = _Links()
    parsed.feed(path.read_text("utf-8"))
    return parsed


def test_every_link_is_relative_and_leads_somewhere(analysis: Analysis, stored: Any) -> None:
    records = [*steady(5), record(8, 6.0, "c"), record(9, 6.1, "c")]
    records += [replace(r, id=f"d{r.id}", config="dspark") for r in records]
    report = site.render_report(analysis)
    _, folder = stored(records, analysis, report)
    pages = sorted(folder.rglob("*.html"))
    assert len(pages) == 1 + 14 + 10
    for page in pages:
        parsed = links(page)
        assert len(parsed.ids) == len(set(parsed.ids)), page
        assert parsed.to
        for link in parsed.to:
            assert not re.match(r"[a-z]+:|/", link), link
            path, _, fragment = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), link
            if fragment:
                assert fragment in links(target).ids, link


def test_plotly_is_there_once_for_all(analysis: Analysis, stored: Any) -> None:
    report = site.render_report(analysis)
    assert len(report) < 1_500_000
    _, folder = stored(steady(3), analysis, report)
    large = [p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 3_000_000]
    assert large == [folder / "assets" / site.plotly_name()]


def test_a_report_keeps_the_plotly_that_it_was_made_for(analysis: Analysis, tmp_path: Path) -> None:
    history = History.create(tmp_path / "history")
    old = replace(record(1, 6.0), plotly="plotly-0.9.min.js")
    history.add(old, to_contract(analysis), "<p>", plotly="var old;")
    history.add(record(2, 6.0), to_contract(analysis), "<p>", plotly=site.plotly_text())
    site.write_site(history, history.runs(), tmp_path / "site")
    assert (tmp_path / "site" / "assets" / "plotly-0.9.min.js").read_text() == "var old;"
    assert (tmp_path / "site" / "assets" / site.plotly_name()).is_file()


def test_a_report_of_the_site_shows_what_a_report_shows(simulated: Analysis) -> None:
    """Only where plotly.js comes from differs, and the way home."""
    alone, within = render_html(simulated), site.render_report(simulated)
    for script in ("figures", "timelines"):
        data = [re.search(rf'id="{script}">(.*?)</script>', page, re.DOTALL) for page in (alone, within)]
        assert data[0] is not None
        assert data[1] is not None
        assert data[0][1] == data[1][1]
    assert 'href="../index.html"' in within
    assert "../index.html" not in alone


def test_the_table_holds_the_figures_newest_first(analysis: Analysis) -> None:
    calibration = {"status": "calibrated", "error_pct": 2.25, "idle_host_us": 12.5}
    records = [*steady(12), record(20, 6.543, calibration=calibration, message="Newest of all")]
    page = site.render_index((one(records),))
    rows = re.findall(r'<tr role="row" id=.*?</tr>', page, re.DOTALL)
    assert len(rows) == 13
    assert "Newest of all" in rows[0]
    for shown in ("6.543", "2.181", "12.5 µs", "calibrated", "2.2 %", "slower", "2026-05-02 08:00", "diff"):
        assert shown in rows[0], shown
    assert "2,900.0 µs" in rows[1]
    assert "uncalibrated" in rows[1]
    assert "diff" not in rows[-1]
    assert "wait" not in rows[0]


def test_names_are_escaped_everywhere(hostile: Analysis, stored: Any) -> None:
    commits = [HOSTILE, HOSTILE + "2", "c"]
    records = [
        record(
            i,
            6.0 + i,
            commit,
            message=HOSTILE,
            config=HOSTILE,
            gpu=HOSTILE,
            verdict=HOSTILE,
            conditions={HOSTILE: HOSTILE + str(i)},
            circumstances={HOSTILE + "x": HOSTILE + str(i)},
        )
        for i, commit in enumerate(commits)
    ]
    _, folder = stored(records, hostile)
    for page in [folder / "index.html", *(folder / "diffs").iterdir()]:
        text = page.read_text("utf-8")
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "somebody" not in text
    index = (folder / "index.html").read_text("utf-8")
    data = re.search(r'id="figures">(.*?)</script>', index, re.DOTALL)
    assert data is not None
    assert "alert" in json.dumps(json.loads(data[1]))
    assert "<" not in data[1]


def test_a_commit_has_a_short_name_and_a_day_in_utc() -> None:
    made: Commit = one([record(1, 6.0, "0123456789abcdef", date="2026-05-01T01:00:00+02:00")]).newest
    assert (made.name, made.day) == ("0123456789", "2026-04-30 23:00")
    assert one([record(1, 6.0, None)]).newest.name == "no commit"


def test_counts_and_percentages_have_no_change_in_percent(analysis: Analysis) -> None:
    before, after = (
        record(n, 6.0, metrics={"pinning_sites": float(n), "tpot": 2.0 * n}, calibration={"error_pct": n})
        for n in (1, 2)
    )
    shares = {row.figure.key: row.pct for row in compare(before, after, analysis, analysis).figures}
    assert (shares["sites"], shares["error"], shares["tpot"]) == (None, None, 100)


def test_what_only_one_of_two_runs_records_was_not_changed(analysis: Analysis) -> None:
    before = record(1, 6.0, circumstances={"package torch": "2"}, recorded=("package",))
    after = record(2, 6.0, circumstances={"fault x": "on"}, recorded=("fault",))
    assert compare(before, after, analysis, analysis).moved == ()
