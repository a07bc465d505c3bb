"""assay.reference, assay.judge and what they refuse."""
import json
import os
import shlex
import subprocess

import assay
import numpy as np
import pytest
from assay import _types

F = np.float32
RNG = np.random.default_rng(7)
X, G = RNG.standard_normal((5, 48)).astype(F), RNG.standard_normal(48).astype(F)


def norm(x, g, eps):
    """The definition, in f64."""
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float64(F(eps))) * g.astype(np.float64)


def test_reference_is_the_definition():
    made = assay.reference("rms_norm", {"x": X, "g": G}, eps=1e-5)
    assert list(made) == ["y"]
    assert np.max(np.abs(made["y"].values - norm(X, G, 1e-5))) < 1e-14
    assert made["y"].sigma.shape == X.shape and np.all(made["y"].sigma > 0)


def test_sigma_follows_the_contract():
    one = assay.reference("rms_norm", {"x": X, "g": G})["y"].sigma
    worse = assay.reference("rms_norm", {"x": X, "g": G}, contract={"exp_ulp": 64})["y"].sigma
    assert np.all(worse > one)


def test_right_results_pass():
    made = assay.judge("rms_norm", {"x": X, "g": G}, {"y": norm(X, G, 1e-5).astype(F)}, eps=1e-5)
    assert made and made.verdict == "PASS" and made.first is None and made.replay is None
    assert 0 < made.ratio < 1 and made.outputs["y"].elements == X.size


