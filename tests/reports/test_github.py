"""Annotations and Markdown for GitHub: nothing in a name is taken for either."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from latencylab.model.gate import GateResult
from latencylab.reports.github import MOST_BYTES, markdown, render_annotations, render_summary
from synth.gates import HOSTILE, gate_results

RESULTS = gate_results()
COMMAND = re.compile(r"::(error|warning) title=([^:,\r\n]*)::([^\r\n]*)")


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_each_line_is_one_command(result: GateResult) -> None:
    lines = render_annotations(result).splitlines()
    found = [COMMAND.fullmatch(line) for line in lines]
    assert all(found)
    assert not re.search(r"%(?!25|0A|0D|3A|2C)", "".join(lines))
    levels = [match[1] for match in found if match]
    assert ("error" in levels) == (result.exit_code != 0)
    assert max(levels.count("error"), levels.count("warning")) <= 10


def test_annotations_say_what_happened() -> None:
    lines = render_annotations(RESULTS["regression"]).splitlines()
    assert lines[0].startswith("::error title=latencylab gate%3A regression::Regression: new blocking site")
    assert "+16.6 %25" in lines[0]
    assert render_annotations(RESULTS["unchanged"]) == ""
    assert render_annotations(RESULTS["inconclusive"]).startswith("::warning ")


@pytest.mark.parametrize("name", ["regression", "hostile", "incomparable", "many"])
def test_tables_keep_their_columns(name: str) -> None:
    """Every row as many cells as its header, in the eyes of a Markdown parser."""
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(render_summary(RESULTS[name], 200_000))
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") >= 1
    assert "html_block" not in kinds
    for token in tokens:
        for child in token.children or ():
            assert child.type in ("text", "text_special", "softbreak")  # no link, code, emphasis or HTML
    for table in render_summary(RESULTS[name], 200_000).split("\n\n"):
        rows = [line for line in table.split("\n") if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1


@settings(deadline=None)
@given(st.text())
def test_markdown_shows_the_text_itself(text: str) -> None:
    shown = markdown("x" + text)
    assert "\n" not in shown
    assert "|" not in shown
    rendered = MarkdownIt("commonmark").render(shown)
    inner = rendered.removeprefix("<p>").removesuffix("</p>\n")
    assert "<" not in inner
    assert html.unescape(inner) == html.unescape(shown).strip()


def test_a_very_long_summary_stays_within_the_limit() -> None:
    summary = render_summary(RESULTS["many"])
    assert len(summary.encode()) <= MOST_BYTES
    assert "The rest is left out" in summary
    small = render_summary(RESULTS["regression"], 400)
    assert len(small.encode()) <= 400
    assert "The rest is left out" in small
    assert render_summary(RESULTS["regression"], 0) == ""
    assert "left out" not in render_summary(RESULTS["regression"])


def test_hostile_names_are_cut_and_shown() -> None:
    assert markdown(HOSTILE).startswith("k&#60;int&#62;&#124;&#38;")
    assert len(html.unescape(markdown("a" * 10_000))) == 400
