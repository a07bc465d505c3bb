"""kernels_delta.py: the gated delta rule of flash-linear-attention and of FlashInfer as callables for the Python door.

A request's state is fetched from its slot before the call and stored there after it. The callables copy the judge's
tensors to the GPU and the results back, so what is judged is the arithmetic. FlashInfer's prefill is the module
gdn_prefill.so of flashinfer_modules.py, called through tvm-ffi. `DELTA_INTERFACE` names a module with the functions of
both projects, as a stand-in on a CPU."""
import functools
import importlib
import os

import assay
import torch

from kernels_torch import DEVICE, back, on

HALF = {"exp_ulp": 4, "lanes": 4, "cut": 16, "qk": "bf16", "chunk": "bf16"}
CHUNK = dict(HALF, run_to_run=True)
RECURRENT = {"exp_ulp": 4, "lanes": 4, "qk_lanes": 4, "run_to_run": True}
PREFILL = dict(HALF, ftz=True, run_to_run=False)
DECODE = {"exp_ulp": 4, "lanes": 4, "qk_lanes": 4, "qk": "bf16", "ftz": True, "run_to_run": False}
EPS = 1e-6  # what the kernels add to a sum of squares
CERTAIN = 200.0  # exp(-200) is 0 in f32: a logit beyond it stands for a gate of 0 or 1


def function(module, name):
    """Returns a function of the project's module, or of the stand-in."""
    return getattr(importlib.import_module(os.environ.get("DELTA_INTERFACE", module)), name)


def dense(tensor):
    return on(tensor).contiguous()


# ---- what all of them share ------------------------------------------------------------------------------

def begun(state, slots, fresh):
    """Returns the state [B, H_v, D_k, D_v] in f32 with which each request begins: zeros without a slot and where it is
    fresh."""
    made = state[slots.clamp(min=0).long()].float()
    made[(slots < 0) | (fresh != 0)] = 0
    return made


def store(state, slots, cu, last):
    """Stores the last state of each request that has rows and a slot."""
    kept = (slots >= 0) & (cu[1:] > cu[:-1])
    state[slots[kept].long()] = back(last, state)[kept]


def usual_eps(l2_eps):
    return abs(l2_eps - EPS) < 1e-3 * EPS


def by_length(x, l2_eps):
    """Divides each head by its length, and rounds to the type of x, which is what the kernel takes."""
    wide = x.float()
    return (wide / (wide.square().sum(-1, keepdim=True) + l2_eps).sqrt()).to(x.dtype)


def shaped(q, v):
    """Refuses heads of another size than FlashInfer has kernels for."""
    if q.shape[-1] != 128 or v.shape[-1] != 128:
        raise assay.Unsupported(f"D_k, D_v: found {q.shape[-1]}, {v.shape[-1]}, allowed 128")


# ---- flash-linear-attention ------------------------------------------------------------------------------

def linear(kernel, wide, q, k, v, g, beta, cu, slots, fresh, state, o, scale, l2, l2_eps):
    """Makes one call for the whole batch. Another l2_eps than the kernel's goes to the project's own l2norm_fwd. `wide`:
    the kernel keeps q and k in f32 after that."""
    q, k = dense(q), dense(k)
    inside = l2 and usual_eps(l2_eps)
    if l2 and not inside:
        divide = function("fla.modules.l2norm", "l2norm_fwd")
        q, k = (divide(x.float() if wide else x, eps=l2_eps)[0] for x in (q, k))
    made, last = kernel(q=q[None], k=k[None], v=dense(v)[None], g=dense(g)[None], beta=dense(beta)[None],
                        scale=scale or q.shape[-1]**-0.5, initial_state=on(begun(state, slots, fresh)),
                        output_final_state=True, use_qk_l2norm_in_kernel=inside, cu_seqlens=on(cu).long())
    o[...] = back(made[0], o)
    store(state, slots, cu, last)


@assay.variant("gated_delta_rule", name="fla_chunk", claims="bf16", tensors="torch", contract=CHUNK)
def fla_chunk(q, k, v, g, beta, cu, slots, fresh, state, o, scale, l2, l2_eps):
    linear(function("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"), False, q, k, v, g, beta, cu, slots, fresh,
           state, o, scale, l2, l2_eps)


