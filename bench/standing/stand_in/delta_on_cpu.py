"""delta_on_cpu.py: what kernels_delta.py calls of flash-linear-attention and FlashInfer, in torch on a CPU
(DELTA_INTERFACE=delta_on_cpu). DELTA_MISTAKE plants a mistake that the suite must find."""
import os

import torch

MISTAKE = os.environ.get("DELTA_MISTAKE", "")
MISTAKES = ("gates_taken_as_factors", "heads_tiled", "state_of_request_before", "last_state_of_row_before",
            "length_of_mean", "alpha_floor", "states_not_transposed", "logits_without_sigmoid")


def walk(q, k, v, g, beta, scale, state):
    """Returns the results [T, H_v, D_v] of one request and its last state, row by row in f32."""
    rows, kept = [], state
    ratio = v.shape[1] // q.shape[1]
    heads = torch.arange(v.shape[1])
    heads = heads % q.shape[1] if MISTAKE == "heads_tiled" else heads // ratio
    q, k = (x.float()[:, heads] for x in (q, k))
    decay = g if MISTAKE == "gates_taken_as_factors" else g.exp()
    for t in range(v.shape[0]):
        kept = state
        state = state * decay[t][:, None, None]
        rest = v[t].float() - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + k[t][:, :, None] * (beta[t][:, None] * rest)[:, None]
        rows.append(torch.einsum("hkv,hk->hv", state, q[t]) * scale)
    made = torch.stack(rows) if rows else torch.zeros(0, *v.shape[1:])
    return made, kept if MISTAKE == "last_state_of_row_before" else state


def l2norm_fwd(x, eps=1e-6):
    wide = x.float()
    sums = wide.square().mean(-1, keepdim=True) if MISTAKE == "length_of_mean" else wide.square().sum(-1, keepdim=True)
    return (wide / (sums + eps).sqrt()).to(x.dtype), None


def batch(q, k, v, g, beta, scale, initial_state, cu):
    """Returns results of all rows, and the last states."""
    made, last = [], []
    for i in range(len(cu) - 1):
        rows = slice(int(cu[i]), int(cu[i + 1]))
        state = initial_state[i - 1 if MISTAKE == "state_of_request_before" else i]
        own, after = walk(q[rows], k[rows], v[rows], g[rows], beta[rows], scale, state)
        made.append(own)
        last.append(after)
    return torch.cat(made), torch.stack(last)


def fused_recurrent_gated_delta_rule(q, k, v, g, beta, scale, initial_state, output_final_state,
                                     use_qk_l2norm_in_kernel, cu_seqlens):
    assert output_final_state and q.shape[0] == 1 and cu_seqlens.dtype == torch.int64
    if use_qk_l2norm_in_kernel:
        q, k = (l2norm_fwd(x.float())[0] for x in (q, k))
    made, last = batch(q[0], k[0], v[0], g[0], beta[0], scale, initial_state, cu_seqlens)
    return made.to(v.dtype)[None], last


def chunk_gated_delta_rule(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                           cu_seqlens):
    if use_qk_l2norm_in_kernel:
        q, k = (l2norm_fwd(x)[0] for x in (q, k))
    return fused_recurrent_gated_delta_rule(q, k, v, g, beta, scale, initial_state, output_final_state, False, cu_seqlens)


def gdn_prefill(output, output_state, q, k, v, cu_seqlens, initial_state, alpha, beta, scale, workspace, checkpoints,
                checkpoint_starts, every):
    assert workspace is checkpoints is checkpoint_starts is None and every == 0
    alpha = alpha + 1e-10 if MISTAKE == "alpha_floor" else alpha
    turned = initial_state if MISTAKE == "states_not_transposed" else initial_state.transpose(2, 3)
    made, last = batch(q, k, v, alpha.log(), beta, scale, turned, cu_seqlens)
    output[...] = made.to(output.dtype)
    output_state[...] = last if MISTAKE == "states_not_transposed" else last.transpose(2, 3)


def gated_delta_rule_decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    assert q.shape[1] == 1 and a.dtype == b.dtype == torch.bfloat16
    wide = a.float() + dt_bias
    g = -A_log.exp() * torch.where(wide > 20, wide, wide.exp().log1p())
    beta = b.float() if MISTAKE == "logits_without_sigmoid" else torch.sigmoid(b.float())
    if use_qk_l2norm:
        q, k = (l2norm_fwd(x.float())[0] for x in (q, k))
    pairs = [walk(q[i], k[i], v[i], g[i], beta[i], scale, state[i]) for i in range(q.shape[0])]
    return torch.stack([made for made, _ in pairs]).to(v.dtype), torch.stack([last for _, last in pairs])
