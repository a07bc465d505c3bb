"""confirm.py MODULES [FINDING...]: says of findings in FlashInfer, FlashAttention 3, flash-linear-attention and torch
what a few lines of torch in f64 say, without this project.

MODULES is the folder of flashinfer_modules.py. Each finding runs in a process of its own, which may take CONFIRM_SECONDS
(60). A process that takes longer is killed, and its place in the code is printed. The last line counts findings that
hold; the status is 1 if one does not."""
import faulthandler
import importlib
import os
import subprocess
import sys
import time

import torch

MODULES = sys.argv[1]
LIMIT = float(os.environ.get("CONFIRM_SECONDS", "60"))


def module(name):
    import tvm_ffi
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
    """Counts elements beyond 1 ulp of bf16, by the sums of f64: torch's default lets cuBLAS round partial sums to bf16."""
    said, beyond = [], [0, 0]
    for m, n, k in ((8, 193, 24), (33, 193, 128), (16, 193, 128), (33, 4096, 4096)):
        a, b = rows(m, k), rows(n, k)
        want = a.double() @ b.double().t()
        ulp = torch.exp2(want.abs().clamp_min(2.0**-126).log2().floor() - 7) + 2.0**-20 * (a.double().abs() @ b.double().abs().t())
        for i, allowed in enumerate((True, False)):
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = allowed
            beyond[i] += (count := int((((a @ b.t()).double() - want).abs() > ulp).sum().item()))
            said.append(f"{m} x {n} x {k}, {'default' if allowed else 'full sums'}: {count} of {m * n} beyond 1 ulp")
    return beyond[0] > 0 and beyond[1] == 0, "; ".join(said)


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


FA3 = """
import faulthandler, os, sys
faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
import torch
from fa3_fwd_interface import flash_attn_func
heads, keys, splits, *strides = map(int, sys.argv[2:])
torch.manual_seed(1)
room = torch.randn(4 * heads * 64 + 64, device="cuda").bfloat16()
q = room.as_strided((1, 1, heads, 64), (*strides, 1))
k, v = (torch.randn(1, keys, heads, 64, device="cuda").bfloat16() for _ in range(2))
try:
    made = flash_attn_func(q, k, v, causal=True, num_splits=splits)
    torch.cuda.synchronize()
    score = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 8
    off = (made.double() - torch.einsum("bhqk,bkhd->bqhd", score.softmax(-1), v.double())).abs().max().item()
    print(f"contiguous {q.is_contiguous()}, off by {off:.2g}", flush=True)
except Exception as why:
    print("fault:", str(why).splitlines()[0], flush=True)
os._exit(0)
"""


def fa3_faults_on_the_stride_of_an_axis_of_one_element():
    """One head for each head of K, one row. torch calls q contiguous whatever the stride of an axis of one element."""
    said, faults, fine = [], 0, 0
    for heads, keys, splits, strides, odd in ((1, 1, 1, (64, 64, 64), False), (1, 1, 1, (64, 64, 1), True),
                                              (2, 37, 1, (130, 130, 64), True), (2, 37, 3, (130, 130, 64), False)):
        numbers = [str(number) for number in (LIMIT / 2.5, heads, keys, splits, *strides)]
        begin = time.monotonic()
        try:
            ran = subprocess.run([sys.executable, "-c", FA3, *numbers], capture_output=True, text=True, check=False,
                                 timeout=LIMIT / 2, env=dict(os.environ, CUDA_LAUNCH_BLOCKING="1"))
            answer = ran.stdout.strip() or f"status {ran.returncode}: {ran.stderr[-300:]}"
            answer += " (TMA descriptor refused)" if "TMA" in ran.stderr else ""
        except subprocess.TimeoutExpired as late:
            answer = f"no answer: {(late.stderr or b'')[-300:]!r}"
        right = "off by" in answer and float(answer.split("off by ")[1].split()[0]) < 0.02
        faults += odd and "fault:" in answer
        fine += not odd and right
        said.append(f"{heads} heads, {keys} keys, {splits} splits, strides {strides}: {answer} in {time.monotonic() - begin:.1f} s")
        print(said[-1], file=sys.stderr, flush=True)
    return faults == 2 and fine == 2, "; ".join(said)