@assay.variant("gated_delta_rule", name="fla_recurrent", claims="f32,f16,bf16", tensors="torch", contract=RECURRENT)
def fla_recurrent(q, k, v, g, beta, cu, slots, fresh, state, o, scale, l2, l2_eps):
    linear(function("fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule"), True, q, k, v, g, beta, cu, slots,
           fresh, state, o, scale, l2, l2_eps)


# ---- FlashInfer ------------------------------------------------------------------------------------------

@functools.cache
def prefill_module():
    """Returns gdn_prefill of the module that flashinfer_modules.py builds."""
    import tvm_ffi
    return tvm_ffi.load_module(os.path.join(os.environ["FLASHINFER_MODULES"], "gdn_prefill.so")).gdn_prefill


@functools.cache
def workspace():
    """Returns what flashinfer.gdn_prefill gives the kernel: 128 bytes for each multiprocessor."""
    return torch.empty(torch.cuda.get_device_properties(0).multi_processor_count * 128, dtype=torch.uint8, device=DEVICE)


def whole_heads(q, v, **_):
    shaped(q, v)


# The function takes exp(g), and states as [D_v, D_k]. It has no l2: its wrapper in Python takes the flag, and does not
# hand it on.
@assay.variant("gated_delta_rule", name="flashinfer_prefill", claims="bf16", tensors="torch", contract=PREFILL,
               supports=whole_heads)
def flashinfer_prefill(q, k, v, g, beta, cu, slots, fresh, state, o, scale, l2, l2_eps):
    call = function(os.environ["DELTA_INTERFACE"], "gdn_prefill") if "DELTA_INTERFACE" in os.environ else prefill_module()
    q, k = (by_length(dense(x), l2_eps) if l2 else dense(x) for x in (q, k))
    first = on(begun(state, slots, fresh)).transpose(2, 3).contiguous()
    made, last = torch.empty(o.shape, dtype=o.dtype, device=DEVICE), torch.empty_like(first)
    call(made, last, q, k, dense(v), on(cu).long(), first, dense(g).exp(), dense(beta), float(scale or q.shape[-1]**-0.5),
         workspace() if DEVICE == "cuda" else None, None, None, 0)
    o[...] = back(made, o)
    store(state, slots, cu, last.transpose(2, 3))


def logits(g, beta):
    """Returns the bf16 numbers a and b from which the kernel makes exactly these gates, with A_log and dt_bias 0:
    g = -ln(1 + e^a) and beta = 1 / (1 + e^-b)."""
    a, b = torch.where(g == 0, -CERTAIN, -g).bfloat16(), torch.where(beta == 0.5, 0.0, (beta - 0.5) * 2 * CERTAIN)
    if not (((g == 0) | ((g <= -CERTAIN) & (a == -g))).all() and ((beta == 0) | (beta == 0.5) | (beta == 1)).all()):
        raise assay.Unsupported("g, beta: found others than 0 and below -200, and 0, 0.5, 1, allowed what logits of bf16 give")
    return a, b.bfloat16()


# A call is one row of each request: the rows of a request follow each other in as many calls.
@assay.variant("gated_delta_rule", name="flashinfer_decode", claims="bf16", tensors="torch", contract=DECODE,
               supports=whole_heads)
def flashinfer_decode(q, k, v, g, beta, cu, slots, fresh, state, o, scale, l2, l2_eps):
    call = function("flashinfer.gdn_decode", "gated_delta_rule_decode")
    inside = l2 and usual_eps(l2_eps)
    q, k = (by_length(dense(x), l2_eps) if l2 and not inside else dense(x) for x in (q, k))
    v, (a, b), now = dense(v), (dense(x) for x in logits(g, beta)), on(begun(state, slots, fresh))
    zeros = torch.zeros(v.shape[1], dtype=torch.float32, device=DEVICE)
    first, count = cu[:-1].long(), (cu[1:] - cu[:-1]).long()
    for t in range(int(count.max())):
        live = on(torch.nonzero(count > t).flatten())
        rows = on(first)[live] + t
        own = now[live]
        made, own = call(*(x[rows][:, None] for x in (q, k, v)), own, zeros, a[rows][:, None], zeros, b[rows][:, None],
                         scale=float(scale or q.shape[-1]**-0.5), use_qk_l2norm=inside)
        now[live] = own
        o[rows.cpu()] = back(made[:, 0], o)
    store(state, slots, cu, now)
