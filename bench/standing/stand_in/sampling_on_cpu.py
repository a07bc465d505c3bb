"""sampling_on_cpu.py: what kernels_sampling.py calls of FlashInfer, in torch on a CPU
(SAMPLING_INTERFACE=sampling_on_cpu). SAMPLING_MISTAKE plants a mistake that the suite must find."""
import os

import torch

MISTAKE = os.environ.get("SAMPLING_MISTAKE", "")
MISTAKES = ("top_k_one_more", "top_p_drops_crossing", "min_p_of_one", "flattened", "first_id_never")


def sampling_from_probs(probs, generator=None):
    if MISTAKE == "flattened":
        probs = (probs > 0).float()
    if MISTAKE == "first_id_never" and probs.shape[1] > 1:
        probs = torch.cat([torch.zeros_like(probs[:, :1]), probs[:, 1:] + 1e-30], 1)
    return torch.multinomial(probs, 1, generator=generator)[:, 0].int()


def top_k_top_p_sampling_from_probs(probs, top_k, top_p, filter_apply_order="top_k_first", generator=None):
    assert filter_apply_order == "top_k_first"
    sorted_probs, order = probs.double().sort(dim=-1, descending=True, stable=True)
    place = torch.arange(probs.shape[1])[None, :]
    kept = torch.where(place < top_k[:, None] + (MISTAKE == "top_k_one_more"), sorted_probs, 0.0)
    kept = kept / kept.sum(-1, keepdim=True)
    before = kept.cumsum(-1) - kept
    if MISTAKE == "top_p_drops_crossing":
        before = torch.where(place > 0, before + kept, before)
    kept = torch.where(before < top_p[:, None], kept, 0.0)
    made = torch.zeros_like(probs).scatter(-1, order, kept.to(probs.dtype))
    return torch.multinomial(made, 1, generator=generator)[:, 0].int()


def min_p_sampling_from_probs(probs, min_p, generator=None):
    largest = 1.0 if MISTAKE == "min_p_of_one" else probs.amax(-1, keepdim=True)
    kept = torch.where(probs >= min_p[:, None] * largest, probs, 0.0)
    kept = torch.where(kept.sum(-1, keepdim=True) > 0, kept, probs)
    return torch.multinomial(kept, 1, generator=generator)[:, 0].int()
