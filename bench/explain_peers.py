#!/usr/bin/env python3
"""explain_peers.py list | make DIR [--only TEXT] [--jobs J]
explain_peers.py judge ASSAY DIR [--seconds S] [--least SHARE] [--jobs J] [--jsonl FILE]

`make` records products of cuBLAS, cuBLASLt, CUTLASS (torch._grouped_mm) and Triton on this machine's GPU, a folder of
assay judge for each. Each product has a process of its own, J (3) at a time. A product that fails, crashes or hangs is
named, the others are made, and the status is 1. A line of a product has the shape of its result, how many of the bits
differ from an f64 product rounded once, and the names of the kernels that ran.

Folders map_* hold one product per M. `judge` prints their classes over M.

`judge` runs `assay explain` over each folder of DIR, and prints its lines and the share of products that are explained.
The status is 1 if that is below SHARE (0.95), or if a search fails or takes more than S seconds (60). It needs no GPU.

A result of 16 bits hides most contracts. Where a kernel gives no f32 result, the second half of K cancels the first,
and what is left shows how the sums were cut (docs/last-bit.md)."""

import argparse
import concurrent.futures
import json
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import time

SEED, ROWS, COLUMNS = 20261127, 8, 16  # rows and columns that are kept of a product
MAP_COLUMNS = 8  # columns that are kept of each product of a map, of its first row
MAP_ROWS = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193,
            255, 256, 257, 511, 512, 513, 1024, 2048, 4096)
SECONDS = 120  # that a product may take
PRODUCTS = []  # names, and functions of torch
KERNELS = []  # names of the kernels of the last product of this process


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


def chosen(torch, tensor, rows):
    """Some rows of a tensor. Types of 8 bits are moved as bytes: not every version indexes them."""
    eight = tensor.element_size() == 1
    return (tensor.view(torch.uint8)[rows].view(tensor.dtype) if eight else tensor[rows]).contiguous()


def recorded(torch, a, b, c, scale_a=None, scale_b=None):
    """The kept part of a product, on the host."""
    rows, columns = kept(c.shape[0], ROWS), kept(c.shape[1], COLUMNS)
    part = {"a": chosen(torch, a, rows), "b": chosen(torch, b, columns), "c": c.cpu()[rows][:, columns].contiguous(),
            "whole": tuple(c.shape)}
    if scale_a is not None:
        part["scale_a"], part["scale_b"] = chosen(torch, scale_a, rows), chosen(torch, scale_b, columns)
    return part


def measured(torch, product):
    """Runs a product. Returns its result and the names of the kernels of a second run, for the line of the product."""
    c = product()
    torch.cuda.synchronize()
    KERNELS.clear()
    if os.environ.get("ASSAY_KERNEL_NAMES", "1") == "0":
        return c
    try:
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            product()
            torch.cuda.synchronize()
        KERNELS.extend(event.key for event in seen.key_averages() if not event.key.startswith(("cu", "Activity", "Mem")))
    except Exception as why:  # the names are a help, and no part of the product
        KERNELS.append(f"no kernel names: {type(why).__name__}")
    return c


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
    c = measured(torch, lambda: torch.mm(x, y, out_dtype=torch.float32) if wide else torch.mm(x, y))
    return recorded(torch, a, b, c)


def cublas_over_rows(torch, name, N, K, most):
    """The first row of torch.mm with an f32 result, for each M up to `most`: a list of products."""
    draw = generator(torch, name)
    a, b = (drawn(torch, rows, K, torch.bfloat16, draw) for rows in (most, N))
    x, y, columns = a.cuda(), b.cuda().t(), kept(N, MAP_COLUMNS)
    part = {"a": chosen(torch, a, [0]), "b": chosen(torch, b, columns)}
    made = []
    for M in (M for M in MAP_ROWS if M <= most):
        c = torch.mm(x[:M], y, out_dtype=torch.float32)
        made.append({**part, "c": c[:1].cpu()[:, columns].contiguous(), "whole": (M, N)})
    return made


def cublaslt(torch, name, M, N, K, types, fast):
    """torch._scaled_mm with scales of 1 and an f32 result."""
    draw = generator(torch, name)
    a, b = (drawn(torch, rows, K, getattr(torch, "float8_" + t), draw) for rows, t in zip((M, N), types))
    x, y, one = a.cuda(), b.cuda().t(), torch.ones(()).cuda()
    c = measured(torch, lambda: torch._scaled_mm(x, y, scale_a=one, scale_b=one, out_dtype=torch.float32,
                                                 use_fast_accum=fast))
    return recorded(torch, a, b, c)


