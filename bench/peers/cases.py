"""cases.py: the cases and the figures of a file of assay bench, without torch."""

import json


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
        self.values = int(self.key.get("D_v", self.size))  # channels of v and of the output
        self.block = int(self.key.get("block_size", 16))
        self.launches = 0  # of a replay of ours
        self.type = self.key.get("dtype")

    def same_lengths(self):
        return len(set(self.lengths)) == 1 and len(set(self.new)) == 1

    def shape(self):
        """What a peer's time depends on: no variant, no seed, no values. Pages count, since one peer reads them."""
        return (self.op, self.mode, self.key.get("kv_len"), self.key.get("new"), self.heads, self.kv_heads, self.size,
                self.values, self.block, self.type, self.key.get("kv_dtype"))


def objects(path):
    """Returns the file's lines. What a run that was killed left of its last one is no line."""
    with open(path) as file:
        return [json.loads(text) for text in file if text.endswith("\n")]


def cases(lines):
    """Returns each shape once, with as many launches a replay as ours had at most."""
    seen = {}
    for line in lines:
        if line.get("bench") != "case":
            continue
        case = Case(line["case"])
        if case.batch > 0:
            case = seen.setdefault(case.shape(), case)
            if line.get("mode") == "cold":
                case.launches = max(case.launches, line.get("launches", 0))
    return list(seen.values())


def taken(lines):
    """Returns (peer, shape) of the figures that the file has, and of the reasons why there is none."""
    return {(line["peer"], Case(line["case"]).shape()) for line in lines
            if line.get("bench") == "peer" and "case" in line and "failed" not in line}


class Figures:
    """A file that lines are added to. Each is in it when add() returns, and the end of the run stays the last line."""

    def __init__(self, path):
        with open(path, "rb") as file:
            lines = [text for text in file.read().split(b"\n")[:-1] if text]
        self.end = lines.pop() + b"\n" if lines and json.loads(lines[-1]).get("bench") == "end" else b""
        self.at = sum(len(line) + 1 for line in lines)
        self.path = path

    def add(self, line):
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with open(self.path, "r+b") as file:
            file.seek(self.at)
            file.write(text + self.end)
            file.truncate()
        self.at += len(text)


def beside(lines):
    """Returns a text per case: ours, the fastest variant of its operator, beside the peers."""
    ours, theirs, said = {}, {}, []
    for line in lines:
        if line.get("bench") == "case" and line.get("mode") == "cold":
            key = (line["op"], line["name"], Case(line["case"]).shape())
            if key not in ours or line["median_us"] < ours[key][0]:
                ours[key] = (line["median_us"], line["variant"])
        if line.get("bench") == "peer" and "median_us" in line and "case" in line:
            theirs.setdefault(Case(line["case"]).shape(), {})[line["peer"]] = line["median_us"]
    for (op, name, what), (us, variant) in ours.items():
        took = theirs.get(what)
        if took:
            each = ", ".join(f"{peer} {t:.2f} ({us / t:.2f})" for peer, t in sorted(took.items()))
            said.append(f"{op} {name}: {variant} {us:.2f} us, {us / min(took.values()):.3f} of the best; {each}")
    return said
