#!/usr/bin/env python3
"""selftest.py: tests of tokens.py, timing.py, cases.py and run.py without torch, whose place a small stand-in takes.
Then the tests run over copies with one planted mistake each, and must fail."""

import os
import shutil
import subprocess
import sys
import tempfile

PLANTED = [
    ("tokens.py", "4 * rms", "400 * rms"),
    ("tokens.py", "logits[i] >= logits[near[0]] - 4 * rms", "True"),
    ("tokens.py", "if token == best[near[0]]:", "if token != best[near[0]]:"),
    ("tokens.py", "if not rms > 0 or", "if"),
    ("tokens.py", "len(ids) != output", "len(ids) > output"),
    ("tokens.py", "if not wants:", "if False:"),
    ("tokens.py", "None if len(counts) == len(wants) else", "None if True else"),
    ("tokens.py", "step * BEST, (step + 1)", "0, (step + 1)"),
    ("timing.py", "lost, p, rank = 0.025,", "lost, p, rank = 0.25,"),
    ("timing.py", "2 * self.cache):", "self.cache // 2):"),
    ("timing.py", "if len(made) >= 2 and", "if False and"),
    ("timing.py", "                self.other.sum()\n", ""),
    ("timing.py", "range(min(2, n))", "range(0)"),
    ("timing.py", "range(max(0, n - 2), n)", "range(0)"),
    ("timing.py", "* 1e3 / n)", "* 1e3)"),
    ("timing.py", "outs = [launch() for _, launch in sets]\n            samples", "pass\n            samples"),
    ("timing.py", "len(samples) < LEAST_SAMPLES or", "len(samples) < 3 or"),
    ("timing.py", "return 1 if failed else 0", "return 0"),
    ("cases.py", 'int(self.key.get("D_v", self.size))', "self.size"),
    ("cases.py", "self.values, self.block,", "self.block,"),
    ("cases.py", "max(case.launches, line", "min(case.launches, line"),
    ("cases.py", 'and "failed" not in line}', "}"),
    ("cases.py", "split(b\"\\n\")[:-1] if text", "split(b\"\\n\") if text"),
    ("cases.py", "file.write(text + self.end)", "file.write(text)"),
    ("cases.py", "            file.truncate()\n", ""),
    ("cases.py", "self.at += len(text)", "self.at += 0"),
    ("cases.py", "us / min(took.values())", "us / max(took.values())"),
    ("cases.py", 'line["median_us"] < ours[key][0]', "True"),
    ("run.py", "or (peer.name, case.shape()) in have", ""),
    ("run.py", "start > seconds", "start > 1e9"),
    ("run.py", 'wrong = wrong or "failed" in line', "wrong = False"),
    ("run.py", "            out.add(line)\n            say", "            say"),
    ("run.py", 'if line["peer"] not in named:', "if True:"),
]


# ---- a stand-in for torch --------------------------------------------------------------------------------------------


class Tensor:
    def __init__(self, count):
        self.count = count

    def numel(self):
        return self.count

    def element_size(self):
        return 4


class Stand:
    """torch as far as timing.py asks for it. Its clock goes on by 1 us per launch, and by 100 us per sweep."""

    __version__ = "0"
    float32 = None

    def __init__(self, cache=1000):
        self.cuda, self.clock, self.swept, self.log, self.cache = self, 0, False, [], cache
        self.recording = None

    def get_device_properties(self, number):
        stand = self

        class Properties:
            L2_cache_size = stand.cache

        return Properties

    def empty(self, count, dtype, device):
        return self

    def normal_(self):
        return self

    def sum(self):
        self.clock += 100
        self.log.append("sweep")

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.recording = None

    def Stream(self):
        return self

    def stream(self, which):
        return self

    no_grad = CUDAGraph = Stream

    def graph(self, graph, stream):
        self.recording = self.recorded = []
        return self

    def Event(self, enable_timing):
        stand = self

        class Event:
            def record(self):
                self.at = stand.clock

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.at - self.at) * 1e-3

        return Event()

    def synchronize(self):
        pass

    empty_cache = synchronize

    def _sleep(self, cycles):
        self.clock += 50

    def launch(self, work):
        if self.recording is not None:
            self.recording.append(work)
        return work()

    def replay(self):
        self.log.append("replay")
        for work in self.recorded:
            self.clock += 1
            work()


# ---- tests -----------------------------------------------------------------------------------------------------------


def expect(name, found, wanted):
    if found != wanted:
        print(f"FAIL {name}: found {found}, wanted {wanted}")
        sys.exit(1)


