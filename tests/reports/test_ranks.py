"""What is said of several ranks, and the data of their timeline and figure."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latencylab.analyzers.uneven import COMMON
from latencylab.model.calibration import Calibration, Estimate
from latencylab.model.findings import Analysis, Excess, Late, RankClock, Uneven
from latencylab.model.integrity import Integrity, Issue
from latencylab.reports import rank_data, ranks, summary, timelines
from latencylab.reports.html import LIMIT, render_html

LONG = (
    "void at::native::elementwise_kernel<4, at::native::gpu_kernel_impl<at::native::FillFunctor<int>>>(int)"
)


def late_of(**causes: float) -> Late:
    return Late(2, "NEXTN", sum(causes.values()), 0.9, 20, causes)


def page_text(analysis: Analysis) -> str:
    return render_html(analysis)


def test_causes_are_grouped_in_words() -> None:
    late = late_of(
        **{
            "GPU work: void ns::qkv_gemm<1>(int)": 40.0,
            "GPU work: qkv_gemm": 10.0,
            "GPU work: other": 0.01,
            "host idle: span sampler.python": 20.0,
            "host idle: gc": 3.0,
            "host idle: waiting in gloo:broadcast for rank 0": 2.0,
            "GPU idle: in_graph": -0.5,
            "inherited from another collective": 0.02,
        }
    )
    gpu, host, own = ranks.groups(late)
    assert gpu.text(3) == "more GPU work 50.0: qkv_gemm 50.0"
    span = "in span sampler.python (Python or untraced) 20.0"
    assert host.text(2) == f"host late 25.0: {span}, in garbage collection 3.0; 1 smaller"
    assert "waiting in gloo:broadcast for rank 0" in host.text(3)
    assert own.text(3) == "more idle of the GPU's own \N{MINUS SIGN}0.50"


def test_work_that_all_hosts_do_is_of_the_late_host(late_rank: Analysis) -> None:
    late = late_of(**{COMMON: 90.0, "host idle: api": 10.0, "GPU work: k": 1.0})
    host, _ = ranks.groups(late)
    assert host.text(3) == (
        "host late 100.0: work that the other hosts do as well 90.0, in launch and other API calls 10.0"
    )
    found = late_rank.collectives
    assert found is not None
    text = ranks.answer(replace(late_rank, collectives=replace(found, late=(late,))))
    assert text.endswith("most of it because of its late host (work that the other hosts do as well).")


def test_what_one_rank_does_more_is_told_with_its_interval(late_rank: Analysis) -> None:
    part = Excess("span a.b", 140.0, (135.0, 145.0), 400.0)
    host = Uneven(1, "NEXTN", "host", 153.0, (part, *(replace(part, what=f"{i}", us=1.0) for i in range(3))))
    begins = "Rank 1's host takes 153.0 µs a step longer than the others' in the trace, whether they wait"
    text = ranks.uneven_text(late_rank, host)
    assert text.startswith(begins)
    assert ": in span a.b (Python or untraced) 140.0 (135.0 to 145.0), " in text
    assert text.endswith("; 1 smaller; what that costs without the profiler is not known")
    costs = Calibration("calibrated", rank=1, kind="NEXTN", even_us={"host": Estimate(3.0, -1.0, 7.0)})
    known = replace(late_rank, calibration=costs)
    ends = "without the profiler that costs 3.0 µs (−1.0 to 7.0)".replace("−", "-")
    assert ranks.uneven_text(known, host).endswith(ends)
    for other in (replace(costs, status="untrusted"), replace(costs, rank=0), replace(costs, kind="extend")):
        assert ranks.uneven_text(replace(late_rank, calibration=other), host) == text
    found = late_rank.collectives
    assert found is not None
    (gpu,) = found.uneven
    assert ranks.uneven_text(late_rank, gpu).startswith("Rank 2's GPU works ")
    assert "the profiler" not in ranks.uneven_text(late_rank, gpu)
    assert ": qkv_gemm " in page_text(late_rank)


def test_the_answer_names_the_late_one(late_rank: Analysis) -> None:
    text = ranks.answer(late_rank)
    assert text.startswith("Rank 2 is late: the others wait 6")
    assert " ± " in text
    assert text.endswith("because of more GPU work (qkv_gemm).")
    found = late_rank.collectives
    assert found is not None
    assert not ranks.rests_on_fit(late_rank, found.late[0])
    assert ranks.sureness(late_rank, found.late[0]).startswith("causality alone shows it")
    assert all(ranks.rests_on_fit(late_rank, its) for its in found.late[1:])


def test_the_answer_without_a_culprit(late_rank: Analysis, four_ranks: Analysis) -> None:
    found = late_rank.collectives
    assert found is not None
    shared = replace(found, late=tuple(replace(its, share=0.25) for its in found.late))
    assert ranks.answer(replace(late_rank, collectives=shared)).startswith(
        "No rank in particular is late: rank 2"
    )
    none = replace(found, late=(), resolved=0)
    assert "no collective is resolved" in ranks.answer(replace(late_rank, collectives=none))
    assert ranks.answer(four_ranks).startswith("Clocks are not aligned")


def test_clocks_in_words() -> None:
    clock = RankClock(1, -12.5, 3.0, (-14.0, -11.3), 0.25, 40, True)
    assert ranks.offset_text(clock) == "\N{MINUS SIGN}12.5 ± 0.25"
    assert ranks.bound_text(clock) == "\N{MINUS SIGN}14.0 to \N{MINUS SIGN}11.3"
    assert ranks.offset_text(replace(clock, shifted=False)).endswith(", not shifted")
    assert ranks.offset_text(replace(clock, points=0, residual_us=None)) == "not aligned"
    assert ranks.bound_text(replace(clock, bound_us=None)) == "none"
    assert ranks.bound_text(replace(clock, bound_us=(float("-inf"), 2.0))) == "… to +2.0"


def test_the_sentences_have_the_short_name(late_rank: Analysis) -> None:
    found = late_rank.collectives
    assert found is not None
    first = replace(found.late[0], causes={f"GPU work: {LONG}": 60.0})
    says = ("GPU bound.", f"Ranks wait, 85% for rank 2, which is late for: GPU work: {LONG}.")
    verdict = replace(late_rank.verdict, sentences=says)
    named = replace(late_rank, verdict=verdict, collectives=replace(found, late=(first,)))
    first_said, then = summary.sentences(named)
    assert first_said == "GPU bound."
    assert then.endswith("late for: GPU work: elementwise_kernel<FillFunctor>.")
    assert summary.sentences(late_rank) == late_rank.verdict.sentences


@pytest.mark.parametrize("code", ranks.CODES)
def test_issues_of_ranks_are_readable(four_ranks: Analysis, code: str) -> None:
    issue = Issue(code, "warning", 1, f"a sentence about {code}")
    found = replace(four_ranks, integrity=Integrity.of([issue]))
    assert ranks.issues(found) == [issue]
    section = page_text(found).split('id="ranks"')[1].split("</section>")[0]
    assert f"a sentence about {code}" in section


def opened(packed: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return data


def test_the_page_holds_the_lanes(late_rank: Analysis) -> None:
    line = late_rank.rank_timeline
    assert line is not None
    page = timelines.embed([], 1_000_000, line)
    data, strings = opened(page["ranks"]), page["strings"]
    assert [lane["rank"] for lane in data["lanes"]] == [0, 1, 2, 3]
    for packed, lane in zip(data["lanes"], line.lanes, strict=True):
        assert (np.cumsum(packed["work"]["t"]) + line.start).tolist() == lane.work.start.tolist()
        assert [strings[i] for i in packed["work"]["name"]] == [line.names[i] for i in lane.work.name]
        assert packed["arrivals"]["wait"] == lane.arrivals.wait.tolist()
    assert data["shared"]["told"] == rank_data.told(line)
    worst = int(np.argmax(data["shared"]["spread"]))
    assert strings[data["shared"]["cause"][worst]] == "GPU work: qkv_gemm"


def test_no_room_for_the_lanes(late_rank: Analysis) -> None:
    page = timelines.embed([], 2_000, late_rank.rank_timeline)
    assert "ranks" not in page
    assert page["strings"] == []


def test_the_figure_greys_what_is_not_resolved(late_rank: Analysis) -> None:
    line = late_rank.rank_timeline
    assert line is not None
    figure = rank_data.arrivals_figure(line)
    assert figure is not None
    band, *drawn = figure["data"]
    assert [trace["name"] for trace in drawn] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    say = rank_data.told(line)
    assert {0, 2} <= set(say)
    for trace in drawn:
        greys = [colour == "var(--left-out-line)" for colour in trace["marker"]["color"]]
        assert greys == [its == rank_data.UNRESOLVED for its in say]
    assert band["y"][0] == pytest.approx(line.collectives.least[0] / 1000, abs=0.001)


def test_parts_of_the_page_stand_in_order(late_rank: Analysis) -> None:
    text = page_text(late_rank)
    places = [
        text.index(part)
        for part in (
            'id="r0-k0-where"',
            'id="ranks"',
            "Rank 2 is late",
            'id="ranks-timeline"',
            'id="plot-ranks-arrivals"',
            "<h3>Clocks</h3>",
            "<h3>Collectives by kind</h3>",
            'id="r0-k0-timeline"',
        )
    ]
    assert places == sorted(places)
    assert 'class="k-wait"' in text
    assert "of it waits in collectives" in text


def test_one_rank_has_no_part_of_ranks(simulated: Analysis) -> None:
    text = page_text(simulated)
    for part in (
        'id="ranks"',
        "RankPanel extends",
        'class="k-wait"',
        'id="plot-ranks',
        "waits in collectives",
    ):
        assert part not in text


def test_pages_of_many_ranks_are_small_enough(eight_ranks: Analysis) -> None:
    text = page_text(eight_ranks)
    assert len(text.encode()) <= LIMIT
    found = json.loads(text.split('id="timelines">')[1].split("</script>")[0])
    assert len(opened(found["ranks"])["lanes"]) == 8


def test_hostile_names_stay_text(late_rank: Analysis) -> None:
    bad = "</script><img src=x onerror=alert(1)>\u202e\x1b"
    line = late_rank.rank_timeline
    assert line is not None
    named = replace(line, names=tuple(f"{bad} {name}" for name in line.names))
    text = page_text(replace(late_rank, rank_timeline=named))
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_one_of_the_ranks_is_looked_at(late_rank: Analysis) -> None:
    one = replace(late_rank, ranks=late_rank.ranks[:1], front=0)
    assert ranks.answer(one) == ranks.answer(late_rank)
    assert 'id="ranks"' in page_text(one)
