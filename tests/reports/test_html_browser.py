"""The page in a real browser: nothing complains, every figure is drawn, nothing sticks out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latencylab.model.findings import Analysis
from latencylab.reports.html import render_html

WIDTHS = (1440, 390)
THEMES = ("light", "dark")
Show = Callable[[Path, int, str], None]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["four_ranks", "hostile"])
def test_draws(
    browser: Any,
    show: Show,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    which: str,
    width: int,
    theme: str,
) -> None:
    analysis: Analysis = request.getfixturevalue(which)
    page = tmp_path / "page.html"
    page.write_text(render_html(analysis), "utf-8")
    browser.get_log("browser")
    show(page, width, theme)

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


def test_theme_reaches_the_figures(browser: Any, show: Show, tmp_path: Path, analysis: Analysis) -> None:
    page = tmp_path / "page.html"
    page.write_text(render_html(analysis), "utf-8")
    fill = "return document.querySelector('#plot-r0-k0-waterfall .point:nth-child(3) path').style.fill;"
    show(page, 1440, "light")
    light = browser.execute_script(fill)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda b: b.execute_script(fill) != light)


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
