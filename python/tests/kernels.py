"""Right kernels in NumPy, with switches for the mistakes of mutants.py. Each switch stands for one C mutant."""
import numpy as np

F = np.float32


def bf16(values):
    """Rounds f32 to bf16, to nearest even, and back."""
    bits = np.ascontiguousarray(values, dtype=F).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(values), values, bits.astype(np.uint32).view(F))


def widen(bits):
    """Returns bf16 bits as f32; f32 as it is."""
    return (bits.astype(np.uint32) << 16).view(F) if bits.dtype == np.uint16 else bits


def store(to, values):
    """Writes f32 numbers to an output of f32, or of the bits of bf16."""
    if to.dtype == np.uint16:
        to[...] = (bf16(values).view(np.uint32) >> 16).astype(np.uint16)
    else:
        to[...] = values


def rms_norm(x, g, eps, round_inner, y, squares=lambda v: v * v, outside=False, rounds=None, order=None, rescales=True):
    """Normalises rows in f32. round_inner rounds the norm to the type before the weight."""
    wide, weight, half = widen(x), widen(g), x.dtype == np.uint16
    largest = np.max(np.abs(wide), axis=-1, keepdims=True) if rescales else F(1)
    scale = np.where(largest > F(2.0**40), F(2.0**-100), F(1)) if rescales else F(1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = wide * scale
        terms = squares(scaled)
        if order is not None:
            terms = order(terms)
        mean = np.add.reduce(terms, axis=-1, keepdims=True, dtype=F) / F(x.shape[-1])
        root = np.sqrt(mean) + F(eps) if outside else np.sqrt(mean + F(eps) * (scale * scale))
        n = scaled / root
        if half and (round_inner if rounds is None else rounds):
            n = bf16(n)
        result = n * weight
    if y is not None:
        store(y, result)
    return result


def keys_of(cache, table, count, layout):
    """Gathers the first `count` keys or values of one request from its blocks: [count, H_kv, D]."""
    nhd = layout == "nhd"
    size = cache.shape[1] if nhd else cache.shape[2]
    parts = [cache[table[j // size]] if nhd else cache[table[j // size]].transpose(1, 0, 2) for j in range(0, count, size)]
    return np.concatenate(parts)[:count] if parts else np.zeros((0, 1, 1), F)


def softmax_attention(q, k_cache, v_cache, block_table, kv_len, cu_q, lse, out, layout, scale, window, softcap, slopes,
                      lengths=None, drop=0, less=0, top_left=False, head=None, natural=True, rounds=None, gather=keys_of):
    """Attention over a paged cache, row by row. Slots behind a request's length are not read."""
    rows, heads, width = q.shape
    lengths = kv_len if lengths is None else lengths
    group = heads // (k_cache.shape[2] if layout == "nhd" else k_cache.shape[1])
    factor = F(scale) if scale else F(1 / np.sqrt(width))
    for i, length in enumerate(int(one) for one in lengths):
        begin, end = (i, i + 1) if cu_q is None else (int(cu_q[i]), int(cu_q[i + 1]))
        if begin == end:
            continue
        k, v = (widen(gather(cache, block_table[i], length, layout)) for cache in (k_cache, v_cache))
        for row in range(begin, end):
            last = row - begin if top_left else length - (end - begin) + row - begin
            first = max(0, last - window + 1 + less) if window else 0
            seen = slice(first, last + 1 - drop)
            for h in range(heads):
                kv = h // group if head is None else head(h, heads // group)
                if first > last - drop:
                    out[row, h] = 0
                    if lse is not None:
                        lse[row, h] = -np.inf
                    continue
                s = (k[seen, kv] @ widen(q[row, h])) * factor
                if softcap:
                    s = F(softcap) * np.tanh(s / F(softcap))
                if slopes is not None:
                    s = s + slopes[h] * (np.arange(seen.start, seen.stop) - last).astype(F)
                top = s.max()
                p = np.exp(s - top)
                total = np.add.reduce(p, dtype=F)
                store(out[row, h], ((p if rounds is None else rounds(p)) @ v[seen, kv]) / total)
                if lse is not None:
                    lse[row, h] = top + np.log(total) if natural else np.log2(np.exp(top)) + np.log2(total)
