"""The sample captures show what their README says."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

from latencylab.model.integrity import InputError
from latencylab.traces import SAMPLES, open_capture, read_client, read_clock, sample_path

# TPOT of the six requests before the profile: lowest, highest; median step; ms.
MEASURED = {
    "nextn": (1.81, 2.12, 5.92),
    "nextn-host-stall": (2.17, 2.43, 7.30),
    "dspark": (1.76, 1.76, 8.76),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_unprofiled_part(name: str) -> None:
    low, high, step = MEASURED[name]
    requests = read_client(sample_path(name))
    clock = read_clock(sample_path(name), 0)
    assert requests is not None
    assert clock is not None
    tpot = [request.tpot_ms for request in requests]
    assert len(tpot) == 6
    assert (round(min(filter(None, tpot)), 2), round(max(filter(None, tpot)), 2)) == (low, high)
    kind = np.array(clock.kind)
    starts = [clock.start_ns[(kind == "decode") & (clock.request == index)] for index in range(6)]
    assert np.median(np.concatenate([np.diff(its) for its in starts])) / 1e6 == pytest.approx(step, abs=0.02)
    assert sorted(set(clock.request)) == list(range(6))
    assert all(np.sum((kind == "prefill") & (clock.request == index)) == 1 for index in range(6))
    assert (clock.waiting_ns == -1).all()
    for index, request in enumerate(requests):
        assert request.start_ns is not None
        rows = clock.start_ns[clock.request == index]
        assert rows.min() >= request.start_ns
        assert rows.max() <= request.start_ns + request.chunks[-1][0]


@pytest.mark.parametrize("name", SAMPLES)
def test_capture(name: str) -> None:
    capture = open_capture([sample_path(name)], cache=False)
    assert capture.folder == sample_path(name)
    assert capture.manifest is not None
    stall = {"KDAAttnBackend.needs_cpu_seq_lens": True}
    assert capture.manifest["faults"] == (stall if name == "nextn-host-stall" else {})
    (trace,) = capture.traces
    assert (trace.rank, trace.world_size, trace.device_name) == (0, 1, "NVIDIA H200")
    assert sum(trace.names[i] == "scheduler.run_batch" for i in trace.spans.name) >= 29


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_private_in_it(name: str) -> None:
    folder = sample_path(name)
    text = gzip.decompress((folder / "rank0.trace.json.gz").read_bytes())
    manifest = (folder / "manifest.json").read_bytes()
    for private in (rb"host_?name", rb"traceName", rb"/tmp", rb"/home", rb"/root", rb"RUN_ID"):
        assert not re.search(private, text + manifest)
    assert json.loads(manifest)["host"] is None


def test_size_and_unknown_name() -> None:
    sizes = [
        path.stat().st_size for name in SAMPLES for path in sample_path(name).rglob("*") if path.is_file()
    ]
    assert sum(sizes) < 12e6
    with pytest.raises(InputError, match="no such sample"):
        sample_path("../nextn")
