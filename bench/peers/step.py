#!/usr/bin/env python3
"""step.py FOLDER [--check]: runs the scenarios of FOLDER by torch, Triton and FlashAttention 3, and writes
FOLDER/peer.jsonl, a line per scenario. assay bench scenario --peers makes the folder: model.json and model.bin, and
scenarios.json with prompts, expected tokens, and the figures of ours.

A figure has the form of ours: the wall time from the host's prompts to the host's tokens, the median of RUNS runs. The
prompts are one graph, and a decode step is another. The plan of a step is chosen by time before. No figure without the
reference's first tokens, and the same tokens in every run. --check computes on the CPU by Triton's interpreter, for
small models, and says only whether the tokens are right."""

import json
import os
import sys
import time

from tokens import checked

RUNS, TRIES = 5, 12


def write(file, line):
    file.write(json.dumps(line, separators=(",", ":")) + "\n")
    file.flush()


def scenarios(folder):
    with open(os.path.join(folder, "scenarios.json")) as file:
        return json.load(file)


class Graphs:
    """The two graphs of a batch."""

    def __init__(self, torch, batch):
        self.torch, self.batch, self.stream = torch, batch, torch.cuda.Stream()
        self.prompt, self.step = self.capture(batch.prompt), None

    def capture(self, work):
        torch = self.torch
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream), torch.no_grad():
            self.batch.feed()
            work()  # warm-up: compiles, chooses
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                work()
        torch.cuda.synchronize()
        return graph

    def step_us(self, plan):
        """The time of a step by a plan, in the middle of the output: the median of several."""
        from triton.runtime.errors import OutOfResources

        torch, batch, took = self.torch, self.batch, []
        batch.choose(plan)
        try:
            graph = self.capture(batch.step)
        except OutOfResources:
            return float("inf")
        with torch.cuda.stream(self.stream):
            for i in range(TRIES):
                batch.feed()
                batch.position += batch.output // 2
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(100000)
                begin.record()
                graph.replay()
                end.record()
                self.stream.synchronize()
                took.append(begin.elapsed_time(end) * 1e3)
        return sorted(took[2:])[(TRIES - 2) // 2]

    def choose(self):
        """Takes the plan that is fastest here: splits and tiles first, then the parts of the products."""
        batch = self.batch
        plans, parts = batch.plans()
        times = [(self.step_us(plan), i) for i, plan in enumerate(plans)]
        best = plans[min(times)[1]]
        others = [type(best)(p, best.splits, best.tile, best.stages) for p in sorted(set(parts) - {best.parts})]
        times = [(self.step_us(plan), i) for i, plan in enumerate([best] + others)]
        best = ([best] + others)[min(times)[1]]
        batch.choose(best)
        self.step = self.capture(batch.step)
        return best

    def run(self):
        """One run: its wall, the prompts' part and a step's, in ms; and the tokens."""
        torch, batch, steps = self.torch, self.batch, self.batch.output - 1
        mark = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.cuda.stream(self.stream):
            mark[0].record()
            batch.feed()
            self.prompt.replay()
            mark[1].record()
            for _ in range(steps):
                self.step.replay()
            mark[2].record()
            batch.kept.copy_(batch.tokens, non_blocking=True)
            self.stream.synchronize()
        wall = (time.perf_counter() - begin) * 1e3
        return wall, mark[0].elapsed_time(mark[1]), mark[1].elapsed_time(mark[2]) / max(1, steps), batch.kept.clone()


def wrong(batch, tokens, asked):
    """The counts of tokens that agree, and a reason against the run, or None."""
    rows = [row[: asked["output"]] for row in tokens.tolist()]
    if any(not 0 <= t < batch.model.V for row in rows for t in row):
        return [], "a token that is no id"
    return checked(asked["expected"], rows, asked["output"])


def median(values):
    return sorted(values)[len(values) // 2]


def figure(torch, model, asked, attention):
    from step_engine import Batch

    batch = Batch(model, asked["prompts"], asked["output"], attention)
    graphs = Graphs(torch, batch)
    plan = graphs.choose()
    graphs.run()
    runs = [graphs.run() for _ in range(RUNS)]
    counts, why = wrong(batch, runs[0][3], asked)
    if why is None and any(not torch.equal(run[3], runs[0][3]) for run in runs):
        why = "other tokens when run again"
    if why:
        return {"failed": why}
    walls = [run[0] for run in runs]
    return {"wall_ms": median(walls), "wall_low_ms": min(walls), "wall_high_ms": max(walls), "runs": RUNS,
            "prefill_ms": median([run[1] for run in runs]), "step_ms": median([run[2] for run in runs]),
            "tokens_s": 1e3 * batch.B * asked["output"] / median(walls), "plan": str(plan),
            **{f"agreed_{i}": n for i, n in enumerate(counts)}}


def widen_dots():
    """Makes Triton's interpreter multiply bf16 as numbers. Some versions multiply their codes."""
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter

    narrow = interpreter.InterpreterBuilder.create_dot

    def wide(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(numpy.uint32) << 16).view(numpy.float32), tl.float32)

    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: narrow(self, wide(a), wide(b), *rest)


def check(torch, model, asked, attention):
    """The same work on the CPU, without graphs and without a figure."""
    from step_engine import Batch

    batch = Batch(model, asked["prompts"], asked["output"], attention)
    plans, parts = batch.plans()
    counts, why = [], None
    for plan in [plans[0], type(plans[0])(parts[0], 2, 32, 1)]:
        batch.choose(plan)
        batch.feed()
        with torch.no_grad():
            batch.prompt()
            for _ in range(asked["output"] - 1):
                batch.step()
        counts, why = wrong(batch, batch.tokens, asked)
        print(f"step: {asked['name']}: plan {plan}: {counts} tokens agree{'' if why is None else ': ' + why}", flush=True)
        if why:
            return {"failed": why}
    return {"unsupported": "checked on the CPU: no figure", **{f"agreed_{i}": n for i, n in enumerate(counts)}}


def say(line, asked):
    head = f"{line['peer']:7} {line['scenario']:23} "
    if "wall_ms" not in line:
        print(head + "no figure: " + (line.get("failed") or line.get("unsupported")), flush=True)
        return
    text = (f"wall {line['wall_ms']:9.2f} ms [{line['wall_low_ms']:.2f}, {line['wall_high_ms']:.2f}]  prefill "
            f"{line['prefill_ms']:8.2f}  step {line['step_ms']:8.3f} ms  {line['tokens_s']:9.0f} tok/s  {line['plan']}")
    ours, limit = asked.get("wall_ms", 0), asked.get("limit_ms", 0)
    if ours > 0:
        text += f"  ours {ours:.2f} ms, {ours / line['wall_ms']:.3f} x the peer's"
    if limit > 0:
        text += f"  limit {limit:.2f} ms, {line['wall_ms'] / limit:.2f} x"
    print(head + text, flush=True)


def missing(file, peer, why):
    print(f"{peer}: missing: {why}", flush=True)
    write(file, {"bench": "peer", "peer": peer, "missing": why})


def engine(cpu):
    """torch, and the attention of prompts; raises what says why there is none."""
    if cpu:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from step_engine import Fa3, Missing, Sdpa

    if cpu:
        widen_dots()
        return torch, Sdpa(), None
    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
    try:
        return torch, Fa3(), None
    except Missing as why:
        return torch, Sdpa(), str(why)


def main(argv):
    folder, cpu = argv[1], "--check" in argv
    failed = False
    with open(os.path.join(folder, "peer.jsonl"), "w") as file:
        try:
            torch, attention, lack = engine(cpu)
        except Exception as why:  # what a wheel of another toolkit raises is its own affair
            missing(file, "step", str(why).strip().split("\n")[0][:200])
            return 0
        name = "step"
        if lack:  # a weaker peer has another name
            missing(file, "step", lack)
            name = "step_sdpa"
            print("step_sdpa: prompts are attended over by torch's own kernels, which are slower", flush=True)
        from step_engine import Model
        import triton

        model = Model(folder, "cpu" if cpu else "cuda")
        for asked in scenarios(folder):
            line = {"bench": "peer", "peer": name, "scenario": asked["name"], "model": model.config["arch"],
                    "layers": model.L, "hidden": model.C, "attention": attention.name, "torch": torch.__version__,
                    "triton": triton.__version__}
            refused = model.refused()
            try:
                if refused:
                    line["unsupported"] = refused
                else:
                    line |= (check if cpu else figure)(torch, model, asked, attention)
            except (RuntimeError, TypeError, ValueError) as why:
                line["unsupported"] = str(why).strip().split("\n")[0][:200]
            failed = failed or "failed" in line
            say(line, asked)
            write(file, line)
            if not cpu:
                torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