def fa3_ragged(q, k, v, rows, keys, **more):
    from fa3_fwd_interface import flash_attn_varlen_func
    tables = [torch.tensor(table, dtype=torch.int32, device="cuda") for table in (rows, keys)]
    return flash_attn_varlen_func(q, k, v, *tables, 1, 64, causal=True, return_attn_probs=True, **more)


def fa3_reads_after_the_last_key():
    """Three requests of 17 keys; rows that lie after the last of them hold NaN. A weight of 0 times NaN is NaN."""
    q = rows(3, 128).view(3, 2, 64)
    k, v = (rows(51 + 128, 64).view(-1, 1, 64) for _ in range(2))
    clean, _ = fa3_ragged(q, k, v, [0, 1, 2, 3], [0, 17, 34, 51])
    k[51:], v[51:] = torch.nan, torch.nan
    made, _ = fa3_ragged(q, k, v, [0, 1, 2, 3], [0, 17, 34, 51])
    bad = int(made.isnan().sum().item())
    return bad > 0 and not clean.isnan().any().item(), f"{bad} of {made.numel()} elements are NaN, {int(clean.isnan().sum().item())} before"


def fa3_empty_batch_has_plus_infinity():
    """The logarithm of an empty sum is -inf; it is so beside a request with keys, and not in a batch without any."""
    from fa3_fwd_interface import flash_attn_varlen_func
    q, k = rows(2, 128).view(2, 2, 64), rows(16, 64).view(16, 1, 64)
    _, beside = fa3_ragged(q, k, k, [0, 1, 2], [0, 0, 16])
    tables = [torch.tensor(table, dtype=torch.int32, device="cuda") for table in ([0, 1, 2], [0, 0, 0])]
    _, alone = flash_attn_varlen_func(q, k[:0], k[:0], *tables, 1, 0, causal=True, return_attn_probs=True)
    return bool((alone == torch.inf).all().item()), f"without keys {alone[0].tolist()}, beside a request of 16 keys {beside[0].tolist()}"


def fa3_moves_the_weight_of_one_key():
    """One key has the weight 1, so the result is its value. Scores are some 1e6."""
    q, k, v = (rows(64, 64 * heads).view(64, heads, 64) for heads in (2, 1, 1))
    v = v + 1
    wrong = []
    for scale in (0.125, 1e5):
        made, _ = fa3_ragged(q, k, v, list(range(65)), list(range(65)), softmax_scale=scale)
        wrong.append(int((made != v.expand(64, 2, 64)).sum().item()))
    return wrong[1] > 0 and wrong[0] == 0, f"{wrong[1]} of {q.numel()} elements are not those of v with the scale 1e5, {wrong[0]} with 0.125"


def append_of_no_rows():
    """No new rows for two requests of one page: there is nothing to write."""
    k, none = torch.zeros(2, 16, 4, 64, dtype=torch.float16, device="cuda"), torch.zeros(0, dtype=torch.int32, device="cuda")
    rows_of = torch.zeros(0, 4, 64, dtype=torch.float16, device="cuda")
    tables = [torch.tensor(t, dtype=torch.int32, device="cuda") for t in ([0, 1], [0, 1, 2], [1, 1])]
    append = module("page").append_paged_kv_cache
    try:
        append(rows_of, rows_of, none, none, k, k.clone(), *tables, 0)
    except Exception as why:
        return True, str(why).splitlines()[-1]
    return False, "nothing was raised"


