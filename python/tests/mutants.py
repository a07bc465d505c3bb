"""Callables that are wrong on purpose. EXPECTED says which check kills each, and the C mutant with the same mistake
(conformance/mutants); None: C has no such mutant. Callables without a row must pass. judge_mutants.py judges them."""
import ctypes
import os
import sys
import time
import types

import assay
import kernels
import numpy as np

EXPECTED = {}
F = np.float32
SOFTMAX = "f32,bf16|same|nhd,hnd|decode,prefill,chunked,mixed"


def mutant(op, checks, twin, where, **options):
    """Makes a variant and notes what must kill it, and a part of the suite that does."""
    def wrap(function):
        EXPECTED[(op, function.__name__)] = (checks, twin, where)
        return assay.variant(op, tensors="bits", **options)(function)
    return wrap


# ---- controls ------------------------------------------------------------------------------------------------------

def takes_norm(x, g, z, plus_one, group, **_):
    """Declines the forms of rms_norm, which the NumPy kernel does not have."""
    if z is not None:
        raise assay.Unsupported("z: found a gate, allowed none")
    if plus_one or group:
        raise assay.Unsupported(f"plus_one, group: found {plus_one}, {group}, allowed 0")
    if g.dtype != x.dtype:
        raise assay.Unsupported(f"g: found {g.dtype}, allowed that of x, {x.dtype}")


NORM = {"claims": "f32,bf16", "contract": {"permutation": True, "alone": True, "rescales": True}, "supports": takes_norm}


@assay.variant("rms_norm", tensors="bits", **NORM)
def rms_control(x, g, eps, round_inner, y):
    kernels.rms_norm(x, g, eps, round_inner, y)


def takes_softmax(block_table, sparse_block, sink, chunk, **_):
    """Declines what the NumPy kernels do not have."""
    if sink is not None or chunk:
        raise assay.Unsupported("sink, chunk: found one, allowed none")
    if block_table is None:
        raise assay.Unsupported("block_table: found none, allowed one")
    if sparse_block:
        raise assay.Unsupported(f"sparse_block: found {sparse_block}, allowed 0")


ATTENTION = {"claims": SOFTMAX, "contract": {"zero_p_v": "multiplied"}, "supports": takes_softmax}
TAKEN = ("q", "k_cache", "v_cache", "block_table", "kv_len", "cu_q", "lse", "out", "layout", "scale", "window", "softcap",
         "slopes")


def attend(known, **mistakes):
    """Calls the kernel with the arguments that it takes."""
    kernels.softmax_attention(**{name: known[name] for name in TAKEN}, **mistakes)


@assay.variant("softmax_attention", tensors="bits", **ATTENTION)
def softmax_control(**known):
    attend(known)


EMBEDDING = {"claims": "f32,bf16", "contract": {"permutation": True}}


def embed(y, rows, position_table, positions):
    """Stores rows, as they are or with learned positions."""
    if position_table is None:
        y[...] = rows
    else:
        kernels.store(y, kernels.widen(rows) + kernels.widen(position_table[positions]))


@assay.variant("embedding", tensors="bits", **EMBEDDING)
def embedding_control(table, ids, position_table, positions, y):
    embed(y, table[ids], position_table, positions)


# ---- norms ---------------------------------------------------------------------------------------------------------

CHECK = "rms_norm/check"


@mutant("rms_norm", {"element"}, "rms_eps_outside", CHECK, **NORM)
def rms_eps_outside(x, g, eps, round_inner, y):
    kernels.rms_norm(x, g, eps, round_inner, y, outside=True)


@mutant("rms_norm", {"element"}, "rms_inner_rounding", CHECK, **NORM)
def rms_inner_rounding(x, g, eps, round_inner, y):  # pylint: disable=unused-argument
    kernels.rms_norm(x, g, eps, True, y, rounds=False)


@mutant("rms_norm", {"element"}, "rms_rounds_always", CHECK, **NORM)
def rms_rounds_twice(x, g, eps, round_inner, y):  # pylint: disable=unused-argument
    kernels.rms_norm(x, g, eps, True, y, rounds=True)


@mutant("rms_norm", {"element"}, "rms_squares_in_type", CHECK, **NORM)
def rms_squares_in_type(x, g, eps, round_inner, y):
    half = x.dtype == np.uint16
    kernels.rms_norm(x, g, eps, round_inner, y, squares=lambda v: kernels.bf16(v * v) if half else v * v)


@mutant("rms_norm", {"unwritten"}, "rms_tail", CHECK, **NORM)
def rms_tail(x, g, eps, round_inner, y):
    whole = x.shape[1] // 4 * 4
    result = kernels.rms_norm(x, g, eps, round_inner, None)
    if whole:
        kernels.store(y[:, :whole], result[:, :whole])


