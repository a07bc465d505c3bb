"""Judges the callables of gpu_streams.py. The one that joins its stream must pass. Each other one must die by a check
of its values, and by its own replay line. Status 77: no torch, or no GPU."""
import shlex
import subprocess
import sys


def main():
    try:
        import torch
    except ImportError as why:
        print(f"judge_gpu_streams: skipped: {why}")
        return 77
    if not torch.cuda.is_available():
        print("judge_gpu_streams: skipped: no GPU")
        return 77
    import assay
    import gpu_streams

    wrong = 0
    for name in ("joined", *gpu_streams.EXPECTED):
        result = assay.run(getattr(gpu_streams, name), section="check", filter="/widths", workers=1)
        said = f"{result.counts.get('PASS', 0)} PASS, {len(result.failures)} failures"
        if name == "joined":
            good = result.counts.get("PASS", 0) > 5 and not result.failures
        else:
            checks = set(result.checks)
            good = bool(result.failures) and checks <= set(gpu_streams.EXPECTED[name])
            said += f" by {', '.join(sorted(checks))}"
            if good:
                again = subprocess.run(shlex.split(result.failures[0].replay), stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True, check=False)
                good = again.returncode == 1 and "FAIL" in again.stdout
                said += ", and by its replay line" if good else f"; its replay line says {again.stdout[-300:]}"
        wrong += not good
        print(f"{name}: {'as expected' if good else 'NOT AS EXPECTED'}: {said}", flush=True)
        if not good:
            print(result.text[-1500:], flush=True)
    return 1 if wrong else 0


sys.exit(main())