def prefill(q, k, v, out):
    """Calls the FA2 form: requests of one row of q and one page each; causal."""
    m, B, heads = module("prefill"), q.shape[0], q.shape[1]
    spaces = [torch.empty(size, dtype=torch.uint8, device=where) for size, where in ((1 << 27, "cuda"), (1 << 23, "cuda"))]
    spaces.append(torch.empty(1 << 23, dtype=torch.uint8, pin_memory=True))
    steps, ones = torch.arange(B + 1, dtype=torch.int32), torch.ones(B, dtype=torch.int32)
    lengths = ones * k.shape[1]
    plan = m.plan(*spaces, steps, steps, lengths, B, B, heads, k.shape[2], k.shape[1], True, 128, 128, True, -1, -1, False, 0)
    tables = [t.cuda() for t in (steps, steps, steps[:-1].contiguous(), lengths)]
    m.paged_run(*spaces[:2], plan, q, k, v, *tables, out, None, 1, 0, -1, False, *[None] * 8, 0.0, 128**-0.5, 1.0, 1e-4, 0)
    torch.cuda.synchronize()


def prefill_rows_of_q_far_apart():
    """Six rows of q, 2^30 elements apart: q_indptr times the stride is computed in 32 bits, and row 4 becomes row 0."""
    apart, heads = 2**30, 2
    near = rows(6, heads * 128).view(6, heads, 128)
    room = torch.zeros(5 * apart + heads * 128, dtype=torch.bfloat16, device="cuda")
    q = room.as_strided((6, heads, 128), (apart, 128, 1))
    q.copy_(near)
    k, v = (rows(6 * 16 * 2, 128).view(6, 16, 2, 128) * factor for factor in (1, 2))
    score = torch.einsum("bhd,bnhd->bhn", near.double(), k.double()) * 128**-0.5
    want = torch.einsum("bhn,bnhd->bhd", score.softmax(-1), v.double())
    wrong = []
    for given in (near, q):
        out = torch.zeros_like(near)
        prefill(given, k, v, out)
        wrong.append([round((out[i].double() - want[i]).abs().max().item(), 3) for i in range(6)])
    return max(wrong[0]) < 0.1 and max(wrong[1]) > 0.1, f"rows side by side are off by {wrong[0]}, rows far apart by {wrong[1]}"


# ---- latent attention, batch decode, and what is small -------------------------------------------------------------

