"""assay.run: judges callables with suites."""
import json
import os
import re
import shlex
import sys
import tempfile

from . import _settings, _variant
from ._program import AssayError, call, door

GOOD = ("PASS", "REFUSED", "UNSUPPORTED")
# What simt says around an exception of the callable.
_EXCEPTION = re.compile(r"(?:\w[\w: ]*: )?(?:device error|internal error): (?:call_python, block [^:]*: thread \d+: )?(python: .*?)(?: at python:0)?$")


class Failure:
    """A case that is not good, with the line that replays it."""

    def __init__(self, line, spec, deadline):
        self.case, self.verdict, self.check = line["case"], line["verdict"], line["check"]
        self.id = f"{line['suite']}/{line['section']}/{line['name']}"
        self.variant, self.expected = line["variant"], line.get("expected")
        self.message = _EXCEPTION.sub(r"\1", line["message"])
        self.ratio = max(line["ratio_element"] or 0, line["ratio_row"] or 0, line["ratio_request"] or 0)
        deadline = f" --deadline {deadline:g}" if self.check == "deadline" else ""
        self.replay = (f"{shlex.quote(sys.executable)} -m assay replay {shlex.quote(self.case)} --callable "
                       f"{shlex.quote(spec)}{deadline}")

    def __repr__(self):
        return f"{self.verdict} {self.id} {self.check}: {self.message}\n  {self.replay}"


class Result:
    """What a run found. True if the run is good."""

    def __init__(self, status, lines, text, spec, deadline):
        self.status, self.text, self.cases = status, text, lines
        self.counts = {}
        for line in lines:
            self.counts[line["verdict"]] = self.counts.get(line["verdict"], 0) + 1
        self.failures = [Failure(line, spec, float(deadline)) for line in lines if line["verdict"] not in GOOD]
        self.checks = {}
        for failure in self.failures:
            self.checks[failure.check] = self.checks.get(failure.check, 0) + 1

    def __bool__(self):
        return self.status == 0

    def __repr__(self):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.counts.items()))
        shown = [repr(one) for one in self.failures[:5]]
        more = [f"and {len(self.failures) - 5} more"] if len(self.failures) > 5 else []
        tail = self.text.splitlines()[-3:] if not self.failures else []
        return "\n".join([counts or "no case", *shown, *more, *tail])


def variants_of(what):
    """Returns the list of variants that `what` stands for: one, several, or None for all of this process."""
    if what is None:
        found = list(_variant.REGISTRY.values())
    else:
        found = list(what) if isinstance(what, (list, tuple)) else [what]
    for one in found:
        if not isinstance(one, _variant.Variant):
            raise AssayError(f"run: found {one!r}, allowed: callables with @assay.variant")
    if not found:
        raise AssayError("run: found no callable, allowed: one with @assay.variant")
    return found


def _options(given):
    made = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            made += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return made


def run(what=None, suites=None, filter=None, section=None, seed=None, shard=None, only=None, deadline=20, workers=None,
        power="off", maxfail=None, ledger=None, junit=None, jsonl=None):
    """Judges callables with the suites of their operators, or with `suites`. `filter` is a text or a list of texts that
    must occur in suite/section/name. `only` is a list of descriptors. Returns a Result."""
    if _settings.in_worker():
        raise _settings.Stop()
    chosen = variants_of(what)
    spec = _settings.spec_of(chosen)
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        lines = jsonl or os.path.join(folder, "run.jsonl")
        if only is not None:
            path = os.path.join(folder, "only.txt")
            with open(path, "w", encoding="utf-8") as to:
                to.write("\n".join(only) + "\n")
            only = path
        command = ["run", *(suites or dict.fromkeys(one.op for one in chosen)), "--plugin", door(), "--jsonl", lines]
        for one in chosen:
            command += ["--variant", f"{one.op}={one.name}"]
        command += _options({"filter": filter, "section": section, "seed": seed, "shard": shard, "only": only,
                             "deadline": deadline, "workers": workers, "power": power, "maxfail": maxfail,
                             "ledger": ledger, "junit": junit})
        done = call(command, _settings.text(chosen, spec), good=(0, 1, 3))
        text = "".join(_settings.replay(line, spec) for line in done.stdout.splitlines(keepends=True))
        found = []
        if os.path.isfile(lines):
            with open(lines, encoding="utf-8") as at:
                found = [line for line in map(json.loads, at) if "case" in line]
    return Result(done.returncode, found, text + done.stderr, spec, deadline)
