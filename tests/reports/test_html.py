"""The page: self-contained, escaped, well-formed, and small enough to pass on."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from latencylab.model.findings import Analysis
from latencylab.reports import summary
from latencylab.reports.html import render_html

VOID = {"meta", "br", "link", "img", "input", "hr"}
LIMIT = 6_000_000


class Page(HTMLParser):
    """Reads a page strictly: elements close in order, ids are unique, links have targets."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.targets: list[str] = []
        self.loads: list[str] = []
        self.scripts: dict[str, str] = {}
        self.text: list[str] = []
        self.elements: Counter[str] = Counter()
        self._script = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids[given["id"] or ""] += 1
        self.targets += [(given["href"] or "")[1:]] if tag == "a" else []
        self.loads += [given[a] or "" for a in ("src", "srcset", "data", "action") if a in given]
        self.loads += [given["href"] or ""] if tag == "link" else []
        self.targets += (given.get("aria-labelledby") or "").split()
        if tag == "script":
            self._script = given.get("id") or f"script {len(self.scripts)}"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self._script] += data
        elif self.open and self.open[-1] != "style":
            self.text.append(data)


def test_well_formed(any_analysis: Analysis) -> None:
    text = render_html(any_analysis)
    text.encode("utf-8")
    page = Page(text)
    assert page.open == []
    assert [name for name, n in page.ids.items() if n > 1] == []
    assert set(page.targets) <= set(page.ids)
    assert page.loads == []
    assert not re.search(r"\b(nan|inf)\b", " ".join(page.text))


def test_one_plotly_and_no_network(analysis: Analysis) -> None:
    page = Page(render_html(analysis))
    assert len([s for s in page.scripts.values() if len(s) > 1_000_000]) == 1
    assert page.scripts["plotly"]
    own = [s for name, s in page.scripts.items() if name != "plotly"]
    assert not any("http:" in s or "https:" in s for s in own)
    assert "url(" not in render_html(analysis).split("<style>")[1].split("</style>")[0]
    assert page.elements["link"] == page.elements["img"] == page.elements["iframe"] == 0
    assert "default-src 'none'" in render_html(analysis)


def test_figures_are_of_the_analysis(four_ranks: Analysis) -> None:
    page = Page(render_html(four_ranks))
    figures = json.loads(page.scripts["figures"])
    assert {name for name in page.ids if name.startswith("plot-")} == set(figures)
    assert len(figures) == 4 * 3
    (bars,) = figures["plot-r0-k0-waterfall"]["data"]
    assert bars["x"][:2] == [11810.75, 5620.5]
    assert bars["base"][2] == 5620.5
    assert bars["base"][-1] + bars["x"][-1] == pytest.approx(11810.75, abs=0.01)
    kinds = {t["type"] for f in figures.values() for t in f["data"]}
    assert not {k for k in kinds if k.endswith("gl")}


def test_names_are_escaped(hostile: Analysis) -> None:
    text = render_html(hostile)
    page = Page(text)
    assert "<script>alert" not in text
    assert page.elements["script"] == 3
    assert any("<script>alert('x')</script>" in t for t in page.text)
    figures = json.loads(page.scripts["figures"])
    assert "<script" not in json.dumps(figures)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_no_folders_of_anybody(analysis: Analysis) -> None:
    text = render_html(analysis)
    assert "/somewhere" not in text
    assert "private/" not in text
    assert "nextn-host-stall" in text


def test_answers_come_first(analysis: Analysis) -> None:
    words = " ".join(" ".join(Page(render_html(analysis)).text).split())
    order = [
        words.index(answer)
        for answer in (
            "The host is late for 5,800 of 11,811 µs a step",
            "Remove the blocking read",
            "medium confidence",
            "degraded",
            "Where a step goes",
            "Blocking calls by site",
            "Legs and seams How",
        )
        if answer in words
    ]
    assert order == sorted(order)
    assert len(order) >= 4


def test_tables_hold_what_figures_draw(analysis: Analysis) -> None:
    words = " ".join(" ".join(Page(render_html(analysis)).text).split())
    main = analysis.ranks[0].main
    for name in [
        *map(summary.cause, main.idle_host_blame_us),
        *(s.site for s in main.syncs),
        *(k.name for k in main.kernels),
    ]:
        assert name in words
    for cause in main.steps.left_out:
        assert f"{cause} 1" in words


def test_small_enough(large: Analysis) -> None:
    assert len(render_html(large).encode()) <= LIMIT


def test_fixes_lead_to_their_sites(analysis: Analysis) -> None:
    harmful = next(s for s in analysis.ranks[0].main.syncs if s.verdict == "harmful")
    fix = replace(analysis.fixes[0], what=f"remove the wait: {harmful.site}", site=harmful.site)
    text = render_html(replace(analysis, fixes=(fix, *analysis.fixes[1:])))
    (target,) = re.findall(r'<li><a class="what" href="#([\w-]+)">remove the wait', text)
    row = text.split(f'id="{target}"')[1].split("</tr>")[0]
    assert harmful.site in row


def test_says_what_the_means_are_of(analysis: Analysis) -> None:
    words = " ".join(Page(render_html(analysis)).text)
    assert "mean of the 27 steady steps of 30 found" in words
    main = analysis.ranks[0].main
    none = replace(main, steps=replace(main.steps, steady=0))
    assert summary.basis(none) == "mean of all 30 steps found, none of them steady"
    assert (
        summary.basis(replace(main, steps=replace(main.steps, steady=30)))
        == "mean of all 30 steps found, all steady"
    )


def test_provenance_says_what_is_not_recorded(analysis: Analysis) -> None:
    manifest = {
        "commit": None,
        "packages": {"torch": "2.9"},
        "faults": {},
        "env": {"SWITCH": "1"},
        "ledger": {"on": True},
    }
    page = Page(render_html(replace(analysis, manifest=manifest)))
    words = " ".join(" ".join(page.text).split())
    for fact in (
        "commit not recorded",
        "versions torch 2.9",
        "switches SWITCH 1",
        "faults injected none",
        "ledger on true",
    ):
        assert fact in words


def test_both_modes_are_drawn(analysis: Analysis) -> None:
    figures = json.loads(Page(render_html(analysis)).scripts["figures"])
    layout = figures["plot-r0-k0-steps"]["layout"]
    modes = analysis.ranks[0].main.steps.modes_us
    assert [line["y0"] for line in layout["shapes"]] == [pytest.approx(mode / 1000) for mode in modes]
    assert all(note["text"].startswith("mode ") for note in layout["annotations"])
