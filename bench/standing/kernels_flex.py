"""kernels_flex.py: torch's flex_attention, compiled, as a callable for the Python door.

Each request is a call of its own. Rows and keys are padded to powers of two of at least 128, and the mask knows how
many there are: torch compiles a kernel per shape. The callable copies the judge's tensors to the GPU and the result
back, so what is judged is the arithmetic."""
import assay
import torch
import torch.nn.functional as F

from kernels_torch import contract, on, requests

compiled = None


def taken(q, k_cache, v_cache, slopes, softcap, window, sparse_block, sink, chunk, layout, **_):
    if q.dtype != "bf16" or k_cache.dtype != "bf16":
        raise assay.Unsupported(f"q, k_cache: found {q.dtype}, {k_cache.dtype}, allowed bf16")
    if slopes is not None or softcap or window or sparse_block or sink is not None or chunk or layout == "x":
        raise assay.Unsupported("slopes, softcap, window, sparse_block, sink, chunk, layout x: found one, allowed none")
    if q.shape[-1] not in (64, 128, 256) or v_cache.shape[-1] != q.shape[-1]:
        raise assay.Unsupported(f"D, D_v: found {q.shape[-1]}, {v_cache.shape[-1]}, allowed 64, 128, 256 for both")


def room(count):
    return max(128, 1 << (count - 1).bit_length())


def padded(tensor):
    """Returns [1, heads, room, D] on the GPU, with zeros after the last token."""
    return F.pad(on(tensor.contiguous()).transpose(0, 1), (0, 0, 0, room(tensor.shape[0]) - tensor.shape[0])).unsqueeze(0)


def function():
    global compiled
    if compiled is None:
        from torch.nn.attention.flex_attention import flex_attention
        torch._dynamo.config.cache_size_limit = 1024
        compiled = torch.compile(flex_attention, dynamic=False)
    return compiled


@assay.variant("softmax_attention", name="flex", claims="bf16|same|nhd,hnd|decode,prefill,chunked,mixed",
               tensors="torch", contract=contract("bf16"), supports=taken)
def attention_flex(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale, lse):
    from torch.nn.attention.flex_attention import create_block_mask
    out = torch.zeros(q.shape, dtype=q.dtype)
    sums = torch.full(q.shape[:2], -torch.inf)
    for rows, own, k, v in requests(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout):
        tokens, keys = own.shape[0], k.shape[0]
        if tokens == 0 or keys == 0:
            continue
        before = torch.tensor(keys - tokens, device="cuda")
        mask = create_block_mask(lambda b, h, i, j: (j <= i + before) & (j < before + tokens), None, None, room(tokens),
                                 room(keys), device="cuda")
        made, logarithms = function()(padded(own), padded(k), padded(v), block_mask=mask, scale=scale or None,
                                      enable_gqa=own.shape[1] != k.shape[1], return_lse=True)
        out[rows] = made[0, :, :tokens].transpose(0, 1).cpu()
        sums[rows] = logarithms[0, :, :tokens].transpose(0, 1).float().cpu()
    return {"out": out} if lse is None else {"out": out, "lse": sums}
