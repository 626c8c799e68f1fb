"""What collective kernels say of themselves: their process group and the size of their message."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from latencylab.model.trace import Trace
from synth import ranks, to_json

if TYPE_CHECKING:
    from conftest import Kineto

SAID = {
    "Collective name": "allreduce",
    "In msg nelems": 25_136,
    "Out msg nelems": 25_136,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "3",
    "Process Group Description": "undefined",
}


def with_message(kineto: Kineto, **said: Any) -> str:
    """The base, one of its kernels with the arguments of a collective."""
    events = kineto.base()
    events[5]["args"] |= {key: value for key, value in (SAID | said).items() if value is not ...}
    return kineto.document(events)


def message(trace: Trace) -> tuple[str | None, int]:
    """What the one kernel says; all others say nothing."""
    group = int(trace.gpu.group[1])
    assert trace.gpu.group.dtype == np.int32
    assert np.delete(trace.gpu.group, 1).tolist() == np.delete(trace.gpu.bytes, 1).tolist() == [-1] * 19
    return trace.names[group] if group >= 0 else None, int(trace.gpu.bytes[1])


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, ("3", 50_272)),
        ({"dtype": "Float"}, ("3", 100_544)),
        ({"dtype": "Float8_e4m3fn", "Process Group Name": "tp:0 \u00b5"}, ("tp:0 \u00b5", 25_136)),
        ({"dtype": "Complex128"}, ("3", -1)),
        ({"dtype": ...}, ("3", -1)),
        ({"In msg nelems": ...}, ("3", -1)),
        ({"In msg nelems": -5}, ("3", -1)),
        ({"In msg nelems": 0}, ("3", 0)),
        ({"Process Group Name": ...}, (None, 50_272)),
        ({"Process Group Name": ""}, (None, 50_272)),
        (dict.fromkeys(SAID, ...), (None, -1)),
    ],
)
@pytest.mark.parametrize("damaged", [False, True])
def test_group_and_size(
    kineto: Kineto, said: dict[str, Any], found: tuple[str | None, int], damaged: bool
) -> None:
    text = with_message(kineto, **said)
    issues = {}
    if damaged:  # so that each event is read by itself
        text = text.replace('"dur": 3.1', '"dur": NaN', 1)
        issues = {"not_a_number": ("warning", 1)}
    trace = kineto.one(text)
    assert message(trace) == found
    assert kineto.issues(trace) == issues


@pytest.mark.parametrize(
    ("said", "found", "code"),
    [
        ({"Process Group Name": 3}, ("3", 50_272), "odd_type"),
        ({"Process Group Name": None}, (None, 50_272), "odd_type"),
        ({"Process Group Name": ["3"]}, (None, 50_272), "odd_type"),
        ({"dtype": 5}, ("3", -1), "odd_type"),
        ({"dtype": {}}, ("3", -1), "odd_type"),
        ({"In msg nelems": "25136"}, ("3", 50_272), "quoted_number"),
        ({"In msg nelems": 2.5}, ("3", -1), "odd_type"),
        ({"In msg nelems": None}, ("3", -1), "odd_type"),
        ({"In msg nelems": [1]}, ("3", -1), "odd_type"),
        ({"In msg nelems": 1 << 62}, ("3", -1), "out_of_range"),
    ],
)
def test_odd_types(kineto: Kineto, said: dict[str, Any], found: tuple[str | None, int], code: str) -> None:
    trace = kineto.one(with_message(kineto, **said))
    assert message(trace) == found
    assert {key: count for key, (_, count) in kineto.issues(trace).items()} == {code: 1}


def test_bytes_that_a_kernel_has_already_stay(kineto: Kineto) -> None:
    assert message(kineto.one(with_message(kineto, bytes=7, dtype=...))) == ("3", 7)


@pytest.mark.parametrize(
    ("config", "groups", "damaged"),
    [
        (
            [{"pg_name": "3", "ranks": [2, 0, 1]}, {"pg_name": "4", "ranks": [0]}],
            {"3": (0, 1, 2), "4": (0,)},
            0,
        ),
        ([{"pg_name": "0", "ranks": []}, {"pg_name": "1"}], {}, 0),  # of all ranks, in older traces
        ([{"pg_name": "9", "ranks": [1, 2]}], {}, 0),  # this rank is no member: another's config
        ([], {}, 0),
        ([{"pg_name": 3, "ranks": [0]}, {"ranks": [0]}, 7, {"pg_name": "5", "ranks": "[0]"}], {}, 4),
        ([{"pg_name": "3", "ranks": [0, "1"]}, {"pg_name": "4", "ranks": [0]}], {"4": (0,)}, 1),
        ("none", {}, 1),
    ],
)
def test_members_of_groups(kineto: Kineto, config: Any, groups: dict[str, Any], damaged: int) -> None:
    info = {"rank": 0, "world_size": 4, "pg_config": config}
    trace = kineto.one(kineto.document(kineto.base(), distributedInfo=info))
    assert trace.groups == groups
    assert kineto.issues(trace) == ({"damaged_header": ("warning", damaged)} if damaged else {})


def said_of(trace: Trace) -> list[tuple[str | None, int]]:
    groups = [trace.names[g] if g >= 0 else None for g in trace.gpu.group.tolist()]
    return list(zip(groups, trace.gpu.bytes.tolist(), strict=True))


def test_the_simulator_says_what_its_documents_say(kineto: Kineto) -> None:
    run = ranks.simulate(
        ranks.decode_ranks(ranks=3, steps=3, subgroup=(1, 2), captures=(ranks.Capture(diverge=30),))
    )
    for made, doc in zip(ranks.to_traces(run), ranks.to_docs(run), strict=True):
        read = kineto.one(to_json(doc))
        assert said_of(read) == said_of(made)
        assert {*said_of(read)} >= {("0", 8_192), (None, -1)}
        assert read.groups == made.groups
        assert read.groups["0"] == (0, 1, 2)


def test_a_document_without_them_reads_as_before(kineto: Kineto) -> None:
    doc = json.loads(with_message(kineto, **dict.fromkeys(SAID, ...)))
    del doc["distributedInfo"]["rank"]
    trace = kineto.one(json.dumps(doc))
    assert trace.groups == {}
    assert message(trace) == (None, -1)
