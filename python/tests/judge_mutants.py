"""Judges the callables of mutants.py. Controls must pass. Every mutant must die by its check, and by its own replay
line. judge_mutants.py [--whole] [--quick] [NAME...]: --whole asks the whole section check. --quick takes a part of the
callables, and one replay line per check. A NAME keeps those whose names contain it."""
import shlex
import subprocess
import sys
import time

import assay
import mutants
from assay import _variant

# One mutant for each check, and what only the door can get wrong: cached results, strides, crashes, hangs, exceptions.
QUICK = ("rms_control", "softmax_control", "embedding_control", "rms_eps_outside", "rms_tail", "rms_store_by_quads",
         "rms_ignores_strides", "rms_place_in_batch", "rms_alone", "rms_writes_its_input", "rms_cached_result",
         "rms_rounds_twice", "rms_reads_old_results", "rms_raises", "rms_crashes", "rms_loses_the_gpu", "rms_hangs",
         "rms_asks_the_judge", "softmax_window", "softmax_drops_last_key", "softmax_reads_the_tail",
         "embedding_hides_nan")


def replays(failure):
    """Runs the line that a failure prints; it must fail in the same way."""
    done = subprocess.run(shlex.split(failure.replay), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 1 and failure.verdict in done.stdout and failure.check in done.stdout


def where_of(key, whole):
    """Returns the part of the suite that judges a callable."""
    where = mutants.EXPECTED.get(key, (None, None, f"{key[0]}/check/"))[2]
    if whole and "/check" in where:
        return f"{key[0]}/check/"
    return where + "types" if key == ("softmax_attention", "softmax_control") else where


def outcome(key, result, failures, replayed):
    """Returns what is wrong with the outcome of one callable; "": nothing."""
    if key not in mutants.EXPECTED:
        passed = sum(line["verdict"] == "PASS" for line in result.cases if line["variant"] == key[1])
        return "" if passed > 20 and not failures else f"a right callable: {passed} PASS, {failures[:1]}"
    checks = mutants.EXPECTED[key][0]
    found = {failure.check for failure in failures}
    if not found & checks:
        return f"survives, or dies by {found or 'nothing'} alone, not by {checks}: {failures[:1]}"
    first = next(failure for failure in failures if failure.check in checks)
    if first.check in replayed:
        return ""
    replayed.add(first.check)
    return "" if replays(first) else f"its line does not kill it: {first.replay}"


def main():
    """Judges all, or those that are named. Callables with the same part of a suite share a run."""
    words = sys.argv[1:]
    names, whole, quick = [word for word in words if not word.startswith("--")], "--whole" in words, "--quick" in words
    chosen = {key: one for key, one in _variant.REGISTRY.items()
              if (not names or any(name in key[1] for name in names)) and (not quick or key[1] in QUICK)}
    runs, wrong, replayed = {}, 0, set()
    for key in chosen:
        runs.setdefault((key[0], where_of(key, whole)), []).append(key)
    for (_, where), keys in runs.items():
        begin = time.time()
        hangs = any("deadline" in mutants.EXPECTED.get(key, ((),))[0] for key in keys)
        result = assay.run([chosen[key] for key in keys], filter=where, deadline=1 if hangs else 20)
        for key in keys:
            failures = [failure for failure in result.failures if failure.variant == key[1]]
            why = outcome(key, result, failures, replayed if quick else set())
            twin = mutants.EXPECTED.get(key, (None, "a control", None))[1]
            print(f"{'WRONG' if why else 'ok':5} {key[1]:26} as {twin or 'nothing in C'} {why}", flush=True)
            wrong += bool(why)
        print(f"      {where}: {time.time() - begin:.1f} s", flush=True)
    print(f"{len(chosen)} callables, {wrong} wrong")
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