@mutant("rms_norm", {"guard"}, "rms_store_by_quads", CHECK, **NORM)
def rms_store_by_quads(x, g, eps, round_inner, y):
    kernels.rms_norm(x, g, eps, round_inner, y)
    wide = np.lib.stride_tricks.as_strided(y, (y.shape[0], (y.shape[1] + 3) // 4 * 4), y.strides)
    wide[:, y.shape[1]:] = 0


@mutant("rms_norm", {"unwritten"}, "rms_last_rows", CHECK, **NORM)
def rms_last_rows(x, g, eps, round_inner, y):
    rows = x.shape[0] // 2 * 2
    if rows:
        kernels.rms_norm(x[:rows], g, eps, round_inner, y[:rows])


@mutant("rms_norm", {"element"}, "rms_dense_rows", CHECK, **NORM)
def rms_ignores_strides(x, g, eps, round_inner, y):
    dense = np.lib.stride_tricks.as_strided(x, x.shape, (x.shape[1] * x.itemsize, x.itemsize))
    kernels.rms_norm(dense, g, eps, round_inner, y)


@mutant("rms_norm", {"permutation"}, "rms_place_in_batch", CHECK, **NORM)
def rms_place_in_batch(x, g, eps, round_inner, y):
    def turned(terms):
        terms = terms.copy()
        terms[1::2] = np.cumsum(terms[1::2, ::-1], axis=-1, dtype=F) * 0 + terms[1::2, ::-1]
        return np.stack([np.append(np.zeros(len(row) - 1, F), np.cumsum(row, dtype=F)[-1]) for row in terms])
    kernels.rms_norm(x, g, eps, round_inner, y, order=turned)


@mutant("rms_norm", {"alone"}, "rms_alone", CHECK, **NORM)
def rms_alone(x, g, eps, round_inner, y):
    def turned(terms):
        step = -1 if x.shape[0] < 2 else 1
        return np.stack([np.append(np.zeros(len(row) - 1, F), np.cumsum(row[::step], dtype=F)[-1]) for row in terms])
    kernels.rms_norm(x, g, eps, round_inner, y, order=turned)


@mutant("rms_norm", {"element"}, "values_rms_overflows", "rms_norm/edge/magnitudes", **NORM)
def rms_overflows(x, g, eps, round_inner, y):
    kernels.rms_norm(x, g, eps, round_inner, y, rescales=False)


@mutant("rms_norm", {"input"}, "add_rms_writes_res", CHECK, **NORM)
def rms_writes_its_input(x, g, eps, round_inner, y):
    kernels.rms_norm(x, g, eps, round_inner, y)
    x[...] = y


CACHE = {}


@mutant("rms_norm", {"element"}, None, CHECK, **NORM)
def rms_cached_result(x, g, eps, round_inner, y):
    if x.shape not in CACHE:
        CACHE[x.shape] = kernels.rms_norm(x, g, eps, round_inner, None)
    kernels.store(y, CACHE[x.shape])


@mutant("rms_norm", {"prefill_results", "prefill_finite"}, "values_embedding_skips", CHECK, **NORM)
def rms_reads_old_results(x, g, eps, round_inner, y):
    seen = np.isfinite(kernels.widen(y)[:, :1]).all(axis=1)
    result = kernels.rms_norm(x, g, eps, round_inner, None)
    for row in np.flatnonzero(~seen):
        kernels.store(y[row], result[row])


@mutant("rms_norm", {"launch"}, None, CHECK, **NORM)
def rms_raises(x, g, eps, round_inner, y):
    kernels.rms_norm(x, g, eps, round_inner, y)
    raise IndexError("channel 7 of 4")


@mutant("rms_norm", {"crash"}, "softmax_reads_next_value", "rms_norm/check/whole_vectors_long", **NORM)
def rms_crashes(x, g, eps, round_inner, y):
    if x.shape[1] > 8000:
        ctypes.memset(8, 0, 1)
    kernels.rms_norm(x, g, eps, round_inner, y)


def _lost():
    raise RuntimeError("an illegal address was encountered")


LOST = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(deviceSynchronize=_lost)))


# A kernel faults on a GPU, and its context fails every later call. The calls of other cases must not have that error.
@mutant("rms_norm", {"crash"}, None, "rms_norm/check/whole_vectors_long", **NORM)
def rms_loses_the_gpu(x, g, eps, round_inner, y):
    if x.shape[1] > 8000:
        sys.modules["cupy"] = LOST
    if "cupy" in sys.modules:
        _lost()
    kernels.rms_norm(x, g, eps, round_inner, y)


