#!/usr/bin/env python3
"""explain_peers.py list | make DIR [--only TEXT] | judge ASSAY DIR [--seconds S] [--least SHARE] [--jsonl FILE]

`make` records products of cuBLAS, cuBLASLt, CUTLASS (torch._grouped_mm) and Triton on this machine's GPU, a folder of
assay judge for each. A product that fails is named, the others are made, and the status is 1.

`judge` runs `assay explain` over each folder of DIR, and prints its lines and the share of products that are explained.
The status is 1 if that is below SHARE (0.95), or if a search fails or takes more than S seconds (60). It needs no GPU.

A result of 16 bits hides most contracts. Where a kernel gives no f32 result, the second half of K cancels the first,
and what is left shows how the sums were cut (docs/last-bit.md)."""

import argparse
import json
import os
import subprocess
import sys
import time

SEED, ROWS, COLUMNS = 20261127, 8, 16  # rows and columns that are kept of a product
PRODUCTS = []  # names, and functions of torch


# ---- inputs ------------------------------------------------------------------------------------------------


def drawn(torch, rows, K, dtype, draw):
    """Numbers of either sign whose sizes lie several powers of two apart, so that parts and orders show."""
    x = torch.randn(rows, K, generator=draw)
    return (x * torch.exp2(torch.randint(-4, 5, x.shape, generator=draw).float())).to(dtype)


def cancelled(torch, a, b):
    """The second half of K becomes the first in another order, with the other sign in b."""
    half = a.shape[1] // 2
    order = torch.arange(half) * 5 % half if half % 5 else torch.arange(half).flip(0)
    a, b = a.float(), b.float()
    a[:, half:2 * half], b[..., half:2 * half] = a[:, order], -b[..., order]
    return a, b


