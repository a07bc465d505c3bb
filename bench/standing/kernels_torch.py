"""kernels_torch.py: kernels of torch and Liger as callables for the Python door.

The judge's tensors lie on the CPU. Each callable copies them to the GPU and its result back, so what is judged is the
arithmetic, and not what the kernel writes beside its output."""
import os
import sys

import assay
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import compiled  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = {"run_to_run": True, "lanes": 32, "exp_ulp": 4}


def on(tensor):
    return None if tensor is None else tensor.to(DEVICE)


def back(tensor, like):
    return tensor.to(like.dtype).cpu()


# ---- rows ------------------------------------------------------------------------------------------------

def plain_norm(x, g, z, plus_one, group, **_):
    if z is not None or plus_one or group or g.dtype != x.dtype:
        raise assay.Unsupported("z, plus_one, group, g of another type: found one, allowed none")


def plain_gates(w, limit, alpha, beta, layout, **_):
    if w is not None or limit or alpha != 1 or beta or layout != "halves":
        raise assay.Unsupported("w, limit, alpha, beta, interleaved: found one, allowed none")


def no_inner_rounding(x, round_inner, **more):
    plain_norm(x=x, **more)
    if round_inner and x.dtype != "f32":
        raise assay.Unsupported("round_inner: found true, allowed false: the weight is multiplied in f32")


@assay.variant("rms_norm", name="torch", claims="f32,f16,bf16", tensors="torch", contract=ROWS, supports=no_inner_rounding)
def rms_norm(x, g, eps):
    return back(F.rms_norm(on(x), (x.shape[-1],), on(g), eps), x)


@assay.variant("layer_norm", name="torch", claims="f32,f16,bf16", tensors="torch", contract=ROWS)
def layer_norm(x, g, b, eps):
    return back(F.layer_norm(on(x), (x.shape[-1],), on(g), on(b), eps), x)


@assay.variant("swiglu", name="torch", claims="f32,f16,bf16", tensors="torch", contract=ROWS, supports=plain_gates)
def swiglu(x):
    gate, up = on(x).chunk(2, dim=-1)
    return back(F.silu(gate) * up, x)


@assay.variant("rms_norm", name="inductor", claims="f32,f16,bf16", tensors="torch", contract=ROWS,
               supports=no_inner_rounding)
def rms_norm_inductor(x, g, eps):
    return back(compiled.by_inductor(compiled.rms_norm, on(x), on(g), eps), x)


@assay.variant("layer_norm", name="inductor", claims="f32,f16,bf16", tensors="torch", contract=ROWS)
def layer_norm_inductor(x, g, b, eps):
    return back(compiled.by_inductor(compiled.layer_norm, on(x), on(g), on(b), eps), x)


@assay.variant("swiglu", name="inductor", claims="f32,f16,bf16", tensors="torch", contract=ROWS, supports=plain_gates)
def swiglu_inductor(x):
    return back(compiled.by_inductor(compiled.swiglu, on(x)), x)


@assay.variant("bias_gelu_new", name="inductor", claims="f32,f16,bf16", tensors="torch", contract=ROWS)
def bias_gelu_inductor(x, b, x_out):
    made = back(compiled.by_inductor(compiled.bias_gelu_new, on(x), on(b)), x)
    (x if x_out is None else x_out)[...] = made


@assay.variant("rms_norm", name="liger", claims="f32,f16,bf16", tensors="torch", contract=ROWS, supports=plain_norm)
def rms_norm_liger(x, g, eps, round_inner):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    mode = "llama" if round_inner else "gemma"
    return back(LigerRMSNormFunction.apply(on(x).contiguous(), on(g), float(eps), 0.0, mode, False), x)


@assay.variant("swiglu", name="liger", claims="f32,f16,bf16", tensors="torch", contract=ROWS, supports=plain_gates)
def swiglu_liger(x):
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    gate, up = on(x).chunk(2, dim=-1)
    return back(LigerSiLUMulFunction.apply(gate.contiguous(), up.contiguous()), x)


# ---- products: cuBLAS ------------------------------------------------------------------------------------

def plain_product(beta, alpha, bias, **_):
    if beta != 0 or alpha != 1 or bias is not None:
        raise assay.Unsupported("alpha, beta, bias: found others, allowed 1, 0 and none")


@assay.variant("gemm", name="cublas", claims="f16,bf16", tensors="torch", contract={"lanes": 32, "cut": 13},
               supports=plain_product)
