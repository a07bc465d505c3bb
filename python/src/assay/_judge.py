"""assay.reference and assay.judge: a folder of tensors for `assay judge` (docs/truth.md)."""
import json
import os
import shlex
import shutil
import sys
import tempfile

import numpy as np

from . import _contract, _ops, _settings, _types
from ._program import AssayError, call


class Expected:
    """The reference's result for one output: `values` and `sigma` in f64. sigma 0: exactly this value. sigma -1: the
    element keeps its bits; -2: it has the bits of the element whose number is the value."""

    def __init__(self, values, sigma):
        self.values, self.sigma = values, sigma

    def __repr__(self):
        return f"Expected(values={self.values!r}, sigma={self.sigma!r})"

    def __iter__(self):
        return iter((self.values, self.sigma))


class OutputJudgement:
    """The verdict on one output. Ratios are observed over allowed: above 1 is wrong."""

    def __init__(self, line, shape):
        self.name, self.verdict, self.message = line["output"], line["verdict"], line["message"]
        self.elements, self.wrong_elements = line["elements"], line["wrong_elements"]
        self.ratio_element, self.ratio_row, self.ratio_request, self.largest_error = (
            float("inf") if line[key] is None else line[key]
            for key in ("ratio_element", "ratio_row", "ratio_request", "largest"))
        self.first = None  # (index, got, expected, allowed) of the first wrong element
        if line["first"] >= 0:
            place = np.unravel_index(line["first"], shape) if line["first"] < np.prod(shape, dtype=int) else ()
            numbers = [float("nan") if line[key] is None else line[key] for key in ("first_got", "first_expected",
                                                                                   "first_allowed")]
            self.first = (tuple(int(axis) for axis in place), *numbers)

    def __repr__(self):
        return f"{self.verdict} {self.name}: {self.message}"


class Judgement:
    """The verdict on all outputs of a call. True if it is PASS."""

    def __init__(self, outputs, replay):
        self.outputs, self.replay = outputs, replay
        self.verdict = "PASS" if all(one.verdict == "PASS" for one in outputs.values()) else "FAIL"
        self.ratio = max(max(one.ratio_element, one.ratio_row, one.ratio_request) for one in outputs.values())
        wrong = [one for one in outputs.values() if one.verdict != "PASS"]
        self.first = wrong[0].first if wrong else None
        self.message = wrong[0].message if wrong else ""

    def __bool__(self):
        return self.verdict == "PASS"

    def __repr__(self):
        lines = [repr(one) for one in self.outputs.values()]
        return "\n".join(lines + ([self.replay] if self.replay else []))


def _write(folder, name, value, allowed, what):
    array, found = _types.as_array(value, what)
    found = _types.typed(array, found, allowed, what)
    bits = np.ascontiguousarray(array).view(_types.bits_dtype(found)) if array.ndim else array
    np.save(os.path.join(folder, f"{name}.npy"), bits, allow_pickle=False)
    return {"file": f"{name}.npy", "dtype": found}, array, found


def _allowed(op, argument, types):
    made = []
    for one in argument["dtypes"].split(","):
        if not one.startswith("="):
            made.append(one)
        elif types.get(one[1:]):
            made.append(types[one[1:]])
        else:
            made += _allowed(op, next(a for a in op["args"] if a["name"] == one[1:]), types)
    return made


def _params(op, params):
    _ops.check_names(f"{op['name']}: parameter", params, [param["name"] for param in op["params"]])
    return {name: value if isinstance(value, (bool, str)) else float(value) for name, value in params.items()}


def _manifest(folder, op, inputs, params, contract, tier):
    """Writes the inputs; returns the manifest, and the arrays and types by name."""
    given = _ops.arguments(op, ("in", "inout"))
    _ops.check_names(f"{op['name']}: input", inputs, [argument["name"] for argument in given])
    manifest = {"name": op["name"], "operator": op["name"], "tier": tier, "params": _params(op, params),
                "contract": _contract.checked(contract, False), "inputs": {}, "outputs": {}}
    arrays, types = {}, {}
    for argument in given:
        value = inputs.get(argument["name"])
        if value is None:
            continue
        entry, arrays[argument["name"]], types[argument["name"]] = _write(
            folder, argument["name"], value, _allowed(op, argument, types), f"{op['name']}: {argument['name']}")
        manifest["inputs"][argument["name"]] = entry
    return manifest, arrays, types