def block_scaled(torch, name, M, N, K, shared=128):
    """Scales of 1 by 128 and of `shared` by 128. cuBLASLt wants K to be a multiple of 512, or padded scales."""
    from torch.nn.functional import ScalingType, scaled_mm
    draw = generator(torch, name)
    a, b = (drawn(torch, rows, K, torch.float8_e4m3fn, draw) for rows in (M, N))
    sa, sb = (torch.rand(rows, K // 128, generator=draw) + 0.5 for rows in (M, N // shared))
    x, y, row = a.cuda(), b.cuda().t(), ScalingType.BlockWise1x128
    outer = lambda scales: scales.cuda().t().contiguous().t()  # neighbours in memory: scales of neighbouring rows
    scale_a, scale_b = outer(sa), sb.cuda().t() if shared > 1 else outer(sb)
    c = measured(torch, lambda: scaled_mm(x, y, scale_a=scale_a, scale_recipe_a=row, scale_b=scale_b,
                                          scale_recipe_b=ScalingType.BlockWise128x128 if shared > 1 else row,
                                          output_dtype=torch.float32))
    return recorded(torch, a, b, c, sa, sb.repeat_interleave(shared, 0))


def row_scaled(torch, name, M, N, K):
    """A scale for each row, and a bf16 result of factors that cancel."""
    draw, e4m3 = generator(torch, name), torch.float8_e4m3fn
    a, b = cancelled(torch, *(drawn(torch, rows, K, e4m3, draw) for rows in (M, N)))
    a, b = a.to(e4m3), b.to(e4m3)
    sa, sb = (torch.rand(rows, 1, generator=draw) + 0.5 for rows in (M, N))
    x, y, scale_a, scale_b = a.cuda(), b.cuda().t(), sa.cuda(), sb.cuda().t()
    c = measured(torch, lambda: torch._scaled_mm(x, y, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16,
                                                 use_fast_accum=True))
    return recorded(torch, a, b, c, sa, sb)


# ---- CUTLASS and Triton ------------------------------------------------------------------------------------


def grouped(torch, name, groups, M, N, K):
    """The last group of torch._grouped_mm: a bf16 result of factors that cancel."""
    draw, bf16 = generator(torch, name), torch.bfloat16
    a = drawn(torch, groups * M, K, bf16, draw)
    b = drawn(torch, groups * N, K, bf16, draw).view(groups, N, K)
    a, b = (x.to(bf16) for x in cancelled(torch, a, b))
    ends = torch.arange(1, groups + 1, dtype=torch.int32, device="cuda") * M
    x, y = a.cuda(), b.cuda().transpose(1, 2)
    c = measured(torch, lambda: torch._grouped_mm(x, y, offs=ends, out_dtype=bf16))
    last = (groups - 1) * M
    return recorded(torch, a[last:], b[-1], c[last:])


TRITON = '''
import triton
import triton.language as tl

@triton.jit
def dot(a, b, c, K, part, BK: tl.constexpr, IMPRECISE: tl.constexpr):
    i = tl.arange(0, 64)
    k = tl.arange(0, BK)
    p = tl.program_id(0)
    sums = tl.zeros((64, 64), tl.float32)
    for k0 in range(p * part, (p + 1) * part, BK):
        x = tl.load(a + i[:, None] * K + k0 + k[None, :])
        y = tl.load(b + i[None, :] * K + k0 + k[:, None])
        sums = tl.dot(x, y, sums, max_num_imprecise_acc=IMPRECISE)
    tl.store(c + p * 4096 + i[:, None] * 64 + i[None, :], sums)
'''


def by_triton(torch, name, K, type_name, parts, imprecise):
    """tl.dot over each part of K; the parts are added in f32, the first one first. imprecise: None, or fp8 products
    after which a sum is promoted. Triton refuses more of them than one tl.dot has. With 0 it takes mma.sync of f16."""
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
        x, y, c, BK = a.cuda(), b.cuda(), torch.empty(parts, 64, 64, device="cuda"), max(64, imprecise or 0)
        measured(torch, lambda: module.dot[(parts,)](x, y, c, K, K // parts, BK, imprecise, num_warps=4))
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
    for M, N, K in ((128, 256, 512), (64, 4096, 2048)):
        add(block_scaled, f"row_block_scaled_{M}x{N}x{K}", M, N, K, 1)
    for M, N, K in ((64, 4096, 2048), (512, 4096, 7168)):
        add(row_scaled, f"row_scaled_{M}x{N}x{K}", M, N, K)
    for groups, M, N, K in ((4, 64, 768, 2048), (8, 16, 1536, 2048), (2, 256, 2048, 768), (16, 128, 512, 4096)):
        add(grouped, f"grouped_bf16_{groups}x{M}x{N}x{K}", groups, M, N, K)
    for K, type_name, parts, imprecise in ((1024, "bfloat16", 1, None), (4096, "bfloat16", 4, None),
                                           (2048, "float16", 2, None), (4096, "float16", 8, None),
                                           (1024, "float8_e4m3fn", 1, None), (1024, "float8_e4m3fn", 1, 32),
                                           (1024, "float8_e4m3fn", 1, 128), (4096, "float8_e5m2", 4, 128)):
        add(by_triton, f"triton_{type_name}_{K}_{parts}_{imprecise or 0}", K, type_name, parts, imprecise)
    for N, K, most in ((1024, 3072, 4096), (2048, 1024, 4096), (4096, 4096, 4096), (4096, 12288, 512)):
        add(cublas_over_rows, f"map_bf16_{N}x{K}", N, K, most)


# ---- folders -----------------------------------------------------------------------------------------------


def bits_of(torch, tensor):
    """A tensor as NumPy holds it, and the name of its type."""
    names = {torch.float32: ("f32", None), torch.float16: ("f16", torch.int16), torch.bfloat16: ("bf16", torch.int16),
             torch.float8_e4m3fn: ("e4m3", torch.int8), torch.float8_e5m2: ("e5m2", torch.int8)}
    name, held = names[tensor.dtype]
    bits = (tensor if held is None else tensor.view(held)).numpy()
    return bits.view({2: "uint16", 1: "uint8"}.get(bits.itemsize, bits.dtype)), name


def write(torch, folder, name, products):
    """Writes products as a folder of assay judge. The same tensor is one file."""
    import numpy
    os.makedirs(folder, exist_ok=True)
    files, cases = {}, []
    for number, tensors in enumerate(products):
        named = {}
        for key, tensor in tensors.items():
            if key == "whole":
                continue
            if id(tensor) not in files:
                bits, type_name = bits_of(torch, tensor)
                file = key + (".npy" if number == 0 else f"{number}.npy")
                numpy.save(os.path.join(folder, file), bits)
                files[id(tensor)] = {"file": file, "dtype": type_name}
            named[key] = files[id(tensor)]
        case = {"name": name, "operator": "gemm", "inputs": {k: v for k, v in named.items() if k != "c"},
                "outputs": {"c": named["c"]}}
        case["rows"], case["columns"] = tensors["whole"]
        if len(products) > 1:
            case["name"] = f"{name}_{case['rows']}"
        if KERNELS:
            case["kernels"] = KERNELS
        cases.append(case)
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(cases[0] if len(cases) == 1 else {"cases": cases}, file, indent=1)


def share_off(torch, tensors):
    """The share of a result that is not the f64 product, rounded once, and the largest error over the sum of sizes."""
    a, b = (tensors[key].double() for key in ("a", "b"))
    scales = [tensors[key].double() for key in ("scale_a", "scale_b") if key in tensors]
    if scales:
        of_a, of_b = (x.repeat_interleave(a.shape[1] // x.shape[1], 1) for x in scales)
        a, b = a * of_a, b * of_b
    c, whole, sizes = tensors["c"], a @ b.t(), a.abs() @ b.abs().t()
    error = ((c.double() - whole).abs() / sizes).max().item()
    return (c != whole.to(c.dtype)).double().mean().item(), error


def make_one(record, directory, name, say):
    """Records one product in a process of its own, and says how it went."""
    import torch
    begun = time.monotonic()
    try:
        torch.set_num_threads(4)
        made = record(torch)
        made = made if isinstance(made, list) else [made]
        write(torch, os.path.join(directory, name), name, made)
        off, error = share_off(torch, made[0])
        shape = " x ".join(str(n) for n in (*made[0]["c"].shape, made[0]["a"].shape[1]))
        doubtful = "" if error < 2 ** -6 else ", DOUBTFUL"
        say.send((True, f"{len(made)} made, kept {shape}, {100 * off:.1f} % not the nearest, error {error:.1e} of sizes"
                        f"{doubtful}, {time.monotonic() - begun:.1f} s; {', '.join(k[:90] for k in KERNELS[:4])}"))
    except Exception as why:  # any failure of a library is one of this product
        lines = [line for line in str(why).strip().splitlines() if line.strip()]
        said = lines[-1] if len(lines) > 1 and type(why).__name__ == "CompilationError" else lines[0] if lines else ""
        say.send((False, f"FAIL: {type(why).__name__}: {said[:400]}"))


def device_of(say):
    """Says which GPU this machine has."""
    import torch
    if not torch.cuda.is_available():
        say.send((False, "no GPU"))
        return
    say.send((True, f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}"))


def in_processes(tasks, jobs):
    """Runs functions that say how it went, each in a process of its own, `jobs` at a time. Yields the name of each task,
    whether it went well, and its line."""
    context = multiprocessing.get_context("fork")  # torch is imported once; this process never uses the GPU
    waiting, running = list(reversed(tasks)), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name, function, arguments = waiting.pop()
            hear, say = context.Pipe(False)
            child = context.Process(target=function, args=(*arguments, say), daemon=True)
            child.start()
            say.close()  # so that the end of the process is the end of what it says
            running[hear] = (name, child, time.monotonic() + SECONDS)
        ready = multiprocessing.connection.wait(list(running), 1)
        for hear, (name, child, until) in list(running.items()):
            if hear not in ready and time.monotonic() < until:
                continue
            said = (False, f"FAIL: no end within {SECONDS} s")
            try:
                said = hear.recv() if hear in ready else said
            except EOFError:
                said = None
            child.join(20)
            if child.is_alive():
                child.kill()
                child.join()
            del running[hear]
            yield (name, *(said or (False, f"FAIL: ended with status {child.exitcode}")))


def make(directory, only, jobs):
    """Records the products. Returns 1 if one failed or none was asked for."""
    import torch
    for _, good, device in in_processes([("device", device_of, ())], 1):
        print(device if good else f"explain_peers: FAIL: {device}", flush=True)
        if not good:
            return 1
    asked = [p for p in PRODUCTS if only in p[0]]
    failed = 0
    for name, good, line in in_processes([(name, make_one, (record, directory, name)) for name, record in asked], jobs):
        failed += not good
        print(f"{name}: {line}", flush=True)
    print(f"{len(asked) - failed} of {len(asked)} products made, {failed} failed (torch {torch.__version__})")
    return 1 if failed or not asked else 0


def explain(assay, folder, seconds):
    """Runs the search over one folder. Returns its lines, how many products are explained and not, and the time."""
    begun = time.monotonic()
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        seconds *= max(1, len(json.load(file).get("cases", ())))
    try:
        done = subprocess.run([assay, "explain", folder, "--over", "m=1..4096"], capture_output=True, text=True,
                              timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return [f"FAIL: {folder}: no end within {seconds} s"], 0, 1, seconds
    lines = done.stdout.splitlines()
    found, lost = (sum(mark in line for line in lines) for mark in ("; all of ", ": not explained ("))
    if done.returncode not in (0, 1) or found + lost == 0:
        lines.append(f"FAIL: {folder}: status {done.returncode}: {done.stderr.strip()[:300]}")
        lost = max(lost, 1)
    return lines, found, lost, time.monotonic() - begun


def judge(assay, directory, seconds, least, jobs, jsonl):
    """Explains every folder below the directory. Returns 1 if too few products are explained, or if there is none. The
    products of a map count apart: they are one product at many M."""
    folders = sorted(at for at, _, files in os.walk(directory) if "manifest.json" in files)
    counts, failures = {False: [0, 0], True: [0, 0]}, 0
    log = [{"what": "bench/explain_peers.py: recorded products that assay explain explains"}]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for folder, done in [(folder, pool.submit(explain, assay, folder, seconds)) for folder in folders]:
            lines, found, lost, took = done.result()
            name = os.path.basename(folder)
            print("\n".join(lines), flush=True)
            counts[name.startswith("map_")][0] += found
            counts[name.startswith("map_")][1] += lost
            failures += any(line.startswith("FAIL") for line in lines)
            log.append({"folder": name, "explained": found, "unexplained": lost, "seconds": round(took, 2),
                        "lines": lines})
    explained, unexplained = counts[False]
    products = explained + unexplained
    share = explained / products if products else 0
    print(f"{counts[True][0]} of {sum(counts[True])} products of maps explained")
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
    one.add_argument("--jobs", type=int, default=3)
    two = commands.add_parser("judge")
    two.add_argument("assay")
    two.add_argument("directory")
    two.add_argument("--seconds", type=float, default=60)
    two.add_argument("--least", type=float, default=0.95)
    two.add_argument("--jobs", type=int, default=1)
    two.add_argument("--jsonl")
    commands.add_parser("list")
    given = parse.parse_args()
    list_products()
    if given.command == "list":
        print("\n".join(name for name, _ in PRODUCTS))
        return 0
    if given.command == "make":
        return make(given.directory, given.only, given.jobs)
    return judge(given.assay, given.directory, given.seconds, given.least, given.jobs, given.jsonl)


if __name__ == "__main__":
    sys.exit(main())
