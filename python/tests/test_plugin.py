"""The pytest plugin over examples/foreign: what passes, what fails, shards, tiers, the ledger, JUnit."""
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

FOREIGN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "foreign")


def run(folder, *options):
    """Runs pytest in a folder of its own; returns the status and what it printed."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


@pytest.fixture(name="foreign")
def fixture_foreign(tmp_path):
    """A copy of the example."""
    with open(os.path.join(FOREIGN, "test_kernels.py"), encoding="utf-8") as at:
        (tmp_path / "test_kernels.py").write_text(at.read(), encoding="utf-8")
    return tmp_path


def test_the_example_has_ten_lines():
    with open(os.path.join(FOREIGN, "test_kernels.py"), encoding="utf-8") as at:
        assert len([line for line in at if line.strip()]) <= 10


def test_one_passes_and_one_fails(foreign):
    status, text = run(foreign, f"--junitxml={foreign / 'j.xml'}")
    assert status == 1
    cases = xml.parse(foreign / "j.xml").getroot().findall(".//testcase")
    wrong = [case for case in cases if case.find("failure") is not None]
    assert wrong and all("rms_without_eps" in case.get("classname") + case.get("name") for case in wrong)
    assert len(cases) > 50 and not [case for case in cases if case.find("error") is not None]
    line = re.search(r"^ +(\S+ -m assay replay .*)$", text, re.M)[1]
    again = subprocess.run(line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    assert again.returncode == 1 and "FAIL" in again.stdout


def test_the_right_one_alone_is_good(foreign):
    status, text = run(foreign, "-k", "rms and not without")
    assert status == 0 and " passed" in text and "failed" not in text


def ids(folder, *options):
    """Lists what is collected."""
    return [line for line in run(folder, "--collect-only", *options)[1].splitlines() if "::" in line]


def test_ids_shards_and_tiers(foreign):
    whole = ids(foreign)
    assert "test_kernels.py::rms::rms_norm/check/types[0]" in whole and len(set(whole)) == len(whole)
    parts = [ids(foreign, "--assay-shard", f"{part}/3") for part in (1, 2, 3)]
    assert all(parts) and sorted(sum(parts, [])) == sorted(whole)
    smoke, full = ids(foreign, "--assay-tier", "smoke"), ids(foreign, "--assay-tier", "full")
    assert set(smoke) < set(whole) < set(full)
    assert ids(foreign, "--assay-filter", "edge") == [one for one in whole if "/edge/" in one]
    status, text = run(foreign, "--assay-shard", "4/3")
    assert status == 4 and "found '4/3', allowed" in text


def test_a_ledger_makes_failures_expected(foreign):
    (foreign / "known.yaml").write_text(
        "expected:\n" + "".join(f"  - {{op: rms_norm, variant: rms_without_eps, check: {check}, reason: no eps yet}}\n"
                               for check in ("element", "row", "request")), encoding="utf-8")
    status, text = run(foreign, "--assay-ledger", "known.yaml", "--assay-tier", "smoke", "-k", "without")
    assert status == 0 and "xfailed" in text
    (foreign / "known.yaml").write_text(
        "expected:\n  - op: rms_norm\n    variant: rms\n    check: element\n    reason: none\n", encoding="utf-8")
    status, text = run(foreign, "--assay-ledger", "known.yaml", "--assay-tier", "smoke", "-k", "rms and not without")
    assert "take the entry out" in text


def test_a_module_that_cannot_be_judged_is_an_error(foreign):
    (foreign / "test_kernels.py").write_text("import assay\n@assay.variant('rms_norm', claims='f99')\ndef rms(x, g, eps):\n"
                                             "    return x\n", encoding="utf-8")
    status, text = run(foreign, "--assay-tier", "smoke")
    assert status == 2 and "claims: dtype: found 'f99', allowed: f32, f16, bf16" in text


def test_a_callable_that_takes_no_case_is_no_success(foreign):
    (foreign / "test_kernels.py").write_text(
        "import assay\ndef never(**_):\n    raise assay.Unsupported('not yet')\n"
        "@assay.variant('rms_norm', supports=never)\ndef rms(x, g, eps):\n    return x\n", encoding="utf-8")
    status, text = run(foreign, "--assay-tier", "smoke")
    assert status == 1 and "none of the chosen cases was judged; the first reason: " in text
