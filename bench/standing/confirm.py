"""confirm.py MODULES: says of each finding in FlashInfer and torch what a few lines of torch in f64 say, without this project.

MODULES is the folder of flashinfer_modules.py. A finding that faults runs in a process of its own. The last line counts
findings that hold; the status is 1 if one does not."""
import importlib
import os
import subprocess
import sys

import torch
import tvm_ffi

MODULES = sys.argv[1]


def module(name):
    return tvm_ffi.load_module(f"{MODULES}/{name}.so")


def rows(count, width):
    torch.manual_seed(1)
    return torch.randn(count, width, dtype=torch.bfloat16, device="cuda")


def norm(x, g, eps=1e-6):
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * g.double()


def rmsnorm_beyond_2_32_elements():
    """Row 524288 of 8192 channels begins at element 2^32; its offset is computed in 32 bits."""
    x, g = torch.zeros(524289, 8192, dtype=torch.bfloat16, device="cuda"), rows(1, 8192)[0]
    x[0], x[-1] = rows(2, 8192)
    y = torch.full_like(x, 7.0)
    module("norm").rmsnorm(y, x, g, 1e-6, False)
    torch.cuda.synchronize()
    wrong = (y[-1].double() - norm(x[-1], g)).abs().max().item()
    return wrong > 0.1 or wrong != wrong, f"last row off by {wrong:.3g} at most"


def rmsnorm_rows_far_apart():
    """Two rows of 40 channels, more than 2^32 elements apart, in one tensor of 8.6 GB."""
    apart = 2**32 + 64
    room, g = torch.zeros(apart + 64, dtype=torch.bfloat16, device="cuda"), rows(1, 40)[0]
    x = room.as_strided((2, 40), (apart, 1))
    x[0], x[1] = rows(2, 40)
    y = torch.full((2, 40), 7.0, dtype=torch.bfloat16, device="cuda")
    module("norm").rmsnorm(y, x, g, 1e-6, False)
    torch.cuda.synchronize()
    wrong = (y.double() - norm(x, g)).abs().max().item()
    return wrong > 0.1 or wrong != wrong, f"off by {wrong:.3g} at most"


def subnormals_flushed():
    """Numbers below 2^-126 count as 0."""
    x, g = torch.full((1, 64), 2.0**-130, dtype=torch.bfloat16, device="cuda"), rows(1, 64)[0] * 0 + 1
    x[0, 0] = 1.0
    y = torch.full_like(x, 7.0)
    module("norm").rmsnorm(y, x, g, 1e-6, False)
    return bool((y[0, 1:] == 0).all().item() and (norm(x, g)[0, 1:] != 0).all().item()), f"got {y[0, 1].item():.3g}, f64 says {norm(x, g)[0, 1].item():.3g}"


def silu_and_mul_of_12_channels():
    """2 rows of 2·12 channels: the second half begins at a multiple of 8 bytes, and is read by 16."""
    x = rows(2, 24)
    y = torch.empty(2, 12, dtype=torch.bfloat16, device="cuda")
    module("silu").silu_and_mul(y, x, False)
    torch.cuda.synchronize()
    return False, "no fault"


def rope_of_72_channels():
    """72 of 128 channels are rotated, neox: the second half begins at a multiple of 8 bytes, and is read by 16."""
    q, k = rows(4, 256).view(4, 2, 128), rows(4, 128).view(4, 1, 128)
    table = torch.rand(16, 72, dtype=torch.float32, device="cuda")
    positions = torch.arange(4, dtype=torch.int32, device="cuda")
    module("rope").apply_rope_pos_ids_cos_sin_cache(q, k, q.clone(), k.clone(), table, positions, False)
    torch.cuda.synchronize()
    return False, "no fault"


def merge_of_two_empty_states():
    """Two states without keys: V is 0 and the logarithm is -inf."""
    v, s = torch.zeros(1, 1, 64, dtype=torch.float16, device="cuda"), torch.full((1, 1), -torch.inf, device="cuda")
    out, out_s = torch.ones_like(v), torch.ones_like(s)
    module("cascade").merge_state(v, s, v.clone(), s.clone(), out, out_s)
    return bool(out.isnan().any().item()), f"out {out[0, 0, 0].item()}, logarithm {out_s[0, 0].item()}; the empty state is 0 and -inf"


