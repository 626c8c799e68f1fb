"""The calibration in every output: its status beside host figures, its block, its section, its contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import jsonschema
import pytest
from rich.console import Console

from latencylab.model.findings import Analysis, Calibration, Estimate, SiteCost, SpanTime
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
        spans=(SpanTime(name, 10_446.0, Estimate(5_097.0, 4_700.0, 5_400.0), Estimate(0.49, 0.45, 0.52)),),
        host_factor=Estimate(0.5, 0.46, 0.54),
        gpu_factor=None,
        requests=6,
        steps=934,
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
        "Calibration: calibrated (6 requests, 934 steps without the profiler)",
        "measured 7,285.0 µs (7,083.0 to 7,826.0), predicted 7,340.0 µs (7,075.0 to 7,859.0), +0.8 %",
        "1,427.0 µs (1,196.0 to 1,617.0)",
        "blocks 1,620.0 µs a step, 3.2 in the trace",
        "1,082.0 µs (1,023.0 to 1,154.0) shorter",
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
    jsonschema.validate(to_contract(with_calibration(Calibration("uncalibrated", "why"))), schema())
    assert to_contract(with_calibration(None))["calibration"] is None


def test_names_are_escaped(with_calibration: With) -> None:
    analysis = with_calibration(calibrated(name=ATTACK))
    assert ATTACK.partition("\x1b")[0] not in render_html(analysis, plotly="plotly.js")
    console = Console(file=StringIO(), width=120, color_system=None)
    with console.capture() as captured:
        render_calibration(ATTACK, calibrated(name=ATTACK), None, console)
        render_text(analysis, console)
    assert "\x1b[31m" not in captured.get()
