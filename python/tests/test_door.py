"""The processes of the door: what ends with what, and what is said."""
import os
import signal
import subprocess
import sys
import time

import assay
import hanging
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


def interpreters(mark):
    """Counts the interpreters of workers whose environment has the mark."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as at, open(f"/proc/{pid}/environ", "rb") as env:
                count += b"assay._worker" in at.read() and mark in env.read()
        except OSError:
            continue
    return count


def wait_until(true, seconds):
    """Waits until true() holds; returns whether it does."""
    end = time.time() + seconds
    while time.time() < end and not true():
        time.sleep(0.05)
    return true()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interpreters_end_with_the_run(number):
    mark = f"ASSAY_MARK={os.getpid()}-{number}".encode()
    name, _, value = mark.decode().partition("=")
    command = [sys.executable, "-m", "assay", "run", "rms_norm", "--callable", os.path.join(HERE, "hanging.py"),
               "--variant", "rms_norm=never", "--section", "check"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env=dict(os.environ, **{name: value})) as child:
        assert wait_until(lambda: interpreters(mark) > 0, 20), "no interpreter was started"
        runner = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == child.pid]
        for pid in runner:
            os.kill(pid, number)
        child.wait(20)
    assert wait_until(lambda: interpreters(mark) == 0, 10), "an interpreter outlives the run"


def parent_of(pid):
    """Returns the parent of a process; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as at:
            return int(at.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_wrong_type_is_an_exception_with_its_reason():
    result = assay.run(hanging.wrong_type, filter="rms_norm/check/types")
    assert set(result.checks) == {"launch"}
    assert "y: found float64, allowed: float32 (f32)" in result.failures[0].message


def test_supports_declines_with_its_reason():
    result = assay.run(hanging.picky, filter="rms_norm/check/types")
    said = [line["message"] for line in result.cases if line["verdict"] == "UNSUPPORTED"]
    assert any(text.startswith("N: found ") and text.endswith("allowed 2") for text in said)
    assert any("claimed f32" in text for text in said)


def test_what_a_callable_leaves_out_is_declined():
    result = assay.run(hanging.noisy, filter="rms_norm/check/one_plus_weight")
    said = {line["message"] for line in result.cases if " dtype=f32" in line["case"]}
    assert said and said <= {f"{name}: the callable does not take it"
                             for name in ("round_inner: found 0, allowed 1", "plus_one: found 1, allowed 0")}
    gated = assay.run(hanging.noisy, filter="rms_norm/check/gate")
    assert any(line["message"].startswith("z: found a tensor, allowed none") for line in gated.cases)


def test_standard_output_of_a_callable_is_no_report():
    result = assay.run(hanging.noisy, filter="rms_norm/check/widths")
    assert "on standard output" in result.text and not result and "element" in result.checks


def test_only_takes_what_is_named():
    cases = assay.run(hanging.noisy, filter="rms_norm/check/widths").cases
    some = [line["case"] for line in cases][2:5]
    again = assay.run(hanging.noisy, only=some)
    assert [line["case"] for line in again.cases] == some
    with pytest.raises(assay.AssayError, match="found no case of this run"):
        assay.run(hanging.noisy, only=some + ["rms_norm seed=1"])


def test_illegal_calls_of_every_operator_are_refused(tmp_path, monkeypatch):
    lines = ["import assay"]
    for name, table in assay.operators().items():
        claims = "|".join(",".join(assay._variant._allowed_claims(table, axis)) for axis in table["axes"].split(","))
        lines += [f"@assay.variant({name!r}, claims={claims!r})", f"def of_{name}(**_):", "    raise SystemError('called')"]
    (tmp_path / "every_operator.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import every_operator
    result = assay.run([getattr(every_operator, f"of_{name}") for name in assay.operators()], section="refuse")
    assert not result.failures and {line["op"] for line in result.cases} == set(assay.operators())
    assert result.counts["REFUSED"] > 2000


def test_the_plug_in_alone_is_refused():
    done = subprocess.run([assay.program(), "list", "variants", "--plugin", assay.door()], stderr=subprocess.PIPE,
                          text=True, check=False, stdout=subprocess.DEVNULL,
                          env={key: value for key, value in os.environ.items() if key != "ASSAY_PYTHON_DOOR"})
    assert done.returncode == 2 and "ASSAY_PYTHON_DOOR: found none" in done.stderr


@pytest.mark.parametrize("line", ["colour blue", "variant rms_norm", "python", "contract lanes many"])
def test_settings_that_are_none_are_refused(line):
    good = f"python {sys.executable}\nload x\nvariant rms_norm a\nclaims f32\n"
    done = subprocess.run([assay.program(), "list", "variants", "--plugin", assay.door()], stderr=subprocess.PIPE,
                          text=True, check=False, stdout=subprocess.DEVNULL,
                          env=dict(os.environ, ASSAY_PYTHON_DOOR=good + line + "\n"))
    assert done.returncode == 2 and "ASSAY_PYTHON_DOOR: found the line" in done.stderr


def test_a_pool_without_a_place_in_shared_memory_is_declined():
    far = ("softmax_attention suite=fuzz section=check name=values variant=never_asked device=simt tier=calibrated "
           "mode=mixed dtype=bf16 kv_dtype=same values=needles H=128 H_kv=128 D=40 block_size=1 layout=nhd scale=0.75 "
           "cu_k=true tables=last magnitude=small density=0.125 q_pad=8 kv_pad=65535 kv_len=2 new=1 "
           "seed=0xaf59b863c10f6beb")
    done = subprocess.run([sys.executable, "-m", "assay", "replay", far, "--callable", os.path.join(HERE, "hanging.py")],
                          capture_output=True, text=True, check=False)
    assert "1 UNSUPPORTED" in done.stdout and " 0 FAIL" in done.stdout, done.stdout
    assert "k_cache: found" in done.stdout and "taken here" in done.stdout, done.stdout


def test_every_choice_of_a_contract_reaches_the_judge():
    seen = assay.run(hanging.with_choices, filter="greedy", power="off")
    for name, value in hanging.CHOICES.items():
        assert f"{name} {value}" in seen.text, (name, seen.text)
