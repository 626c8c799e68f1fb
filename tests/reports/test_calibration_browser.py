"""The section on calibration in a real browser: it fits, and what is folded opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latencylab.model.calibration import Calibration, Estimate, LegTime, SpanTime
from latencylab.model.findings import Analysis
from latencylab.reports.html import render_html

LONG = "cudaStreamSynchronize in scheduler.run_batch > ll.resolve_seq_lens (aten::copy_), 16 B DtoH Pinned"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_fits(
    browser: Any,
    show: Callable[[Path, int, str], None],
    tmp_path: Path,
    analysis: Analysis,
    width: int,
    theme: str,
) -> None:
    def about(us: float) -> Estimate:
        return Estimate(us, 0.9 * us, 1.1 * us)

    found = Calibration(
        "calibrated",
        predicted_step_us=about(7_340.0),
        idle_host_us=about(1_427.0),
        idle_host_blame_us={LONG: about(1_200.0), "api": about(40.0)},
        run_ahead_us={"draft": about(0.0), "verify": about(4_000.0)},
        legs=(LegTime("draft", 1_000.0, 982.0), LegTime("verify", 4_561.0, 4_569.0)),
        spans=(SpanTime("ll.wait.stream_synchronize", 3_878.4, about(1_683.0), about(0.43)),),
        notes=("this rank is replayed alone " * 6,),
    )
    page = tmp_path / "page.html"
    page.write_text(render_html(replace(analysis, calibration=found)), "utf-8")
    browser.get_log("browser")
    show(page, width, theme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    section = browser.execute_script(
        "return document.getElementById('calibration').closest('section').innerText"
    )
    for part in ("Legs without the profiler", "4,569.0", LONG, "1,683.0", "this rank is replayed alone"):
        assert part in section
