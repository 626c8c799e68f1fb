"""The site in a real browser, from its files: nothing complains or sticks out, and keys reach everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latencylab.model.findings import Analysis
from latencylab.model.gate import Run
from latencylab.reports import site
from latencylab.reports.contract import to_contract
from latencylab.traces.history import History, Record

WIDTHS = (1440, 390)
THEMES = ("light", "dark")
COMMITS = 40
LONG = "a_message_without_any_space_" * 8
Show = Callable[[Path, int, str], None]


def records() -> list[Record]:
    """Two configurations; one gets slower at its 26th commit, the other has no requests at all."""
    random = np.random.default_rng(4)
    made = []
    for number in range(COMMITS):
        step = float((6.0 if number < 25 else 6.4) * (1 + 0.005 * random.standard_normal()))
        run = Run(
            "run",
            requests_step_ms=(step,),
            metrics={"tpot": step / 3, "idle_host": 2900.0, "pinning_sites": 0.0, "wait": 12.0},
            conditions={"GPU": "H200" if number else "B200"},
        )
        made.append(
            Record(
                id=f"{number:04x}",
                config="nextn",
                commit=f"{number:040x}",
                message=LONG if number == COMMITS - 1 else "Fuse the seam's kernels",
                date=(datetime(2026, 5, 1, tzinfo=UTC) + timedelta(hours=number)).isoformat(),
                added_ns=number,
                run=run,
                calibration={"status": "calibrated", "error_pct": 2.0, "idle_host_us": 12.0 + number},
                plotly=site.plotly_name(),
            )
        )
    bare = [
        replace(
            r,
            id=f"b{r.id}",
            config="a configuration of a long name " * 3,
            calibration=None,
            run=replace(r.run, requests_step_ms=(), metrics={"traced_step": 8900.0, "idle_host": 2900.0}),
        )
        for r in made[:3]
    ]
    return made + bare


@pytest.fixture(scope="module")
def built(simulated: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    history = History.create(tmp_path_factory.mktemp("history"))
    report = site.render_report(simulated)
    for record in records():
        history.add(record, to_contract(simulated), report, plotly=site.plotly_text())
    folder = tmp_path_factory.mktemp("site")
    site.write_site(history, history.runs(), folder)
    return folder


def test_pages_draw_without_complaint(browser: Any, show: Show, built: Path) -> None:
    pages = [built / "index.html", built / "reports" / "0001.html", built / "diffs" / "0018-0019.html"]
    browser.get_log("browser")
    for page in pages:
        for width in WIDTHS:
            for theme in THEMES:
                show(page, width, theme)
                assert browser.get_log("browser") == []
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width
                colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
                assert (colour == "rgb(255, 255, 255)") == (theme == "light")


def test_the_trend_is_drawn_within_its_place(browser: Any, show: Show, built: Path) -> None:
    for width in WIDTHS:
        show(built / "index.html", width, "light")
        boxes = browser.execute_script(
            "return [...document.querySelectorAll('.plot')].map((p) => {"
            "  const box = p.querySelector('.main-svg').getBoundingClientRect();"
            "  return [box.width, p.parentElement.getBoundingClientRect().width,"
            "    p.querySelectorAll('path.point').length]; });"
        )
        assert len(boxes) == 2
        for drawn, room, points in boxes:
            assert 200 < drawn <= room + 1
            assert points >= 6
        marks = browser.execute_script("return document.querySelectorAll('#trend-2 .shapelayer path').length")
        assert marks >= 2  # ms per step and TPOT


def test_a_theme_reaches_the_trend(browser: Any, show: Show, built: Path) -> None:
    colours = set()
    for theme in THEMES:
        show(built / "index.html", 1440, theme)
        colours.add(browser.execute_script("return document.querySelector('#trend-2 .js-line').style.stroke"))
    assert len(colours) == 2


def test_readable_without_javascript(browser: Any, built: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((built / "index.html").as_uri())
        body = browser.find_element("tag name", "main").text
        plots = browser.find_elements("css selector", ".plot")
        assert not any(plot.is_displayed() for plot in plots)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "change point" in body
    assert "slower" in body
    assert f"{COMMITS - 1:040x}"[:10] in body


def test_keys_lead_from_the_top_to_a_report_and_back(browser: Any, show: Show, built: Path) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    show(built / "index.html", 1440, "light")
    seen = []
    for _ in range(12):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focus = browser.switch_to.active_element
        seen.append(focus.get_attribute("href") or focus.get_attribute("class"))
        outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        if "reports/" in str(seen[-1]):
            break
    assert "#config-1" in seen[0]
    focus.send_keys(Keys.ENTER)
    WebDriverWait(browser, 60).until(lambda b: "reports/" in b.current_url)
    browser.find_element("link text", "All runs").click()
    WebDriverWait(browser, 60).until(lambda b: b.current_url.endswith("index.html"))


def test_a_click_on_a_point_opens_its_report(browser: Any, show: Show, built: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    show(built / "index.html", 1440, "light")
    browser.execute_script("document.getElementById('trend-2').emit('plotly_click', { points: [{ x: 3 }] });")
    WebDriverWait(browser, 60).until(lambda b: b.current_url.endswith("reports/0003.html"))