def test_tokens():
    from tokens import agreed, checked

    want = {"number": 0, "prompt": 5, "rms": 0.1, "ids": list(range(64)),
            "logits": [10 - (i % 8) * (0.15 if i >= 32 else 1.0) for i in range(64)]}
    right = [8 * step for step in range(8)]
    expect("all", agreed(want, right), (8, None))
    expect("fewer", agreed(want, right[:3]), (3, None))
    expect("another one", agreed(want, [0, 8, 17])[0], 2)
    expect("another one, why", agreed(want, [0, 8, 17])[1],
           "prompt 0 of 5 ids, token 3: found 17, the reference has 16")
    expect("no best one", agreed(want, [0, 8, 999])[1] is None, False)
    expect("of another step", agreed(want, [0, 0])[1] is None, False)
    expect("a near one", agreed(want, right[:4] + [33, 7, 7, 7]), (4, None))
    expect("a near one that is too far", agreed(want, right[:4] + [35])[1] is None, False)
    expect("no rounding", agreed(want | {"rms": 0}, right)[1], "the expected tokens are not whole")
    expect("no number", agreed(want | {"rms": float("nan")}, right)[1], "the expected tokens are not whole")
    expect("checked", checked([want, want], [right, right], 8), ([8, 8], None))
    expect("second one", checked([want, want], [right, [1] * 8], 8)[1] is None, False)
    expect("a token too few", checked([want], [right[:7]], 8)[1], "prompt 0: 7 tokens, asked for 8")
    expect("a request too few", checked([want, want], [right], 8)[1], "fewer requests than expected tokens")
    expect("none", checked([], [right], 8)[1], "no request with expected tokens")


def test_spread():
    from timing import spread

    expect("20", spread(range(20)), (9.5, 5, 14))
    expect("21", spread([20 - i for i in range(21)]), (10, 5, 15))
    expect("300", spread(range(300)), (149.5, 132, 167))
    expect("3", spread([2, 1, 3]), (2, 1, 3))


def timed(stand, wrong=None, count=50, right_from=0):
    """A figure over sets of `count` numbers. wrong: the launch, counted over all, from which outputs are wrong."""
    from timing import Timer

    launched, held = [0], {}
    timer = Timer(stand)

    def make(i):
        def work():
            launched[0] += 1
            held[i] = wrong is None or not wrong(i, launched[0])
            return i

        return [Tensor(count)], lambda: stand.launch(work)

    sets = timer.sets(make)
    return sets, timer.figure(sets, lambda i, out: out == i and held[i])


def test_timer():
    stand = Stand()
    sets, figure = timed(stand)
    expect("sets", len(sets), 10)
    expect("figure", figure, {"median_us": 1.0, "low_us": 1.0, "high_us": 1.0, "samples": 300, "launches": 10})
    expect("sweeps", stand.log, ["sweep", "replay"] * 300)
    expect("at least", len(timed(Stand(10))[0]), 4)
    expect("at most", len(timed(Stand(1 << 20))[0]), 64)
    expect("large", len(timed(Stand(), count=1 << 29)[0]), 3)
    expect("slow", timed(Slow())[1]["samples"], 20)
    expect("wrong", timed(Stand(), lambda i, n: i == 1)[1], {"failed": "not what the formula gives"})
    expect("wrong when replayed", timed(Stand(), lambda i, n: i == 9 and n > 100)[1],
           {"failed": "the timed output is not what the formula gives"})


class Slow(Stand):
    def replay(self):
        super().replay()
        self.clock += 10**6


def test_table():
    import json

    from timing import Unsupported, Wrong, table

    def entry(name, held, what=None):
        def prepare():
            if what is not None:
                raise what("no reason")
            return (lambda i: ([Tensor(50)], lambda: stand.launch(lambda: i))), lambda i, out: held

        return {"peer": name}, prepare, lambda us: {"twice": 2 * us}

    stand = Stand()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "t.jsonl")
        expect("status", table(path, stand, [entry("a", True), entry("b", True, Unsupported)]), 0)
        expect("status, wrong", table(path, stand, [entry("c", False), entry("d", True)]), 1)
        expect("status, refused as wrong", table(path, stand, [entry("e", True, Wrong)]), 1)
        with open(path) as file:
            lines = [json.loads(line) for line in file]
    expect("lines", [line["peer"] for line in lines], ["a", "b", "c", "d", "e"])
    expect("more", lines[0]["twice"], 2.0)
    expect("reason", lines[1]["unsupported"], "no reason")
    expect("no figure", "median_us" in lines[2], False)


OURS = ("softmax_attention suite=heads section=bench name={} variant={} device=cuda mode=decode dtype=bf16 H=8 H_kv=4 "
        "D=192 kv_len=32,32{}")


