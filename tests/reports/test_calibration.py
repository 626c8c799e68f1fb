"""The calibration in every output: its status beside host figures, its block, its section, its contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import jsonschema
import pytest
from rich.console import Console

from latencylab.model.calibration import Calibration, Estimate, LegTime, SiteCost, SpanTime, Together
from latencylab.model.findings import Analysis
from latencylab.reports import calibration
from latencylab.reports.contract import schema, to_contract
from latencylab.reports.html import render_html
from latencylab.reports.text import render_text
from latencylab.reports.text_calibration import render_calibration

ATTACK = "<script>alert(1)</script>\x1b[31m"


def calibrated(status: str = "calibrated", name: str = "cudaStreamSynchronize in run_batch") -> Calibration:
    return Calibration(
        status=status,  # type: ignore[arg-type]
        reason="" if status == "calibrated" else "the predicted step is +9.0 % off the measured one",
        kind="NEXTN",
        profiled_step_us=11_671.5,
        unprofiled_step_us=Estimate(7_285.0, 7_083.0, 7_826.0),
        predicted_step_us=Estimate(7_340.0, 7_075.0, 7_859.0),
        error_pct=0.76,
        blind_error_pct=5.5,
        replay_error_pct=0.0,
        idle_host_us=Estimate(1_427.0, 1_196.0, 1_617.0),
        idle_gpu_us=Estimate(430.0, 429.0, 431.0),
        idle_host_blame_us={name: Estimate(1_200.0, 1_097.0, 1_278.0)},
        even_us={"host": Estimate(3.0, -1.0, 7.0)},
        run_ahead_us={"draft": Estimate(0.0, 0.0, 0.0)},
        syncs=(
            SiteCost(
                name,
                3.2,
                Estimate(1_620.0, 1_420.0, 1_863.0),
                Estimate(1_082.0, 1_023.0, 1_154.0),
                0.0,
                1_520.0,
                "harmful",
            ),
        ),
        together=Together((name, "cudaMemcpyAsync in run_batch"), Estimate(1_300.0, 1_250.0, 1_350.0)),
        spans=(SpanTime(name, 10_446.0, Estimate(5_097.0, 4_700.0, 5_400.0), Estimate(0.49, 0.45, 0.52)),),
        host_factor=Estimate(0.5, 0.46, 0.54),
        gpu_factor=None,
        requests=6,
        steps=934,
        legs=(LegTime("draft", 1_010.0, 1_000.0), LegTime("verify", 4_569.9, 4_570.0)),
        notes=("this rank is replayed alone",),
    )


With = Callable[[Calibration | None], Analysis]


@pytest.fixture
def with_calibration(analysis: Analysis) -> With:
    return lambda found: replace(analysis, calibration=found)


def text_of(analysis: Analysis) -> str:
    console = Console(file=StringIO(), width=120)
    with console.capture() as captured:
        render_text(analysis, console)
    return " ".join(captured.get().split())


@pytest.mark.parametrize("status", ["calibrated", "untrusted", "uncalibrated", None])
def test_host_figures_carry_the_status(with_calibration: With, status: str | None) -> None:
    found = None if status is None else calibrated(status)
    if status == "uncalibrated":
        found = Calibration("uncalibrated", "nothing was measured")
    analysis = with_calibration(found)
    shown = calibration.status(analysis)
    assert shown == (status or "uncalibrated")
    for output in (text_of(analysis), " ".join(render_html(analysis, plotly="plotly.js").split())):
        assert calibration.host_note(analysis) in output
    assert f'badge {shown}">{shown}</span>' in render_html(analysis, plotly="plotly.js")


def test_the_block_on_the_first_screen(with_calibration: With) -> None:
    first = text_of(with_calibration(calibrated())).partition("Blocking calls")[0]
    for part in (
        "Calibration: calibrated (6 requests, 934 steps without the profiler; intervals are of 95 %)",
        "measured 7,285.0 µs (7,083.0 to 7,826.0), predicted 7,340.0 µs (7,075.0 to 7,859.0), +0.8 %",
        "1,427.0 µs (1,196.0 to 1,617.0)",
        "blocks 1,620.0 µs a step, 3.2 in the trace",
        "1,082.0 µs (1,023.0 to 1,154.0) shorter",
        "without these 2 waits steps are 1,300.0 µs (1,250.0 to 1,350.0) shorter; with one gone",
        "host work takes 0.50 (0.46 to 0.54) of its time in the trace",
        "the GPU's is not identified",
    ):
        assert part in first


def test_a_step_that_does_not_depend_on_its_host(with_calibration: With) -> None:
    text = text_of(with_calibration(replace(calibrated(), host_factor=None, gpu_factor=0.985)))
    assert "the host's factor is not identified: the step does not depend on the host; GPU work 0.985" in text


def test_uncalibrated_shows_no_figures(with_calibration: With) -> None:
    analysis = with_calibration(Calibration("uncalibrated", "nothing was measured"))
    assert "Calibration:" not in text_of(analysis)
    page = render_html(analysis, plotly="plotly.js")
    assert 'id="calibration"' not in page
    assert 'href="#calibration"' not in page


def test_the_section_of_the_page(with_calibration: With) -> None:
    page = " ".join(render_html(with_calibration(calibrated()), plotly="plotly.js").split())
    assert 'id="calibration"' in page
    assert 'href="#calibration"' in page
    assert "1,097.0 to 1,278.0" in page
    assert "0.45 to 0.52" in page


@pytest.mark.parametrize("status", ["calibrated", "untrusted", "uncalibrated"])
def test_the_contract(with_calibration: With, status: str) -> None:
    whole = to_contract(with_calibration(calibrated(status)))
    jsonschema.validate(whole, schema())
    its = whole["calibration"]
    assert its["status"] == status
    assert its["predicted_step_us"] == 7_340.0
    assert its["interval_us"]["predicted_step"] == [7_075.0, 7_859.0]
    assert its["syncs"][0]["cost_us"] == 1_082.0
    assert (its["even_us"], its["even_interval_us"]) == ({"host": 3.0}, {"host": [-1.0, 7.0]})
    assert its["together"] == {
        "sites": ["cudaStreamSynchronize in run_batch", "cudaMemcpyAsync in run_batch"],
        "cost_us": 1_300.0,
        "cost_interval_us": [1_250.0, 1_350.0],
    }
    assert its["legs"][0] == {"leg": "draft", "predicted_us": 1_010.0, "measured_us": 1_000.0}
    assert its["notes"] == ["this rank is replayed alone"]
    jsonschema.validate(to_contract(with_calibration(Calibration("uncalibrated", "why"))), schema())
    assert to_contract(with_calibration(None))["calibration"] is None


def test_where_the_replay_was_checked_and_what_it_leaves_out(with_calibration: With) -> None:
    analysis = with_calibration(calibrated())
    page = " ".join(render_html(analysis, plotly="plotly.js").split())
    for output in (text_of(analysis), page):
        assert "from leg to leg the replay is off the clock by: draft +1.0 %, verify +0.0 %" in output
        assert "this rank is replayed alone" in output
        assert "draft 0.0 µs at the legs" in output
    assert "Legs without the profiler" in page
    console = Console(file=StringIO(), width=120)
    with console.capture() as captured:
        render_calibration("name", calibrated(), None, console)
    assert "1,010.0   1,000.0  +1.0 %" in captured.get()


def test_the_sites_of_a_calibrated_analysis_say_what_they_cost(with_calibration: With) -> None:
    bare = with_calibration(calibrated())
    rank = bare.ranks[bare.front]
    first = replace(rank.main.syncs[0], verdict="harmful", unprofiled_blocked_us=1_620.0, cost_us=1_082.0)
    syncs = (first, *rank.main.syncs[1:])
    ranks = list(bare.ranks)
    ranks[bare.front] = replace(rank, main=replace(rank.main, syncs=syncs))
    analysis = replace(bare, ranks=tuple(ranks))
    sentence = "without the profiler it blocks 1,620.0 µs a step, and steps are 1,082.0 µs shorter"
    page = " ".join(render_html(analysis, plotly="plotly.js").split())
    for output, plain in ((text_of(analysis), text_of(bare)), (page, render_html(bare, plotly="plotly.js"))):
        assert sentence in output
        assert "need and verdict as without the profiler" in output
        assert sentence not in plain
        assert "half of what the trace shows" in " ".join(plain.split())
    contract = to_contract(analysis)
    jsonschema.validate(contract, schema())
    its = contract["ranks"][bare.front]["syncs"][0]
    assert (its["cost_us"], its["unprofiled_blocked_us"], its["verdict"]) == (1_082.0, 1_620.0, "harmful")


@pytest.mark.parametrize("status", ["calibrated", "untrusted"])
def test_the_first_figures_of_the_page_say_what_is_the_profilers(with_calibration: With, status: str) -> None:
    glance = render_html(with_calibration(calibrated(status)), plotly="plotly.js").partition(
        'class="glance"'
    )[2]
    glance = glance.partition("</section>")[0]
    assert ("7,340.0 µs without the profiler" in glance) == (status == "calibrated")
    assert ("1,427.0 µs without the profiler" in glance) == (status == "calibrated")
    assert "as in the trace" in glance


def test_names_are_escaped(with_calibration: With) -> None:
    analysis = with_calibration(calibrated(name=ATTACK))
    assert ATTACK.partition("\x1b")[0] not in render_html(analysis, plotly="plotly.js")
    console = Console(file=StringIO(), width=120, color_system=None)
    with console.capture() as captured:
        render_calibration(ATTACK, calibrated(name=ATTACK), None, console)
        render_text(analysis, console)
    assert "\x1b[31m" not in captured.get()