def kept(count, most):
    """Rows that are kept: the first, the last, and others that lie apart."""
    return sorted({i * (count - 1) // max(most - 1, 1) for i in range(most)})


def recorded(torch, a, b, c, scale_a=None, scale_b=None):
    """The kept part of a product, on the host."""
    rows, columns = kept(c.shape[0], ROWS), kept(c.shape[1], COLUMNS)
    part = {"a": a[rows], "b": b[columns], "c": c[rows][:, columns]}
    if scale_a is not None:
        part["scale_a"], part["scale_b"] = scale_a[rows], scale_b[columns]
    return {name: tensor.cpu().contiguous() for name, tensor in part.items()}


def generator(torch, name):
    """The draw of a product: it follows from its name."""
    return torch.Generator().manual_seed(SEED + sum(ord(letter) << (i % 16) for i, letter in enumerate(name)))


# ---- cuBLAS and cuBLASLt -----------------------------------------------------------------------------------


def cublas(torch, name, M, N, K, dtype, wide):
    """torch.mm with an f32 result, or with a result of the factors' type and factors that cancel."""
    draw, dtype = generator(torch, name), getattr(torch, dtype)
    a, b = drawn(torch, M, K, dtype, draw), drawn(torch, N, K, dtype, draw)
    if not wide:
        a, b = (x.to(dtype) for x in cancelled(torch, a, b))
    x, y = a.cuda(), b.cuda().t()
    c = torch.mm(x, y, out_dtype=torch.float32) if wide else torch.mm(x, y)
    return recorded(torch, a, b, c)


def cublaslt(torch, name, M, N, K, types, fast):
    """torch._scaled_mm with scales of 1 and an f32 result."""
    draw = generator(torch, name)
    a, b = (drawn(torch, rows, K, getattr(torch, "float8_" + t), draw) for rows, t in zip((M, N), types))
    one = torch.ones(()).cuda()
    c = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=one, scale_b=one, out_dtype=torch.float32,
                         use_fast_accum=fast)
    return recorded(torch, a, b, c)


def block_scaled(torch, name, M, N, K):
    """Scales of 1 by 128 and of 128 by 128."""
    from torch.nn.functional import ScalingType, scaled_mm
    draw = generator(torch, name)
    a, b = (drawn(torch, rows, K, torch.float8_e4m3fn, draw) for rows in (M, N))
    sa, sb = (torch.rand(rows, K // 128, generator=draw) + 0.5 for rows in (M, N // 128))
    c = scaled_mm(a.cuda(), b.cuda().t(), scale_a=sa.t().contiguous().t().cuda(),
                  scale_recipe_a=ScalingType.BlockWise1x128, scale_b=sb.cuda().t(),
                  scale_recipe_b=ScalingType.BlockWise128x128, output_dtype=torch.float32)
    return recorded(torch, a, b, c, sa, sb.repeat_interleave(128, 0))


def row_scaled(torch, name, M, N, K):
    """A scale for each row, and a bf16 result of factors that cancel."""
    draw, e4m3 = generator(torch, name), torch.float8_e4m3fn
    a, b = cancelled(torch, *(drawn(torch, rows, K, e4m3, draw) for rows in (M, N)))
    a, b = a.to(e4m3), b.to(e4m3)
    sa, sb = (torch.rand(rows, 1, generator=draw) + 0.5 for rows in (M, N))
    c = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=sa.cuda(), scale_b=sb.cuda().t(),
                         out_dtype=torch.bfloat16, use_fast_accum=True)
    return recorded(torch, a, b, c, sa, sb)


# ---- CUTLASS and Triton ------------------------------------------------------------------------------------


def grouped(torch, name, groups, M, N, K):
    """The last group of torch._grouped_mm: a bf16 result of factors that cancel."""
    draw, bf16 = generator(torch, name), torch.bfloat16
    a = drawn(torch, groups * M, K, bf16, draw)
    b = drawn(torch, groups * N, K, bf16, draw).view(groups, N, K)
    a, b = (x.to(bf16) for x in cancelled(torch, a, b))
    ends = torch.arange(1, groups + 1, dtype=torch.int32, device="cuda") * M
    c = torch._grouped_mm(a.cuda(), b.cuda().transpose(1, 2), offs=ends, out_dtype=bf16)
    last = (groups - 1) * M
    return recorded(torch, a[last:], b[-1], c[last:])


TRITON = '''
import triton
import triton.language as tl

@triton.jit
def dot(a, b, c, K, part, BK: tl.constexpr, IMPRECISE: tl.constexpr):
    i, k, p = tl.arange(0, 64), tl.arange(0, BK), tl.program_id(0)
    sums = tl.zeros((64, 64), tl.float32)
    for k0 in range(p * part, (p + 1) * part, BK):
        x = tl.load(a + i[:, None] * K + k0 + k[None, :])
        y = tl.load(b + i[None, :] * K + k0 + k[:, None])
        sums = tl.dot(x, y, sums, max_num_imprecise_acc=IMPRECISE)
    tl.store(c + p * 4096 + i[:, None] * 64 + i[None, :], sums)
'''


def by_triton(torch, name, K, type_name, parts, imprecise):
    """tl.dot over each part of K; the parts are added in f32, the first one first."""
    import importlib.util
    import tempfile
    with tempfile.TemporaryDirectory() as folder:  # Triton reads the source of a kernel from its file
        path = os.path.join(folder, "explain_dot.py")
        with open(path, "w", encoding="utf-8") as source:
            source.write(TRITON)
        spec = importlib.util.spec_from_file_location("explain_dot", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        draw, dtype = generator(torch, name), getattr(torch, type_name)
        a, b = (drawn(torch, 64, K, dtype, draw) for _ in range(2))
        c = torch.empty(parts, 64, 64, device="cuda")
        module.dot[(parts,)](a.cuda(), b.cuda(), c, K, K // parts, 64, imprecise, num_warps=4)
        torch.cuda.synchronize()
    total = c[0]
    for part in range(1, parts):
        total = total + c[part]
    return recorded(torch, a, b, total)


# ---- the list ----------------------------------------------------------------------------------------------


def list_products():
    """Names all products. A change of the list changes no draw of another product."""
    def add(function, name, *arguments):
        PRODUCTS.append((name, lambda torch: function(torch, name, *arguments)))

    for M, N, K in ((4096, 4096, 4096), (512, 4096, 4096), (64, 4096, 4096), (32, 4096, 1024), (32, 1024, 3072),
                    (16, 2048, 8192), (4, 4096, 4096)):
        add(cublas, f"cublas_bf16_{M}x{N}x{K}", M, N, K, "bfloat16", True)
    for M, N, K in ((512, 4096, 4096), (64, 4096, 4096), (16, 2048, 8192), (1, 4096, 12288)):
        add(cublas, f"cublas_f16_{M}x{N}x{K}", M, N, K, "float16", True)
    for M, N, K in ((512, 4096, 4096), (16, 2048, 8192), (128, 4096, 12288)):
        add(cublas, f"cublas_bf16_narrow_{M}x{N}x{K}", M, N, K, "bfloat16", False)
    for types in (("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("e4m3fn", "e5m2")):
        for fast in (True, False):
            for M, N, K in ((64, 7168, 2048), (16, 4096, 7168)):
                kind = "fast" if fast else "promoted"
                add(cublaslt, f"cublaslt_{types[0]}_{types[1]}_{kind}_{M}x{N}x{K}", M, N, K, types, fast)
    for M, N, K in ((128, 256, 512), (64, 7168, 2048), (16, 4096, 7168), (512, 4096, 7168)):
        add(block_scaled, f"block_scaled_{M}x{N}x{K}", M, N, K)
    for M, N, K in ((64, 4096, 2048), (512, 4096, 7168)):
        add(row_scaled, f"row_scaled_{M}x{N}x{K}", M, N, K)
    for groups, M, N, K in ((4, 64, 768, 2048), (8, 16, 1536, 2048), (2, 256, 2048, 768), (16, 128, 512, 4096)):
        add(grouped, f"grouped_bf16_{groups}x{M}x{N}x{K}", groups, M, N, K)
    for K, type_name, parts, imprecise in ((1024, "bfloat16", 1, 0), (4096, "bfloat16", 4, 0), (2048, "float16", 2, 0),
                                           (4096, "float16", 8, 0), (1024, "float8_e4m3fn", 1, 0),
                                           (1024, "float8_e4m3fn", 1, 32), (1024, "float8_e4m3fn", 1, 128),
                                           (4096, "float8_e5m2", 4, 128)):
        add(by_triton, f"triton_{type_name}_{K}_{parts}_{imprecise}", K, type_name, parts, imprecise)


# ---- folders -----------------------------------------------------------------------------------------------


def bits_of(torch, tensor):
    """A tensor as NumPy holds it, and the name of its type."""
    names = {torch.float32: ("f32", None), torch.float16: ("f16", torch.int16), torch.bfloat16: ("bf16", torch.int16),
             torch.float8_e4m3fn: ("e4m3", torch.int8), torch.float8_e5m2: ("e5m2", torch.int8)}
    name, held = names[tensor.dtype]
    bits = (tensor if held is None else tensor.view(held)).numpy()
    return bits.view({2: "uint16", 1: "uint8"}.get(bits.itemsize, bits.dtype)), name


def write(torch, folder, name, tensors):
    """Writes a product as a folder of assay judge."""
    import numpy
    os.makedirs(folder, exist_ok=True)
    files = {}
    for key, tensor in tensors.items():
        bits, type_name = bits_of(torch, tensor)
        numpy.save(os.path.join(folder, key + ".npy"), bits)
        files[key] = {"file": key + ".npy", "dtype": type_name}
    case = {"name": name, "operator": "gemm", "inputs": {k: v for k, v in files.items() if k != "c"},
            "outputs": {"c": files["c"]}}
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(case, file, indent=1)


def make(directory, only):
    """Records the products. Returns 1 if one failed or none was asked for."""
    import torch
    if not torch.cuda.is_available():
        print("explain_peers: FAIL: no GPU")
        return 1
    asked = [p for p in PRODUCTS if only in p[0]]
    failed = 0
    print(torch.cuda.get_device_name(), torch.__version__)
    for name, record in asked:
        try:
            write(torch, os.path.join(directory, name), name, record(torch))
            print(f"{name}: made", flush=True)
        except Exception as why:  # any failure of a library is one of this product
            failed += 1
            print(f"{name}: FAIL: {type(why).__name__}: {str(why).strip().splitlines()[0][:300] if str(why) else ''}",
                  flush=True)
    print(f"{len(asked) - failed} of {len(asked)} products made, {failed} failed")
    return 1 if failed or not asked else 0


def explain(assay, folder, seconds):
    """Runs the search over one folder. Returns its lines, how many products are explained and not, and the time."""
    begun = time.monotonic()
    try:
        done = subprocess.run([assay, "explain", folder], capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return [f"FAIL: no end within {seconds} s"], 0, 1, seconds
    lines = done.stdout.splitlines()
    found, lost = (sum(mark in line for line in lines) for mark in ("; all of ", ": not explained ("))
    if done.returncode not in (0, 1) or found + lost == 0:
        lines.append(f"FAIL: status {done.returncode}: {done.stderr.strip()[:300]}")
        lost = max(lost, 1)
    return lines, found, lost, time.monotonic() - begun


def judge(assay, directory, seconds, least, jsonl):
    """Explains every folder below the directory. Returns 1 if too few products are explained, or if there is none."""
    folders = sorted(at for at, _, files in os.walk(directory) if "manifest.json" in files)
    explained = unexplained = failures = 0
    log = [{"what": "bench/explain_peers.py: recorded products that assay explain explains"}]
    for folder in folders:
        lines, found, lost, took = explain(assay, folder, seconds)
        print("\n".join(lines), flush=True)
        explained, unexplained = explained + found, unexplained + lost
        failures += any(line.startswith("FAIL") for line in lines)
        log.append({"folder": os.path.basename(folder), "explained": found, "unexplained": lost,
                    "seconds": round(took, 2), "lines": lines})
    products = explained + unexplained
    share = explained / products if products else 0
    print(f"{explained} of {products} products explained ({100 * share:.1f} %), {failures} searches failed")
    if jsonl:
        with open(jsonl, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in log)
    return 1 if failures or not products or share < least else 0


def main():
    parse = argparse.ArgumentParser(description="Records products of other libraries, and explains them.")
    commands = parse.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make")
    one.add_argument("directory")
    one.add_argument("--only", default="")
    two = commands.add_parser("judge")
    two.add_argument("assay")
    two.add_argument("directory")
    two.add_argument("--seconds", type=float, default=60)
    two.add_argument("--least", type=float, default=0.95)
    two.add_argument("--jsonl")
    commands.add_parser("list")
    given = parse.parse_args()
    list_products()
    if given.command == "list":
        print("\n".join(name for name, _ in PRODUCTS))
        return 0
    if given.command == "make":
        return make(given.directory, given.only)
    return judge(given.assay, given.directory, given.seconds, given.least, given.jsonl)


if __name__ == "__main__":
    sys.exit(main())
