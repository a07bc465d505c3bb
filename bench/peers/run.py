#!/usr/bin/env python3
"""run.py FILE.jsonl [--budget S] [--only NAME,...]: times the peers on the cases of a file of assay bench, and adds lines
"bench":"peer" before its last one. A peer that is missing has one line that says so. Needs PyTorch and the GPU.
ASSAY_PEERS=NAME,... in the environment is --only."""

import importlib
import json
import os
import sys

MODULES = ["sdpa", "fa3", "flex", "flashinfer_paged"]


def peers(only):
    """Peers that are here; lines about those that are not."""
    here, lines = [], []
    for name in MODULES:
        try:
            found = importlib.import_module(name).PEERS
        except Exception as why:
            lines.append({"bench": "peer", "peer": name, "missing": str(why).strip().split("\n")[0][:200]})
            continue
        for peer in found:
            if only and peer.name not in only:
                continue
            why = peer.missing()
            if why is None:
                here.append(peer)
            else:
                lines.append({"bench": "peer", "peer": peer.name, "missing": why})
    return here, lines


def objects(path):
    """The file's lines. What a run that was killed left of its last one is no line."""
    with open(path) as file:
        for text in file:
            if text.endswith("\n"):
                yield json.loads(text)


def cases(path):
    """Each shape once, whatever its variants, seeds and values; with as many launches a replay as ours had at most."""
    from peer import Case

    seen = {}
    for line in objects(path):
        if line.get("bench") != "case":
            continue
        case = Case(line["case"])
        key = shape(case)
        if case.batch > 0:
            case = seen.setdefault(key, case)
            if line.get("mode") == "cold":
                case.launches = max(case.launches, line.get("launches", 0))
    return list(seen.values())


def shape(case):
    return (case.mode, case.key.get("kv_len"), case.key.get("new"), case.heads, case.kv_heads, case.size,
            case.key.get("dtype"), case.key.get("kv_dtype"))


def join(path, lines):
    """Ours, the fastest variant of each operator, beside the peers."""
    from peer import Case

    ours, theirs = {}, {}
    for line in objects(path):
        if line.get("bench") == "case" and line.get("mode") == "cold":
            case = Case(line["case"])
            key = (line["op"], line["name"], shape(case))
            if key not in ours or line["median_us"] < ours[key][0]:
                ours[key] = (line["median_us"], line["variant"])
    for line in lines:
        if "median_us" in line:
            theirs.setdefault(shape(Case(line["case"])), {})[line["peer"]] = line["median_us"]
    for (op, name, what), (us, variant) in ours.items():
        beside = theirs.get(what)
        if beside:
            text = ", ".join(f"{peer} {took:.2f} ({us / took:.2f})" for peer, took in sorted(beside.items()))
            print(f"{op} {name}: {variant} {us:.2f} us; {text}")


def main(argv):
    path, budget, only = argv[1], 0.3, None
    if os.environ.get("ASSAY_PEERS"):
        only = os.environ["ASSAY_PEERS"].split(",")
    if "--budget" in argv:
        budget = float(argv[argv.index("--budget") + 1])
    if "--only" in argv:
        only = argv[argv.index("--only") + 1].split(",")
    here, lines = peers(only)
    for line in lines:
        print(f"{line['peer']}: missing: {line['missing']}")
    if here:
        import torch

        from peer import figure
        from timing import Timer

        timer = Timer(torch)
        for case in cases(path):
            for peer in here:
                if case.op not in peer.op:
                    continue
                line = figure(timer, peer, case, budget)
                lines.append(line)
                said = line.get("unsupported") or line.get("failed")
                what = f"{case.key.get('name', '')} {case.mode} {case.batch} x {case.lengths[0]}"
                if said:
                    print(f"{peer.name:16} {what:32} no figure: {said}", flush=True)
                else:
                    print(f"{peer.name:16} {what:32} {line['median_us']:9.2f} us [{line['low_us']:.2f}, "
                          f"{line['high_us']:.2f}] {line['samples']}", flush=True)
    join(path, lines)
    old = open(path).read().splitlines()
    end = len(old) - 1 if old and json.loads(old[-1]).get("bench") == "end" else len(old)
    old[end:end] = [json.dumps(line, separators=(",", ":")) for line in lines]
    with open(path, "w") as out:
        out.write("\n".join(old) + "\n")
    return 1 if any("failed" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