class Peer:
    op = ("softmax_attention",)

    def __init__(self, name):
        self.name = name


def file_of_ours(path):
    import json

    rows = [("one", "slow", " D_v=128", 9.0, 4), ("one", "fast", " D_v=128", 6.0, 8),
            ("one", "last", " D_v=128", 7.0, 2), ("two", "fast", "", 5.0, 4)]
    lines = [{"bench": "run"}]
    lines += [{"bench": "case", "case": OURS.format(name, variant, more), "op": "softmax_attention", "name": name,
               "variant": variant, "mode": "cold", "median_us": us, "launches": n}
              for name, variant, more, us, n in rows]
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in [*lines, {"bench": "end", "timed": 4, "text": "x" * 400}])
    return len(lines)


def test_cases():
    from cases import Case, Figures, beside, cases, objects, taken

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "f.jsonl")
        count = file_of_ours(path)
        found = cases(objects(path))
        expect("shapes", [(case.values, case.launches) for case in found], [(128, 8), (192, 4)])
        out = Figures(path)
        for i, (case, us) in enumerate(((found[0], 3.0), (found[1], 4.0), (found[0], None))):
            line = {"bench": "peer", "peer": "ab"[i // 2], "case": case.line}
            out.add(line | ({"median_us": us} if us else {"failed": "no"}))
            kinds = [line["bench"] for line in objects(path)[count:]]
            expect(f"lines after {i}", kinds, ["peer"] * (i + 1) + ["end"])
        with open(path, "a") as file:
            file.write('{"bench":"peer","cut":' + "1" * 2000)
        expect("taken", taken(objects(path)), {("a", found[0].shape()), ("a", found[1].shape())})
        out = Figures(path)
        out.add({"bench": "peer", "peer": "c", "case": Case(found[0].line).line, "median_us": 12.0})
        expect("lines of a cut file", [line["bench"] for line in objects(path)[count:]], ["peer"] * 4 + ["end"])
        with open(path) as file:
            expect("nothing after the end", file.read()[-1], "\n")
        expect("beside", beside(objects(path)),
               ["softmax_attention one: fast 6.00 us, 2.000 of the best; a 3.00 (2.00), c 12.00 (0.50)",
                "softmax_attention two: fast 5.00 us, 1.250 of the best; a 4.00 (1.25)"])


def test_run():
    import contextlib
    import io

    from cases import objects
    from run import take

    asked = []

    def figure(peer, case):
        asked.append((peer.name, case.key["name"]))
        line = {"bench": "peer", "peer": peer.name, "case": case.line}
        if peer.name == "wrong":
            return line | {"failed": "no"}
        return line | {"median_us": 1.0, "low_us": 1.0, "high_us": 1.0, "samples": 20}

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = os.path.join(folder, "f.jsonl")
        count = file_of_ours(path)
        missing = [{"bench": "peer", "peer": "none", "missing": "why"}]
        expect("no time", take(path, [Peer("a")], missing, figure, -1), (2, False))
        expect("nothing asked", asked, [])
        expect("all", take(path, [Peer("a"), Peer("wrong")], missing, figure, 100), (0, True))
        expect("asked", asked, [("a", "one"), ("wrong", "one"), ("a", "two"), ("wrong", "two")])
        asked.clear()
        expect("again", take(path, [Peer("a")], missing, figure, 100), (0, False))
        expect("not again", asked, [])
        named = [line.get("peer") for line in objects(path)[count:]]
        expect("lines", named, ["none", "a", "wrong", "a", "wrong", None])


def tests():
    test_cases()
    test_run()
    test_tokens()
    test_spread()
    test_timer()
    test_table()


def planted():
    here, missed = os.path.dirname(os.path.abspath(__file__)), 0
    for name, old, new in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            for file in ("tokens.py", "timing.py", "cases.py", "run.py", "selftest.py"):
                shutil.copy(os.path.join(here, file), folder)
            path = os.path.join(folder, name)
            with open(path) as file:
                text = file.read()
            expect(f"planted, {old!r} in {name}", text.count(old), 1)
            with open(path, "w") as file:
                file.write(text.replace(old, new))
            ended = subprocess.run([sys.executable, os.path.join(folder, "selftest.py"), "--tests"], capture_output=True)
            if ended.returncode == 0:
                print(f"FAIL nothing sees that {old!r} became {new!r} in {name}")
                missed += 1
    return missed


if __name__ == "__main__":
    tests()
    if "--tests" not in sys.argv and planted():
        sys.exit(1)
    print("peers: all good")
