"""The terminal report at several widths, in colour and without."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from latencylab.model.findings import Analysis
from latencylab.reports.text import render_text


def rendered(analysis: Analysis, width: int, *, colour: bool = False) -> str:
    out = StringIO()
    render_text(analysis, Console(file=out, width=width, force_terminal=colour, legacy_windows=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_fits_every_width(any_analysis: Analysis, width: int) -> None:
    text = rendered(any_analysis, width)
    text.encode("utf-8")
    wide = [line for line in text.splitlines() if len(line) > width]
    assert not wide
    assert "nan" not in text.split()
    assert "inf" not in text.split()


def test_first_screen_has_the_answers(analysis: Analysis) -> None:
    screen = rendered(analysis, 100).splitlines()[:40]
    joined = "\n".join(screen)
    assert screen[0].startswith("The host is late for 5,800 of 11,811 µs a step")
    assert "confidence: medium" in joined
    assert "degraded" in joined
    for answer in (
        "wall",
        "busy",
        "idle, host late",
        "idle, GPU's own",
        "3,190.0",
        "harmful",
        "Fix first",
        "≤",
    ):
        assert answer in joined
    assert "Remove the blocking read" in joined


def test_names_are_whole_when_piped(analysis: Analysis) -> None:
    """A site's name wraps at its spaces; none of its words is lost."""
    text = " ".join(rendered(analysis, 60).split())
    for sync in analysis.ranks[0].main.syncs:
        assert sync.site in text


def test_plain_when_piped_and_coloured_on_a_terminal(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in rendered(analysis, 80)
    assert "\x1b[1;31m" in rendered(analysis, 80, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in rendered(analysis, 80, colour=True)


def test_hostile_names_are_text(any_analysis: Analysis) -> None:
    text = rendered(any_analysis, 120)
    assert "\x1b" not in text
    if "script" in any_analysis.verdict.text:
        assert "[/red] [bold]µ 核" in text


def test_other_ranks_have_one_line_each(four_ranks: Analysis) -> None:
    text = rendered(four_ranks, 100)
    lines = [line for line in text.splitlines() if line.startswith("  rank ")]
    assert len(lines) == 3
    assert "rank 0 in front (of 4)" in text
    swapped = replace(four_ranks, ranks=four_ranks.ranks[::-1])
    assert "rank 3 in front (of 4)" in rendered(swapped, 100)


def test_why_a_step_was_slow_is_in_words(analysis: Analysis) -> None:
    text = " ".join(rendered(analysis, 120).split())
    assert "+13,800.0 host late: in garbage collection" in text
    assert "+212.0 host late: held up by cudaStreamSynchronize" in text
    assert "−12.0 GPU busy: gemm" in text


def test_who_is_late_is_on_the_first_screen(late_rank: Analysis) -> None:
    screen = rendered(late_rank, 110).splitlines()[:40]
    text = " ".join(" ".join(screen).split())
    assert "Rank 2 is late: the others wait" in text
    assert "because of more GPU work (qkv_gemm)" in text
    assert "Rank 2's GPU works " in text
    assert "longer than the others' in the trace, whether they wait for it there or not: qkv_gemm " in text
    assert "not resolved" in text
    (bar,) = [line for line in screen if "waits in collectives" in line]
    assert "▒" in bar
    assert "█" not in bar
    for clock in late_rank.alignment.ranks[1:] if late_rank.alignment else ():
        assert f"rank {clock.rank} " in text
    assert " ± " in text


def test_clocks_and_kinds_are_below(late_rank: Analysis) -> None:
    text = rendered(late_rank, 120)
    below = text.rpartition("─" * 20)[2]
    assert "Clocks against rank 0, µs" in below
    assert "Collectives by kind" in below
    assert "cross_device_reduce_1stage" in below
    assert "causality alone shows it" in below


def test_unshifted_clocks_are_said_to_be(nobody_late: Analysis) -> None:
    text = " ".join(rendered(nobody_late, 120).split())
    assert "No rank in particular is late" in text or "No rank is late by more" in text
    assert text.count(", not shifted") == 3


def test_unpaired_collectives_are_told(eight_ranks: Analysis) -> None:
    text = " ".join(rendered(eight_ranks, 120).split())
    assert "Rank 5 is late" in text
    assert "sampler.python" in text
    assert "that no other rank has: rank 7 " in text
    assert "rank 7 diverges for good" in text


def test_one_rank_says_nothing_of_ranks(analysis: Analysis) -> None:
    text = rendered(analysis, 120)
    assert "collective" not in text.replace("collectives: needs the traces", "")
    assert "Clocks" not in text