def gemm(a, b, c):
    product = torch.mm(on(a), on(b).t(), out_dtype=torch.float32) if c.dtype == torch.float32 else on(a) @ on(b).t()
    c[...] = product.cpu()


# ---- attention: prompts and decodes, request by request --------------------------------------------------

def ordinary(q, k_cache, slopes, softcap, window, sparse_block, lse, sink, chunk, **_):
    if q.dtype == "f32" or k_cache.dtype != q.dtype:
        raise assay.Unsupported("q: found another type, allowed f16 and bf16, as the cache")
    if slopes is not None or softcap or window or sparse_block or lse is not None or sink is not None or chunk:
        raise assay.Unsupported("slopes, softcap, window, sparse_block, lse, sink, chunk: found one, allowed none")


def requests(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout):
    """Yields the rows of q, and K and V token by token, of each request."""
    for i in range(kv_len.shape[0]):
        begin, end = (i, i + 1) if cu_q is None else (int(cu_q[i]), int(cu_q[i + 1]))
        length = int(kv_len[i])
        if cu_k is not None:
            flat = [c.movedim(2, 1) if layout == "hnd" else c for c in (k_cache, v_cache)]
            k, v = (c[int(cu_k[i]):int(cu_k[i]) + length, 0] for c in flat)
        else:
            size = k_cache.shape[1 if layout == "nhd" else 2]
            pages = block_table[i, :(length + size - 1) // size].long()
            k, v = (c[pages] if layout == "nhd" else c[pages].transpose(1, 2) for c in (k_cache, v_cache))
            k, v = (t.reshape(-1, t.shape[-2], t.shape[-1])[:length] for t in (k, v))
        yield slice(begin, end), q[begin:end], k, v


def attend(backend, groups, q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale):
    out = torch.zeros(q.shape, dtype=q.dtype)
    for rows, own, k, v in requests(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout):
        if own.shape[0] == 0 or k.shape[0] == 0:
            continue
        if own.shape[0] not in (1, k.shape[0]):
            raise assay.Unsupported("T: found a chunk, allowed prompts and decodes: the mask is aligned to the top left")
        pads = k.shape[0] == 1 and backend == SDPBackend.CUDNN_ATTENTION  # it takes no single key: row 0 sees one of two
        heads = [on(t).transpose(0, 1).unsqueeze(0).contiguous() for t in (own, k, v)]
        heads = [F.pad(t, (0, 0, 0, 1)) if pads else t for t in heads]
        if not groups and heads[0].shape[1] != heads[1].shape[1]:
            heads[1:] = [t.repeat_interleave(heads[0].shape[1] // t.shape[1], 1) for t in heads[1:]]
        try:
            with sdpa_kernel(backend):
                made = F.scaled_dot_product_attention(*heads, is_causal=heads[0].shape[2] > 1, scale=scale or None,
                                                      enable_gqa=groups)
        except RuntimeError as why:
            if "No available kernel" not in str(why):
                raise
            raise assay.Unsupported(f"q, k_cache: found {list(heads[0].shape)} and {list(heads[1].shape)}, "
                                    "allowed what torch has a kernel for") from why
        out[rows] = made[0, :, :own.shape[0]].transpose(0, 1).cpu()
    return out


def contract(dtype, **more):
    return {"p": dtype, "exp_ulp": 4, "qk_lanes": 8, "pv_lanes": 8, "cut": 13, "run_to_run": False, **more}


@assay.variant("softmax_attention", name="cudnn", claims="bf16|same|nhd,hnd|decode,prefill", tensors="torch",
               contract=contract("bf16", ftz=True), supports=ordinary)
def attention_cudnn(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale):
    return attend(SDPBackend.CUDNN_ATTENTION, True, q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale)


@assay.variant("softmax_attention", name="flash2", claims="bf16|same|nhd,hnd|decode,prefill", tensors="torch",
               contract=contract("bf16"), supports=ordinary)
def attention_flash(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale):
    return attend(SDPBackend.FLASH_ATTENTION, True, q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale)


@assay.variant("softmax_attention", name="efficient", claims="bf16|same|nhd,hnd|decode,prefill", tensors="torch",
               contract=contract("bf16"), supports=ordinary)
def attention_efficient(q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout, scale):
    return attend(SDPBackend.EFFICIENT_ATTENTION, False, q, k_cache, v_cache, block_table, kv_len, cu_q, cu_k, layout,
                  scale)
