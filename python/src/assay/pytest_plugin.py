"""pytest: one item per case of every @assay.variant of a test module, with the ids of the suites (docs/python.md)."""
import re

import pytest

from . import _run, _variant
from ._program import AssayError, call

TIERS = {"smoke": 1, "quick": 4, "full": None}  # cases of each item of a suite
_CHOICES = re.compile(r" (?:variant|device)=\S+")


def pytest_addoption(parser):
    """Adds the options."""
    group = parser.getgroup("assay", "kernels judged by assay")
    group.addoption("--assay-tier", choices=list(TIERS), default="quick",
                    help="cases of each item of a suite: smoke: 1, quick: 4, full: all (quick)")
    group.addoption("--assay-shard", metavar="K/N", default=None, help="the K-th of N parts of the cases")
    group.addoption("--assay-seed", metavar="N", default=None, help="the seed of every draw (1)")
    group.addoption("--assay-filter", metavar="TEXT", default=None, help="only cases whose id contains TEXT")
    group.addoption("--assay-ledger", metavar="FILE", default=None, help="expected failures, with their reasons")
    group.addoption("--assay-deadline", metavar="S", default="20", help="seconds after which a case is a HANG (20)")
    group.addoption("--assay-workers", metavar="N", default=None, help="cases under way at once (one per core)")


def pytest_configure(config):
    """Checks the shard."""
    config.assay_shard = (1, 1)
    given = config.getoption("--assay-shard")
    if given is None:
        return
    parts = re.fullmatch(r"(\d+)/(\d+)", given)
    if parts is None or not 1 <= int(parts[1]) <= int(parts[2]):
        raise pytest.UsageError(f"--assay-shard: found {given!r}, allowed: K/N with 1 <= K <= N")
    config.assay_shard = (int(parts[1]), int(parts[2]))


def pytest_pycollect_makeitem(collector, name, obj):
    """Makes a collector of every variant in a module."""
    if isinstance(obj, _variant.Variant):
        return VariantCollector.from_parent(collector, name=name, variant=obj)
    return None


def pytest_terminal_summary(terminalreporter, config):
    """Prints what a run said beside its cases: entries of the ledger that nothing confirmed."""
    for line in dict.fromkeys(getattr(config, "assay_said", [])):
        terminalreporter.write_line(f"assay: {line}")


class VariantCollector(pytest.Collector):
    """The cases of a variant."""

    def __init__(self, variant, **options):
        super().__init__(**options)
        self.variant, self.results, self.nothing = variant, None, None

    def collect(self):
        """Lists the cases of the operator's suite: the tier's share, then the shard's."""
        config = self.config
        seed, text = config.getoption("--assay-seed"), config.getoption("--assay-filter")
        most, (part, parts) = TIERS[config.getoption("--assay-tier")], config.assay_shard
        try:
            listed = call(["list", "cases", self.variant.op, "--device", "simt", *(["--seed", seed] if seed else [])]).stdout.splitlines()
        except AssayError as why:
            raise self.CollectError(str(why)) from why
        seen, place = {}, 0
        for line in listed:
            name, _, descriptor = line.partition(": ")
            if "/bench/" in name or (text is not None and text not in name):
                continue
            number = seen[name] = seen.get(name, -1) + 1
            if most is not None and number >= most:
                continue
            place += 1
            if (place - 1) % parts == part - 1:
                yield CaseItem.from_parent(self, name=f"{name}[{number}]", descriptor=descriptor)

    def run_once(self, session):
        """Judges the chosen cases in one run."""
        if self.results is not None:
            return
        config = self.config
        chosen = [item.descriptor for item in session.items if isinstance(item, CaseItem) and item.parent is self]
        result = _run.run(self.variant, only=chosen, seed=config.getoption("--assay-seed"),
                          ledger=config.getoption("--assay-ledger"), deadline=config.getoption("--assay-deadline"),
                          workers=config.getoption("--assay-workers"))
        if not set(result.counts) - {"UNSUPPORTED", "REFUSED"} and config.assay_shard[1] == 1:
            legal = [line["message"] for line in result.cases if line["verdict"] == "UNSUPPORTED"]
            self.nothing = f"none of the chosen cases was judged; the first reason: {legal[0] if legal else 'all illegal'}"
        failures = {one.case: one for one in result.failures}
        self.results = {_CHOICES.sub("", line["case"]): (line, failures.get(line["case"])) for line in result.cases}
        said = [line for line in result.text.splitlines() if "take the entry out" in line]
        config.assay_said = getattr(config, "assay_said", []) + said


class CaseFailed(Exception):
    """A case that is not good."""


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, descriptor, **options):
        super().__init__(**options)
        self.descriptor = descriptor

    def runtest(self):
        """Takes the verdict of the case from the run of its variant."""
        self.parent.run_once(self.session)
        line, failure = self.parent.results.get(self.descriptor, (None, None))
        if line is None:
            raise CaseFailed(f"no result of {self.descriptor}")
        if self.parent.nothing is not None and line["verdict"] == "UNSUPPORTED":
            raise CaseFailed(self.parent.nothing)
        if line.get("expected"):
            pytest.xfail(str(line["expected"]))
        if line["verdict"] == "UNSUPPORTED":
            pytest.skip(line["message"])
        if failure is not None:
            raise CaseFailed(failure)

    def repr_failure(self, excinfo, style=None):
        """Returns the case's own words."""
        if isinstance(excinfo.value, (CaseFailed, AssayError)):
            return str(excinfo.value.args[0])
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        """Names the case."""
        return self.path, None, f"{self.parent.name}::{self.name}"
