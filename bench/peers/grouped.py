#!/usr/bin/env python3
"""grouped.py FILE.jsonl: times torch._grouped_mm and torch._scaled_grouped_mm on the shapes of the bench tables of
grouped_gemm and fp8_grouped_gemm, in the way of timing.py. Each row's group is drawn alike. The scaled product has e4m3 codes, with a scale for each row of a and of b. torch
has no grouped product with scales of 128 channels on Hopper. DeepGEMM has, where the wheel sgl-deep-gemm is installed;
its groups have multiples of 128 rows, so that no row is without a group. Appends a line per shape to FILE."""

import importlib.util
import sys

import torch

from timing import table

# Rows of all groups together, groups, columns, depth.
SHAPES = [(32768, 128, 1536, 2048), (32768, 128, 2048, 768), (16384, 128, 5760, 2880), (512, 128, 1536, 2048)]
SCALED = [(32768, 32, 4096, 7168), (32768, 32, 7168, 2048), (8192, 8, 4096, 7168), (32768, 128, 1536, 2048),
          (512, 128, 1536, 2048)]


def group_ends(M, E):
    return torch.bincount(torch.randint(E, (M,), device="cuda"), minlength=E).cumsum(0).int()


def plain_inputs(M, E, N, K):
    """Rows in the order of their groups, the weights of each group, and the end of each group."""
    b = (torch.randn(E, N, K, device="cuda") * K**-0.5).bfloat16()
    return torch.randn(M, K, device="cuda").bfloat16(), b, group_ends(M, E)


def scaled_inputs(M, E, N, K):
    """The same with e4m3 codes, and the scales of rows and of channels."""
    a = torch.randn(M, K, device="cuda").to(torch.float8_e4m3fn)
    b = torch.empty(E, N, K, device="cuda", dtype=torch.float8_e4m3fn)
    for group in b:
        group.copy_(torch.randn(N, K, device="cuda"))
    return a, b, group_ends(M, E), torch.rand(M, device="cuda"), torch.rand(E, N, device="cuda")


def plain(a, b, ends):
    return torch._grouped_mm(a, b.transpose(1, 2), offs=ends)


def scaled(a, b, ends, scale_a, scale_b):
    return torch._scaled_grouped_mm(a, b.transpose(1, 2), scale_a, scale_b, offs=ends, out_dtype=torch.bfloat16)


def deep_inputs(M, E, N, K):
    """Codes with scales of 128 channels, and the group of each row. Groups have multiples of 128 rows."""
    import deep_gemm
    a, b, _, _, _ = scaled_inputs(M, E, N, K)
    ends = group_ends(M // 128, E) * 128
    group = torch.bucketize(torch.arange(M, device="cuda"), ends, right=True).int()
    scale_a = deep_gemm.utils.get_mn_major_tma_aligned_tensor(torch.rand(M, K // 128, device="cuda"))
    return a, b, ends, scale_a, torch.rand(E, (N + 127) // 128, K // 128, device="cuda"), group


def deep(a, b, ends, scale_a, scale_b, group):
    import deep_gemm
    c = torch.empty(a.shape[0], b.shape[1], dtype=torch.bfloat16, device="cuda")
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a, scale_a), (b, scale_b), c, group)
    return c


def deep_agrees(out, a, b, ends, scale_a, scale_b, group):
    """Whether three rows are the products of their groups."""
    M, K = a.shape
    for row in (0, M // 2, M - 1):
        g = int(group[row])
        x = a[row].double().view(-1, 128) * scale_a[row].double()[:, None]
        w = b[g].double().view(-1, K // 128, 128) * scale_b[g].double().repeat_interleave(128, 0)[: b.shape[1], :, None]
        want = (w * x).sum((1, 2))
        if not bool(((out[row].double() - want).abs() <= 2**-5 * want.abs().max()).all()):
            return False
    return True


def agrees(out, a, b, ends, scale_a=None, scale_b=None):
    """Whether three rows are the products of their groups."""
    M = a.shape[0]
    for row in (0, M // 2, M - 1):
        group = int((ends <= row).sum())
        want = b[group].double() @ a[row].double()
        if scale_a is not None:
            want = want * scale_a[row].double() * scale_b[group].double()
        if not bool(((out[row].double() - want).abs() <= 2**-6 * want.abs().max()).all()):
            return False
    return True


def entry(peer, inputs, product, M, E, N, K, right=agrees):
    size = {}

    def prepare():
        sets = {}

        def make(i):
            sets[i] = inputs(M, E, N, K)
            size["b"] = sets[i][1].element_size() * E * N * K
            return sets[i], lambda: product(*sets[i])

        return make, lambda i, out: right(out, *sets[i])

    return ({"peer": peer, "M": M, "E": E, "N": N, "K": K}, prepare,
            lambda us: {"tflops": 2 * M * N * K / us / 1e6, "weights_gb_s": size["b"] / us / 1e3})


def main(path):
    work = [entry("torch_grouped_mm", plain_inputs, plain, *shape) for shape in SHAPES]
    work += [entry("torch_scaled_grouped_mm", scaled_inputs, scaled, *shape) for shape in SCALED]
    if importlib.util.find_spec("deep_gemm"):
        work += [entry("deep_gemm_grouped", deep_inputs, deep, *shape, right=deep_agrees) for shape in SCALED if shape[0] > 512]
    else:
        print("grouped: deep_gemm: not installed, not timed")
    return table(path, torch, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
