"""Kernel classes: the bundled table on names from real traces, and a table of one's own."""

from __future__ import annotations

import pytest

from latencylab.analyzers.kernels import extend_classes, load_classes
from latencylab.model.integrity import InputError


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("fused_moe_kernel", "MoE GEMM"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "MoE GEMM"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "dense GEMM"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64", "dense GEMM"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "dense GEMM"),
        ("void legacy::sm90::decode::dense::flash_fwd_splitkv_mla_kernel<Traits>", "MLA"),
        ("create_flashmla_kv_indices_triton", "MLA"),
        ("fused_kda_conv_gating_verify_kernel", "KDA"),
        ("_fused_mamba_state_scatter_with_mask_kernel", "KDA"),
        ("_fwd_kernel", "other attention"),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<0>", "other attention"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "collective"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>", "collective"),
        (
            "void sglang::all_reduce_1shot_push_kernel<__nv_bfloat16, 2u, true>(sglang::Params<2u>)",
            "collective",
        ),
        ("void sglang::all_reduce_2shot_pull_kernel<sglang::LoadStoreImpl<V, 4u, true>>", "collective"),
        ("void sglang::memcpy_kernel<32u>(void*, void const*, unsigned int)", "copy"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<P, T, 2>",
            "collective",
        ),
        ("void flashinfer::trtllm_allreduce::reduce_fusion::lamport_initialize_kernel<float>", "copy"),
        ("void at::cuda::(anonymous namespace)::spin_kernel(long)", "other"),
        ("_router_triton_kernel", "router"),
        ("_moe_align_small_numel_kernel", "router"),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "norm"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps>",
            "sampling",
        ),
        ("_verify_commit_outputs_kernel", "sampling"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<4u>>", "copy"),
        ("something else", "other"),
    ],
)
def test_the_bundled_table(kernel: str, name: str) -> None:
    assert load_classes().class_of(kernel) == name


def test_a_table_of_ones_own_is_asked_first() -> None:
    text = '[[class]]\nname = "mine"\npatterns = ["^fused_moe", "else$"]\n'
    table = extend_classes(text, "mine.toml")
    assert table.class_of("fused_moe_kernel") == "mine"
    assert table.class_of("something else") == "mine"
    assert table.class_of("_router_triton_kernel") == "router"


@pytest.mark.parametrize(
    "text",
    ["nonsense", "class = 3", '[[class]]\nname = "x"', '[[class]]\nname="x"\npatterns=["("]'],
)
def test_a_bad_table_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"mine\.toml"):
        extend_classes(text, "mine.toml")
