"""The spans of our runtime give the steps, their kinds, and what each wait waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import synth
from latencylab.analyzers import analyze
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.marks import plain_name
from latencylab.analyzers.view import RankView
from latencylab.model.capture import Capture

KINDS = ("nextn", "nextn", "nextn", "prefill", *["nextn"] * 6)


def loop(*, marks: bool, **scenario: Any) -> synth.Scenario:
    """A slow host, so that nothing but a record tells what a wait waited for."""
    made = synth.decode_loop(KINDS, synth.Shape(stall=True, host=200_000), **scenario)
    return synth.with_marks(made) if marks else made


def view(scenario: synth.Scenario) -> RankView:
    return RankView.of(synth.to_trace(scenario), load_classes())


@pytest.mark.parametrize("records", [False, True])
def test_marks_tell_what_each_wait_waited_for(records: bool) -> None:
    scenario = loop(marks=True, sync_records=records)
    seen = view(scenario)
    truth = synth.find(scenario).syncs
    assert len(seen.waits.calls) == len(truth) > 15
    for row, sync in enumerate(truth):
        if sync.waited is None:
            assert seen.waits.op[row] == -1
        else:
            assert seen.waits.evidence[row] == "recorded"
            assert seen.trace.gpu.end[seen.waits.op[row]] == sync.waited.end


def test_without_marks_a_slow_host_proves_nothing() -> None:
    assert "recorded" not in view(loop(marks=False)).waits.evidence


def test_our_spans_give_the_steps_and_change_no_site() -> None:
    plain, marked = view(loop(marks=False)), view(loop(marks=True))
    assert marked.steps.source == "ll.step"
    assert marked.steps.kind == plain.steps.kind
    # The spans themselves take a few ns.
    assert np.allclose(np.diff(marked.steps.start), np.diff(plain.steps.start), rtol=0, atol=3)
    assert {str(site) for site in marked.waits.sites} == {str(site) for site in plain.waits.sites}


def test_our_replays_tell_a_leg_from_a_metadata_graph_within_its_span() -> None:
    def around(action: synth.Action) -> list[synth.Action]:
        """The metadata graph of the seam after draft is launched within verify's span instead."""
        if isinstance(action, synth.Span) and action.name == "step[VERIFY bs=1]":
            metadata = synth.GraphLaunch(tuple(synth.Node(2_000, 300, f"metadata_{n}") for n in range(2)))
            return [synth.Span(action.name, (metadata, *action.body))]
        return [action]

    scenario = synth.rewritten(loop(marks=False), around)
    marked = view(synth.with_marks(scenario)).legs
    assert dict(zip(view(scenario).legs.name, view(scenario).legs.ops.tolist(), strict=True))["verify"] == 8
    assert dict(zip(marked.name, marked.ops.tolist(), strict=True)) == {"draft": 3, "verify": 6, "extend": 2}


def test_no_detail_of_one_call_is_shown_as_what_a_thread_did() -> None:
    scenario = loop(marks=True)
    found = analyze(Capture("loop", None, None, (synth.to_trace(scenario),))).ranks[0].main
    assert found.steps.found == 9
    assert not [name for name in found.idle_host_doing_us.span if "[" in name and name.startswith("ll.")]
    assert plain_name("ll.wait.event_synchronize[event=3 step=4]") == "ll.wait.event_synchronize"
    assert plain_name("step[VERIFY bs=1]") == "step[VERIFY bs=1]"