def test_calls_of_an_engine_are_recorded_and_judged_together(tmp_path):
    right = norm(X, G, 1e-5).astype(F)
    wrong = right.copy()
    wrong[1, 2] *= F(1.001)
    for layer, y in enumerate((right, wrong, right)):
        assay.record(tmp_path / str(layer), "rms_norm", {"x": X, "g": G}, {"y": y}, eps=1e-5, name=f"layer {layer}")
    folders = [str(tmp_path / str(layer)) for layer in range(3)]
    done = subprocess.run([assay.program(), "judge", *folders, "--jsonl", tmp_path / "all.jsonl", "--junit",
                           tmp_path / "all.xml"], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "2 passed, 1 failed" in done.stdout and "layer 1" in done.stdout
    lines = [json.loads(line) for line in open(tmp_path / "all.jsonl", encoding="utf-8")]
    assert [line["verdict"] for line in lines if "output" in line] == ["PASS", "FAIL", "PASS"]
    assert open(tmp_path / "all.xml", encoding="utf-8").read().count("<failure") == 1
    with pytest.raises(assay.AssayError, match="found a manifest"):
        assay.record(tmp_path / "0", "rms_norm", {"x": X, "g": G}, {"y": right})
    with pytest.raises(assay.AssayError, match="found none"):
        assay.record(tmp_path / "new", "rms_norm", {"x": X, "g": G}, {})


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.0])
def test_wrong_element_is_named(wrong):
    y = norm(X, G, 1e-5).astype(F)
    right = float(y[2, 31])
    y[2, 31] = wrong
    made = assay.judge("rms_norm", {"x": X, "g": G}, {"y": y}, eps=1e-5)
    assert not made and made.verdict == "FAIL" and not made.ratio <= 1
    place, _, expected, allowed = made.first
    assert place == (2, 31) and abs(expected - right) < 1e-6 and 0 < allowed < 1e-4
    assert made.outputs["y"].wrong_elements == 1
    done = subprocess.run(shlex.split(made.replay), stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "y[2, 31]" in done.stdout


def test_small_errors_of_a_row_fail():
    y = norm(X, G, 1e-6)
    sigma = assay.reference("rms_norm", {"x": X, "g": G}, eps=1e-6)["y"].sigma
    made = assay.judge("rms_norm", {"x": X, "g": G}, {"y": (y + 5 * sigma).astype(F)}, eps=1e-6)
    assert not made and made.outputs["y"].wrong_elements == 0 and made.outputs["y"].ratio_row > 1


def test_bf16_as_bits_and_as_a_type():
    bits = ((X.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    weight = np.full(48, 0x3F80, np.uint16)
    with pytest.raises(assay.AssayError, match="x: found uint32, allowed: f32, f16, bf16"):
        assay.judge("rms_norm", {"x": bits.astype(np.uint32), "g": weight}, {"y": bits})
    assert assay.reference("rms_norm", {"x": bits, "g": weight})["y"].values.shape == X.shape
    if _types.ml_dtypes is None:
        return
    kind = _types.ml_dtypes.bfloat16
    made = assay.reference("rms_norm", {"x": bits.view(kind), "g": weight.view(kind)})
    y = made["y"].values.astype(kind)
    assert assay.judge("rms_norm", {"x": bits.view(kind), "g": weight.view(kind)}, {"y": y})
    assert assay.judge("rms_norm", {"x": bits, "g": weight}, {"y": y.view(np.uint16)})
    worse = y.copy()
    worse.view(np.uint16)[0, 0] += 2
    assert not assay.judge("rms_norm", {"x": bits.view(kind), "g": weight.view(kind)}, {"y": worse})


def paged(dtype=F):
    """A call of softmax_attention: two requests, a shuffled table."""
    q = RNG.standard_normal((2, 4, 16)).astype(F)
    k = RNG.standard_normal((6, 8, 2, 16)).astype(F).astype(dtype)
    v = RNG.standard_normal((6, 8, 2, 16)).astype(F).astype(dtype)
    return {"q": q, "k_cache": k, "v_cache": v, "block_table": np.array([[4, 1], [0, 5]], np.int32),
            "kv_len": np.array([11, 16], np.int32)}


def attend(given, keys=0):
    """The definition in f64; `keys`: so many of the last ones are left out."""
    out = np.zeros(given["q"].shape)
    for i, length in enumerate(given["kv_len"]):
        k, v = (np.concatenate(given[name][given["block_table"][i]])[:length - keys].astype(np.float64)
                for name in ("k_cache", "v_cache"))
        for h in range(4):
            s = k[:, h // 2] @ given["q"][i, h].astype(np.float64) / 4
            p = np.exp(s - s.max())
            out[i, h] = p @ v[:, h // 2] / p.sum()
    return out


def test_paged_attention():
    given = paged()
    made = assay.reference("softmax_attention", given)
    assert list(made) == ["out"] and np.max(np.abs(made["out"].values - attend(given))) < 1e-13
    both = assay.reference("softmax_attention", given, outputs={"out": None, "lse": None})
    assert both["lse"].values.shape == (2, 4)
    assert assay.judge("softmax_attention", given, {"out": attend(given).astype(F)})
    assert not assay.judge("softmax_attention", given, {"out": attend(given, keys=1).astype(F)})


def test_fp8_caches():
    if _types.ml_dtypes is None:
        pytest.skip("ml_dtypes: not installed")
    given = dict(paged(_types.ml_dtypes.float8_e4m3fn), k_scale=np.ones(1, F), v_scale=np.ones(1, F))
    made = assay.reference("softmax_attention", given)
    assert np.max(np.abs(made["out"].values - attend(given))) < 1e-13


def test_in_out_arguments_keep_their_bits():
    given = {"k_cache": np.zeros((1, 4, 8, 1, 8), F), "v_cache": np.zeros((1, 4, 8, 1, 8), F),
             "pairs": np.array([[0, 2]], np.int64)}
    given["k_cache"][0, 0] = 1
    made = assay.reference("copy_blocks", given)
    assert set(np.unique(made["k_cache"].sigma)) <= {-2.0, -1.0, 0.0}
    after = {name: given[name].copy() for name in ("k_cache", "v_cache")}
    after["k_cache"][0, 2] = 1
    assert assay.judge("copy_blocks", given, after)
    after["v_cache"][0, 3, 0, 0, 0] = 1
    made = assay.judge("copy_blocks", given, after)
    assert not made and made.outputs["k_cache"].verdict == "PASS" and made.first[0] == (0, 3, 0, 0, 0)


@pytest.mark.parametrize("call, says", [
    (lambda: assay.judge("rms_nrm", {}, {}), "operator: found 'rms_nrm', allowed: "),
    (lambda: assay.judge("rms_norm", {"x": X, "w": G}, {"y": X}), "input: found 'w', allowed: x, g"),
    (lambda: assay.judge("rms_norm", {"x": X, "g": G}, {"z": X}), "output: found 'z', allowed: y"),
    (lambda: assay.judge("rms_norm", {"x": X, "g": G}, {}), "outputs: found none, allowed: y"),
    (lambda: assay.judge("rms_norm", {"x": X, "g": G}, {"y": X}, epsilon=1), "found 'epsilon', allowed: eps"),
    (lambda: assay.judge("rms_norm", {"x": X, "g": G}, {"y": X}, contract={"p": "f64"}), "p: found 'f64', allowed"),
    (lambda: assay.judge("rms_norm", {"x": X, "g": G}, {"y": X}, contract={"pv": 1}), "contract: found 'pv', allowed"),
    (lambda: assay.judge("rms_norm", {"x": X.astype(float), "g": G}, {"y": X}), "x: found float64, allowed: f32"),
    (lambda: assay.judge("rms_norm", {"x": X, "g": G[:-1]}, {"y": X}), "g: found"),
    (lambda: assay.judge("rms_norm", {"x": X, "g": G}, {"y": X[:-1]}), "y: found"),
    (lambda: assay.reference("rms_norm", {"x": object(), "g": G}), "x: found a value of type object, allowed: tensors"),
    (lambda: assay.variant("rms_norm", name="a")(lambda x, weight: x), "found the parameter 'weight', allowed for rms_norm: x, g"),
    (lambda: assay.variant("rms_norm", contract={"alone": "yes"}), "alone: found 'yes', allowed: a number"),
    (lambda: assay.variant("rms_norm", tensors="cupy"), "tensors: found 'cupy', allowed"),
    (lambda: assay.run(lambda x: x), "run: found <function"),
    (lambda: assay.run([]), "run: found no callable"),
])
def test_refusals_name_what_was_found(call, says):
    with pytest.raises(assay.AssayError) as why:
        call()
    assert says in str(why.value)


def test_a_function_inside_another_one_is_refused():
    @assay.variant("rms_norm", name="inner")
    def inner(x, g, eps):
        return x
    try:
        with pytest.raises(assay.AssayError, match="inside another one"):
            assay.run(inner)
    finally:
        del assay._variant.REGISTRY[("rms_norm", "inner")]


def test_nothing_is_left_in_the_folder_of_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assay.reference("rms_norm", {"x": X, "g": G})
    assay.judge("rms_norm", {"x": X, "g": G}, {"y": norm(X, G, 1e-6).astype(F)})
    assert os.listdir(tmp_path) == []
