#!/usr/bin/env python3
"""selftest_stand_in.py [KERNELS...]: runs kernels_fa3.py, kernels_sampling.py, kernels_delta.py and kernels_conv.py over
stand-ins on the CPU, without a mistake and with each that the stand-ins know. Needs torch and the wheel assay-kernels. A clean run must pass, and each
mistake must fail a case. Status 77: torch or the wheel is missing."""
import importlib
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = os.path.join(HERE, "stand_in")
DRAWN_FOR = "10s"
ATTENTION, CAPPED = ("types_ragged_calibrated", "contiguous"), ("soft_caps",)
RULE, CONV = ("prefill_and_decode", "values"), ("prefill_and_decode", "weights_of_f32")
# The suite has few heads of 128 × 128, so that cases are drawn, as FlashInfer takes them.
WHOLE = "D_k=128 D_v=128 H_k=1 H_v=2 dtype=bf16 tier=exact"
BOTH, LEAST, DRAWS = ("top_k_ties", "top_k_then_top_p"), ("min_p",), ("draws", "greedy")
# Of each file: operator, stand-in, prefix of its variables, callables with the cases for them, and the callable in
# whose calls a mistake shows. Cases are those of an item of the suite, or drawn ones with these keys.
KERNELS = {
    "fa3": ("softmax_attention", "fa3_on_cpu", "FA3",
            {"fa3": ATTENTION, "fa3_ragged": ATTENTION, "fa3_splits": ATTENTION, "fa3_capped": CAPPED},
            {"mask_top_left": "fa3", "wrong_kv_head": "fa3", "lse_to_base_2": "fa3", "cap_lost": "fa3_capped",
             "splits_not_weighed": "fa3_splits", "keys_of_request_before": "fa3_ragged"}),
    "sampling": ("sampler", "sampling_on_cpu", "SAMPLING",
                 {"flashinfer_plain": DRAWS, "flashinfer_top_k_top_p": BOTH, "flashinfer_min_p": LEAST},
                 {"top_k_one_more": "flashinfer_top_k_top_p", "top_p_drops_crossing": "flashinfer_top_k_top_p",
                  "min_p_of_one": "flashinfer_min_p", "flattened": "flashinfer_plain",
                  "first_id_never": "flashinfer_plain"}),
    "delta": ("gated_delta_rule", "delta_on_cpu", "DELTA",
              {"fla_chunk": RULE, "fla_recurrent": RULE, "flashinfer_prefill": ("pieces_of_64", WHOLE),
               "flashinfer_decode": (WHOLE,)},
              {"gates_taken_as_factors": "fla_recurrent", "heads_tiled": "fla_chunk",
               "state_of_request_before": "fla_recurrent", "last_state_of_row_before": "fla_recurrent",
               "length_of_mean": "fla_chunk", "alpha_floor": "flashinfer_prefill",
               "states_not_transposed": "flashinfer_prefill", "logits_without_sigmoid": "flashinfer_decode"}),
    "conv": ("causal_conv1d", "conv_on_cpu", "CONV", {"fla": CONV},
             {"taps_reversed": "fla", "first_row_of_state_used": "fla", "short_request_forgets": "fla",
              "request_before_seen": "fla"}),
}


def run(name, variant, mistake):
    """Returns counts of PASS and of failures."""
    op, stand_in, prefix, cases, _ = KERNELS[name]
    good = bad = 0
    for item in cases[variant]:
        environment = dict(os.environ, **{f"{prefix}_INTERFACE": stand_in, f"{prefix}_MISTAKE": mistake},
                           OMP_NUM_THREADS="1",
                           PYTHONPATH=os.pathsep.join(filter(None, [PLACE, os.environ.get("PYTHONPATH")])))
        which = ["run", op, "--section", "check", "--filter", item, "--power", "off"]
        if "=" in item:
            keys = [word for key in item.split() for word in ("--where", key)]
            which = ["fuzz", op, "--budget", DRAWN_FOR, "--seed", "1", *keys]
        done = subprocess.run([sys.executable, "-W", "ignore", "-m", "assay", *which, "--workers", "2", "--variant",
                               f"{op}={variant}", "--callable", os.path.join(HERE, f"kernels_{name}.py")],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        last = [line for line in done.stdout.splitlines() if " PASS, " in line]
        if not last:
            sys.exit(f"selftest_stand_in: {variant}: no case was judged:\n{done.stdout[-2000:]}")
        words = [part.split() for part in last[-1].split(" in ")[0].split(", ")]
        counts = {word: int(number.replace(",", "")) for number, word in words}
        good += counts["PASS"]
        bad += counts["FAIL"] + counts["HANG"] + counts["CRASH"]
    return good, bad


def main():
    try:
        import assay  # noqa: F401
        import torch  # noqa: F401
    except ImportError as why:
        print(f"selftest_stand_in: skipped: {why}")
        return 77
    sys.path.insert(0, PLACE)
    wrong = 0
    for name in sys.argv[1:] or KERNELS:
        _, stand_in, _, cases, where = KERNELS[name]
        if set(importlib.import_module(stand_in).MISTAKES) != set(where):
            sys.exit(f"selftest_stand_in: {name}: its mistakes are not those of {stand_in}.py")
        for variant in cases:
            good, bad = run(name, variant, "")
            wrong += good < 4 or bad > 0
            print(f"{variant}: {good} PASS, {bad} failures", flush=True)
        for mistake, variant in where.items():
            _, bad = run(name, variant, mistake)
            wrong += bad == 0
            print(f"{variant} with {mistake}: {bad} failures", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


sys.exit(main())
