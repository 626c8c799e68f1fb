"""The ranks' timeline in a real browser: drawn, zoomed, and asked what it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latencylab.model.findings import Analysis
from latencylab.reports.html import render_html

PANEL = "timelinePanels.get('ranks')"
Show = Callable[[Path, int, str], None]


@pytest.fixture
def page(tmp_path: Path, late_rank: Analysis) -> Path:
    path = tmp_path / "page.html"
    path.write_text(render_html(late_rank), "utf-8")
    return path


def wait(browser: Any, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda b: b.execute_script(f"return {script};"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_draws(browser: Any, show: Show, page: Path, width: int, theme: str) -> None:
    browser.get_log("browser")
    show(page, width, theme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    kinds = browser.execute_script(
        f"const {{ canvas }} = {PANEL}; canvas.drawNow(); const {{ step, context, width }} = canvas;"
        "const scale = canvas.canvas.width / width;"
        "return step.groups.map((g) => { const { data } = context.getImageData(0, g.top * scale,"
        " canvas.canvas.width, g.height * scale);"
        " return [g.lane.rank, g.kind, new Set(new Uint32Array(data.buffer)).size]; });"
    )
    assert [(rank, kind) for rank, kind, _ in kinds] == [
        (rank, kind) for rank in range(4) for kind in ("legs", "work", "arrivals", "gaps")
    ]
    assert all(colours > 1 for *_, colours in kinds)


def test_a_collective_tells_who_is_late(browser: Any, show: Show, page: Path) -> None:
    from selenium.webdriver import ActionChains

    show(page, 1440, "light")
    first = browser.find_element("css selector", "[data-view=ranks] .look tbody tr")
    assert "rank 2 is last: GPU work: qkv_gemm" in first.text
    assert " ± " in first.text
    first.find_element("css selector", "button").click()
    place = browser.execute_script(
        f"const {{ canvas, step }} = {PANEL};"
        "const g = step.groups.find((one) => one.kind === 'arrivals' && one.lane.rank === 0);"
        "const i = g.table.wait.reduce((best, w, n) => (w > g.table.wait[best] ? n : best), 0);"
        "const r = canvas.canvas.getBoundingClientRect();"
        "return [canvas.x(g.table.t[i] + g.table.wait[i] / 2) - r.width / 2, g.top + 6 - r.height / 2];"
    )
    canvas = browser.find_element("css selector", "[data-view=ranks] canvas")
    ActionChains(browser).move_to_element_with_offset(canvas, round(place[0]), round(place[1])).perform()
    tip = browser.find_element("css selector", "[data-view=ranks] .tip").text
    assert "cross_device_reduce_1stage" in tip
    assert "for rank 2, then transfers for" in tip
    assert "rank 2 is late: GPU work: qkv_gemm" in tip
    assert "causality alone shows it" in tip


def test_the_figure_leads_to_the_timeline(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    whole = browser.execute_script(f"const c = {PANEL}.canvas; return c.to - c.from;")
    browser.execute_script(
        "document.getElementById('plot-ranks-arrivals').emit('plotly_click', {points: [{x: 5}]});"
    )
    wait(browser, f"{PANEL}.canvas.to - {PANEL}.canvas.from < {whole / 2}")


def test_without_decompression_it_says_so(browser: Any, page: Path) -> None:
    hide = "delete globalThis.DecompressionStream;"
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hide})
    try:
        browser.get_log("browser")
        browser.get(page.as_uri())
        wait(
            browser, "document.querySelector('[data-view=ranks] .live').textContent.includes('cannot unpack')"
        )
        assert browser.get_log("browser") == []
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
