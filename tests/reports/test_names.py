"""Short names of kernels as compilers write them."""

from __future__ import annotations

import pytest

from latencylab.reports.names import collective_name, short_name

# Names as Kineto writes them, "@" standing for "at::native::".
CASES = {
    "fused_moe_kernel": "fused_moe_kernel",
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT": "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
    "triton_poi_fused_clamp_mul_silu_split_0": "triton_poi_fused_clamp_mul_silu_split_0",
    "Memcpy DtoH (Device -> Pinned)": "Memcpy DtoH (Device -> Pinned)",
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, unsigned int)": "RMSNormKernel",
    "void @vectorized_elementwise_kernel<4, @FillFunctor<int>, std::array<char*, 1ul>, false>(int)": (
        "vectorized_elementwise_kernel<FillFunctor>"
    ),
    "void @elementwise_kernel<128, 4, @gpu_kernel_impl_nocast<@BinaryFunctor<c10::BFloat16, "
    "@binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)": (
        "elementwise_kernel<MulFunctor>"
    ),
    "void @unrolled_elementwise_kernel<@direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::"
    "operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>(int)": (
        "unrolled_elementwise_kernel<direct_copy_kernel_cuda>"
    ),
    "void @index_elementwise_kernel<128, 4, @gpu_index_kernel<@index_put_kernel_impl<@OpaqueType<2> >"
    "(at::TensorIterator&)::{lambda(char*, long)#1}>>(long)": (
        "index_elementwise_kernel<index_put_kernel_impl>"
    ),
    "void @reduce_kernel<512, 1, @ReduceOp<float, @ArgMaxOps<float>, unsigned int> >(int)": (
        "reduce_kernel<ArgMaxOps>"
    ),
    "void @(anonymous namespace)::CatArrayBatchedCopy<@(anonymous namespace)::OpaqueType<4u>, 2>(int*)": (
        "CatArrayBatchedCopy"
    ),
    "void Outer<int>::inner_kernel<3>(float*)": "inner_kernel",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64EEEvPT0_": "add_rmsnorm_quant_kernel",
    "_ZN12_GLOBAL__N_110tiny_thingEv": "tiny_thing",
    "_Z9my_kernelPf": "my_kernel",
    "<script>alert(1)</script>": "<script>alert(1)</script>",
    "": "",
    "void f<<<((": "f",
}


@pytest.mark.parametrize("kernel", CASES)
def test_short_name(kernel: str) -> None:
    assert short_name(kernel.replace("@", "at::native::")) == CASES[kernel]


def test_kinds_of_collective_keep_group_and_size() -> None:
    assert collective_name("sglang::cross_device_reduce_1stage") == "cross_device_reduce_1stage"
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL · group 0 (ranks 1, 2) · 10 KiB"
    assert collective_name(nccl) == nccl