def _ask(folder, manifest, options):
    if _settings.UNDER_JUDGEMENT[0]:
        raise AssayError("reference, judge: found a call by a callable that is being judged, allowed: calls of others")
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as to:
        json.dump(manifest, to, indent=1)
    lines = os.path.join(folder, "verdicts.jsonl")
    call(["judge", folder, "--jsonl", lines, *options], good=(0, 1))
    with open(lines, encoding="utf-8") as at:
        return [line for line in map(json.loads, at) if "output" in line]


def reference(op, inputs, outputs=None, contract=None, **params):
    """Returns {output: Expected} of an operator. `outputs` names those that are wanted, {name: (type, shape)} or
    {name: None}; without it all that are not optional."""
    table = _ops.operator(op)
    folder = tempfile.mkdtemp(prefix="assay-")
    try:
        manifest, arrays, types = _manifest(folder, table, inputs, params, contract, "calibrated")
        able = {argument["name"]: argument for argument in _ops.arguments(table, ("out", "inout"))}
        wanted = outputs if outputs is not None else {
            name: None for name, argument in able.items() if argument["role"] == "inout" or not argument["optional"]}
        _ops.check_names(f"{op}: output", wanted, list(able))
        for name, form in dict.fromkeys(wanted).items() if not isinstance(wanted, dict) else wanted.items():
            if able[name]["role"] == "inout":
                manifest["outputs"][name] = dict(manifest["inputs"][name])
                continue
            dtype, shape = form if form is not None else (
                _ops.dtype_of(table, able[name], types), _ops.shape_of(table, able[name], arrays, params))
            zeros = np.zeros(shape, dtype=_types.bits_dtype(dtype))
            np.save(os.path.join(folder, f"{name}.out.npy"), zeros, allow_pickle=False)
            manifest["outputs"][name] = {"file": f"{name}.out.npy", "dtype": dtype}
        _ask(folder, manifest, ["--expected"])
        return {name: Expected(np.load(os.path.join(folder, f"{name}.expected.f64.npy")),
                               np.load(os.path.join(folder, f"{name}.sigma.f64.npy"))) for name in manifest["outputs"]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _whole(folder, op, inputs, outputs, params, contract, tier):
    """Writes a call with its outputs; returns the manifest and the outputs' shapes."""
    table = _ops.operator(op)
    manifest, _, types = _manifest(folder, table, inputs, params, contract, tier)
    able = {argument["name"]: argument for argument in _ops.arguments(table, ("out", "inout"))}
    _ops.check_names(f"{op}: output", outputs, list(able))
    if not outputs:
        raise AssayError(f"{op}: outputs: found none, allowed: {', '.join(able)}")
    shapes = {}
    for name, value in outputs.items():
        manifest["outputs"][name], array, _ = _write(folder, f"{name}.out", value, _allowed(table, able[name], types),
                                                     f"{op}: {name}")
        shapes[name] = array.shape
    return manifest, shapes


def record(folder, op, inputs, outputs, contract=None, tier="calibrated", name=None, requests=None, **params):
    """Writes a call of an engine into a folder of its own, as `assay judge FOLDER...` reads it, and judges nothing.
    `name` stands in the lines of the verdict. `requests` has the rows of each request, for paged operators without
    cu_q. Refuses a folder that has a manifest."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "manifest.json")
    if os.path.exists(path):
        raise AssayError(f"{folder}: found a manifest, allowed: a folder per call")
    manifest, _ = _whole(folder, op, inputs, outputs, params, contract, tier)
    manifest["name"] = name or op
    if requests is not None:
        manifest["requests"] = [int(rows) for rows in requests]
    with open(path, "w", encoding="utf-8") as to:
        json.dump(manifest, to, indent=1)


def judge(op, inputs, outputs, contract=None, tier="calibrated", keep=None, **params):
    """Judges outputs that something else has computed. The folder of a FAIL stays, so that its line `replay` works;
    `keep` names a folder that always stays."""
    folder = keep or tempfile.mkdtemp(prefix="assay-")
    os.makedirs(folder, exist_ok=True)
    good = True
    try:
        manifest, shapes = _whole(folder, op, inputs, outputs, params, contract, tier)
        lines = _ask(folder, manifest, [])
        good = all(line["verdict"] == "PASS" for line in lines)
        line = None if good and keep is None else f"{shlex.quote(sys.executable)} -m assay judge {shlex.quote(folder)}"
        return Judgement({one["output"]: OutputJudgement(one, shapes[one["output"]]) for one in lines}, line)
    finally:
        if keep is None and good:
            shutil.rmtree(folder, ignore_errors=True)
