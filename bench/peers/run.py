#!/usr/bin/env python3
"""run.py FILE.jsonl [--budget S] [--only NAME,...] [--seconds S]: times the peers on the cases of a file of bench.

Lines "bench":"peer" are added before the file's last one, each as soon as it is made. A figure that the file has is not
taken again, so that the same command goes on where it ended. --seconds: no figure begins later. A peer that is missing
has one line that says so. Needs PyTorch and the GPU. ASSAY_PEERS=NAME,... in the environment is --only."""

import importlib
import os
import sys
import time

from cases import Figures, beside, cases, objects, taken

MODULES = ["sdpa", "fa3", "flex", "flashinfer_paged"]


def peers(only):
    """Returns the peers that are present, and lines about those that are not. Every name asked for is one of them."""
    here, lines, known, loaded = [], [], set(), True
    for name in MODULES:
        try:
            found = importlib.import_module(name).PEERS
        except Exception as why:
            lines.append({"bench": "peer", "peer": name, "missing": str(why).strip().split("\n")[0][:200]})
            loaded = False
            continue
        for peer in found:
            known.add(peer.name)
            if only and peer.name not in only:
                continue
            why = peer.missing()
            if why is None:
                here.append(peer)
            else:
                lines.append({"bench": "peer", "peer": peer.name, "missing": why})
    for name in only or []:
        if name in known:
            continue
        if loaded:
            sys.exit(f"--only: found '{name}', allowed {', '.join(sorted(known))}")
        lines.append({"bench": "peer", "peer": name, "missing": "no module that loads has a peer of this name"})
    return here, lines


def say(peer, case, line):
    reason = line.get("unsupported") or line.get("failed")
    what = f"{case.key.get('name', '')} {case.mode} {case.batch} x {case.lengths[0]}"
    if reason:
        print(f"{peer.name:16} {what:32} no figure: {reason}", flush=True)
    else:
        print(f"{peer.name:16} {what:32} {line['median_us']:9.2f} us [{line['low_us']:.2f}, {line['high_us']:.2f}] "
              f"{line['samples']}", flush=True)


def take(path, here, missing, figure, seconds):
    """Takes the figures that the file does not have. Returns how many had no time, and whether an output was wrong."""
    start, lines, out = time.monotonic(), objects(path), Figures(path)
    have, left, wrong = taken(lines), 0, False
    named = {line["peer"] for line in lines if "missing" in line}
    for line in missing:
        print(f"{line['peer']}: missing: {line['missing']}", flush=True)
        if line["peer"] not in named:
            out.add(line)
    for case in cases(lines):
        for peer in here:
            if case.op not in peer.op or (peer.name, case.shape()) in have:
                continue
            if time.monotonic() - start > seconds:
                left += 1
                continue
            line = figure(peer, case)
            wrong = wrong or "failed" in line
            out.add(line)
            say(peer, case, line)
    return left, wrong


def main(argv):
    path, budget, only, seconds = argv[1], 0.3, None, float("inf")
    if os.environ.get("ASSAY_PEERS"):
        only = os.environ["ASSAY_PEERS"].split(",")
    if "--budget" in argv:
        budget = float(argv[argv.index("--budget") + 1])
    if "--only" in argv:
        only = argv[argv.index("--only") + 1].split(",")
    if "--seconds" in argv:
        seconds = float(argv[argv.index("--seconds") + 1])
    here, missing = peers(only)
    timer = None
    if here:
        import torch

        from timing import Timer

        timer = Timer(torch)

    def figure(peer, case):
        from peer import figure

        return figure(timer, peer, case, budget)

    left, wrong = take(path, here, missing, figure, seconds)
    for text in beside(objects(path)):
        print(text, flush=True)
    if left:
        print(f"{left} figures are missing after {seconds:g} s: run.py {path} goes on", flush=True)
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
