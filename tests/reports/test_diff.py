"""A comparison as text, JSON and a page: the same findings, nothing lost, nothing let through unescaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import jsonschema
import pytest
from rich.console import Console

import synth
from latencylab.analyzers import examine
from latencylab.analyzers.diff import compare
from latencylab.model.capture import Capture
from latencylab.model.comparison import (
    CalibrationChange,
    Change,
    CollectivesChange,
    Comparison,
    Delta,
    Mismatch,
    Row,
    UnprofiledChange,
)
from latencylab.reports import diff_tables as tables
from latencylab.reports.diff_html import render_diff_html
from latencylab.reports.diff_json import diff_schema, render_diff_json, to_diff
from latencylab.reports.diff_text import render_diff_text

HOSTILE = "<script>alert('x')</script> [/red] [bold]µ 核 \x1b[31m \ud800 \u202e </td>"
NO_STEPS = synth.Scenario((synth.Program((synth.Launch(9_000), synth.Python(5_000), synth.Launch(3_000))),))


def compared(base: synth.Scenario, head: synth.Scenario, **options: Any) -> Comparison:
    both = [
        examine(Capture(f"runs/{name}", None, None, (synth.to_trace(synth.find(one).run),)))
        for name, one in (("base", base), ("head", head))
    ]
    return compare(*both, **options)


@pytest.fixture(scope="module")
def stalled() -> Comparison:
    """A wait that appeared, with the median steps to be drawn."""
    loops = [
        synth.decode_loop(["prefill"] * 2 + ["nextn"] * 12, synth.Shape(host=60_000, stall=stall))
        for stall in (False, True)
    ]
    return compared(*loops, drawn=True)


@pytest.fixture(scope="module")
def whole(stalled: Comparison) -> Comparison:
    """With everything that a comparison may hold."""
    delta, rows = Delta(1.0, 3.5, (1.0, 4.0)), (Row("kind a", Delta(1.0, 3.5)),)
    return replace(
        stalled,
        mismatches=(Mismatch("driver", "1", "2"),),
        changes=(Change("switch X", None, "1"), Change("commit", "abc", "def")),
        collectives=CollectivesChange(delta, delta, rows, rows, (Row("rank 1, NEXTN", delta),)),
        unprofiled=UnprofiledChange(Delta(5.0, 6.25, (0.5, 2.0)), 6, 5, (4.8, 5.2), (6.0, 6.5)),
        calibration=CalibrationChange(
            "calibrated",
            "untrusted",
            delta,
            delta,
            delta,
            delta,
            delta,
            Delta(None, 2.0),
            (Row("api", delta),),
            rows,
        ),
        notes=("rank 3 is not in base",),
    )


@pytest.fixture(scope="module")
def hostile(whole: Comparison) -> Comparison:
    """Every name is hostile."""
    main = whole.kinds[0]
    kind = replace(
        main,
        kind=HOSTILE,
        blame=(Row(HOSTILE, Delta(0.0, 1.0)),),
        classes=(Row(HOSTILE, Delta(0.0, 1.0)),),
        kernels=tuple(
            replace(one, base=(HOSTILE,), segment=HOSTILE, kernel_class=HOSTILE) for one in main.kernels
        ),
        legs=tuple(replace(leg, name=HOSTILE) for leg in main.legs),
        sites=tuple(replace(site, site=HOSTILE) for site in main.sites),
    )
    side = replace(whole.base, path=f"/home/somebody/{HOSTILE}", manifest={HOSTILE: HOSTILE}, device=HOSTILE)
    return replace(
        whole,
        base=side,
        head=side,
        headline=HOSTILE,
        mismatches=(Mismatch(HOSTILE, HOSTILE, HOSTILE),),
        changes=(Change(HOSTILE, HOSTILE, HOSTILE),),
        kinds=(kind,),
        notes=(HOSTILE,),
    )


@pytest.fixture(scope="module")
def windows() -> Comparison:
    """Traces without steps."""
    return compared(NO_STEPS, NO_STEPS, drawn=True)


@pytest.fixture(params=["stalled", "whole", "hostile", "windows"])
def any_comparison(request: pytest.FixtureRequest) -> Comparison:
    found: Comparison = request.getfixturevalue(request.param)
    return found


def text_of(comparison: Comparison, width: int = 120) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        render_diff_text(comparison, console)
    return captured.get()


def squeezed(text: str) -> str:
    return " ".join(text.split())


# text


def test_the_first_line_is_the_headline(stalled: Comparison) -> None:
    assert squeezed(text_of(stalled)).startswith(f"{squeezed(tables.headline(stalled))} base: runs/base")
    assert tables.headline(stalled).startswith("A blocking call appeared: cudaStreamSynchronize")


def test_a_forced_comparison_says_so_first(whole: Comparison) -> None:
    assert squeezed(text_of(whole)).startswith("NOT COMPARABLE, compared by --force: driver: 1 against 2.")


def test_text_holds_everything(whole: Comparison) -> None:
    text = squeezed(text_of(whole))
    for part in (
        "changed: switch X: none to 1",
        "changed: commit: abc to def",
        "not known: neither side says: manifest",
        "base 5.000 (6 requests, 4.800 to 5.200)",
        "change +1.250 (95 % interval +0.500 to +2.000)",
        "Where a step goes, µs",
        "appeared, ",
        "Host idle by blame",
        "seam before verify",
        "least run-ahead of a step",
        "Kernel classes",
        "rank 1, NEXTN",
        "Skew of arrivals",
        "Calibration (calibrated to untrusted)",
        "What removing a wait gives without the profiler",
        "rank 0, prefill steps",
        "rank 3 is not in base",
        "circular block bootstrap",
    ):
        assert part in text


def test_many_changes_of_one_sort_are_one_line(stalled: Comparison) -> None:
    changes = (
        Change("ledger pdl", "off (it is False)", "on (it is True)"),
        Change("ledger fused-swiglu", "off (0 of 40)", "on (33 of 40)"),
        Change("ledger metadata-graph", "on (not replayed yet)", "on (it was replayed)"),
        Change("ledger tuned-moe", None, "on (4 sizes)"),
        *(Change(f"switch {name}", None, "1") for name in "ABC"),
        *(Change(f"server argument {name}", "1", "2") for name in "de"),
        Change("commit", "abc", "def"),
    )
    assert tables.changed(replace(stalled, changes=changes)) == [
        "commit: abc to def",
        "optimisations off to on: pdl, fused-swiglu",
        "optimisations unknown to on: tuned-moe",
        "ledger metadata-graph: on (not replayed yet) to on (it was replayed)",
        "switches: A: none to 1; B: none to 1; C: none to 1",
        "server argument d: 1 to 2",
        "server argument e: 1 to 2",
    ]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_text_fits_and_is_harmless(any_comparison: Comparison, width: int) -> None:
    text = text_of(any_comparison, width)
    text.encode("utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"\bnan\b", text.lower())
    if width >= 80:
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width


# JSON


def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(diff_schema())
    return jsonschema.Draft202012Validator(diff_schema())


def test_every_comparison_is_valid(any_comparison: Comparison) -> None:
    text = render_diff_json(any_comparison)
    text.encode("utf-8")
    validator().validate(json.loads(text))


def test_json_holds_the_findings(whole: Comparison) -> None:
    made = to_diff(whole)
    kind = made["kinds"][0]
    assert kind["step_us"]["wall"]["change"] == pytest.approx(whole.kinds[0].part("wall").change)
    assert kind["syncs"][0]["verdict"]["base"] is None
    assert kind["syncs"][0]["how"] == "appeared"
    assert len(kind["kernels"]) == len(whole.kinds[0].kernels)
    assert made["collectives"]["kinds"][0]["skew_us"]["change"] == 2.5
    assert made["unprofiled"]["step_ms"]["resolved"] is True
    assert made["calibration"]["idle_gpu_us"] == {
        "base": None, "head": 2.0, "change": None, "interval": None, "resolved": False,
    }  # fmt: skip
    assert made["comparable"]["forced"] is True
    assert to_diff(replace(whole, mismatches=()))["comparable"]["forced"] is False


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kinds",), []),
        (("kinds", 0, "step_us", "wall", "change"), "12"),
        (("kinds", 0, "syncs", 0, "how"), "moved"),
        (("kinds", 0, "kernels", 0, "how"), "gone"),
        (("comparable", "unknown", 0, "lacking"), "nobody"),
        (("schema",), "latencylab.diff/2"),
    ],
)
def test_the_schema_refuses(whole: Comparison, path: tuple[Any, ...], value: Any) -> None:
    made = to_diff(whole)
    *way, last = path
    at: Any = made
    for key in way:
        at = at[key]
    at[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(made)


# page


class Elements(HTMLParser):
    """Tags of the page, and its text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)