def cublas_adds_in_bf16():
    """8 x 24 by 193 x 24, all sums exact in f32: torch's default lets cuBLAS round partial sums to bf16."""
    torch.manual_seed(1)
    a, b = (torch.randint(-8, 9, (n, 24), device="cuda").bfloat16() / 8 for n in (8, 193))
    want = (a.double() @ b.double().t()).bfloat16()
    wrong = []
    for allowed in (True, False):
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = allowed
        wrong.append(int(((a @ b.t()) != want).sum().item()))
    return wrong[0] > 0, f"{wrong[0]} of {want.numel()} elements wrong by default, {wrong[1]} without reduced precision"


def silu_rounded_before_the_product():
    """F.silu(gate) * up rounds silu(gate) to the type of x, then the product."""
    x = rows(64, 512)
    gate, up = x.chunk(2, dim=-1)
    made, wide = torch.nn.functional.silu(gate) * up, x.double()
    once = (wide[:, :256] * torch.sigmoid(wide[:, :256]) * wide[:, 256:]).bfloat16()
    twice = (wide[:, :256] * torch.sigmoid(wide[:, :256])).bfloat16() * up
    wrong = int((made != once).sum().item())
    return wrong > 0 and int((made != twice).sum().item()) < wrong // 50, f"{wrong} of {made.numel()} elements differ from one rounding"


def sampling():
    """Returns the module of FlashInfer's samplers, or the one that SAMPLING_INTERFACE names."""
    return importlib.import_module(os.environ.get("SAMPLING_INTERFACE", "flashinfer.sampling"))


def top_k_keeps_all_ties():
    probs = torch.full((4096, 4), 0.25, device="cuda")
    drawn = sampling().top_k_top_p_sampling_from_probs(probs, 2, 1.0, filter_apply_order="top_k_first")
    beyond = int((drawn > 1).sum().item())
    return beyond > 0, f"k = 2 of four equal probabilities: {beyond} of 4096 draws are neither id 0 nor id 1"


def fa3_faults_without_groups():
    """FlashAttention 3 with as many heads of K as of q, one split: each shape in a process of its own."""
    code = ("import torch, sys; from fa3_fwd_interface import flash_attn_func as f; h, n, rows, d = map(int, sys.argv[1:]);"
            "q = torch.randn(1, rows, h, d, device='cuda').bfloat16(); k = torch.randn(1, n, h, d, device='cuda').bfloat16();"
            "f(q, k, k, causal=True, num_splits=1); torch.cuda.synchronize()")
    said, faults = [], 0
    for shape in ((2, 37, 1, 64), (1, 1, 1, 64), (32, 2048, 2048, 128)):
        ran = subprocess.run([sys.executable, "-c", code, *map(str, shape)], capture_output=True, text=True, check=False)
        fault = [line for line in ran.stderr.splitlines() if "CUDA error" in line]
        faults += bool(fault)
        said.append(f"{shape}: {fault[-1].split('CUDA error: ')[-1] if fault else 'fine' if ran.returncode == 0 else ran.stderr[-80:]}")
    return faults > 0, "heads, keys, rows, D: " + "; ".join(said)


FINDINGS = [rmsnorm_beyond_2_32_elements, rmsnorm_rows_far_apart, subnormals_flushed, silu_and_mul_of_12_channels,
            rope_of_72_channels, merge_of_two_empty_states, cublas_adds_in_bf16, silu_rounded_before_the_product,
            top_k_keeps_all_ties, fa3_faults_without_groups]


def main():
    if len(sys.argv) == 3:
        holds, text = next(f for f in FINDINGS if f.__name__ == sys.argv[2])()
        print(("holds: " if holds else "does not hold: ") + text)
        return
    count = 0
    for finding in FINDINGS:
        ran = subprocess.run([sys.executable, __file__, MODULES, finding.__name__], capture_output=True, text=True, check=False)
        said = ran.stdout.strip()
        if not said:
            fault = [line for line in ran.stderr.splitlines() if "misaligned" in line.lower()]
            said = "holds: " + fault[-1].strip() if fault else "does not hold: " + " ".join(ran.stderr.splitlines()[-1:])
        count += said.startswith("holds")
        print(f"{finding.__name__}: {said}")
    print(f"{count} of {len(FINDINGS)} findings hold")
    sys.exit(count != len(FINDINGS))


main()