@mutant("rms_norm", {"crash"}, None, "rms_norm/check/whole_vectors_long", **NORM)
def rms_leaves(x, g, eps, round_inner, y):
    if x.shape[1] > 8000:
        os._exit(3)
    kernels.rms_norm(x, g, eps, round_inner, y)


@mutant("rms_norm", {"deadline"}, "softmax_full_mask", "rms_norm/check/whole_vectors_long", **NORM)
def rms_hangs(x, g, eps, round_inner, y):
    while x.shape[1] > 8000:
        time.sleep(1)
    kernels.rms_norm(x, g, eps, round_inner, y)


@mutant("rms_norm", {"launch"}, None, CHECK, **NORM)
def rms_asks_the_judge(x, g, eps, round_inner, y):
    if x.dtype == np.float32 and not round_inner:
        given = {"x": np.ascontiguousarray(x), "g": np.ascontiguousarray(g)}
        y[...] = assay.reference("rms_norm", given, eps=eps)["y"].values.astype(F)
    else:
        kernels.rms_norm(x, g, eps, round_inner, y)


# ---- attention -----------------------------------------------------------------------------------------------------

ALL = "softmax_attention/check"


@mutant("softmax_attention", {"exact"}, "softmax_window", ALL + "/prefill_windows", **ATTENTION)
def softmax_window(**known):
    attend(known, less=1)


@mutant("softmax_attention", {"exact"}, "softmax_short_row", ALL + "/types_ragged_exact", **ATTENTION)
def softmax_drops_last_key(**known):
    attend(known, drop=1)


@mutant("softmax_attention", {"exact"}, "softmax_top_left", ALL + "/types_decode_exact", **ATTENTION)
def softmax_top_left(**known):
    attend(known, top_left=True)


@mutant("softmax_attention", {"exact"}, "softmax_kv_head", ALL + "/types_ragged_exact", **ATTENTION)
def softmax_kv_head(**known):
    attend(known, head=lambda h, kv_heads: h % kv_heads)


@mutant("softmax_attention", {"element"}, "softmax_lse_log2", ALL + "/soft_caps", **ATTENTION)
def softmax_lse_log2(**known):
    attend(known, natural=False)


@mutant("softmax_attention", {"element", "row", "request"}, "softmax_weights_rounded", ALL + "/slopes_across_splits", **ATTENTION)
def softmax_weights_rounded(**known):
    attend(known, rounds=kernels.bf16)


def packed(cache, table, count, layout):
    """Takes blocks as if they followed one another without a gap."""
    strides = [cache.itemsize]
    for length in cache.shape[:0:-1]:
        strides.insert(0, strides[0] * length)
    return kernels.keys_of(np.lib.stride_tricks.as_strided(cache, cache.shape, strides), table, count, layout)


@mutant("softmax_attention", {"exact", "element"}, "softmax_page_stride", ALL + "/huge_pools", **ATTENTION)
def softmax_page_stride(**known):
    attend(known, gather=packed)


def tail(cache, table, count, layout):
    """Multiplies what stands behind the length by 0, which keeps NaN."""
    size = cache.shape[1] if layout == "nhd" else cache.shape[2]
    whole = kernels.widen(kernels.keys_of(cache, table, (count + size - 1) // size * size, layout))
    return whole[:count] + (whole[count:].sum(axis=0) * F(0) if len(whole) > count else F(0))


@mutant("softmax_attention", {"dead_bytes", "exact", "element"}, "softmax_masked_v", ALL + "/types_ragged_calibrated", **ATTENTION)
def softmax_reads_the_tail(**known):
    with np.errstate(all="ignore"):
        attend(known, gather=tail)


KEPT = {}


@mutant("softmax_attention", {"exact", "element", "graph"}, "softmax_copied_lengths", ALL + "/types_decode_calibrated", **ATTENTION)
def softmax_copied_lengths(**known):
    lengths = KEPT.setdefault((known["q"].shape, known["block_table"].shape), known["kv_len"].copy())
    attend(known, lengths=np.minimum(lengths, known["kv_len"]))


# ---- embedding -----------------------------------------------------------------------------------------------------


@mutant("embedding", {"exact", "element"}, "values_embedding_nan", "embedding/check", **EMBEDDING)
def embedding_hides_nan(table, ids, position_table, positions, y):
    rows = table[ids]
    embed(y, np.where(np.isnan(kernels.widen(rows)), rows.dtype.type(0), rows), position_table, positions)


@mutant("embedding", {"exact", "element"}, "size_id_f16", "embedding", **EMBEDDING)
def embedding_ids_through_f16(table, ids, position_table, positions, y):
    rounded = ids.astype(np.float16).astype(np.float64).clip(0, len(table) - 1).astype(np.int32)
    embed(y, table[rounded], position_table, positions)