def test_pages_are_sound(any_comparison: Comparison) -> None:
    page = render_diff_html(any_comparison)
    page.encode("utf-8")
    found = Elements(page)
    assert found.open == []
    assert len(set(found.ids)) == len(found.ids)
    assert found.scripts == (2 if any_comparison.drawn else 0)
    assert "http://" not in page
    assert "https://" not in page
    assert "/home/somebody" not in page
    assert "\u202e" not in page


def test_the_page_holds_everything(whole: Comparison) -> None:
    words = squeezed(" ".join(Elements(render_diff_html(whole)).words))
    for part in (
        tables.headline(whole),
        "NOT COMPARABLE",
        "switch X: none to 1",
        "5.000 ms",
        "+1.250 ms",
        "Both median steps on one time axis",
        "Host idle by blame",
        "Calibration (calibrated to untrusted)",
        "Skew of arrivals",
        "Rank 0, prefill steps",
        "rank 3 is not in base",
    ):
        assert part in words


def test_hostile_names_reach_the_page_as_text(hostile: Comparison) -> None:
    page = render_diff_html(hostile)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_the_rest_of_a_table_is_one_row_that_adds_up() -> None:
    rows = tuple(Row(f"part {n}", Delta(float(n), 2.0 * n)) for n in range(30, 0, -1))
    kind = replace(compared(NO_STEPS, NO_STEPS).kinds[0], classes=rows)
    lines = next(one for one in tables.sections(kind) if one.key == "classes").lines
    assert len(lines) == tables.TOP + 1
    assert lines[-1].name == "18 smaller changes"
    assert sum(line.delta.change or 0 for line in lines) == sum(range(31))
