#!/usr/bin/env python3
"""selftest_fa3.py: runs kernels_fa3.py over a stand-in on the CPU, without a mistake and with each that the stand-in
knows. Needs torch and the wheel assay-kernels. A clean run must pass, and each mistake must fail a case.
Status 77: torch or the wheel is missing."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = os.path.join(HERE, "stand_in")
CASES = ("types_ragged_calibrated", "contiguous")
CAPPED = ("soft_caps",)
# The callables that make the calls in which a mistake shows.
WHERE = {"cap_lost": "fa3_capped", "splits_not_weighed": "fa3_splits", "keys_of_request_before": "fa3_ragged"}


def run(variant, mistake, filters):
    """Returns counts of PASS and of failures."""
    good = bad = 0
    for name in filters:
        environment = dict(os.environ, FA3_INTERFACE="fa3_on_cpu", FA3_MISTAKE=mistake, OMP_NUM_THREADS="1",
                           PYTHONPATH=os.pathsep.join(filter(None, [PLACE, os.environ.get("PYTHONPATH")])))
        done = subprocess.run([sys.executable, "-W", "ignore", "-m", "assay", "run", "softmax_attention", "--section",
                               "check", "--filter", name, "--workers", "2", "--power", "off", "--variant",
                               f"softmax_attention={variant}", "--callable", os.path.join(HERE, "kernels_fa3.py")],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        last = [line for line in done.stdout.splitlines() if " PASS, " in line]
        if not last:
            sys.exit(f"selftest_fa3: {variant}: no case was judged:\n{done.stdout[-2000:]}")
        counts = {words.split()[1]: int(words.split()[0].replace(",", "")) for words in last[-1].split(" in ")[0].split(", ")}
        good += counts["PASS"]
        bad += counts["FAIL"] + counts["HANG"] + counts["CRASH"]
    return good, bad


def main():
    try:
        import assay  # noqa: F401
        import torch  # noqa: F401
    except ImportError as why:
        print(f"selftest_fa3: skipped: {why}")
        return 77
    sys.path.insert(0, PLACE)
    import fa3_on_cpu
    wrong = 0
    for variant in ("fa3", "fa3_ragged", "fa3_splits", "fa3_capped"):
        good, bad = run(variant, "", CAPPED if variant == "fa3_capped" else CASES)
        wrong += good < 4 or bad > 0
        print(f"{variant}: {good} PASS, {bad} failures", flush=True)
    for mistake in fa3_on_cpu.MISTAKES:
        variant = WHERE.get(mistake, "fa3")
        _, bad = run(variant, mistake, CAPPED if variant == "fa3_capped" else CASES)
        wrong += bad == 0
        print(f"{variant} with {mistake}: {bad} failures", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


sys.exit(main())
