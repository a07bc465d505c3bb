#!/usr/bin/env python3
"""fp8.py FILE.jsonl: times torch's block-wise scaled_mm (cuBLASLt) on the shapes of fp8_block_gemm's bench table, in the
way of peer.py: rotated inputs, one graph, a sweep before each replay. Appends a line per shape to FILE."""

import json
import sys

import torch

from peer import spread

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


def expected(a, b, scale_a, scale_b, row):
    K = a.shape[1]
    x = a[row].double().view(-1, 128) * scale_a[row].double()[:, None]
    w = b.double().view(b.shape[0], K // 128, 128)
    w = w * scale_b.double().repeat_interleave(128, 0)[: b.shape[0], :, None]
    return (w * x).sum((1, 2))


def figure(M, N, K, other):
    sets = [inputs(M, N, K) for _ in range(max(2, min(16, 130_000_000 // (M * K + N * K) + 1)))]
    got, want = product(*sets[0])[M // 2].double(), expected(*sets[0], M // 2)
    if not bool(((got - want).abs() <= 2**-5 * want.abs().max()).all()):
        return {"failed": "not what the formula gives"}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for s in sets:
            product(*s)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for s in sets:
                product(*s)
        samples = []
        for _ in range(21):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            other.sum()
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3 / len(sets))
    middle, low, high = spread(samples)
    return {"median_us": middle, "low_us": low, "high_us": high, "samples": len(samples),
            "tflops": 2 * M * N * K / middle / 1e6}


def main(path):
    other = torch.empty(64 << 20, device="cuda").normal_()
    with open(path, "a") as file:
        for M, N, K in SHAPES:
            line = {"bench": "peer", "peer": "torch_scaled_mm_blockwise", "torch": torch.__version__, "M": M, "N": N, "K": K}
            try:
                line |= figure(M, N, K, other)
            except RuntimeError as why:
                line["unsupported"] = str(why).strip().split("\n")[0][:200]
            print(line, flush=True)
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1])
