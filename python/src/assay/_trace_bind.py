"""FlashInfer Trace: what Definitions and dumped calls are in terms of our operators (docs/doors/trace.md)."""
import re

import numpy as np

TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
         "int32": "i32", "int64": "i64"}


class NotCovered(Exception):
    """The Definition or call is of no operator here; the text says why."""


def _i32(array):
    return np.ascontiguousarray(array, dtype=np.int32)


def _norm(given, definition):
    return "rms_norm", {"x": given.pop("hidden_states"), "g": given.pop("weight")}, {
        "eps": _constant(definition, "EPS") if given.get("eps") is None else float(given["eps"]), "round_inner": False}, {}


def _swiglu(given, _):
    return "swiglu", {"x": given.pop("input")}, {}, {}


def _gemm(given, _):
    a, b = given.pop("A"), given.pop("B")
    return "gemm", {"a": a, "b": b}, {}, {"c": (a.shape[0], b.shape[0])}


def _table(indptr, indices, page_size, last):
    """Pages in compressed rows become a table of blocks, and lengths."""
    indptr, indices = np.asarray(indptr, dtype=np.int64), np.asarray(indices, dtype=np.int64)
    pages = np.diff(indptr)
    table = np.zeros((len(pages), max(int(pages.max(initial=1)), 1)), dtype=np.int32)
    for row, (begin, count) in enumerate(zip(indptr, pages)):
        table[row, :count] = indices[begin:begin + count]
    full = pages * page_size
    length = full if last is None else np.where(pages > 0, full - page_size + np.asarray(last, dtype=np.int64), 0)
    return table, _i32(length)


def _paged_decode(given, _):
    k_cache = given.pop("k_cache")
    table, length = _table(given.pop("kv_indptr"), given.pop("kv_indices"), k_cache.shape[1],
                           given.pop("kv_last_page_len", None))
    scale = given.pop("sm_scale", None)
    return "softmax_attention", {"q": given.pop("q"), "k_cache": k_cache, "v_cache": given.pop("v_cache"),
                                 "block_table": table, "kv_len": length}, {"layout": "nhd", "scale": float(scale or 0)}, {}


# (inputs that a Definition must have, inputs that it may have, outputs and ours, base of logarithms, binding)
_FORMS = (
    ({"hidden_states", "weight"}, {"eps"}, ("y",), _norm),
    ({"input"}, set(), ("y",), _swiglu),
    ({"A", "B"}, set(), ("c",), _gemm),
    ({"q", "k_cache", "v_cache", "kv_indptr", "kv_indices"}, {"kv_last_page_len", "sm_scale"}, ("out", "lse"), _paged_decode),
)


def _constant(definition, name):
    """Returns a constant that a line of the Definition's reference sets."""
    found = re.findall(rf"^\s*{name}\s*=\s*([^#\s]+)\s*(?:#.*)?$", definition.get("reference", ""), re.MULTILINE)
    try:
        return float(found[0] if len(set(found)) == 1 else "")
    except ValueError:
        raise NotCovered(f"{name.lower()}: found {', '.join(found) or 'none'}, allowed an input, or one line {name} = NUMBER "
                         "in the reference") from None


def bind(definition, given):
    """Returns (operator, inputs, parameters, shapes of in-out arguments, our names of the outputs) of a Definition."""
    names = set(definition["inputs"])
    if names == {"input"} and "silu_and_mul" not in definition["name"] + " ".join(definition.get("tags", [])):
        raise NotCovered("input: found alone, allowed for silu_and_mul")
    for needed, able, outputs, form in _FORMS:
        if not needed <= names or not names <= needed | able:
            continue
        if needed >= {"A", "B"} and definition.get("op_type") != "gemm":
            continue
        if len(definition["outputs"]) > len(outputs):
            raise NotCovered(f"outputs: found {', '.join(definition['outputs'])}, allowed {len(outputs)}")
        missing = needed - {name for name, value in given.items() if value is not None}
        if missing:
            raise NotCovered(f"inputs: found no {', '.join(sorted(missing))}")
        op, inputs, params, shapes = form(dict(given), definition)
        return op, inputs, params, shapes, dict(zip(definition["outputs"], outputs))
    raise NotCovered(f"no operator has the inputs {', '.join(definition['inputs'])}")


_CALLS = {"rmsnorm": ("input", "weight", "eps"), "silu_and_mul": ("input",)}


def bind_call(name, named):
    """Returns (operator, inputs, parameters, our output) of a dumped call, whose arguments are given by name."""
    short = name.rsplit(".", 1)[-1]
    if short not in _CALLS:
        raise NotCovered(f"function {name}: allowed: {', '.join(_CALLS)}")
    if short == "rmsnorm":
        eps = named.get("eps")
        return "rms_norm", {"x": named["input"], "g": named["weight"]}, {
            "eps": 1e-6 if eps is None else float(eps), "round_inner": False}, "y"
    return "swiglu", {"x": named["input"]}, {}, "y"
