"""The timeline in a real browser: drawn, and moved about by strip, list, wheel, drag, keys and figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latencylab.model.findings import Analysis
from latencylab.reports.html import render_html

WIDTHS = (1440, 390)
THEMES = ("light", "dark")
PANEL = "timelinePanels.get('r0-k0')"
# Of the pixels of the canvas: how many colours, and whether each group of lanes has some of its own.
PIXELS = """
const panel = timelinePanels.get('r0-k0');
panel.canvas.drawNow();
const { canvas, step, width } = panel.canvas;
const scale = canvas.width / width;
const context = canvas.getContext('2d');
const bare = (group) => {
  const tall = group.lanes * group.height;
  const { data } = context.getImageData(0, group.top * scale, canvas.width, tall * scale);
  return new Set(new Uint32Array(data.buffer)).size;
};
return step.groups.map((group) => [group.kind, bare(group)]);
"""

Show = Callable[[Path, int, str], None]


@pytest.fixture
def page(tmp_path: Path, simulated: Analysis) -> Path:
    path = tmp_path / "page.html"
    path.write_text(render_html(simulated), "utf-8")
    return path


def wait(browser: Any, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda b: b.execute_script(f"return {script};"))


def view(browser: Any) -> list[float]:
    found: list[float] = browser.execute_script(f"const c = {PANEL}.canvas; return [c.from, c.to];")
    return found


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_draws(browser: Any, show: Show, page: Path, width: int, theme: str) -> None:
    browser.get_log("browser")
    show(page, width, theme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    groups = browser.execute_script(PIXELS)
    assert {kind for kind, _ in groups} == {"spans", "ops", "calls", "legs", "gaps", "gpu"}
    assert all(colours > 1 for _, colours in groups)
    room = browser.execute_script("return document.querySelector('.stage').clientWidth")
    assert 300 < room <= width
    assert len(browser.find_elements("css selector", ".timeline")) == 2


def test_another_step_is_a_click_away(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    snapshot = "document.querySelector('.timeline canvas').toDataURL()"
    section = browser.find_element("css selector", ".timeline")
    median = section.get_attribute("data-shown")
    before = browser.execute_script(f"return {snapshot};")
    assert "is the median step" in section.find_element("css selector", ".why h3").text
    section.find_element("css selector", ".strip [data-step='6']").click()
    wait(browser, "document.querySelector('.timeline').dataset.shown === '6'")
    wait(browser, f"{snapshot} !== {before!r}")
    why = section.find_element("css selector", ".why").text
    assert "Why step 6 took" in why
    assert "host late: in garbage collection" in why
    section.find_element("css selector", "[data-do=median]").click()
    wait(browser, f"document.querySelector('.timeline').dataset.shown === '{median}'")
    section.find_element("css selector", "[data-do=slowest]").click()
    wait(browser, f"document.querySelector('.timeline').dataset.shown !== '{median}'")
    section.find_element("css selector", "select").send_keys("9")
    wait(browser, "document.querySelector('.timeline').dataset.shown === '9'")


def test_keys_and_buttons(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    canvas = browser.find_element("css selector", ".timeline canvas")
    whole = view(browser)
    for _ in range(4):
        canvas.send_keys("+")
    low, high = view(browser)
    assert high - low == pytest.approx((whole[1] - whole[0]) * 0.6**4)
    from selenium.webdriver.common.keys import Keys

    canvas.send_keys(Keys.ARROW_RIGHT)
    assert view(browser)[0] == pytest.approx(low + 0.2 * (high - low))
    canvas.send_keys(Keys.ARROW_LEFT, "-")
    assert view(browser)[0] < low
    wait(browser, "document.querySelector('.timeline .shown').textContent.startsWith('Step ')")
    canvas.send_keys("0")
    assert view(browser) == whole
    button = browser.find_element("css selector", ".look tbody button")
    button.send_keys(Keys.ENTER)
    start = float(button.get_attribute("data-from"))
    assert view(browser)[0] < start < view(browser)[1] < whole[1]


def test_pointer_names_what_it_meets(browser: Any, show: Show, page: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    show(page, 1440, "light")
    canvas = browser.find_element("css selector", ".timeline canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    whole = view(browser)
    place = browser.execute_script(
        f"const c = {PANEL}.canvas; const {{ step }} = c; const g = step.group('calls');"
        "const i = step.calls.ops.findIndex((n) => n > 1); const r = c.canvas.getBoundingClientRect();"
        "return [c.x(step.calls.t[i] + step.calls.d[i] / 2) - r.width / 2, g.top + 5 - r.height / 2];"
    )
    ActionChains(browser).move_to_element_with_offset(canvas, round(place[0]), round(place[1])).perform()
    tip = browser.find_element("css selector", ".timeline .tip")
    assert "cudaGraphLaunch" in tip.text
    assert "GPU ops: " in tip.text
    assert "starts at" in tip.text
    # The page has come to rest: a wheel over it zooms.
    wait(browser, "performance.now() - TimelineCanvas.scrolled > 400")
    ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -300).perform()
    wait(browser, f"{PANEL}.canvas.to - {PANEL}.canvas.from < {0.9 * (whole[1] - whole[0])}")
    ActionChains(browser).double_click(canvas).perform()
    assert view(browser) == whole
    drag = ActionChains(browser).move_to_element_with_offset(canvas, -200, 0).click_and_hold()
    drag.move_by_offset(100, 0).move_by_offset(100, 0).release().perform()
    low, high = view(browser)
    assert (high - low) / (whole[1] - whole[0]) == pytest.approx(200 / canvas.size["width"], abs=0.01)


def test_a_gap_says_why(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    facts = browser.execute_script(
        f"const {{ step }} = {PANEL}; const {{ doing, own }} = step.gaps;"
        "const i = doing.findIndex((row, n) => row >= 0 && own[n]);"
        "return step.describe('gaps', i).flat().join('|');"
    )
    for part in (
        "GPU idle for",
        "cause: the host launched late",
        "the host was",
        "blamed on:",
        "ended by",
        "launched by",
    ):
        assert part in facts
    listed = browser.find_element("css selector", ".timeline .look").text
    assert "GPU waits for the host" in listed
    assert "cudaStreamSynchronize" in listed


def test_sites_are_linked(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    target = browser.find_element("css selector", ".look a").get_attribute("href").split("#")[1]
    row = browser.execute_script("return document.getElementById(arguments[0]).innerText", target)
    assert "cudaStreamSynchronize" in row
    whole = view(browser)
    browser.find_element("css selector", f"#{target} .to-timeline").click()
    wait(browser, f"{PANEL}.canvas.to - {PANEL}.canvas.from < {(whole[1] - whole[0]) / 2}")
    assert browser.execute_script("return document.activeElement.tagName") == "CANVAS"


def test_the_figure_of_steps_leads_to_a_step(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "light")
    browser.execute_script(
        "document.getElementById('plot-r0-k0-steps').emit('plotly_click', {points: [{x: 6}]});"
    )
    wait(browser, "document.querySelector('.timeline').dataset.shown === '6'")


def test_without_decompression_the_median_is_there(browser: Any, page: Path) -> None:
    hide = "delete globalThis.DecompressionStream;"
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hide})
    try:
        browser.get_log("browser")
        browser.get(page.as_uri())
        wait(browser, "document.querySelector('.timeline').dataset.shown")
        assert browser.get_log("browser") == []
        section = browser.find_element("css selector", ".timeline")
        assert "cannot unpack" in section.text
        assert len(section.find_elements("css selector", "option:enabled")) == 1
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_paper_shows_the_whole_step_in_light_colours(browser: Any, show: Show, page: Path) -> None:
    show(page, 1440, "dark")
    whole = view(browser)
    browser.execute_script(f"{PANEL}.canvas.zoom(0.2); dispatchEvent(new Event('beforeprint'));")
    assert view(browser) == whole
    assert browser.execute_script(f"return {PANEL}.canvas.colours('--bg');") == "#ffffff"
    browser.execute_script("dispatchEvent(new Event('afterprint'));")
    assert browser.execute_script(f"return {PANEL}.canvas.colours('--bg');") != "#ffffff"
