"""Captures in two parts, what is unprofiled first, of a server whose faults are switched meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_server import serving
from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.capture import (
    Plan,
    check_capture,
    is_complete,
    record_profiled,
    record_unprofiled,
)
from latencylab.runtime.client import HttpTarget, TargetError
from latencylab.runtime.clock_files import ServerClocks
from latencylab.runtime.provenance import (
    read_states,
)
from latencylab.traces import open_capture, read_clock


def _manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_the_unprofiled_parts_of_several_captures_come_first(tmp_path):
    """Each keeps what its clock held and said before the first profiler was on."""
    home, plan = tmp_path / "ll", Plan(Workload(6, 101, 2, 1), steps=10)
    folders = [tmp_path / name for name in ("one", "two")]
    with serving(folder=home, ranks=2) as fake:
        target, clocks = HttpTarget(fake.url), ServerClocks.of(home)
        before = []
        for folder, faults in zip(folders, ("", "item"), strict=True):
            clocks.switch_faults(faults)
            before.append(record_unprofiled(folder, target, plan.workload, clocks))
            assert {path.parts[-2] for path in folder.rglob("*.*")} == {"unprofiled"}
            assert not is_complete(folder)
        for folder, first in zip(folders, before, strict=True):
            clocks.switch_faults("")
            findings = record_profiled(folder, target, plan, first, ranks=2, about={"commit": "abc"})
            assert (findings, check_capture(folder)) == ([], [])
            assert is_complete(folder)
        assert clocks.account(0)["stopped_by"] == "a profiler"
    paths = [path for path, _ in fake.asked]
    assert paths.index("/start_profile") > [i for i, path in enumerate(paths) if path == "/generate"][5]
    spans = []
    for folder, first in zip(folders, before, strict=True):
        capture = open_capture(folder, cache=False)
        assert [len(clock) for clock in capture.unprofiled.clocks.values()] == [2 * 51, 2 * 51]
        assert [len(trace.gpu) for trace in capture.traces] == [10, 10]
        manifest = _manifest(folder)
        assert manifest["clocks"] == first.accounts
        assert {account["stopped_by"] for account in first.accounts.values()} == {None}
        assert manifest["workload"]["profiled_steps"] == 10
        assert len(manifest["workload"]["server_accept_length"]) == 2
        assert manifest["workload"]["server_cap_length"] == [None, None]
        starts = capture.unprofiled.clocks[0].start_ns
        spans.append((starts.min(), starts.max()))
    assert spans[0][1] < spans[1][0]  # nothing of the other's requests


def test_what_was_wrong_before_the_profiler_is_told_with_the_rest(tmp_path):
    home, plan = tmp_path / "ll", Plan(Workload(6, 101, 1, 0), steps=10, traces_s=1)
    with serving(folder=home, ranks=2, strangers=5, missing=(1,)) as fake:
        target = HttpTarget(fake.url)
        before = record_unprofiled(tmp_path / "c", target, plan.workload, ServerClocks.of(home))
        findings = record_profiled(tmp_path / "c", target, plan, before, ranks=2, about={})
    assert [finding.text.partition(" within")[0] for finding in findings] == [
        "rank 0 ran 5 requests while 1 were measured",
        "rank 1 ran 5 requests while 1 were measured",
        "rank 1 wrote no trace",
    ]
    assert [finding.text for finding in before.findings] == [finding.text for finding in findings[:2]]


def test_a_span_between_two_requests_is_no_request(tmp_path):
    """What the host does before a request's first step still has the number of the one before."""
    workload = Workload(6, 101, 3, 0)
    with serving(folder=tmp_path / "ll", strangers=3, seam=True) as fake:
        clocks = ServerClocks.of(tmp_path / "ll")
        assert record_unprofiled(tmp_path / "c", HttpTarget(fake.url), workload, clocks).findings == ()
    clock = read_clock(tmp_path / "c", 0)
    assert sorted(set(clock.request.tolist())) == [0, 1, 2, 3]


def test_two_parts_without_a_clock(tmp_path):
    plan = Plan(Workload(6, 101, 1, 0), steps=10)
    with serving() as fake:
        before = record_unprofiled(tmp_path, HttpTarget(fake.url), plan.workload, None)
        assert (before.accounts, before.findings) == (None, ())
        assert record_profiled(tmp_path, HttpTarget(fake.url), plan, before, ranks=1, about={}) == []
    assert "clocks" not in _manifest(tmp_path)


def test_a_request_that_fails_leaves_no_part(tmp_path):
    with serving(folder=tmp_path / "ll", fail_request=1, fail_how="close", fail_after=3) as fake:
        clocks = ServerClocks.of(tmp_path / "ll")
        with pytest.raises(TargetError, match=r"request 1: .*; no capture was taken"):
            record_unprofiled(tmp_path / "c", HttpTarget(fake.url), Workload(6, 101, 2, 0), clocks)
    assert not (tmp_path / "c").exists()


def test_faults_are_switched_on_every_rank(tmp_path):
    with serving(folder=tmp_path, ranks=2):
        clocks = ServerClocks.of(tmp_path)
        clocks.switch_faults("item;sleep:us=5,rank=1")
        sleep = {"us": 5, "rank": 1, "busy": 1}
        assert [state["faults"] for state in read_states(tmp_path).values()] == [
            {"item": {"rank": -1, "active": True}, "sleep": {**sleep, "active": False}},
            {"item": {"rank": -1, "active": True}, "sleep": {**sleep, "active": True}},
        ]
        clocks.switch_faults("")
        assert [state["faults"] for state in read_states(tmp_path).values()] == [{}, {}]


@pytest.mark.parametrize(
    ("has", "wanted", "said"),
    [
        ({}, "item", "rank 0 does not say that it has the faults item"),
        ({"item": {"active": True}}, "", "rank 0 does not say that it has the faults none"),
        ({"item": {}, "gc": {"every": 5}}, "item", "rank 0 does not say that it has the faults item"),
        ({"gc": {"every": 5}}, "gc:every=6", "rank 0 does not say that it has the faults gc:every=6"),
    ],
)
def test_a_server_that_does_not_say_it_has_the_faults(tmp_path, has, wanted, said):
    with serving(folder=tmp_path, faults=has, faults_stay=True), pytest.raises(InputError, match=f"^{said}$"):
        ServerClocks.of(tmp_path).switch_faults(wanted)


def test_a_rank_that_does_not_obey(monkeypatch, tmp_path):
    monkeypatch.setattr("latencylab.runtime.clock_files.OBEY_S", 0.5)
    with serving(folder=tmp_path):
        (tmp_path / "plugin-rank1.json").write_text('{"world_size": 2}')
        clocks = ServerClocks.of(tmp_path)
        assert clocks.ranks == (0, 1)
        with pytest.raises(InputError, match=r"^rank 1 did not switch its faults within 0\.5 s$"):
            clocks.switch_faults("item")


def test_no_command_is_given_for_an_unknown_fault(tmp_path):
    with serving(folder=tmp_path):
        with pytest.raises(InputError, match="fault 'nonsense': not known"):
            ServerClocks.of(tmp_path).switch_faults("item;nonsense")
        assert not (tmp_path / "control.json").exists()
