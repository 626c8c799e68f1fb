"""What is known of collectives by their kernels' names, as SGLang, FlashInfer and NCCL write them."""

from __future__ import annotations

import pytest

from latencylab.analyzers.clocks import LEAVES_FIRST_NS, leaves_first
from latencylab.analyzers.collectives import BARRIER_AT_END, BLOCKING, NOT_BLOCKING, kind_of_kernel

PUSH_PARAMS = "<__nv_bfloat16, 2u, true>(sglang::AllReducePushParams<2u>)"
PULL_PARAMS = (
    "<sglang::LoadStoreImpl<device::AlignedVector<__nv_bfloat162, 4u>, 4u, true>, __nv_bfloat16, 4u, true>"
    "(sglang::AllReducePullParams<4u>)"
)
SGLANG = "sglang::all_reduce_{}_kernel"
FUSED = "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_{}"
FUSION = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_"
PATTERN = (
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 4, true"  # and more
)
NCCL = "(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("kernel", "kind", "barrier", "leaves"),
    [
        (
            f"void sglang::all_reduce_1shot_push_kernel{PUSH_PARAMS}",
            SGLANG.format("1shot_push"),
            False,
            "push",
        ),
        (
            f"void sglang::all_reduce_2shot_push_kernel{PUSH_PARAMS}",
            SGLANG.format("2shot_push"),
            False,
            "two-shot push",
        ),
        (f"void sglang::all_reduce_1shot_pull_kernel{PULL_PARAMS}", SGLANG.format("1shot_pull"), True, None),
        (f"void sglang::all_reduce_2shot_pull_kernel{PULL_PARAMS}", SGLANG.format("2shot_pull"), True, None),
        (
            "void all_reduce_one_shot_push_kernel<__nv_bfloat16, 4u, true>",
            "all_reduce_one_shot_push_kernel",
            False,
            "push",
        ),
        (
            "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>(sglang::RankData*, int)",
            "sglang::cross_device_reduce_1stage",
            False,
            "one shot",
        ),
        (
            "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 4>(sglang::RankData*, int)",
            "sglang::cross_device_reduce_2stage",
            True,
            None,
        ),
        (f"{FUSION}oneshot_lamport{PATTERN}, true>", FUSED.format("oneshot_lamport"), False, "push"),
        (f"{FUSION}twoshot_sync{PATTERN}>", FUSED.format("twoshot_sync"), True, None),
        (
            f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL{NCCL}",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            False,
            "other",
        ),
        (f"ncclDevKernel_AllGather_RING_LL{NCCL}", "ncclDevKernel_AllGather_RING_LL", False, "other"),
    ],
)
def test_who_waits_and_who_leaves_first(kernel: str, kind: str, barrier: bool, leaves: str | None) -> None:
    assert kind_of_kernel(kernel) == kind
    assert BLOCKING.search(kind)
    assert not NOT_BLOCKING.search(kind)
    assert bool(BARRIER_AT_END.search(kind)) == barrier
    if leaves is not None:  # what ends in a barrier is not asked
        assert leaves_first(kind) == LEAVES_FIRST_NS[leaves]
