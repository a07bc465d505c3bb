#!/usr/bin/env python3
"""fp8.py FILE.jsonl: times torch's block-wise scaled_mm (cuBLASLt) on the shapes of fp8_block_gemm's bench table, in the
way of timing.py, and DeepGEMM where the wheel sgl-deep-gemm is installed. Appends a line per shape to FILE."""

import importlib.util
import sys

import torch

from timing import table

SHAPES = [(4096, 7168, 16384), (4096, 2112, 7168), (4096, 24576, 1536), (4096, 7168, 2048), (4096, 4096, 7168),
          (64, 7168, 2048), (64, 4096, 7168)]


def inputs(M, N, K):
    """Codes and scales: 1 by 128 of a, column-major, and 128 by 128 of b."""
    a = torch.randn(M, K, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn)
    scale_a = torch.rand(K // 128, M, device="cuda").t()
    scale_b = torch.rand((N + 127) // 128, K // 128, device="cuda")
    return a, b, scale_a, scale_b


def product(a, b, scale_a, scale_b):
    return torch._scaled_mm(a, b.t(), scale_a, scale_b.t(), out_dtype=torch.bfloat16)


def deep_inputs(M, N, K):
    """The same with the scales of a where DeepGEMM wants them, which an engine does when it quantises."""
    import deep_gemm
    a, b, scale_a, scale_b = inputs(M, N, K)
    return a, b, deep_gemm.utils.get_mn_major_tma_aligned_tensor(scale_a.contiguous()), scale_b


def deep_product(a, b, scale_a, scale_b):
    import deep_gemm
    c = torch.empty(a.shape[0], b.shape[0], dtype=torch.bfloat16, device="cuda")
    deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), c)
    return c


def expected(a, b, scale_a, scale_b, row):
    K = a.shape[1]
    x = a[row].double().view(-1, 128) * scale_a[row].double()[:, None]
    w = b.double().view(b.shape[0], K // 128, 128)
    w = w * scale_b.double().repeat_interleave(128, 0)[: b.shape[0], :, None]
    return (w * x).sum((1, 2))


def entry(peer, inputs, product, M, N, K):
    def prepare():
        sets = {}

        def make(i):
            sets[i] = inputs(M, N, K)
            return sets[i], lambda: product(*sets[i])

        def right(i, out):
            want = expected(*sets[i], M // 2)
            return bool(((out[M // 2].double() - want).abs() <= 2**-5 * want.abs().max()).all())

        return make, right

    keys = {"peer": peer, "M": M, "N": N, "K": K}
    return keys, prepare, lambda us: {"tflops": 2 * M * N * K / us / 1e6}


if __name__ == "__main__":
    work = [entry("torch_scaled_mm_blockwise", inputs, product, *shape) for shape in SHAPES]
    if importlib.util.find_spec("deep_gemm"):
        work += [entry("deep_gemm", deep_inputs, deep_product, *shape) for shape in SHAPES]
    else:
        print("fp8: deep_gemm: not installed, not timed")
    sys.exit(table(sys.argv[1], torch, work))