def host(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def spaces():
    """Returns the workspaces of a plan: floats, integers, and pinned ones."""
    return [torch.empty(1 << 27, dtype=torch.uint8, device="cuda"), torch.empty(1 << 23, dtype=torch.uint8, device="cuda"),
            torch.empty(1 << 23, dtype=torch.uint8, pin_memory=True)]


def latent(name, q, cache, lengths, scale):
    """Calls batch MLA: request b has one row of q, and the b-th page of the cache. Returns out and the logarithms."""
    m, B, heads, room = module(name), q.shape[0], q.shape[1], spaces()
    steps = torch.arange(B + 1, dtype=torch.int32)
    plan = m.plan(*room, steps, steps, host(*lengths), heads, 512, True)
    out = torch.zeros(B, heads, 512, dtype=torch.bfloat16, device="cuda")
    lse = torch.zeros(B, heads, device="cuda")
    m.run(*room[:2], plan, q[..., :512], q[..., 512:], cache[..., :512], cache[..., 512:], steps[:-1].cuda(), out, lse, 1,
          heads, cache.shape[1], scale, True)
    torch.cuda.synchronize()
    return out, lse


def mla_counts_masked_keys(name):
    """One key has the weight 1, whatever the scale: the result is its value."""
    q, cache = rows(4, 576).view(1, 4, 576), rows(64, 576).view(1, 64, 576)
    cache[0, 1:] = 0
    said, off = [], []
    for scale in (0.1, 1e-4, 2.0**-64):
        out, _ = latent(name, q, cache, [1], scale)
        ratio = (cache[0, 0, :512].double() / out[0, 0].double()).median().item()
        off.append(abs(ratio - 1))
        said.append(f"scale {scale:.3g}: the value is {ratio:.4g} times the result")
    return off[0] < 0.01 < off[2], "; ".join(said)


def mla_fa2_counts_masked_keys():
    return mla_counts_masked_keys("mla")


def mla_fa3_counts_masked_keys():
    return mla_counts_masked_keys("mla_sm90")


def mla_rows_of_q_far_apart():
    """Two rows of q, 2^32 + 64 elements apart: strides are kept in 32 bits."""
    near, cache = rows(2, 576).view(2, 1, 576), rows(2 * 64, 576).view(2, 64, 576)
    apart = 2**32 + 64
    q = torch.zeros(apart + 576, dtype=torch.bfloat16, device="cuda").as_strided((2, 1, 576), (apart, 576, 1))
    q.copy_(near)
    wrong = []
    for given in (near, q):
        out, _ = latent("mla", given, cache, [64, 64], 0.1)
        score = torch.einsum("bhd,bnd->bhn", near.double(), cache.double()) * 0.1
        want = torch.einsum("bhn,bnd->bhd", score.softmax(-1), cache[..., :512].double())
        wrong.append([round((out[i].double() - want[i]).abs().max().item(), 3) for i in range(2)])
    return max(wrong[0]) < 0.1 and not max(wrong[1]) < 0.1, f"rows side by side are off by {wrong[0]}, rows far apart by {wrong[1]}"


def mla_append_to_pages_far_apart():
    """A row for the second of two pages, 2^32 + 64 elements after the first: the stride is kept in 32 bits."""
    apart = 2**32 + 64
    room = torch.zeros(apart + 4 * 576, dtype=torch.bfloat16, device="cuda")
    cache, row = room.as_strided((2, 4, 576), (apart, 576, 1)), rows(1, 576)
    tables = [host(*t).cuda() for t in ((0,), (0,), (1,), (0, 1), (1,))]
    batch, positions, pages, indptr, last = tables
    module("page").append_paged_mla_kv_cache(row[:, :512], row[:, 512:], batch, positions, cache[..., :512],
                                             cache[..., 512:], pages, indptr, last)
    torch.cuda.synchronize()
    near = room[:4096].nonzero()
    place = int(near[0].item()) if len(near) else apart
    right = bool((cache[1, 0] == row[0]).all().item())
    return not right, f"page 1 {'has' if right else 'lacks'} the row, which begins at element {place}, not at {apart}"


def pieces(weight, value, size):
    """Returns sums of weighted values: pieces of so many keys, each divided and rounded to bf16, merged in f64."""
    top, total = 0, 0
    for w, v in zip(weight.split(size, -1), value.split(size, 0)):
        top = top + ((w @ v) / w.sum(-1, keepdim=True)).bfloat16().double() * w.sum(-1, keepdim=True)
        total = total + w.sum(-1, keepdim=True)
    return (top / total).bfloat16()


def decode_stores_pieces_in_bf16():
    """One request of 241 keys, 4 heads over 2, 16 keys per page."""
    m, L, room = module("decode"), 241, spaces()
    q, k, v = rows(4, 128).view(1, 4, 128) / 8, rows(512, 128).view(16, 16, 2, 128), rows(512, 256)[:, 128:].contiguous().view(16, 16, 2, 128)
    none = torch.empty(0, dtype=torch.bfloat16)
    plan = m.plan(*room, host(0, 16), 1, 4, 2, 16, True, -1, 0.0, 128, 128, none, none)
    out = torch.zeros_like(q)
    m.run(*room[:2], plan, q, k, v, host(0, 16).cuda(), torch.arange(16, dtype=torch.int32, device="cuda"), host(1).cuda(), out,
          None, 0, -1, False, None, 0.0, 128**-0.5, 1.0, 1e-4)
    torch.cuda.synchronize()
    same = [0, 0]
    for head in range(4):
        keys, values = (t.reshape(256, 2, 128)[:L, head // 2].double() for t in (k, v))
        weight = ((q[0, head].double() @ keys.t()) * 128**-0.5).softmax(-1)[None]
        for i, size in enumerate((L, 128)):
            same[i] += int((pieces(weight, values, size)[0] == out[0, head]).sum().item())
    return same[1] > 500 and same[0] < 450, f"of 512 elements {same[1]} are those of two rounded pieces, {same[0]} those of one"


def mla_stores_pieces_in_bf16():
    """q is 0, so that all 41 keys have the same weight."""
    cache = rows(64, 576).view(1, 64, 576)
    out, _ = latent("mla", torch.zeros(1, 8, 576, dtype=torch.bfloat16, device="cuda"), cache, [41], 1.0)
    weight, value = torch.ones(1, 41, dtype=torch.float64, device="cuda"), cache[0, :41, :512].double()
    same = [int((pieces(weight, value, size)[0] == out[0, 0]).sum().item()) for size in (41, 32)]
    return same[1] > 500 and same[0] < 450, f"of 512 elements {same[1]} are those of pieces of 32 keys, {same[0]} those of one"


def mla_lse_is_of_rounded_weights():
    """Sums the weights of 8 keys as they are, and after each was rounded to bf16."""
    q, cache = rows(8, 576).view(1, 8, 576), rows(64, 576).view(1, 64, 576)
    cache[0, 8:] = 0
    _, lse = latent("mla", q, cache, [8], 0.005)
    score = q[0].double() @ cache[0, :8].double().t() * 0.005
    most = score.max(-1, keepdim=True).values
    weight = (score - most).exp()
    want, rounded = (w.sum(-1).log() + most[:, 0] for w in (weight, weight.bfloat16().double()))
    off = [(lse[0].double() - w).abs().max().item() for w in (want, rounded)]
    return off[1] < 1e-5 < off[0], f"off by {off[0]:.3g} from f64, and by {off[1]:.3g} from rounded weights"


def rope_drops_small_products():
    """x_a cos - x_b sin: the second product is below 2^-126."""
    x = torch.zeros(1, 1, 128, dtype=torch.bfloat16, device="cuda")
    x[..., :32], x[..., 32:64] = -1.3459410316915192e-36, -4.5917748078995606e-38
    table = torch.cat([torch.full((1, 32), number, device="cuda") for number in (0.9702839255332947, -0.2419692426919937)], -1)
    q, k = torch.zeros_like(x), torch.zeros_like(x)
    module("rope").apply_rope_pos_ids_cos_sin_cache(x, x.clone(), q, k, table, host(0).cuda(), False)
    torch.cuda.synchronize()
    a, b, c, s = x[0, 0, 0].item(), x[0, 0, 32].item(), table[0, 0].item(), table[0, 32].item()
    both, one = (torch.tensor(t, dtype=torch.float64).bfloat16().item() for t in (a * c - b * s, a * c))
    return q[0, 0, 0].item() == one != both, f"got {q[0, 0, 0].item():.9g}; f64 says {both:.9g}, and {one:.9g} without the small product"


def silu_of_infinity_times_a_subnormal():
    """silu(inf) times 2^-130 is inf; times 0 it would be NaN."""
    x = torch.full((1, 16), 2.0**-130, dtype=torch.bfloat16, device="cuda")
    x[0, :8] = torch.inf
    y = torch.zeros(1, 8, dtype=torch.bfloat16, device="cuda")
    module("silu").silu_and_mul(y, x, False)
    torch.cuda.synchronize()
    return bool(y.isnan().all().item()), f"got {y[0, 0].item()}, where f64 has inf"


def cudnn_flushes_subnormals():
    """Every value is 2^-130, and so is their mean."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q, k, v = rows(16, 64).view(1, 1, 16, 64), rows(16, 64).view(1, 1, 16, 64), torch.full((1, 1, 16, 64), 2.0**-130, dtype=torch.bfloat16, device="cuda")
    got = []
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            got.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0, 0, 5, 0].item())
    return got[0] == 0 and got[1] > 0, f"cuDNN gives {got[0]:.3g}, FlashAttention 2 {got[1]:.3g}, f64 {2.0**-130:.3g}"


def conv_state_loses_minus_zero():
    """A state of 4 rows, all -0. A request of 4 rows of -0 leaves -0 everywhere, and so does one of 1 row. Without a GPU
    and with TRITON_INTERPRET=1, Triton runs the kernel on the CPU."""
    ops = importlib.import_module("fla.modules.causal_conv1d.ops")
    device, kept = "cuda" if torch.cuda.is_available() else "cpu", []
    for count in (4, 1):
        x, state = (torch.full(shape, -0.0, dtype=torch.bfloat16, device=device) for shape in ((1, count, 16), (1, 16, 4)))
        last = ops.causal_conv1d_update_states(x=x, state_len=4, initial_state=state,
                                               cu_seqlens=torch.tensor([0, count], device=device))
        kept.append(int(torch.signbit(last).sum().item()))
    return kept == [64, 0], f"of 64 elements {kept[0]} are -0 after 4 rows, {kept[1]} after 1"


def gdn_prefill_waits_for_ever_for_an_empty_request():
    """Requests of 5, 0 and 64 rows. Without the empty one the same call returns at once."""
    call, answers = module("gdn_prefill").gdn_prefill, []
    space = torch.empty(torch.cuda.get_device_properties(0).multi_processor_count * 128, dtype=torch.uint8, device="cuda")
    for lengths in ((5, 64), (5, 0, 64)):
        count = sum(lengths)
        q, k, v = (rows(count * heads, 128).view(count, heads, 128) / 16 for heads in (2, 2, 4))
        gates, first = torch.full((count, 4), 0.5, device="cuda"), torch.zeros(len(lengths), 4, 128, 128, device="cuda")
        cu = torch.tensor((0, *lengths), device="cuda").cumsum(0)
        torch.cuda.synchronize()
        begin, end = time.time(), torch.cuda.Event()
        call(torch.empty_like(v), torch.empty_like(first), q, k, v, cu, first, gates, gates, 128**-0.5, space, None, None, 0)
        end.record()
        while not end.query() and time.time() - begin < 10:
            time.sleep(0.01)
        answers.append(end.query())
    return answers == [True, False], f"answers within 10 s: {answers[0]} without an empty request, {answers[1]} with one"


FINDINGS = [rmsnorm_beyond_2_32_elements, rmsnorm_rows_far_apart, subnormals_flushed, silu_and_mul_of_12_channels,
            rope_of_72_channels, merge_of_two_empty_states, cublas_adds_in_bf16, silu_rounded_before_the_product,
            top_k_keeps_all_ties, fa3_faults_on_the_stride_of_an_axis_of_one_element,
            fa3_reads_after_the_last_key, fa3_empty_batch_has_plus_infinity, fa3_moves_the_weight_of_one_key,
            prefill_rows_of_q_far_apart, append_of_no_rows, mla_fa2_counts_masked_keys, mla_fa3_counts_masked_keys,
            mla_rows_of_q_far_apart, mla_append_to_pages_far_apart, decode_stores_pieces_in_bf16,
            mla_stores_pieces_in_bf16, mla_lse_is_of_rounded_weights, rope_drops_small_products,
            silu_of_infinity_times_a_subnormal, cudnn_flushes_subnormals, conv_state_loses_minus_zero,
            gdn_prefill_waits_for_ever_for_an_empty_request]


def run(finding):
    """Returns what a process of its own says of a finding."""
    try:
        ran = subprocess.run([sys.executable, "-u", __file__, MODULES, "--one", finding.__name__], capture_output=True, text=True,
                             check=False, timeout=LIMIT + 10)
    except subprocess.TimeoutExpired as late:
        return f"does not hold: no answer after {LIMIT:.0f} s: {(late.stderr or b'')[-300:]!r}"
    if ran.stdout.strip():
        return ran.stdout.strip()
    fault = [line for line in ran.stderr.splitlines() if "misaligned" in line.lower()]
    return "holds: " + fault[-1].strip() if fault else "does not hold: " + " | ".join(ran.stderr.splitlines()[-3:])


def main():
    named = {finding.__name__: finding for finding in FINDINGS}
    if sys.argv[2:3] == ["--one"]:
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        holds, text = named[sys.argv[3]]()
        print(("holds: " if holds else "does not hold: ") + text, flush=True)
        os._exit(0)  # a context that a fault has ended may wait for ever at the interpreter's end
    wanted = sys.argv[2:] or list(named)
    if not set(wanted) <= set(named):
        sys.exit(f"confirm: found {wanted}, allowed {', '.join(named)}")
    count = 0
    for name in wanted:
        said = run(named[name])
        count += said.startswith("holds")
        print(f"{name}: {said}", flush=True)
    print(f"{count} of {len(wanted)} findings hold")
    sys.exit(count != len(wanted))


main()
