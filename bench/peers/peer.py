"""peer.py: what a peer is, and how its time is taken.

A peer does what a case of assay bench does, with somebody else's kernels. It is a class with a name, an operator, and

    missing()        why it cannot be had here (a text), or None
    prepare(case)    buffers of one input set -> a function without arguments that launches once, and its output;
                     raises Unsupported(reason) where the case is not for it

Its figure is taken as timing.py says, with as many sets as ours had in that case: a replay costs a few microseconds
before its first launch, which all of them share. Rows of a set are held against a formula in f64 (expected())."""

import math

import torch

from timing import REFUSALS, Unsupported, reason


class Case:
    """A case of assay bench: the words of its descriptor."""

    def __init__(self, line):
        self.line = line
        words = [w for w in line.split() if "=" in w]
        self.op = line.split()[0]
        self.key = dict(w.split("=", 1) for w in words)
        self.lengths = [int(n) for n in self.key.get("kv_len", "").split(",") if n]
        new = [int(n) for n in self.key.get("new", "").split(",") if n]
        self.mode = self.key.get("mode", "")
        self.new = new if new else (self.lengths if self.mode == "prefill" else [1] * len(self.lengths))
        self.batch = len(self.lengths)
        self.heads, self.kv_heads = int(self.key.get("H", 0)), int(self.key.get("H_kv", 0))
        self.size = int(self.key.get("D", 0))
        self.block = int(self.key.get("block_size", 16))
        self.launches = 0  # of a replay of ours
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}.get(self.key.get("dtype"))

    def same_lengths(self):
        return len(set(self.lengths)) == 1 and len(set(self.new)) == 1


class Attention:
    """Softmax attention over q [B, H, T, D] and k, v [B, H_kv, L, D], causal to the bottom right."""

    op = ("softmax_attention", "gate_attention")

    def missing(self):
        return None

    def tensors(self, case, seed):
        if case.mode not in ("decode", "prefill") or not case.same_lengths() or case.dtype is None:
            raise Unsupported("lengths that differ, or no decode and no prefill")
        if case.key.get("kv_dtype", "same") != "same":
            raise Unsupported("a cache of another type")
        make = torch.Generator(device="cuda").manual_seed(seed)
        rows, keys = case.new[0], case.lengths[0]
        shape = [(case.batch, case.heads, rows, case.size)] + [(case.batch, case.kv_heads, keys, case.size)] * 2
        return [torch.randn(s, generator=make, device="cuda", dtype=torch.float32).to(case.dtype) for s in shape]

    def expected(self, case, tensors, rows):
        """Rows [(request, head, row)] in f64."""
        q, k, v = tensors
        made = []
        for b, h, n in rows:
            last = case.lengths[0] - case.new[0] + n
            kv = h // (case.heads // case.kv_heads)
            score = (k[b, kv, : last + 1].double() @ q[b, h, n].double()) / math.sqrt(case.size)
            made.append(torch.softmax(score, 0) @ v[b, kv, : last + 1].double())
        return torch.stack(made)


def check(peer, case, tensors, out, seed):
    """False: further than two bf16 roundings of the largest value of a row from the formula, or not a number."""
    make = torch.Generator().manual_seed(seed)
    rows = [(0, 0, 0), (case.batch - 1, case.heads - 1, case.new[0] - 1)]
    for _ in range(6):
        rows.append(tuple(int(torch.randint(n, (1,), generator=make)) for n in (case.batch, case.heads, case.new[0])))
    want = peer.expected(case, tensors, rows)
    got = torch.stack([out[b, h, n].double() for b, h, n in rows])
    bound = 2 ** (-6 if case.dtype == torch.bfloat16 else -9) * want.abs().amax(1, keepdim=True)
    return bool(((got - want).abs() <= bound).all())


def figure(timer, peer, case, budget_s):
    """A line for the file: a figure, or why there is none."""
    line = {"bench": "peer", "peer": peer.name, "case": case.line, "mode": "cold"}

    def make(i):
        tensors = peer.tensors(case, 1000 + i)
        return tensors, peer.prepare(case, tensors)

    try:
        sets = timer.sets(make, case.launches)
        return line | timer.figure(sets, lambda i, out: check(peer, case, sets[i][0], out, i), budget_s)
    except REFUSALS as why:
        line["unsupported"] = reason(why)
    torch.cuda.synchronize()
    return line
