"""What the page holds of the steps' timelines: as many as fit, packed, and the same when unpacked."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latencylab.analyzers import analyze
from latencylab.model.findings import Analysis
from latencylab.reports import format as fmt
from latencylab.reports import summary, timelines
from latencylab.reports.html import LIMIT, render_html
from latencylab.traces import open_capture, sample_path


def sections(analysis: Analysis) -> list[timelines.Section]:
    rank = analysis.ranks[0]
    return [timelines.Section(f"k{i}", rank, kind) for i, kind in enumerate(summary.kinds(rank))]


def opened(data: Any) -> dict[str, Any]:
    return json.loads(gzip.decompress(base64.b64decode(data))) if isinstance(data, str) else data


def test_all_fit_and_say_what_the_timeline_says(simulated: Analysis) -> None:
    page = timelines.embed(sections(simulated), 1_000_000)
    rank = simulated.ranks[0]
    strings = page["strings"]
    lines = {line.step: line for line in rank.timelines}
    shown = {step: data for view in page["views"].values() for step, data in view["data"].items()}
    assert shown.keys() == lines.keys()
    for step, packed in shown.items():
        data, line = opened(packed), lines[step]
        gpu = data["gpu"]
        assert (np.cumsum(gpu["t"]) + line.start).tolist() == line.gpu.start.tolist()
        assert gpu["d"] == (line.gpu.end - line.gpu.start).tolist()
        assert np.cumsum(gpu["call"]).tolist() == line.gpu.call.tolist()
        assert [strings[i] for i in gpu["name"]] == [line.names[i] for i in line.gpu.name]
        own = np.array(data["gaps"]["own"], bool)
        idle_us = np.array(data["gaps"]["d"])[own].sum() / 1000
        assert idle_us == pytest.approx(next(s.parts.idle for s in rank.steps if s.index == step))


def test_the_first_is_plain_and_the_median(simulated: Analysis) -> None:
    page = timelines.embed(sections(simulated), 1_000_000)
    main = page["views"]["k0"]
    assert isinstance(main["data"][main["median"]], dict)
    assert (
        sum(isinstance(data, dict) for view in page["views"].values() for data in view["data"].values()) == 1
    )
    median = next(s for s in simulated.ranks[0].steps if s.index == main["median"])
    assert median.slower_by == ()


def test_keeps_to_the_room(simulated: Analysis) -> None:
    everything = len(fmt.script_json(timelines.embed(sections(simulated), 10**9)))
    for room in range(0, everything + 1000, 5000):
        page = timelines.embed(sections(simulated), room)
        held = [list(view["data"]) for view in page["views"].values()]
        assert len(fmt.script_json(page)) <= max(room, 1000)
    assert sum(map(len, held)) == len(simulated.ranks[0].timelines)


def test_differences_are_words(simulated: Analysis) -> None:
    page = timelines.embed(sections(simulated), 1_000_000)
    slow = opened(page["views"]["k0"]["data"][6])
    words = [page["strings"][what] for what, _ in slow["why"]]
    assert "host late: in garbage collection" in words
    assert not any(word.startswith(("busy:", "host idle:", "GPU idle: in_")) for word in words)
    step = next(s for s in simulated.ranks[0].steps if s.index == 6)
    assert sum(ns for _, ns in slow["why"]) == pytest.approx(1000 * sum(d.us for d in step.slower_by), abs=20)


@pytest.mark.parametrize("name", ["nextn", "nextn-host-stall", "dspark"])
def test_samples_fit_whole(name: str) -> None:
    analysis = analyze(open_capture([sample_path(name)]))
    text = render_html(analysis)
    assert len(text.encode()) <= LIMIT
    found = text.split('<script type="application/json" id="timelines">')[1].split("</script>")[0]
    (view,) = json.loads(found)["views"].values()
    assert len(view["data"]) == len(view["steps"]) == 30


def test_a_page_over_the_limit_leaves_timelines_out(
    simulated: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latencylab.reports.html.LIMIT", 1000)
    text = render_html(simulated)
    found = json.loads(text.split('id="timelines">')[1].split("</script>")[0])
    assert found["views"] == {}


def test_hostile_names_stay_text(simulated: Analysis) -> None:
    bad = "</script><timelines><img src=x onerror=alert(1)>\u202e\x1b"
    rank = simulated.ranks[0]
    lines = tuple(replace(line, names=tuple(f"{bad} {n}" for n in line.names)) for line in rank.timelines)
    text = render_html(replace(simulated, ranks=(replace(rank, timelines=lines),)))
    data = text.split('id="timelines">')[1].split("</script>")[0]
    assert json.loads(data)["strings"]
    assert "<img" not in text
    assert "\u202e" not in json.loads(data)["strings"][-1]
