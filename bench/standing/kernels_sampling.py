"""kernels_sampling.py: samplers of FlashInfer as callables for the Python door. They draw by their own numbers, so they
are judged by the set of ids that a row keeps, and by the law `distribution`.

The callables make probabilities from logits and temperatures, and the status of rows that have none. Everything else is
FlashInfer's. `SAMPLING_INTERFACE` names another module with the same functions, as a stand-in on a CPU."""
import importlib
import os

import assay
import torch

from kernels_torch import on

CONTRACT = {"generator": "own", "exp_ulp": 4, "lanes": 32, "run_to_run": False}
CLAIMS = "f32,f16,bf16"
draws = 0


def interface():
    return importlib.import_module(os.environ.get("SAMPLING_INTERFACE", "flashinfer.sampling"))


def numbers():
    """Returns a generator that no earlier call had: two calls of the same row draw anew."""
    global draws
    draws += 1
    made = torch.Generator(device="cuda" if torch.cuda.is_available() else "cpu")
    made.manual_seed(os.getpid() * 1000003 + draws)
    return made


def state_of(logits):
    """Returns the status of each row by its logits: 1 NaN or +Inf, 2 nothing but -Inf."""
    bad = torch.isnan(logits).any(-1) | (logits == torch.inf).any(-1)
    return torch.where(bad, 1, torch.where((logits == -torch.inf).all(-1), 2, 0)).int()


def wrong(values, low, high, without_low=False):
    """Tells which rows have a parameter out of range."""
    return ~((values > low if without_low else values >= low) & (values <= high))


def prepared(logits, temperature, state):
    """Returns probabilities, and which rows take their largest logit; rows with a status are uniform."""
    wide = logits.float()
    wide = wide - torch.where(state != 0, 0.0, wide.amax(-1))[:, None]  # before the division, which may overflow
    greedy = torch.zeros(wide.shape[0], dtype=torch.bool)
    if temperature is not None:
        state[(state == 0) & wrong(temperature, 0, torch.finfo(torch.float32).max)] = 3
        greedy = temperature == 0
        wide = wide / torch.where(greedy | (state != 0), 1.0, temperature)[:, None]
    wide = torch.where((state != 0)[:, None], torch.zeros_like(wide), wide)
    return torch.softmax(wide, -1), greedy


def finish(logits, state, greedy, drawn, token, status):
    best = logits.float().nan_to_num(nan=0.0).argmax(-1).int()
    token[...] = torch.where(state != 0, -1, torch.where(greedy, best, drawn.cpu().int()))
    status[...] = state


@assay.variant("sampler", name="flashinfer_plain", claims=CLAIMS, tensors="torch", contract=CONTRACT)
def plain(logits, seed, step, request, temperature, token, status):
    state = state_of(logits)
    probs, greedy = prepared(logits, temperature, state)
    finish(logits, state, greedy, interface().sampling_from_probs(on(probs), generator=numbers()), token, status)


@assay.variant("sampler", name="flashinfer_top_k_top_p", claims=CLAIMS, tensors="torch", contract=CONTRACT)
def top_k_top_p(logits, seed, step, request, temperature, top_k, top_p, token, status):
    rows, ids = logits.shape
    state = state_of(logits)
    k = torch.full((rows,), ids, dtype=torch.int32) if top_k is None else top_k
    p = torch.ones(rows) if top_p is None else top_p
    probs, greedy = prepared(logits, temperature, state)
    state[(state == 0) & ((k < 0) | wrong(p, 0, 1, True))] = 3
    k, p = torch.where((k <= 0) | (k > ids), ids, k).int(), torch.where(wrong(p, 0, 1, True), torch.ones_like(p), p)
    drawn = interface().top_k_top_p_sampling_from_probs(on(probs), on(k), on(p), filter_apply_order="top_k_first",
                                                        generator=numbers())
    finish(logits, state, greedy, drawn, token, status)


@assay.variant("sampler", name="flashinfer_min_p", claims=CLAIMS, tensors="torch", contract=CONTRACT)
def min_p_alone(logits, seed, step, request, temperature, min_p, token, status):
    state = state_of(logits)
    least = torch.zeros(logits.shape[0]) if min_p is None else min_p
    probs, greedy = prepared(logits, temperature, state)
    state[(state == 0) & wrong(least, 0, 1)] = 3
    least = torch.where(wrong(least, 0, 1), torch.zeros_like(least), least)
    finish(logits, state, greedy, interface().min_p_sampling_from_probs(on(probs), on(least), generator=numbers()), token,
           status)
