#!/usr/bin/env python3
"""rows.py FILE.jsonl [OPERATOR...]: times kernels of torch, Liger, FlashInfer and flash-linear-attention for row-wise
operators, samplers and gemm on the shapes of bench/standing/speed, in the way of timing.py. Appends a line per kernel
and shape to FILE. A library that is missing has a line that says so. Samplers draw from probabilities, so that their
time has the softmax that makes them from logits."""

import sys

import torch
import torch.nn.functional as F

import compiled
from timing import Unsupported, table

EPS = 1e-6
DEVICE = "cuda"


def normal(*shape):
    return torch.randn(*shape, device=DEVICE).bfloat16()


def near(got, want, bits):
    return bool(((got.double() - want).abs() <= 2.0**-bits * want.abs().max()).all())


def some(rows):
    return [0, rows // 2, rows - 1]


# ---- inputs of an operator, and what its formula gives for some rows -------------------------------------------------

def norm_inputs(N, C):
    return [normal(N, C), normal(C), normal(C)]


def rms_rows(x, g, b):
    x = x[some(len(x))].double()
    return x / (x.square().mean(1, keepdim=True) + EPS).sqrt() * g.double()


def layer_rows(x, g, b):
    return F.layer_norm(x[some(len(x))].double(), (x.shape[1],), g.double(), b.double(), EPS)


def swiglu_rows(x):
    gate, up = x[some(len(x))].double().chunk(2, 1)
    return F.silu(gate) * up


def gelu_rows(x, b):
    return F.gelu(x[some(len(x))].double() + b.double(), approximate="tanh")


def product_rows(a, b):
    return a[some(len(a))].double() @ b.double().t()


def conv_inputs(N, C):
    """Rows, weights, bias, and the rows before the first: three, and one that no result needs."""
    return [normal(1, N, C), normal(C, 4), normal(C), normal(1, C, 4)]


def conv_rows(x, w, b, before):
    made = []
    for n in some(x.shape[1]):
        taps = [x[0, n - 3 + t] if n - 3 + t >= 0 else before[0, :, n + 1 + t] for t in range(4)]
        made.append(F.silu(sum(w[:, t].double() * tap.double() for t, tap in enumerate(taps)) + b.double()))
    return torch.stack(made)


def picked(B, *values):
    return torch.tensor(values, device=DEVICE)[torch.randint(len(values), (B,), device=DEVICE)]


def logits(B, V):
    """Rows as `values: needles` draws them: one logit in 16 stands out, and what engines are asked for by default."""
    stands_out = torch.rand(B, V, device=DEVICE) < 1 / 16
    x = 2 * torch.randn(B, V, device=DEVICE) * torch.where(stands_out, 1.0, 0.001)
    return [x.bfloat16(), picked(B, 0.6, 0.7, 0.8, 1.0), picked(B, 20, 40, 50, 64).int(), picked(B, 0.8, 0.9, 0.95),
            picked(B, 0.02, 0.05, 0.1)]


# ---- kernels: a library's function of the inputs ---------------------------------------------------------------------

def liger_rms(x, g, b):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    return LigerRMSNormFunction.apply(x, g, EPS, 0.0, "gemma", False)


def fla_conv(x, w, b, before):
    from fla.modules.causal_conv1d import causal_conv1d
    cu = torch.tensor([0, x.shape[1]], device=DEVICE)
    return lambda: causal_conv1d(x, w, b, initial_state=before, output_final_state=True, activation="silu",
                                 cu_seqlens=cu)[0][0]


def probabilities(x, temperature):
    return torch.softmax(x.float() / temperature[:, None], -1)


def generator():
    made = torch.Generator(device=DEVICE)
    made.manual_seed(1)
    return made


def draw(x, temperature, k, p, least):
    from flashinfer.sampling import sampling_from_probs
    numbers = generator()
    return lambda: sampling_from_probs(probabilities(x, temperature), generator=numbers)


def draw_top(x, temperature, k, p, least):
    from flashinfer.sampling import top_k_top_p_sampling_from_probs
    numbers = generator()
    return lambda: top_k_top_p_sampling_from_probs(probabilities(x, temperature), k, p,
                                                   filter_apply_order="top_k_first", generator=numbers)


def draw_min_p(x, temperature, k, p, least):
    from flashinfer.sampling import min_p_sampling_from_probs
    numbers = generator()
    return lambda: min_p_sampling_from_probs(probabilities(x, temperature), least, generator=numbers)


def kept(ids, x, temperature, k, p, least):
    """Tells whether each id is one of the vocabulary whose probability is not 0 in f32."""
    ids = ids.long()
    if not bool(((ids >= 0) & (ids < x.shape[1])).all()):
        return False
    return bool((probabilities(x, temperature).gather(1, ids[:, None]) > 0).all())


def kept_top(ids, x, temperature, k, p, least):
    """Tells whether fewer than k logits lie above that of the id."""
    own = x.gather(1, ids.long().clamp(0, x.shape[1] - 1)[:, None])
    return kept(ids, x, temperature, k, p, least) and bool(((x > own).sum(1) < k).all())


def kept_min_p(ids, x, temperature, k, p, least):
    """Tells whether each id has the least probability that a row asks for, or 2^-16 of it less."""
    all_p = probabilities(x, temperature)
    own = all_p.gather(1, ids.long().clamp(0, x.shape[1] - 1)[:, None])[:, 0]
    return kept(ids, x, temperature, k, p, least) and bool((own >= least * all_p.amax(1) * (1 - 2.0**-16)).all())


def at_once(function):
    """A kernel whose function needs nothing before its launch."""
    return lambda *tensors: lambda: function(*tensors)


def rows_within(expected, bits):
    return lambda out, *tensors: near(out[some(len(out))], expected(*tensors), bits)


RMS, LAYER, GATES, GELU = (rows_within(rows, 7) for rows in (rms_rows, layer_rows, swiglu_rows, gelu_rows))
N, C, I = 8192, 4096, 3072
# Operator, shape, kernel; inputs; the launch over them; whether an output is right.
WORK = [
    ("rms_norm", "n8192", "torch", lambda: norm_inputs(N, C), at_once(lambda x, g, b: F.rms_norm(x, (C,), g, EPS)), RMS),
    ("rms_norm", "n8192", "inductor", lambda: norm_inputs(N, C),
     at_once(lambda x, g, b: compiled.by_inductor(compiled.rms_norm, x, g, EPS)), RMS),
    ("rms_norm", "n8192", "liger", lambda: norm_inputs(N, C), at_once(liger_rms), RMS),
    ("layer_norm", "n8192", "torch", lambda: norm_inputs(N, C),
     at_once(lambda x, g, b: F.layer_norm(x, (C,), g, b, EPS)), LAYER),
    ("layer_norm", "n8192", "inductor", lambda: norm_inputs(N, C),
     at_once(lambda x, g, b: compiled.by_inductor(compiled.layer_norm, x, g, b, EPS)), LAYER),
    ("swiglu", "n8192", "inductor", lambda: [normal(N, 2 * I)],
     at_once(lambda x: compiled.by_inductor(compiled.swiglu, x)), GATES),
    ("bias_gelu_new", "n8192", "inductor", lambda: [normal(N, C), normal(C)],
     at_once(lambda x, b: compiled.by_inductor(compiled.bias_gelu_new, x, b)), GELU),
    ("gemm", "square_4096", "cublas", lambda: [normal(C, C), normal(C, C)], at_once(lambda a, b: a @ b.t()),
     rows_within(product_rows, 7)),
    ("causal_conv1d", "prompt_8192", "fla", lambda: conv_inputs(N, N), fla_conv, rows_within(conv_rows, 7)),
    ("sampler", "temperature_64", "flashinfer", lambda: logits(64, 151936), draw, kept),
    ("sampler", "top_k_top_p_64", "flashinfer_top", lambda: logits(64, 151936), draw_top, kept_top),
    ("sampler", "min_p_64", "flashinfer_min_p", lambda: logits(64, 151936), draw_min_p, kept_min_p),
]


def present(call):
    """Calls a function whose library may be missing, here or in what it returns."""
    try:
        made = call()
    except ImportError as why:
        raise Unsupported(str(why)) from why
    return (lambda: present(made)) if callable(made) else made


def entry(op, shape, peer, inputs, function, right):
    def prepare():
        sets = {}

        def make(i):
            sets[i] = inputs()
            return sets[i], present(lambda: function(*sets[i]))

        return make, lambda i, out: right(out, *sets[i])

    return {"op": op, "name": shape, "peer": peer}, prepare, None


if __name__ == "__main__":
    wanted = sys.argv[2:]
    sys.exit(table(sys.argv[1], torch, [entry(*one) for one in WORK if not wanted or one[0] in wanted]))
