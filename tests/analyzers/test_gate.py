"""What the gate decides of runs made by hand, and what it keeps of a capture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from latencylab.analyzers import analyze
from latencylab.analyzers.gate import judge, run_of
from latencylab.model.capture import Capture
from latencylab.model.gate import GateResult, Policy, Run, RunSite, run_from_dict, run_to_dict
from latencylab.model.integrity import InputError
from latencylab.model.unprofiled import Request, Unprofiled
from latencylab.traces import open_capture, sample_path

SITE = RunSite("cudaStreamSynchronize in run_batch", "pinning", "blocked", 1.0, 3.2)


def run(ms: float | None = 6.0, **changes: object) -> Run:
    made = Run(
        "run",
        requests_step_ms=() if ms is None else (ms * 0.99, ms, ms * 1.01),
        step_interval_ms=None if ms is None else (ms * 0.98, ms * 1.02),
        steps=27,
        metrics={"traced_step": 8000.0, "busy": 5600.0, "pinning_sites": 0},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def side(*ms: float, **changes: object) -> list[Run]:
    return [run(one, **changes) for one in ms]


def of(result: GateResult, metric: str = "step") -> str:
    return next(one.verdict for one in result.metrics if one.metric == metric)


BASE = side(6.0, 6.03, 5.97)


def test_a_run_given_twice_counts_once() -> None:
    result = judge([run(6.0)] * 5, [run(7.0)] * 5)
    assert of(result) == "inconclusive"
    assert any("8 of the runs were given more than once" in warning for warning in result.warnings)
    assert any("stands on both sides" in warning for warning in judge(BASE, BASE).warnings)


@pytest.mark.parametrize(
    ("head", "verdict", "code"),
    [
        (side(6.3, 6.33, 6.27), "regression", 1),
        (side(5.7, 5.73, 5.67), "improvement", 0),
        (side(6.01, 6.001, 5.99), "unchanged", 0),
        (side(6.05, 6.051, 6.049), "unchanged", 0),  # below the minimum effect
        (side(6.001, 6.8, 5.6), "inconclusive", 0),
    ],
)
def test_step(head: list[Run], verdict: str, code: int) -> None:
    result = judge(BASE, head)
    assert (of(result), result.verdict, result.exit_code) == (verdict, verdict, code)
    assert bool(result.warnings) == (verdict == "inconclusive")


def test_runs_are_the_unit_however_many_requests_they_have() -> None:
    base, head = run(6.0), run(6.6)
    many = [replace(one, requests_step_ms=one.requests_step_ms * 200) for one in (base, head)]
    result = judge(many[:1], many[1:])
    assert of(result) == "inconclusive"
    assert "1 against 1 runs where 3 a side are needed" in result.warnings[0]
    assert result.metrics[0].interval_pct is not None


def test_few_runs_and_a_known_spread() -> None:
    known = Policy(known_spread_pct=1.0)
    assert of(judge([run(6.0)], [run(6.0 * 1.042)], known)) == "inconclusive"  # 3 * sqrt(2) % is 4.24 %
    assert of(judge([run(6.0)], [run(6.0 * 1.043)], known)) == "regression"
    assert of(judge([run(6.0)], [run(6.0 / 1.05)], known)) == "improvement"
    # More runs on one side never let less than three times the spread fail.
    many = side(*(6.0 + i / 1e6 for i in range(9)))
    assert of(judge(many, side(6.0 * 1.029, 6.0 * 1.0291), known)) == "inconclusive"


def test_a_known_spread_below_the_minimum_effect_lets_small_changes_pass() -> None:
    assert of(judge([run(6.0)], [run(6.0 * 1.014)], Policy(known_spread_pct=0.05))) == "inconclusive"


def test_requests_are_paired_where_seeds_say_which_is_which() -> None:
    """One long request that only the head has is no slower step."""
    keys = ("7/0", "7/1", "7/2")
    base = side(6.0, 6.03, 5.97, request_keys=keys)
    head = [
        replace(one, requests_step_ms=(*one.requests_step_ms, 30.0), request_keys=(*keys, "7/3"))
        for one in side(6.0, 6.03, 5.97)
    ]
    assert judge(base, head).metrics[0].change_pct == pytest.approx(0)
    unpaired = [replace(one, request_keys=()) for one in head]
    assert (judge(base, unpaired).metrics[0].change_pct or 0) > 50


@pytest.mark.parametrize(
    ("changes", "decision", "code"),
    [
        ({}, "regression", 1),
        ({"verdict": "harmful", "evidence": "recorded"}, "regression", 1),
        ({"evidence": "eliminated"}, "inconclusive", 0),
        ({"evidence": "unknown", "verdict": "harmful"}, "inconclusive", 0),
        ({"per_step": 0.1}, "regression", 1),
        ({"per_step": 0.09}, "inconclusive", 0),
        ({"verdict": "hidden"}, None, 0),
        ({"verdict": "unclear"}, None, 0),
    ],
)
def test_a_new_site(changes: dict[str, object], decision: str | None, code: int) -> None:
    site = replace(SITE, **changes)  # type: ignore[arg-type]
    result = judge([run(None)], [run(None, sites=(site,))])
    assert [one.decision for one in result.sites] == ([decision] if decision else [])
    assert result.exit_code == code
    assert any(SITE.site in warning for warning in result.warnings) == (decision == "inconclusive")


def test_a_site_of_any_run_of_the_base_is_not_new() -> None:
    has = run(None, sites=(SITE,))
    assert judge([run(None), has], [has]).sites == ()
    hidden = run(None, sites=(replace(SITE, verdict="hidden"),))
    (told,) = judge([run(None), hidden], [has]).sites
    assert told.decision == "inconclusive"
    (gone,) = judge([has, has], [run(None)]).sites
    assert gone.decision == "improvement"


@pytest.mark.parametrize(("found", "decision"), [(1, "inconclusive"), (2, "inconclusive"), (3, "regression")])
def test_a_site_must_be_in_most_runs(found: int, decision: str) -> None:
    head = [
        run(None, sites=(SITE,) if place < found else (), metrics={"busy": 5000.0 + place})
        for place in range(4)
    ]
    (told,) = judge([run(None)], head).sites
    assert (told.decision, told.runs, told.of) == (decision, found, 4)


def test_a_trace_without_steps_says_nothing_of_absence() -> None:
    result = judge([run(6.0, steps=0)], [run(6.0, sites=(SITE,))])
    assert result.sites == ()
    assert any("no steady step" in warning for warning in result.warnings)


def test_the_policy_can_let_new_sites_pass() -> None:
    result = judge([run(None)], [run(None, sites=(SITE,))], Policy(fail_on_new_sites=False))
    assert result.exit_code == 0
    assert result.warnings


def test_the_first_line_names_the_site_and_its_cost() -> None:
    lower = judge([run()], [run(sites=(SITE,))]).headline
    assert lower.startswith("Regression: new blocking site: cudaStreamSynchronize in run_batch: pinning, ")
    assert "at least 3.2 µs a step (lower bound from the trace, not calibrated)" in lower
    none = judge([run()], [run(sites=(replace(SITE, idle_us=0.01),))]).headline
    assert "pinning, its cost not calibrated" in none
    assert "0.0 µs" not in none
    known = judge([run()], [run(sites=(replace(SITE, cost_us=1234.5),))]).headline
    assert "costs 1,234.5 µs a step, without the profiler (calibrated)" in known
    hidden = replace(SITE, cost_us=4.8, together_us=945.3)
    result = judge([run()], [run(sites=(hidden, replace(hidden, site="cudaMemcpyAsync", together_us=None)))])
    assert "costs 4.8 µs a step, 945.3 with those that wait in its place, without the" in result.headline
    assert [site.together_us for site in result.sites] == [945.3, None]
    worse = replace(SITE, site="cudaDeviceSynchronize", cost_us=2000.0)
    both = judge([run()], [run(sites=(SITE, worse))]).headline
    assert "new blocking site and 1 more: cudaDeviceSynchronize" in both


def test_without_requests_only_counts_are_judged() -> None:
    result = judge([run(None)], [run(None)])
    assert of(result) == "incomparable"
    assert result.verdict == "unchanged"
    assert "no time is judged" in result.headline
    assert "neither side has unprofiled requests" in result.headline
    assert "the head has no unprofiled requests" in judge([run()], [run(None)]).headline
    assert "the base has no unprofiled requests" in judge([run(None)], [run()]).headline


def test_nothing_to_judge_is_not_comparable() -> None:
    assert judge([run(None, steps=0)], [run(6.0, steps=0)]).exit_code == 3


def test_conditions_must_agree_among_all_runs() -> None:
    base = side(6.0, 6.01, conditions={"GPU": "H200", "driver": "1"})
    odd = run(9.0, conditions={"GPU": "B200"}, sites=(SITE,))
    for sides in ((base, [odd]), ([*base, odd], base)):
        result = judge(*sides)
        assert result.exit_code == 3
        assert "GPU: H200 against B200" in result.headline
        assert (result.metrics, result.sites) == ((), ())
    assert judge(base, [run(6.0, conditions={"GPU": "H200"})]).exit_code == 0
    assert judge(base, [run(6.0, integrity="unusable")]).exit_code == 3


def test_changes_are_named_where_both_record_them() -> None:
    base = run(circumstances={"commit": "a", "fault x": "on"}, recorded=("commit", "fault"))
    head = run(circumstances={"commit": "b"}, recorded=("commit",))
    assert [one.field for one in judge([base], [head]).changes] == ["commit"]
    assert [one.field for one in judge([base], [replace(head, recorded=("commit", "fault"))]).changes] == [
        "commit",
        "fault x",
    ]


def test_secondary_metrics_explain_unless_listed() -> None:
    slower = side(6.0, 6.03, 5.97, metrics={"traced_step": 8000.0, "busy": 6400.0})
    result = judge(BASE, slower)
    assert (of(result, "busy"), result.verdict) == ("regression", "unchanged")
    busy = next(one for one in result.metrics if one.metric == "busy")
    assert busy.change_pct == pytest.approx(10)  # 800 µs of a step of 8,000
    listed = judge(BASE, slower, Policy(judge=("busy",)))
    assert listed.exit_code == 1
    assert listed.headline.startswith("Regression: GPU busy")


def test_less_run_ahead_is_worse() -> None:
    ahead = [side(6.0, 6.01, 6.02, metrics={"traced_step": 8000.0, "run_ahead": us}) for us in (900.0, 100.0)]
    assert of(judge(ahead[0], ahead[1]), "run_ahead") == "regression"
    assert of(judge(ahead[1], ahead[0]), "run_ahead") == "improvement"


def test_counts_are_exact() -> None:
    def counted(*counts: int) -> list[Run]:
        return [run(6.0 + place, metrics={"pinning_sites": n}) for place, n in enumerate(counts)]

    assert of(judge(counted(1, 1), counted(2)), "pinning_sites") == "regression"
    assert of(judge(counted(1, 2), counted(2, 3)), "pinning_sites") == "inconclusive"
    assert of(judge(counted(2), counted(2)), "pinning_sites") == "unchanged"


def test_a_run_survives_json() -> None:
    whole = run(sites=(SITE, replace(SITE, cost_us=5.0)), request_keys=("1/0", "1/1", "1/2"), commit="ü")
    data = json.loads(json.dumps(run_to_dict(whole)))
    assert data["schema"] == "latencylab.run/1"
    assert run_from_dict(data) == whole
    assert run_from_dict({**data, "later": 1}) == whole


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "latencylab.run/2"},
        {"label": 5},
        {"requests_step_ms": [-1.0], "request_keys": []},
        {"request_keys": ["only one"]},
        {"metrics": {"busy": float("nan")}},
        {"sites": [{"site": "x"}]},
    ],
)
def test_what_is_no_run_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        run_from_dict({**run_to_dict(run()), **changes})
    with pytest.raises(InputError):
        run_from_dict([])


def test_run_of_a_sample() -> None:
    capture = open_capture([sample_path("nextn-host-stall")])
    found = run_of(capture, analyze(capture))
    assert found.requests_step_ms == pytest.approx((6.736, 7.059, 7.069, 6.872, 6.979, 7.507), abs=0.001)
    assert found.request_keys == ("0/0", "0/1", "0/2", "0/3", "0/4", "0/5")
    low, high = found.step_interval_ms or (0, 0)
    assert 6.75 < low < 7.037 < high < 7.35
    stall = next(site for site in found.sites if site.site.startswith("cudaStreamSynchronize"))
    assert (stall.verdict, stall.evidence) == ("harmful", "recorded")
    assert found.metrics["pinning_sites"] == 1
    assert found.metrics["tpot"] == pytest.approx(2.1624, abs=0.001)
    assert found.steps == 27
    assert found.conditions["speculative_algorithm"] == "EAGLE"  # what SGLang makes of NEXTN
    assert found.conditions["kind of step"] == "NEXTN"
    assert run_from_dict(json.loads(json.dumps(run_to_dict(found)))) == found


@pytest.mark.parametrize(
    ("workload", "keys"),
    [
        ({"seed": 7}, ("7/0", "7/2")),
        ({"seeds": [4, 5, 6]}, ("4/0", "6/2")),
        ({"seeds": [4]}, ()),
        ({}, ()),
        (None, ()),
    ],
)
def test_keys_stay_with_their_requests(workload: object, keys: tuple[str, ...]) -> None:
    capture = open_capture([sample_path("dspark")])
    whole = Request.of(0, [(10, 1), (1_000_010, 2), (3_000_010, 3)])
    cut = Request.of(0, [(10, 1)])
    measured = Capture(
        capture.path,
        capture.folder,
        {**(capture.manifest or {}), "workload": workload},
        capture.traces,
        Unprofiled((whole, cut, whole)),
    )
    found = run_of(measured, analyze(capture))
    assert found.requests_step_ms == (1.5, 1.5)
    assert found.request_keys == keys


def test_a_capture_that_its_manifest_gives_up_is_not_compared() -> None:
    capture = open_capture([sample_path("nextn")])
    whole = analyze(capture, timelines=False)
    given_up = replace(whole, manifest={**(whole.manifest or {}), "unusable": "rank 1 wrote no trace"})
    result = judge([run_of(capture, whole)], [run_of(capture, given_up)])
    assert result.exit_code == 3
    assert "integrity: ok against unusable (rank 1 wrote no trace)" in result.headline


def test_calibrated_idle_is_a_share_of_the_step_without_the_profiler() -> None:
    base, head = (run(6.0, metrics={"traced_step": 12_000.0, "idle_host_calibrated": us}) for us in (0, 600))
    result = judge([base], [replace(head, requests_step_ms=(6.6,))])
    (found,) = (one for one in result.metrics if one.metric == "idle_host_calibrated")
    assert found.change_pct == pytest.approx(10)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (side(6.6), "(+10.0 %, inconclusive: 3 against 1 runs where 3 a side are needed)"),
        (side(6.001, 6.8, 5.6), "% is possible)"),
        (side(600), "(× 100, inconclusive"),
    ],
)
def test_the_first_line_says_why_nothing_can_be_told(head: list[Run], why: str) -> None:
    result = judge(BASE, head)
    assert result.headline.startswith("Inconclusive, passed with a warning: step without the profiler 6.000")
    assert why in result.headline
