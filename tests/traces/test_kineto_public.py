"""Traces that others published, where they lie beside the project: each opens and gives known counts."""

from __future__ import annotations

import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest

from latencylab.model.integrity import InputError
from latencylab.traces.kineto import read_kineto

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "public"
pytestmark = pytest.mark.skipif(not PUBLIC.is_dir(), reason="no public traces here")

# (rank, device, GPU ops, API calls, framework ops, Python frames, stacks, shapes)
KINETO = {
    "ns-resolution-rank0": (0, 0, 6095, 15329, 23910, 0, False, False),
    "qwen1.5-0.5b-h100-eager": (0, 0, 1707, 1922, 4186, 4262, True, True),
    "sglang-qwen3-8b-decode-mi300x": (0, 9, 558, 29, 61, 821, True, True),
    "sglang-qwen3-8b-prefill-mi300x": (0, 9, 534, 1069, 3786, 53321, True, True),
    "vllm-decode-full-graph-rocm": (0, 2, 434, 20, 100, 984, True, True),
    "vllm-piecewise-graph-rocm": (0, 2, 423, 381, 642, 17038, True, True),
    "vllm-tp8-rank0-b200-eager": (0, 0, 929, 1372, 4809, 15230, True, True),
}


@pytest.mark.parametrize("name", sorted(KINETO))
def test_kineto(name: str) -> None:
    (trace,) = read_kineto(PUBLIC / f"{name}.json.gz")
    tables = (trace.gpu, trace.api, trace.ops, trace.frames)
    found = (trace.rank, trace.device, *(len(t) for t in tables), trace.stacks, trace.shapes)
    assert found == KINETO[name]
    # Nothing of a healthy trace is taken for damage.
    assert {i.severity for i in trace.issues} <= {"info"}
    for table in tables:
        assert np.all(table.end >= table.start)
        assert np.all(np.diff(table.start) >= 0)


def test_digits_beyond_a_double() -> None:
    (trace,) = read_kineto(PUBLIC / "ns-resolution-rank0.json.gz")
    assert trace.window is not None
    assert trace.window[0] == 1_712_195_495_406_752_797
    assert np.count_nonzero(trace.gpu.start % 1000) > 0.9 * len(trace.gpu)


def test_a_collective_says_what_it_is() -> None:
    (trace,) = read_kineto(PUBLIC / "vllm-tp8-rank0-b200-eager.json.gz")
    (row,) = np.flatnonzero(trace.gpu.group >= 0)
    assert trace.names[trace.gpu.name[row]].startswith("ncclDevKernel_AllGather_RING_LL")
    assert (trace.names[trace.gpu.group[row]], trace.gpu.bytes[row]) == ("3", 25_136 * 2)
    assert (len(trace.groups), trace.groups["3"]) == (15, tuple(range(8)))


def test_eight_ranks(tmp_path: Path) -> None:
    with tarfile.open(PUBLIC / "dlrm-8ranks-v100.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    traces = [t for path in sorted(tmp_path.rglob("*.json")) for t in read_kineto(path)]
    assert [(t.rank, t.device) for t in traces] == [(r, r) for r in range(8)]
    assert {t.device_name for t in traces} == {"Tesla V100-SXM2-32GB"}
    assert {i.code for t in traces for i in t.issues} <= {"no_base_time", "rank_guessed"}


@pytest.mark.parametrize("name", ["nsys-2gpu-sendrecv", "nsys-graph-level"])
def test_other_profilers(tmp_path: Path, name: str) -> None:
    packed = PUBLIC / f"{name}.sqlite.xz"
    with pytest.raises(InputError, match="xz-compressed"):
        read_kineto(packed)
    path = tmp_path / f"{name}.sqlite"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    with pytest.raises(InputError, match="SQLite"):
        read_kineto(path)


@pytest.mark.parametrize("name", ["nextn", "nextn-host-stall", "dspark"])
def test_own_captures(name: str) -> None:
    (path,) = (PUBLIC.parent / "h200-ling3-rank-tp1" / name).glob("*.json.gz")
    (trace,) = read_kineto(path)
    assert trace.issues == ()
    assert (trace.rank, trace.device, trace.device_name) == (0, 0, "NVIDIA H200")
    assert (trace.stacks, trace.shapes) == (False, False)
    before = np.maximum.accumulate(np.concatenate(([trace.gpu.start[0]], trace.gpu.end[:-1])))
    busy = int(np.maximum(0, trace.gpu.end - np.maximum(trace.gpu.start, before)).sum())
    assert busy == {"nextn": 168_573_012, "nextn-host-stall": 168_429_756, "dspark": 251_711_864}[name]
