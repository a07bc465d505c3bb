"""kernels_fa3.py: FlashAttention 3 as callables for the Python door, by its inference wheel fa3-fwd from PyPI.

That wheel is built without f16, without windows and without paged keys (its fa3_fwd_config.py). Pages are therefore
gathered before the call. The callables copy the judge's tensors to the GPU and the results back, so what is judged is
the arithmetic. `FA3_INTERFACE` names another module with the same functions, as a stand-in on a CPU."""
import importlib
import os

import assay
import torch

from kernels_torch import contract, on, requests

CLAIMS = "bf16|same|nhd,hnd|decode,prefill,chunked,mixed"
ROUNDS = dict(contract("bf16"), ftz=True)  # results around 1e-39 become 0


def interface():
    return importlib.import_module(os.environ.get("FA3_INTERFACE", "fa3_fwd_interface"))


def taken(q, k_cache, v_cache, layout, **_):
    if q.dtype != "bf16" or k_cache.dtype != "bf16":
        raise assay.Unsupported(f"q, k_cache: found {q.dtype}, {k_cache.dtype}, allowed bf16")
    if layout == "x":
        raise assay.Unsupported("layout: found x, allowed nhd, hnd")
    wide, values = q.shape[-1], v_cache.shape[-1]
    if values != wide and not (128 < wide <= 192 and 96 < values <= 128):
        raise assay.Unsupported(f"D_v: found {values} beside D {wide}, allowed D, or 97 to 128 beside 129 to 192")


def dense(tensor):
    """Returns a tensor on the GPU whose axes of one element have the strides of a tensor without gaps. torch calls any
    stride contiguous there, and FlashAttention 3 hands it to the copy engine, which wants multiples of 16 bytes."""
    return on(torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor))


def capped(softcap, **more):
    if not softcap:
        raise assay.Unsupported("softcap: found 0, allowed a cap: the other callables take calls without one")
    taken(**more)


def flat(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout):
    """Returns q, all keys, all values, both tables of first rows, and the largest counts of rows and keys."""
    parts = list(requests(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout))
    rows = [0, *torch.tensor([own.shape[0] for _, own, _, _ in parts], dtype=torch.int32).cumsum(0).tolist()]
    keys = [0, *kv_len.cumsum(0).tolist()]
    tables = [torch.tensor(table, dtype=torch.int32) for table in (rows, keys)]
    k, v = (torch.cat([part[i] for part in parts]) for i in (2, 3))
    most = (max(own.shape[0] for _, own, _, _ in parts), int(kv_len.max()))
    return [*(dense(t) for t in (q, k, v)), *(on(table) for table in tables)], most


def ragged(splits, tensors, scale, softcap=0.0):
    """Makes one call for the whole batch. Returns what the call's outputs are, lse among them."""
    moved, (most_rows, most_keys) = flat(**tensors)
    out, lse = interface().flash_attn_varlen_func(*moved, most_rows, most_keys, softmax_scale=scale or None, causal=True,
                                                  softcap=softcap, num_splits=splits, return_attn_probs=True)
    return {"out": out.cpu(), "lse": lse.transpose(0, 1).contiguous().float().cpu()}


def asked(made, lse):
    return made if lse is not None else {"out": made["out"]}


# Each request is a call of its own, as in a loop over a batch.
@assay.variant("softmax_attention", name="fa3", claims=CLAIMS, tensors="torch", contract=ROUNDS, supports=taken)
def attention_single(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale, out, lse):
    for rows, own, k, v in requests(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout):
        if own.shape[0] == 0:
            continue
        if k.shape[0] == 0:
            out[rows] = 0
            if lse is not None:
                lse[rows] = -torch.inf
            continue
        made, sums = interface().flash_attn_func(*(dense(t.unsqueeze(0)) for t in (own, k, v)), causal=True,
                                                 softmax_scale=scale or None, return_attn_probs=True)
        out[rows] = made[0].cpu()
        if lse is not None:
            lse[rows] = sums[0].transpose(0, 1).float().cpu()


# One call takes the whole batch, empty requests too.
@assay.variant("softmax_attention", name="fa3_ragged", claims=CLAIMS, tensors="torch", contract=ROUNDS,
               supports=taken)
def attention_ragged(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale, lse):
    tensors = dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, kv_len=kv_len, cu_q=cu_q, cu_k=cu_k,
                   layout=layout)
    return asked(ragged(1, tensors, scale), lse)


# The key axis is split in three, and the parts are combined.
@assay.variant("softmax_attention", name="fa3_splits", claims=CLAIMS, tensors="torch", contract=ROUNDS,
               supports=taken)
def attention_splits(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale, lse):
    tensors = dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, kv_len=kv_len, cu_q=cu_q, cu_k=cu_k,
                   layout=layout)
    return asked(ragged(3, tensors, scale), lse)


# Caps are computed by tanh.approx, whose error is 2^-11 (PTX ISA): 8192 ulp allow for it on both sides.
@assay.variant("softmax_attention", name="fa3_capped", claims=CLAIMS, tensors="torch",
               contract=dict(contract("bf16"), exp_ulp=8192), supports=capped)
def attention_capped(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale, softcap, lse):
    tensors = dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, kv_len=kv_len, cu_q=cu_q, cu_k=cu_k,
                   layout=layout)
    return asked(ragged(1, tensors, scale, softcap), lse)
