"""The plain way to check a ragged paged-decode kernel, as a stop-watch for `assay run bench/rate/paged_decode.yaml`.

Case by case: random paged K and V, a kernel (PyTorch's SDPA over the gathered keys of each request, bf16), a PyTorch
reference in f32 on the same device, and allclose(atol = rtol = 1e-2). No poison, guards, second runs or f64.

    python3 bench/rate/allclose_loop.py [SECONDS]     prints one JSON object
"""
import json
import sys
import time

import torch

HEADS, KV_HEADS, CHANNELS, BLOCK = 4, 2, 128, 16


def one_case(generator):
    batch = int(torch.randint(1, 9, (1,), generator=generator))
    lengths = torch.randint(1, 513, (batch,), generator=generator).tolist()
    blocks = [(length + BLOCK - 1) // BLOCK for length in lengths]
    order = torch.randperm(sum(blocks), generator=generator).cuda()
    pool = (sum(blocks), BLOCK, KV_HEADS, CHANNELS)
    k = torch.randn(pool, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(pool, device="cuda", dtype=torch.bfloat16)
    q = torch.randn((batch, HEADS, CHANNELS), device="cuda", dtype=torch.bfloat16)
    start, good = 0, True
    for i, length in enumerate(lengths):
        table = order[start : start + blocks[i]]
        start += blocks[i]
        keys = k[table].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, dim=1).transpose(0, 1)
        values = v[table].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, dim=1).transpose(0, 1)
        got = torch.nn.functional.scaled_dot_product_attention(q[i, :, None], keys, values, scale=0.125)[:, 0]
        scores = (q[i, :, None].float() @ keys.float().transpose(1, 2)) * 0.125
        expected = (scores.softmax(-1) @ values.float())[:, 0]
        good = good and torch.allclose(got.float(), expected, atol=1e-2, rtol=1e-2)
    return good


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        one_case(generator)
    cases = wrong = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        wrong += not one_case(generator)
        cases += 1
    took = time.perf_counter() - start
    name = torch.cuda.get_device_name()
    print(json.dumps({"loop": "allclose", "gpu": name, "torch": torch.__version__, "cases": cases, "wrong": wrong,
                      "seconds": round(took, 2), "cases_per_second": round(cases / took, 1)}))


main()
