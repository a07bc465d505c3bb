"""timing.py: how the time of a peer is taken. All peers of kernels share it, and torch is handed in.

The way is that of assay bench. Input sets together are twice the cache, and one graph launches once over each. A sweep
over other memory comes before every replay. The figure is the median of the replays, with its 95 % interval by ranks.
Outputs of the first and the last sets are held against a formula before a figure, and after it."""

import json

LEAST_SETS, MOST_SETS, MOST_BYTES = 4, 64, 6 << 30
LEAST_SAMPLES, MOST_SAMPLES, BUDGET_S = 20, 300, 0.3
HOLD = 100000  # cycles for which the device waits, so that the host's time is not counted


class Unsupported(Exception):
    pass


class Wrong(Exception):
    """An output that is not what the formula gives."""


# What kernels of others raise for shapes that they do not take.
REFUSALS = (Unsupported, AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)


def reason(why):
    return (str(why).strip() or type(why).__name__).split("\n")[0][:200]


def spread(samples):
    """Returns the median and its interval: the ranks that fewer than 2.5 % of the samples' draws miss on a side."""
    s = sorted(samples)
    n = len(s)
    lost, p, rank = 0.025, 0.5**n, -1
    for k in range(n // 2):  # P(fewer than k + 1 of n below the median)
        lost -= p
        if lost < 0:
            break
        rank, p = k, p * (n - k) / (k + 1)
    middle = (s[(n - 1) // 2] + s[n // 2]) / 2
    return middle, s[max(rank, 0)], s[n - 1 - max(rank, 0)]


class Timer:
    def __init__(self, torch):
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        self.cache = getattr(properties, "L2_cache_size", 64 << 20)
        self.other = torch.empty(3 * self.cache // 4, dtype=torch.float32, device="cuda").normal_()
        self.stream = torch.cuda.Stream()

    def sets(self, make, least=LEAST_SETS):
        """Makes input sets. make(i) returns the tensors of set i, and a function that launches once over them."""
        made, bytes_of = [], 0
        while len(made) < max(LEAST_SETS, least) or (len(made) < MOST_SETS and len(made) * bytes_of < 2 * self.cache):
            if len(made) >= 2 and (len(made) + 1) * bytes_of > MOST_BYTES:
                break
            made.append(make(len(made)))
            bytes_of = sum(t.numel() * t.element_size() for t in made[-1][0])
        self.torch.cuda.synchronize()  # the sets were made on another stream
        return made

    def figure(self, sets, right, budget_s=BUDGET_S):
        """Returns the figures, or why there are none. right(i, out) tells whether an output of set i is right."""
        torch, n = self.torch, len(sets)
        with torch.cuda.stream(self.stream), torch.no_grad():
            outs = [launch() for _, launch in sets]  # warm-up: compiles, chooses
            if not all(right(i, outs[i]) for i in range(min(2, n))):
                return {"failed": "not what the formula gives"}
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                outs = [launch() for _, launch in sets]
            samples, spent = [], 0.0
            while len(samples) < LEAST_SAMPLES or (spent < budget_s and len(samples) < MOST_SAMPLES):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.other.sum()
                torch.cuda._sleep(HOLD)
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                samples.append(begin.elapsed_time(end) * 1e3 / n)
                spent += samples[-1] * n * 1e-6
            if not all(right(i, outs[i]) for i in range(max(0, n - 2), n)):
                return {"failed": "the timed output is not what the formula gives"}
        del graph
        middle, low, high = spread(samples)
        return {"median_us": middle, "low_us": low, "high_us": high, "samples": len(samples), "launches": n}


def table(path, torch, work):
    """Appends a line per entry of `work` to a file. An entry has the line's first keys; a function that
    returns make() and right(); and a function of the median that returns more keys, or None. Returns the exit status: 1
    if an output was wrong."""
    timer, failed = Timer(torch), False
    with open(path, "a") as file:
        for keys, prepare, more in work:
            line = {"bench": "peer", **keys, "torch": torch.__version__}
            try:
                make, right = prepare()
                line |= timer.figure(timer.sets(make), right)
                if more is not None and "median_us" in line:
                    line |= more(line["median_us"])
            except Wrong as why:
                line["failed"] = reason(why)
            except REFUSALS as why:
                line["unsupported"] = reason(why)
            failed = failed or "failed" in line
            print(line, flush=True)
            file.write(json.dumps(line) + "\n")
            file.flush()
            torch.cuda.empty_cache()
    return 1 if failed else 0
