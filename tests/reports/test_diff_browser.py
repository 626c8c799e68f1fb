"""The page of a comparison in a real browser: both steps drawn, nothing complains, nothing sticks out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import synth
from latencylab.analyzers import examine
from latencylab.analyzers.diff import compare
from latencylab.model.capture import Capture
from latencylab.reports.diff_html import render_diff_html

WIDTHS = (1440, 390)
THEMES = ("light", "dark")
# Of each group of lanes: its side, its kind, and how many colours it shows.
PIXELS = """
pairPanel.canvas.drawNow();
const { canvas, step, width } = pairPanel.canvas;
const scale = canvas.width / width;
const context = canvas.getContext('2d');
return step.groups.map((group) => {
  const tall = group.lanes * group.height * scale;
  const { data } = context.getImageData(0, group.top * scale, canvas.width, tall);
  return [group.side.name, group.kind, new Set(new Uint32Array(data.buffer)).size, group.top];
});
"""

Show = Callable[[Path, int, str], None]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    both = [
        synth.to_trace(
            synth.find(synth.decode_loop(["nextn"] * 12, synth.Shape(host=60_000, stall=stall))).run
        )
        for stall in (False, True)
    ]
    found = compare(*(examine(Capture("run", None, None, (trace,))) for trace in both), drawn=True)
    path = tmp_path_factory.mktemp("diff") / "page.html"
    path.write_text(render_diff_html(found), "utf-8")
    return path


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_draws(browser: Any, show: Show, page: Path, width: int, theme: str) -> None:
    browser.get_log("browser")
    show(page, width, theme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    groups = browser.execute_script(PIXELS)
    for side in ("base", "head"):
        assert {"spans", "calls", "legs", "gaps", "gpu"} <= {
            kind for its, kind, _, _ in groups if its == side
        }
    assert all(colours > 1 for _, _, colours, _ in groups)
    lowest = max(top for side, _, _, top in groups if side == "base")
    assert lowest < min(top for side, _, _, top in groups if side == "head")


def test_both_steps_share_one_axis(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    ends = browser.execute_script(
        "const { canvas, step } = pairPanel;"
        "return step.sides.map((side) => [side.end, canvas.x(side.end), canvas.x(0)]);"
    )
    (short, x_short, zero), (long, x_long, other_zero) = ends
    assert zero == other_zero
    assert (x_long - zero) / (x_short - zero) == pytest.approx(long / short)
    assert long > short


def test_zoom_hover_and_ops(browser: Any, show: Show, page: Path) -> None:
    from selenium.webdriver import ActionChains

    show(page, 1440, "light")
    canvas = browser.find_element("css selector", ".timeline canvas")
    view = "return [pairPanel.canvas.from, pairPanel.canvas.to];"
    low, high = browser.execute_script(view)
    canvas.send_keys("+")
    new_low, new_high = browser.execute_script(view)
    assert new_high - new_low == pytest.approx(0.6 * (high - low))
    canvas.send_keys("0")
    assert browser.execute_script(view) == [low, high]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    place = browser.execute_script(
        "const c = pairPanel.canvas; const side = c.step.sides[1];"
        "const g = side.group('calls'); const i = side.calls.ops.findIndex((n) => n > 1);"
        "const r = c.canvas.getBoundingClientRect();"
        "return [c.x(side.calls.t[i] + side.calls.d[i] / 2) - r.width / 2, g.top + 5 - r.height / 2];"
    )
    ActionChains(browser).move_to_element_with_offset(canvas, round(place[0]), round(place[1])).perform()
    tip = browser.find_element("css selector", ".timeline .tip").text
    assert "cudaGraphLaunch" in tip
    assert "head: step" in tip
    tall = browser.execute_script("return pairPanel.canvas.canvas.clientHeight")
    browser.find_element("css selector", "[name=ops]").click()
    browser.execute_script("pairPanel.canvas.drawNow();")
    assert browser.execute_script("return pairPanel.canvas.canvas.clientHeight") > tall


def test_the_list_names_the_new_wait_and_leads_to_it(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    rows = browser.find_elements("css selector", ".look tbody tr")
    waits = [
        row
        for row in rows
        if "cudaStreamSynchronize" in row.text and row.find_elements("css selector", ".badge")
    ]
    assert waits
    assert all("head: " in row.text for row in waits)
    waits[0].find_element("css selector", "button").click()
    low, high = browser.execute_script("return [pairPanel.canvas.from, pairPanel.canvas.to];")
    start = float(waits[0].find_element("css selector", "button").get_attribute("data-from"))
    assert low < start < high


def test_paper_shows_both_whole(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "dark")
    browser.execute_script("pairPanel.canvas.zoom(0.2); dispatchEvent(new Event('beforeprint'));")
    assert browser.execute_script("return pairPanel.canvas.isWhole();")
    assert browser.execute_script("return pairPanel.canvas.colours('--bg');") == "#ffffff"
    browser.execute_script("dispatchEvent(new Event('afterprint'));")


def test_readable_without_javascript(browser: Any, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        body = browser.find_element("tag name", "main").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "cudaStreamSynchronize" in body
    assert "seam before verify" in body
