"""python -m assay trace: FlashInfer Trace sets and dumps of live calls, right and wrong."""
import json
import os
import re
import subprocess
import sys

import assay
import numpy as np
import pytest
from assay import _trace, _trace_bind

RNG = np.random.default_rng(5)


def safetensors(path, tensors):
    """Writes f32 and i32 arrays."""
    head, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        head[name] = {"dtype": "F32" if array.dtype == np.float32 else "I32", "shape": list(array.shape),
                      "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as to:
        to.write(len(text).to_bytes(8, "little") + text + data)


def tensor(shape, dtype="float32"):
    return {"shape": shape, "dtype": dtype}


NORM = {"name": "rmsnorm_h64", "op_type": "rmsnorm", "axes": {"n": {"type": "var"}, "h": {"type": "const", "value": 64}},
        "inputs": {"hidden_states": tensor(["n", "h"]), "weight": tensor(["h"])}, "outputs": {"output": tensor(["n", "h"])},
        "reference": "EPS = 1e-5\n"}
DECODE = {"name": "gqa_paged_decode", "op_type": "gqa_paged",
          "axes": {"b": {"type": "var"}, "h": {"type": "const", "value": 4}, "g": {"type": "const", "value": 2},
                   "d": {"type": "const", "value": 64}, "p": {"type": "var"}, "s": {"type": "const", "value": 16},
                   "l": {"type": "var"}, "m": {"type": "var"}},
          "inputs": {"q": tensor(["b", "h", "d"]), "k_cache": tensor(["p", "s", "g", "d"]), "v_cache": tensor(["p", "s", "g", "d"]),
                     "kv_indptr": tensor(["l"], "int32"), "kv_indices": tensor(["m"], "int32"), "sm_scale": tensor(None)},
          "outputs": {"output": tensor(["b", "h", "d"]), "lse": tensor(["b", "h"])}, "reference": ""}
RANDOM = {"type": "random"}

RIGHT = """
import numpy as np
def run(hidden_states, weight):
    x = np.asarray(hidden_states, dtype=np.float64)
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * np.asarray(weight, dtype=np.float64)
    return y.astype(np.float32)
"""
ATTENTION = """
import numpy as np
def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, output, lse):
    k, v = (np.asarray(c, dtype=np.float64) for c in (k_cache, v_cache))
    for b in range(len(q)):
        pages = kv_indices[kv_indptr[b]:kv_indptr[b + 1]]
        keys, values = k[pages].reshape(-1, 2, 64), v[pages].reshape(-1, 2, 64)
        for h in range(4):
            s = keys[:, h // 2] @ np.asarray(q[b][h], dtype=np.float64) * sm_scale
            w = np.exp(s - s.max())
            output[b, h] = w @ values[:, h // 2] / w.sum()
            lse[b, h] = (s.max() + np.log(w.sum())) / np.log(BASE)
"""


def solution(definition, name, text, passes=False):
    return {"name": name, "definition": definition["name"], "spec": {"language": "python", "entry_point": "main.py::run",
                                                                    "destination_passing_style": passes},
            "sources": [{"path": "main.py", "content": text}]}


def write_set(folder, definition, solutions, axes, inputs):
    for kind in ("definitions", "solutions", "workloads"):
        os.makedirs(folder / kind, exist_ok=True)
    (folder / "definitions" / "d.json").write_text(json.dumps(definition))
    for one in solutions:
        (folder / "solutions" / f"{one['name']}.json").write_text(json.dumps(one))
    line = {"definition": definition["name"], "workload": {"uuid": "6120f144", "axes": axes, "inputs": inputs}}
    (folder / "workloads" / "w.jsonl").write_text(json.dumps(line) + "\n")


def trace(folder, *more):
    out = folder / "out.jsonl"
    done = subprocess.run([sys.executable, "-m", "assay", "trace", str(folder), "-o", str(out), *more], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return done.returncode, done.stdout, lines


def test_solutions_of_a_norm(tmp_path):
    wrong = RIGHT.replace("1e-5", "1e-4")
    write_set(tmp_path, NORM, [
        solution(NORM, "a_right", RIGHT), solution(NORM, "b_eps", wrong),
        solution(NORM, "c_shape", RIGHT.replace("return y", "return y[:1]")),
        solution(NORM, "d_type", RIGHT.replace("y.astype(np.float32)", "y.astype(np.float16)")),
        solution(NORM, "e_raises", "def run(*all):\n    raise ValueError('no')\n"),
        solution(NORM, "f_hangs", "import time\ndef run(*all):\n    time.sleep(60)\n")],
        {"n": 3}, {"hidden_states": RANDOM, "weight": RANDOM})
    status, text, lines = trace(tmp_path, "--deadline", "8")
    assert status == 1 and "1 right, 5 wrong" in text
    assert [line["evaluation"]["status"] for line in lines] == [
        "PASSED", "INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR", "TIMEOUT"]
    right, eps = (line["evaluation"]["correctness"] for line in lines[:2])
    assert right["assay"]["ratio"] <= 1 < eps["assay"]["ratio"] and right["max_absolute_error"] < 1e-6
    assert "planted errors pass" in right["assay"]["tolerance"] and "judge" in eps["assay"]["replay"]
    assert "no" in lines[4]["evaluation"]["log"]


@pytest.mark.parametrize("base, good", [("2", True), ("np.e", False)])
def test_paged_decode_with_lse_of_base_2(tmp_path, base, good):
    indptr, indices = np.array([0, 2, 3], dtype=np.int32), np.array([4, 1, 0], dtype=np.int32)
    safetensors(tmp_path / "t.safetensors", {"indptr": indptr, "indices": indices})
    file = {"type": "safetensors", "path": "t.safetensors"}
    write_set(tmp_path, DECODE, [solution(DECODE, "a", ATTENTION.replace("BASE", base), True)],
              {"b": 2, "p": 5, "l": 3, "m": 3},
              {"q": RANDOM, "k_cache": RANDOM, "v_cache": RANDOM, "kv_indptr": file | {"tensor_key": "indptr"},
               "kv_indices": file | {"tensor_key": "indices"}, "sm_scale": {"type": "scalar", "value": 0.125}})
    status, text, lines = trace(tmp_path)
    assert status == (0 if good else 1), text
    assert lines[0]["evaluation"]["correctness"]["assay"]["outputs"] == {"out": "PASS", "lse": "PASS" if good else "FAIL"}


def test_definitions_of_others_are_not_covered(tmp_path):
    other = dict(NORM, inputs=NORM["inputs"] | {"residual": tensor(["n", "h"])})
    write_set(tmp_path, other, [solution(other, "a", RIGHT)], {"n": 1}, {})
    status, text, lines = trace(tmp_path)
    assert status == 3 and "not covered: no operator has the inputs hidden_states, weight, residual" in text
    assert lines[0]["evaluation"] is None


def dump(folder, y, x, g):
    os.makedirs(folder)
    safetensors(folder / "inputs.safetensors", {"arg_0": x, "kwarg_weight": g})
    safetensors(folder / "outputs.safetensors", {"result": y})
    about = {"function_name": "rmsnorm", "function_signature": "(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-06)",
             "input_metadata": {"arg_2": 1e-5}}
    (folder / "metadata.jsonl").write_text("{}\n" + json.dumps(about) + "\n")


def test_dumps_of_live_calls(tmp_path):
    x, g = RNG.standard_normal((3, 64)).astype(np.float32), RNG.standard_normal(64).astype(np.float32)
    about = {"function_name": "other", "function_signature": "(a)"}
    wide = x.astype(np.float64)
    y = (wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + 1e-5) * g).astype(np.float32)
    dump(tmp_path / "call1", y, x, g)
    dump(tmp_path / "call2", y * np.float32(1.01), x, g)
    os.makedirs(tmp_path / "call3")
    (tmp_path / "call3" / "metadata.jsonl").write_text(json.dumps(about) + "\n")
    status, text, lines = trace(tmp_path)
    assert status == 1 and "1 right, 1 wrong, 1 not covered" in text
    assert [line["verdict"] for line in lines] == ["PASS", "FAIL", None]


NUMPY_REFERENCE = """
import numpy as np
EPS = 1e-5
def run(hidden_states, weight):
    x = np.asarray(hidden_states, dtype=np.float64)
    return (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * GAIN).astype(np.float32)
"""


@pytest.mark.parametrize("gain, status, says", [("weight", 0, "1 right"), ("(1 + weight)", 3, "its reference is no rms_norm"),
                                                ("no_such_name", 0, "reference not run: RUNTIME_ERROR NameError")])
def test_the_reference_of_a_definition(tmp_path, gain, status, says):
    one = dict(NORM, reference=NUMPY_REFERENCE.replace("GAIN", gain))
    write_set(tmp_path, one, [solution(one, "a", RIGHT)], {"n": 3}, {"hidden_states": RANDOM, "weight": RANDOM})
    found, text, _ = trace(tmp_path)
    assert found == status and says in text, text


# Solutions that ask the judge, or write what was not computed, and what becomes of each.
ODD = {
    "asks": ("import assay\ndef run(h, w):\n    return assay.reference('rms_norm', {'x': h, 'g': w}, eps=1e-5)['y'].values", "RUNTIME_ERROR"),
    "ends": ("import os\ndef run(h, w):\n    os._exit(0)", "RUNTIME_ERROR"),
    "says_shape": ("import sys\ndef run(h, w):\n    sys.exit(3)", "RUNTIME_ERROR"),
    "writes": ("import os, sys, numpy as np\ndef run(h, w):\n    np.save(sys.argv[1] + '/out.0.npy', np.array([{}], dtype=object), "
               "allow_pickle=True)\n    os._exit(0)", "RUNTIME_ERROR"),
    "writes_short": ("import os, sys, numpy as np\ndef run(h, w):\n    np.save(sys.argv[1] + '/out.0.npy', np.zeros((1, 64), "
                     "dtype=np.uint32))\n    os._exit(0)", "INCORRECT_SHAPE"),
    "two": (RIGHT.replace("return y.astype(np.float32)", "return y.astype(np.float32), 1"), "INCORRECT_SHAPE"),
    "infinite": (RIGHT.replace("y.astype", "(y * np.inf).astype"), "INCORRECT_NUMERICAL"),
    "bytes": (RIGHT + "import sys\nsys.stdout.buffer.write(b'\\xff\\x1b[2J')\n", "PASSED"),
    "daemon": ("import os, time\nif os.fork() == 0:\n    time.sleep(60)\n" + RIGHT, "PASSED"),
}


def test_solutions_that_act_upon_the_judge(tmp_path):
    write_set(tmp_path, NORM, [solution(NORM, name, text) for name, (text, _) in ODD.items()], {"n": 3},
              {"hidden_states": RANDOM, "weight": RANDOM})
    status, text, lines = trace(tmp_path, "--deadline", "20")
    assert status == 1 and {line["solution"]: line["evaluation"]["status"] for line in lines} == {
        name: wanted for name, (_, wanted) in ODD.items()}, text
    assert "\x1b" not in text and "calls of others" in text
    assert "NaN" not in (tmp_path / "out.jsonl").read_text()


BAD_FILES = [
    ("definitions/d.json", lambda t: t.replace('"reference"', '"reference": "", "reference"'), "key 'reference' twice"),
    ("definitions/e.json", lambda t: json.dumps(NORM), "name: found 'rmsnorm_h64' twice"),
    ("solutions/b.json", lambda t: json.dumps(solution(NORM, "a", RIGHT)), "name: found 'a' twice"),
    ("solutions/a.json", lambda t: t.replace('"entry_point"', '"entry"'), "entry_point: found none"),
    ("solutions/a.json", lambda t: "[]", "found no object"),
    ("workloads/w.jsonl", lambda t: t + t, "uuid: found '6120f144' twice"),
    ("workloads/w.jsonl", lambda t: t[:40], "w.jsonl:1: JSON: "),
    ("workloads/w.jsonl", lambda t: t.replace("rmsnorm_h64", "other"), "definition: found 'other', allowed: rmsnorm_h64"),
    ("workloads/w.jsonl", lambda t: t.replace('"n": 3', '"n": -3'), "refused: axes: n: found -3"),
    ("workloads/w.jsonl", lambda t: t.replace('"n": 3', '"n": 3, "h": 32'), "refused: axes: h: found 32, allowed 64"),
    ("workloads/w.jsonl", lambda t: t.replace('"n": 3', '"n": 3, "q": 1'), "refused: axes: found 'q', allowed: n, h"),
    ("workloads/w.jsonl", lambda t: t.replace('{"type": "random"}', '{"type": "scalar", "value": 1}'), "allowed a tensor of [3, 64]"),
    ("workloads/w.jsonl", lambda t: t.replace('{"type": "random"}', '{"type": "safetensors", "path": "../x", "tensor_key": "x"}'),
     "found a path out of the folder"),
]


@pytest.mark.parametrize("file, change, says", BAD_FILES)
def test_files_that_lie(tmp_path, file, change, says):
    write_set(tmp_path, NORM, [solution(NORM, "a", RIGHT)], {"n": 3}, {"hidden_states": RANDOM, "weight": RANDOM})
    path = tmp_path / file
    path.write_text(change(path.read_text() if path.exists() else ""))
    status, text, _ = trace(tmp_path)
    assert status == 2 and says in text and "Traceback" not in text, text


def test_nothing_is_left_out_silently(tmp_path):
    write_set(tmp_path, NORM, [solution(NORM, "a", RIGHT), dict(solution(NORM, "b", RIGHT), definition="other")], {"n": 3},
              {"hidden_states": RANDOM, "weight": RANDOM})
    assert "other - b: not covered: no Definition" in trace(tmp_path)[1]
    os.remove(tmp_path / "workloads" / "w.jsonl")
    status, text, _ = trace(tmp_path)
    assert status == 3 and "a: not covered: no Workload" in text


@pytest.mark.parametrize("change, says", [
    ({"data_offsets": [-768, 768]}, "data_offsets: found -768"), ({"data_offsets": [0, 7680]}, "of 768 bytes within 768"),
    ({"shape": [4, 64]}, "of 1024 bytes within 768"), ({"dtype": "F64"}, "allowed a dtype of: F32")])
def test_safetensors_that_lie(tmp_path, change, says):
    text = json.dumps({"x": {"dtype": "F32", "shape": [3, 64], "data_offsets": [0, 768]} | change}).encode()
    (tmp_path / "t").write_bytes(len(text).to_bytes(8, "little") + text + bytes(768))
    with pytest.raises(assay.AssayError, match=re.escape(says)):
        _trace.read_safetensors(tmp_path / "t")


def test_numbers_are_rounded_to_even():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1e30])
    assert list(_trace.widen(_trace.store(values, "bf16"), "bf16")[:3]) == [1.0, 1.0, 1 + 2.0**-6]


def test_a_page_table_of_compressed_rows():
    table, length = _trace_bind._table([0, 2, 2, 3], [7, 3, 5], 16, [4, 0, 16])
    assert table.tolist() == [[7, 3], [0, 0], [5, 0]] and length.tolist() == [20, 0, 16]


def test_what_is_refused(tmp_path):
    assert trace(tmp_path / "none")[0] == 2
    write_set(tmp_path, NORM, [dict(solution(NORM, "a", RIGHT), sources=[{"path": "../main.py", "content": ""}])], {"n": 1},
              {"hidden_states": RANDOM, "weight": RANDOM})
    assert trace(tmp_path)[2][0]["evaluation"]["status"] == "COMPILE_ERROR"
    with pytest.raises(assay.AssayError, match="header"):
        (tmp_path / "bad").write_bytes(b"\xff" * 16)
        _trace.read_safetensors(tmp_path / "bad")
