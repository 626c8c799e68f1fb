"""The page in a real browser: nothing complains, every figure is drawn, nothing sticks out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latencylab.model.findings import Analysis
from latencylab.reports.html import render_html

webdriver = pytest.importorskip("selenium.webdriver")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and its driver")

WIDTHS = (1440, 390)
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield made
    made.quit()


def show(browser: Any, page: Path, width: int, theme: str) -> None:
    """Load the page as a screen of this width shows it, with every folded part open."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; });")
    drawn = "return [...document.querySelectorAll('.plot')].every((p) => p.querySelector('.main-svg'));"
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: b.execute_script(drawn))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["four_ranks", "hostile"])
def test_draws(
    browser: Any, tmp_path: Path, request: pytest.FixtureRequest, which: str, width: int, theme: str
) -> None:
    analysis: Analysis = request.getfixturevalue(which)
    page = tmp_path / "page.html"
    page.write_text(render_html(analysis), "utf-8")
    browser.get_log("browser")
    show(browser, page, width, theme)

    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map((p) => {"
        "  const box = p.querySelector('.main-svg').getBoundingClientRect();"
        "  return [p.id, box.width, p.parentElement.getBoundingClientRect().width,"
        "    p.querySelectorAll('.point path, path.point').length]; });"
    )
    assert boxes
    for name, drawn, room, marks in boxes:
        assert 200 < drawn <= room + 1, name
        if which == "four_ranks":
            assert marks > 0, name


def test_theme_reaches_the_figures(browser: Any, tmp_path: Path, analysis: Analysis) -> None:
    page = tmp_path / "page.html"
    page.write_text(render_html(analysis), "utf-8")
    fill = "return document.querySelector('#plot-r0-k0-waterfall .point:nth-child(3) path').style.fill;"
    show(browser, page, 1440, "light")
    light = browser.execute_script(fill)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 10).until(lambda b: b.execute_script(fill) != light)


def test_readable_without_javascript(browser: Any, tmp_path: Path, analysis: Analysis) -> None:
    page = tmp_path / "page.html"
    page.write_text(render_html(analysis), "utf-8")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        body = browser.find_element("tag name", "main").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "cudaStreamSynchronize" in body
    assert "3,190.0" in body
