"""The sample captures show what their README says."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

from latencylab.model.integrity import InputError
from latencylab.traces import SAMPLES, open_capture, read_client, read_clock, sample_path
from latencylab.traces.trim import cleared_manifest

# TPOT of the six requests before the profile: lowest, highest; median step on the GPU; ms.
MEASURED = {
    "nextn": (1.79, 1.93, 5.88),
    "nextn-host-stall": (2.06, 2.33, 6.81),
    "dspark": (1.79, 1.80, 8.97),
    "plain": (3.24, 3.27, 3.24),
}
KIND = {"nextn": "NEXTN", "nextn-host-stall": "NEXTN", "dspark": "DSpark", "plain": "decode"}
LEGS = {
    "nextn": {"draft", "verify", "extend"},
    "nextn-host-stall": {"draft", "verify", "extend"},
    "dspark": {"draft", "verify"},
    "plain": {"decode"},
}
WARMED_UP = 4  # the clock counts the server's own first request and the warm-up as well
# What a manifest may say of the environment.
SWITCHES = re.compile(r"SGLANG_\w+|LATENCYLAB_\w+|NCCL_\w+|CUDA_\w+|TORCH_\w+")


@pytest.mark.parametrize("name", MEASURED)
def test_unprofiled_part(name: str) -> None:
    low, high, step = MEASURED[name]
    requests = read_client(sample_path(name))
    clock = read_clock(sample_path(name), 0)
    assert requests is not None
    assert clock is not None
    tpot = [request.tpot_ms for request in requests]
    assert len(tpot) == 6
    assert (round(min(filter(None, tpot)), 2), round(max(filter(None, tpot)), 2)) == (low, high)
    kind, span = np.array(clock.kind), np.array(clock.span)
    is_step = span == "ll.step"
    of_request = [is_step & (clock.request == WARMED_UP + index) for index in range(6)]
    assert sum(rows.sum() for rows in of_request) == is_step.sum()
    lengths = [np.diff(clock.gpu_start_ns[rows & (kind == KIND[name])]) for rows in of_request]
    assert np.median(np.concatenate(lengths)) / 1e6 == pytest.approx(step, abs=0.01)
    for rows, request in zip(of_request, requests, strict=True):
        assert (kind[rows] == "prefill").sum() == 1
        assert set(kind[rows]) == {"prefill", KIND[name]}
        # One chunk a step; a last step may be under way when the request ends.
        assert rows.sum() - len(request.chunks) in (0, 1)
        assert request.start_ns is not None
        assert clock.start_ns[rows].min() >= request.start_ns
        assert clock.end_ns[rows].max() <= request.start_ns + request.chunks[-1][0]


@pytest.mark.parametrize("name", MEASURED)
def test_step_clock_has_spans_waits_and_gpu_times(name: str) -> None:
    clock = read_clock(sample_path(name), 0)
    assert clock is not None
    span = np.array(clock.span)
    is_wait = np.char.startswith(span, "ll.wait.")
    assert ((clock.waiting_ns >= 0) == is_wait).all()
    assert (clock.waiting_ns <= clock.end_ns - clock.start_ns)[is_wait].all()
    assert (clock.end_ns >= clock.start_ns).all()
    timed = {"ll.step", *(f"ll.{leg}" for leg in LEGS[name])}
    assert set(span[clock.gpu_start_ns >= 0]) == set(span[clock.cpu_ns >= 0]) == timed
    assert {f"ll.replay.{leg}" for leg in LEGS[name]} <= set(span)
    assert (span == "ll.wait.event_synchronize").sum() == (span == "ll.step").sum()
    stalls = (span == "ll.wait.stream_synchronize").sum()
    if name == "nextn-host-stall":
        assert stalls / (span == "ll.step").sum() == pytest.approx(1, abs=0.01)
        waited = clock.waiting_ns[span == "ll.wait.stream_synchronize"]
        assert 1e6 < np.median(waited) < 2.5e6
    else:
        assert stalls == 0


@pytest.mark.parametrize("name", MEASURED)
def test_capture(name: str) -> None:
    capture = open_capture([sample_path(name)], cache=False)
    assert capture.folder == sample_path(name)
    assert capture.manifest is not None
    stall = {"kda-cpu-seq-lens": {"ranks": [0]}}
    assert capture.manifest["faults"] == (stall if name == "nextn-host-stall" else {})
    assert set(capture.manifest["hooks"].values()) == {"took"}
    assert capture.manifest["packages"]["sglang"] == "0.5.23"
    (trace,) = capture.traces
    assert (trace.rank, trace.world_size, trace.device_name) == (0, 1, "NVIDIA H200")
    assert sum(trace.names[i] == "scheduler.run_batch" for i in trace.spans.name) >= 29
    assert sum(trace.names[i].startswith("ll.step[") for i in trace.spans.name) == 31


@pytest.mark.parametrize(
    ("name", "kind", "requests", "steps", "step_ms"),
    [
        ("nextn-tp2-stall", "NEXTN", (2, 2.52, 2.55), 13, 8.23),
        ("dspark-tp2-stall", "DSpark", (4, 2.04, 2.05), 14, 10.12),
    ],
)
def test_two_ranks(
    name: str, kind: str, requests: tuple[int, float, float], steps: int, step_ms: float
) -> None:
    folder = sample_path(name)
    capture = open_capture([folder], cache=False)
    assert [(trace.rank, trace.world_size, trace.device_name) for trace in capture.traces] == [
        (0, 2, "NVIDIA H200"),
        (1, 2, "NVIDIA H200"),
    ]
    assert capture.manifest is not None
    assert capture.manifest["faults"] == {"kda-cpu-seq-lens": {"rank": 1, "ranks": [1]}}
    assert set(capture.manifest["hooks"].values()) == {"took"}
    assert all((folder / f"rank{rank}.trace.json.gz").stat().st_size < 1e6 for rank in (0, 1))
    tpot = [request.tpot_ms or 0.0 for request in read_client(folder) or ()]
    assert (len(tpot), round(min(tpot), 2), round(max(tpot), 2)) == requests
    for trace in capture.traces:
        assert sum(trace.names[i].startswith("ll.step[") for i in trace.spans.name) == steps
        clock = read_clock(folder, trace.rank)
        assert clock is not None
        span = np.array(clock.span)
        is_step = span == "ll.step"
        lengths = np.diff(clock.gpu_start_ns[is_step & (np.array(clock.kind) == kind)])
        assert np.median(lengths) / 1e6 == pytest.approx(step_ms, abs=0.015)
        stalls = (span == "ll.wait.stream_synchronize").sum() / is_step.sum()
        assert stalls == pytest.approx(trace.rank, abs=0.02)


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_private_in_it(name: str) -> None:
    folder = sample_path(name)
    text = gzip.decompress((folder / "rank0.trace.json.gz").read_bytes())
    manifest = (folder / "manifest.json").read_bytes()
    rest = b"".join(path.read_bytes() for path in (folder / "unprofiled").iterdir())
    for private in (
        *(rb"host_?name", rb"traceName", rb"trace_id", rb"/(?:tmp|home|root|work|usr|opt|mnt)\b", rb"RUN_ID"),
        *(rb"CUDA_HOME", rb"\b127\.0\.0\.1\b", rb"localhost"),
    ):
        assert not re.search(private, text + manifest)
    for private in (rb"/(?:tmp|home|root|work)/", rb"localhost"):
        assert not re.search(private, rest)
    said = json.loads(manifest)
    assert said.get("host") is None
    assert all(SWITCHES.fullmatch(key) and not value.startswith("/") for key, value in said["env"].items())


@pytest.mark.parametrize("name", SAMPLES)
def test_sharing_it_again_would_take_nothing_away(name: str) -> None:
    manifest = json.loads((sample_path(name) / "manifest.json").read_bytes())
    assert cleared_manifest(manifest) == manifest


def test_the_readme_says_what_was_measured() -> None:
    lines = (sample_path("nextn").parent / "README.md").read_text().splitlines()
    table = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in lines
        if line.startswith("| ") and (cells := line.strip("| ").split(" | "))
    }
    rows = [table[f"unprofiled {row}, ms"] for row in ("TPOT of the six requests", "step on the GPU, median")]
    assert rows[0] == [f"{low:.2f} to {high:.2f}" for low, high, _ in MEASURED.values()]
    assert rows[1] == [f"{step:.2f}" for _, _, step in MEASURED.values()]


def test_size_and_unknown_name() -> None:
    sizes = [
        sum(path.stat().st_size for path in sample_path(name).rglob("*") if path.is_file())
        for name in SAMPLES
    ]
    assert max(sizes) < 3e6
    assert sum(sizes) < 14e6
    with pytest.raises(InputError, match="no such sample"):
        sample_path("../nextn")
