#!/usr/bin/env python3
"""flash_linear.py FILE.jsonl: times flash-linear-attention's chunk and recurrent kernels on the shapes of gated_delta_rule's bench
table, in the way of timing.py. Appends a line per kernel and shape to FILE. Both kernels normalise q and k, and read and write a state in f32. Some versions want as many key heads as value
heads: there q and k are repeated before the clock starts, and the line says so."""

import sys

import torch

from timing import REFUSALS, Wrong, table

# Requests, rows of each, key heads, value heads.
PROMPTS = [(1, 8192, 16, 32), (4, 2048, 16, 32), (1, 2048, 16, 32), (1, 8192, 4, 16), (1, 65536, 2, 8)]
STEPS = [(1, 1, 16, 32), (32, 1, 16, 32), (128, 1, 16, 32), (256, 1, 16, 32)]
D, EPS, JUDGED = 128, 1e-6, 256


def inputs(B, T, H_k, H_v):
    """Half of the heads decay slowly, and the others by a tenth of a row."""
    q, k = (torch.randn(B, T, H_k, D, device="cuda").bfloat16() for _ in range(2))
    v = torch.randn(B, T, H_v, D, device="cuda").bfloat16()
    rate = torch.where(torch.arange(H_v, device="cuda") % 2 == 0, 0.001, 0.2)
    g = -torch.rand(B, T, H_v, device="cuda") * rate
    return {"q": q, "k": k, "v": v, "g": g, "beta": torch.rand(B, T, H_v, device="cuda"),
            "initial_state": torch.randn(B, H_v, D, D, device="cuda")}


def repeated(given, ratio):
    return given | {name: given[name].repeat_interleave(ratio, 2).contiguous() for name in ("q", "k")}


def expected(given, request, head):
    """The first rows of a head, row by row in f64."""
    key = head // (given["v"].shape[2] // given["q"].shape[2])
    q, k = (given[name][request, :JUDGED, key].double() for name in ("q", "k"))
    v, g, beta = (given[name][request, :JUDGED, head].double() for name in ("v", "g", "beta"))
    q, k = (x / (x.square().sum(1, keepdim=True) + EPS).sqrt() for x in (q, k))
    state, rows = given["initial_state"][request, head].double(), []
    for t in range(v.shape[0]):
        state = state * g[t].exp()
        state = state + torch.outer(k[t], beta[t] * (v[t] - state.t() @ k[t]))
        rows.append(state.t() @ q[t] * D**-0.5)
    return torch.stack(rows)


def agrees(given, out):
    """Whether two heads are within 2^-5 of the largest value, as bf16 chunks are."""
    B, _, H_v, _ = given["v"].shape
    for request, head in ((0, 0), (B - 1, H_v - 1)):
        want = expected(given, request, head)
        got = out[request, : want.shape[0], head].double()
        if not bool(((got - want).abs() <= 2**-5 * want.abs().max()).all()):
            return False
    return True


def launches(kernel, shape):
    """A function that makes a set's launch, and how its heads are given."""
    first = inputs(*shape)
    ratio = shape[3] // shape[2]

    def launch(given):
        return kernel(**given, output_final_state=True, use_qk_l2norm_in_kernel=True)

    try:
        if agrees(first, launch(first)[0]):
            return launch, lambda given: given, "grouped"
    except REFUSALS:
        pass
    if agrees(first, launch(repeated(first, ratio))[0]):
        return launch, lambda given: repeated(given, ratio), "repeated"
    raise Wrong("not what the formula gives")


def entry(name, kernel, shape, version):
    how = {}

    def prepare():
        launch, form, how["heads"] = launches(kernel, shape)
        sets = {}

        def make(i):
            sets[i] = form(inputs(*shape))
            return list(sets[i].values()), lambda: launch(sets[i])

        return make, lambda i, out: agrees(sets[i], out[0])

    B, T, H_k, H_v = shape
    keys = {"peer": name, "fla": version, "B": B, "N": B * T, "H_k": H_k, "H_v": H_v, "D_k": D, "D_v": D}
    return keys, prepare, lambda us: dict(how)


def main(path):
    import fla
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    version = getattr(fla, "__version__", "?")
    work = [entry("fla_chunk", chunk_gated_delta_rule, shape, version) for shape in PROMPTS]
    work += [entry("fla_recurrent", fused_recurrent_gated_delta_rule, shape, version) for shape in STEPS]
    return table(path, torch, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
