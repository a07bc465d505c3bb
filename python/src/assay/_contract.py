"""Contracts: where an implementation rounds, and what it promises (docs/truth.md, include/assay/op.h)."""
from ._program import AssayError

DTYPES = ("k", "v", "score", "p", "partial", "rotated", "state", "qk", "chunk", "gates")
REALS = ("exp_ulp", "denominator_add", "p_step")
COUNTS = ("qk_lanes", "pv_lanes", "lanes", "keys_per_split")
FLAGS = ("ftz", "rescales")
PROMISES = ("run_to_run", "renumbering", "permutation", "alone")
CHOICES = {"zero_p_v": ("multiplied", "skipped", "skipped_for_group"), "lse_base": ("e", "2"),
           "lse_empty": ("-inf", "+inf"), "lse_sink": ("without", "with"),
           "quotient": ("divide", "reciprocal", "inverse_amax", "any"),
           "stored_scale": ("quotient", "product", "inverse"),
           "generator": ("philox", "own"),
           "start": ("zero", "bias")}
NAMES = ("none", "f32", "f16", "bf16", "e4m3", "e5m2")

# f32 throughout, plain sums, a good exp; the same bits from run to run.
USUAL = {"exp_ulp": 2, "qk_lanes": 1, "pv_lanes": 1, "lanes": 1, "zero_p_v": "multiplied", "run_to_run": 1}


def checked(contract, promises):
    """Returns the contract with numbers for flags. `promises`: those of a variant may stand in it."""
    allowed = (DTYPES + REALS + COUNTS + FLAGS + tuple(name for name in CHOICES if name != "zero_p_v") +
               (PROMISES + ("zero_p_v", "cut") if promises else ()))
    made = {}
    for name, value in (contract or {}).items():
        if name not in allowed:
            raise AssayError(f"contract: found {name!r}, allowed: {', '.join(allowed)}")
        if name in DTYPES and value not in NAMES:
            raise AssayError(f"contract: {name}: found {value!r}, allowed: {', '.join(NAMES)}")
        if name in CHOICES and value not in CHOICES[name]:
            raise AssayError(f"contract: {name}: found {value!r}, allowed: {', '.join(CHOICES[name])}")
        if name not in DTYPES and name not in CHOICES and not isinstance(value, (bool, int, float)):
            raise AssayError(f"contract: {name}: found {value!r}, allowed: a number")
        made[name] = int(value) if isinstance(value, bool) else value
    return made
