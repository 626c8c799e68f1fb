"""The words of a verdict."""

from __future__ import annotations

import pytest

import latencylab
from latencylab.analyzers.skew import INHERITED
from latencylab.analyzers.uneven import COMMON
from latencylab.analyzers.verdict import why_late

TEMPLATE = "void at::cuda::(anonymous namespace)::spin_kernel<float>(long)"


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("", ""),
        (COMMON, ", whose host is behind, mostly with work that the other hosts do as well"),
        ("host idle: api", ", whose host is behind, most of all because of launch and other API calls"),
        (
            "host idle: span ll.draft",
            ", whose host is behind, most of all because of Python or untraced work in ll.draft",
        ),
        (
            "host idle: cudaStreamSynchronize in run_batch",
            ", whose host is behind, most of all because of cudaStreamSynchronize in run_batch",
        ),
        (f"GPU work: {TEMPLATE}", ", whose GPU works longer, most of all in at::cuda::spin_kernel"),
        (
            "GPU idle: in_graph",
            ", whose GPU idles longer by itself, most of all for gaps between kernels inside graphs",
        ),
        (INHERITED, ", which another collective kept"),
        ("idle with no known launch", ", which is late because of: idle with no known launch"),
    ],
)
def test_why_a_rank_is_late(cause: str, said: str) -> None:
    assert why_late(cause) == said


def test_a_site_is_named_once() -> None:
    assert why_late("host idle: f in g", "f in g").endswith(" because of that call")
    text = latencylab.open("sample:dspark-tp2-stall").analysis.verdict.text
    assert text.count("cudaStreamSynchronize in scheduler.run_batch") == 1
    assert text.endswith(" for rank 1, whose host is behind, most of all because of that call.")


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ("nextn", "; the GPU works longest in MoE GEMM (fused_moe_kernel)."),
        ("dspark", "; the GPU works longest in other attention (_fwd_kernel)."),
    ],
)
def test_what_a_bound_gpu_works_longest_in(sample: str, said: str) -> None:
    verdict = latencylab.open(f"sample:{sample}").analysis.verdict
    assert verdict.sentences[0].startswith("GPU bound: the ")
    assert verdict.sentences[0].endswith(said)
