"""Which captures may be compared, what is said to have changed between them, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import synth
from latencylab.analyzers import analyze
from latencylab.analyzers.comparable import differences, mismatches, name_mismatches, unknowns
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis, Tracing
from latencylab.model.integrity import Integrity, Issue


@cache
def analysed() -> Analysis:
    trace = synth.to_trace(synth.find(synth.decode_loop(["nextn"] * 6)).run)
    return analyze(Capture("run", None, None, (trace,)), timelines=False)


def with_manifest(**manifest: Any) -> Analysis:
    known = {"driver": "580.1", "workload": {"model": "m", "batch_size": 1}, "server_args": {"tp_size": 4}}
    return replace(analysed(), manifest={**known, **manifest})


def fields(analysis: Analysis) -> list[str]:
    return [one.field for one in mismatches(with_manifest(), analysis)]


@pytest.mark.parametrize(
    ("field", "manifest"),
    [
        ("driver", {"driver": "590.2"}),
        ("workload.model", {"workload": {"model": "n", "batch_size": 1}}),
        ("workload.batch_size", {"workload": {"model": "m", "batch_size": 2}}),
        ("tp_size", {"server_args": {"tp_size": 8}}),
        ("integrity", {"unusable": "rank 1 wrote no trace"}),
    ],
)
def test_another_condition_is_refused(field: str, manifest: dict[str, Any]) -> None:
    assert fields(with_manifest(**manifest)) == [field]


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"driver": None},
        {"workload": None},
        {"commit": "abc", "packages": {"sglang": "2"}, "env": {"SGLANG_X": "1"}},
        {"ledger": {"pdl": "on"}, "faults": {"host_stall": {"us": 1}}},
        {
            "workload": {
                "model": "m",
                "batch_size": 1,
                "seed": 3,
                "requests": 9,
                "server_accept_length": [3.2],
            }
        },
        {"server_args": {"tp_size": 4, "attention_backend": "triton", "port": 3}},
    ],
)
def test_a_change_or_a_gap_is_no_reason_to_refuse(manifest: dict[str, Any]) -> None:
    assert fields(with_manifest(**manifest)) == []


def test_models_are_told_apart_by_name_not_by_folder() -> None:
    def at(path: str) -> Analysis:
        return with_manifest(server_args={"model_path": path})

    assert mismatches(at("/data/Ling-3.0"), at("/mnt/models/Ling-3.0")) == ()
    assert [one.field for one in mismatches(at("/data/Ling-3.0"), at("/data/Ling-2.0"))] == ["model_path"]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("GPU", {"device_name": "NVIDIA B200"}),
        ("Python stacks", {"tracing": Tracing(stacks=True, sync_events=False)}),
        ("tensor shapes", {"tracing": Tracing(shapes=True, sync_events=False)}),
        ("sync events", {"tracing": Tracing(sync_events=True)}),
        ("ranks", {"rank": 3}),
    ],
)
def test_what_the_trace_itself_says_decides_without_a_manifest(field: str, change: dict[str, Any]) -> None:
    its = analysed().ranks[0]
    other = replace(analysed(), ranks=(replace(its, **change),))
    assert [one.field for one in mismatches(analysed(), other)] == [field]


def test_an_unusable_trace_is_refused() -> None:
    issue = Issue("no_launch", "error", 1, "no launch is on record")
    (one,) = mismatches(analysed(), replace(analysed(), integrity=Integrity.of([issue])))
    assert (one.field, one.base, one.head) == ("integrity", "ok", "unusable (no_launch)")


def test_changes_are_named() -> None:
    one = with_manifest(commit="a", packages={"torch": "2.1"}, env={}, faults={}, ledger={"pdl": False})
    other = with_manifest(
        commit="b",
        packages={"torch": "2.2"},
        env={"SGLANG_X": "1"},
        faults={"stall": {"us": 5}},
        ledger={"pdl": True},
    )
    found = {its.field: (its.base, its.head) for its in differences(one, other)}
    assert found == {
        "commit": ("a", "b"),
        "package torch": ("2.1", "2.2"),
        "switch SGLANG_X": (None, "1"),
        "ledger pdl": ("false", "true"),
        "fault stall.us": (None, "5"),
    }
    assert differences(one, one) == ()


def test_what_one_side_lacks_is_said_not_changed() -> None:
    one = with_manifest(packages={"torch": "2.1"}, driver=None, env={})
    lacking = {its.field: its.lacking for its in unknowns(one, with_manifest())}
    assert lacking["driver"] == "base"
    assert lacking["package"] == "head"
    assert lacking["commit"] == "both"
    assert "GPU" not in lacking
    assert differences(one, with_manifest()) == ()
    bare = {its.field: its.lacking for its in unknowns(one, analysed())}
    assert bare["manifest"] == "head"
    assert "package" not in bare


def test_how_much_was_measured_is_a_change_only_where_both_say_it() -> None:
    def measured(**workload: Any) -> Analysis:
        return with_manifest(workload={"model": "m", "batch_size": 1, **workload})

    (one,) = differences(measured(seed=1), measured(seed=2))
    assert (one.field, one.base, one.head) == ("workload seed", "1", "2")
    assert differences(measured(seed=1), measured()) == ()
    assert differences(measured(seed=1), analysed()) == ()
    its = analysed().ranks[0]
    versions = [Tracing(sync_events=False, versions={"cupti_version": text}) for text in ("1", "2")]
    sides = [replace(analysed(), ranks=(replace(its, tracing=one),)) for one in versions]
    assert [(one.field, one.base, one.head) for one in differences(*sides)] == [("cupti_version", "1", "2")]
    assert differences(sides[0], analysed()) == ()


def test_another_cuda_driver_is_refused() -> None:
    its = analysed().ranks[0]
    versions = [
        Tracing(sync_events=False, versions={"cuda_driver_version": text}) for text in ("13000", "12080")
    ]
    sides = [replace(analysed(), ranks=(replace(its, tracing=one),)) for one in versions]
    assert [one.field for one in mismatches(*sides)] == ["CUDA driver"]


def test_another_gpu_in_the_manifest_is_refused_whatever_the_trace_says() -> None:
    one, other = with_manifest(gpu="NVIDIA H200"), with_manifest(gpu="NVIDIA B200")
    assert "NVIDIA B200" in name_mismatches(mismatches(one, other))
    assert mismatches(one, one) == ()
    assert mismatches(one, with_manifest()) == ()


def test_names_of_a_process_and_folders_are_no_change() -> None:
    def started(number: int, folder: str, tokenizer: str = "m") -> Analysis:
        arguments = {"tp_size": 4, "served_model_name": folder, "tokenizer_path": f"{folder}/{tokenizer}"}
        return with_manifest(server_args=arguments, env={"SGLANG_RUN_ID": f"run-{number}"})

    assert differences(started(1, "/a"), started(2, "/b/c")) == ()
    (one,) = differences(started(1, "/a"), started(1, "/a", "n"))
    assert (one.field, one.base, one.head) == ("server argument tokenizer_path", "m", "n")
