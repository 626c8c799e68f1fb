"""Other people's traces: an analysis whose parts add up, or one clear line."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from latencylab.analyzers import analyze
from latencylab.model.integrity import InputError
from latencylab.traces import open_capture

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "public"
pytestmark = pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not here")

STEPS = {  # file: what marks its steps, their kind, how many
    "sglang-qwen3-8b-decode-mi300x.json.gz": ("leg spans", "decode", 1),
    "sglang-qwen3-8b-prefill-mi300x.json.gz": ("leg spans", "prefill", 1),
    "vllm-decode-full-graph-rocm.json.gz": ("execute_ spans", "decode", 1),
    "vllm-piecewise-graph-rocm.json.gz": ("execute_ spans", "mixed", 1),
    "vllm-tp8-rank0-b200-eager.json.gz": ("execute_ spans", "prefill", 1),
    "qwen1.5-0.5b-h100-eager.json.gz": ("ProfilerStep#", "step", 1),
    "ns-resolution-rank0.json.gz": ("ProfilerStep#", "step", 5),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_found_and_parts_add_up(name: str) -> None:
    found = analyze(open_capture([PUBLIC / name], cache=False))
    (rank,) = found.ranks
    source, kind, count = STEPS[name]
    assert (rank.main.steps.source, rank.main.kind, rank.main.steps.found) == (source, kind, count)
    for parts in (rank.window_us, *(step.parts for step in rank.steps)):
        assert parts.wall == pytest.approx(parts.busy + parts.idle, abs=1e-6)
        assert parts.idle == pytest.approx(parts.idle_host + parts.idle_gpu + parts.idle_unknown, abs=1e-6)
        assert min(parts.busy, parts.idle_host, parts.idle_gpu, parts.idle_unknown) >= 0
    assert rank.main.step_us is not None
    assert sum(kernel.us for kernel in rank.main.kernels) == pytest.approx(rank.main.step_us.busy, abs=1e-6)


def test_a_rank_alone_is_said_to_be_alone() -> None:
    found = analyze(open_capture([PUBLIC / "vllm-tp8-rank0-b200-eager.json.gz"], cache=False))
    (alone,) = [issue for issue in found.integrity.issues if issue.code == "rank_alone"]
    assert "rank 0 of 8" in alone.detail
    assert found.collectives is None


def test_eight_ranks_are_paired(tmp_path: Path) -> None:
    with tarfile.open(PUBLIC / "dlrm-8ranks-v100.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = analyze(open_capture([tmp_path / "dlrm_kineto"], cache=False))
    assert found.collectives is not None
    assert found.alignment is not None
    assert found.collectives.paired == 8
    assert found.collectives.unpaired == 0
    for clock in found.alignment.ranks:
        assert abs(clock.offset_us) < 10  # one host, stamps of whole µs
        assert clock.residual_us is not None
    assert sum(late.share for late in found.collectives.late) == pytest.approx(1)


@pytest.mark.parametrize("name", ["nsys-2gpu-sendrecv.sqlite.xz", "nsys-graph-level.sqlite.xz"])
def test_what_is_no_kineto_trace_is_one_line(name: str) -> None:
    with pytest.raises(InputError) as refused:
        open_capture([PUBLIC / name], cache=False)
    assert "\n" not in str(refused.value)
