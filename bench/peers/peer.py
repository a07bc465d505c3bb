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


TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class Attention:
    """Softmax attention over q [B, H, T, D], k [B, H_kv, L, D] and v [B, H_kv, L, D_v], causal to the bottom right.
    Where lengths of a decode differ, and the peer takes such batches, k and v lie one request after the other: [keys,
    H_kv, D]."""

    op = ("softmax_attention", "gate_attention")
    ragged = False

    def missing(self):
        return None

    def tensors(self, case, seed):
        dtype = TYPES.get(case.type)
        if case.mode not in ("decode", "prefill", "chunked") or dtype is None:
            raise Unsupported("no decode, no prefill and no chunk")
        if not case.same_lengths() and not (self.ragged and case.mode == "decode"):
            raise Unsupported("lengths that differ")
        if case.key.get("kv_dtype", "same") != "same":
            raise Unsupported("a cache of another type")
        make = torch.Generator(device="cuda").manual_seed(seed)
        of_q = (case.batch, case.heads, case.new[0], case.size)
        of_k = (case.batch, case.kv_heads, case.lengths[0])
        if not case.same_lengths():
            of_k = (sum(case.lengths), case.kv_heads)
        shapes = [of_q, (*of_k, case.size), (*of_k, case.values)]
        return [torch.randn(s, generator=make, device="cuda", dtype=torch.float32).to(dtype) for s in shapes]

    def expected(self, case, tensors, rows):
        """Rows [(request, head, row)] in f64."""
        q, k, v = tensors
        made = []
        for b, h, n in rows:
            keys = case.lengths[b] - case.new[b] + n + 1
            kv = h // (case.heads // case.kv_heads)
            if case.same_lengths():
                own_k, own_v = k[b, kv, :keys], v[b, kv, :keys]
            else:
                first = sum(case.lengths[:b])
                own_k, own_v = (t[first : first + keys, kv] for t in (k, v))
            score = (own_k.double() @ q[b, h, n].double()) / math.sqrt(case.size)
            made.append(torch.softmax(score, 0) @ own_v.double())
        return torch.stack(made)


def check(peer, case, tensors, out, seed):
    """False: further than two bf16 roundings of the largest value of a row from the formula, or not a number."""
    make = torch.Generator().manual_seed(seed)
    rows = [(0, 0, 0), (case.batch - 1, case.heads - 1, case.new[0] - 1)]
    for _ in range(6):
        rows.append(tuple(int(torch.randint(n, (1,), generator=make)) for n in (case.batch, case.heads, case.new[0])))
    want = peer.expected(case, tensors, rows)
    got = torch.stack([out[b, h, n].double() for b, h, n in rows])
    bound = 2 ** (-6 if case.type == "bf16" else -9) * want.abs().amax(1, keepdim=True)
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
