"""fa3_on_cpu.py: what kernels_fa3.py calls of FlashAttention 3, in torch on a CPU: the callables can be tried without a
GPU (FA3_INTERFACE=fa3_on_cpu). FA3_MISTAKE plants a mistake that the suite must find."""
import os

import torch

MISTAKE = os.environ.get("FA3_MISTAKE", "")
MISTAKES = ("mask_top_left", "wrong_kv_head", "splits_not_weighed", "cap_lost", "keys_of_request_before", "lse_to_base_2")


def refuse_strides(*tensors):
    """Refuses what makes the kernel fault: a stride that is no multiple of 16 bytes, axes of one element included."""
    for t in tensors:
        assert all(stride * t.element_size() % 16 == 0 for stride in t.stride()[:-1]), f"strides {t.stride()}"


def one(q, k, v, scale, softcap, causal, splits):
    """Returns out [T, H, D_v] and lse [H, T] of one request. Weights are rounded to the type of v, as its kernels do."""
    T, H, D = q.shape
    L, groups = k.shape[0], H // k.shape[1]
    if MISTAKE == "wrong_kv_head":
        k, v = k.flip(1), v.flip(1)
    wide = [t.float().transpose(0, 1) for t in (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))]
    score = wide[0] @ wide[1].transpose(1, 2) * (scale or D**-0.5)
    if softcap and MISTAKE != "cap_lost":
        score = softcap * torch.tanh(score / softcap)
    if causal:
        last = torch.arange(T)[:, None] + (0 if MISTAKE == "mask_top_left" else L - T)
        score = score.masked_fill(torch.arange(L)[None, :] > last, -torch.inf)
    parts = []
    for piece in torch.arange(L).chunk(splits):
        if piece.numel() == 0:
            continue
        s = score[:, :, piece]
        most = s.amax(-1, keepdim=True).clamp_min(-3e38)
        p = torch.exp(s - most)
        total = p.sum(-1, keepdim=True)
        parts.append((p.to(v.dtype).float() @ wide[2][:, piece] / total.clamp_min(1e-38), most + torch.log(total)))
    if not parts:
        return torch.zeros(T, H, v.shape[-1], dtype=q.dtype), torch.full((H, T), -torch.inf)
    lse = torch.logsumexp(torch.stack([part[1] for part in parts]), 0)
    share = [torch.exp(part[1] - lse).nan_to_num(0.0) for part in parts]
    if MISTAKE == "splits_not_weighed":
        share = [torch.full_like(one, 1 / len(parts)) for one in share]
    out = sum(weight * part[0] for weight, part in zip(share, parts))
    if MISTAKE == "lse_to_base_2":
        lse = lse * 1.4426950408889634
    return out.transpose(0, 1).to(q.dtype), lse[:, :, 0]


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, softcap=0.0, num_splits=1, return_attn_probs=False):
    refuse_strides(q, k, v)
    made = [one(*parts, softmax_scale, softcap, causal, num_splits) for parts in zip(q, k, v)]
    out, lse = torch.stack([m[0] for m in made]), torch.stack([m[1] for m in made])
    return (out, lse) if return_attn_probs else out


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None,
                           causal=False, softcap=0.0, num_splits=1, return_attn_probs=False):
    refuse_strides(q, k, v)
    out, lse = torch.zeros(q.shape[0], q.shape[1], v.shape[-1], dtype=q.dtype), torch.zeros(q.shape[1], q.shape[0])
    for i in range(cu_seqlens_q.shape[0] - 1):
        rows, keys = (slice(int(cu[i]), int(cu[i + 1])) for cu in (cu_seqlens_q, cu_seqlens_k))
        assert rows.stop - rows.start <= max_seqlen_q and keys.stop - keys.start <= max_seqlen_k
        if MISTAKE == "keys_of_request_before" and i > 0 and keys.stop > keys.start:
            keys = slice(keys.start - 1, keys.stop - 1)
        out[rows], lse[:, rows] = one(q[rows], k[keys], v[keys], softmax_scale, softcap, causal, num_splits)
    return (out, lse) if return_attn_probs else out
