"""python -m assay trace DIR: Definitions, Workloads and Solutions of FlashInfer Trace, and dumps of live calls
(docs/doors/trace.md)."""
import argparse
import datetime
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zlib

import numpy as np

from . import _judge, _ops, _types
from ._program import AssayError, call
from ._trace_bind import TYPES, NotCovered, bind, bind_call

_SAFE = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "I32": "i32", "I64": "i64"}


def read_safetensors(path):
    """Returns {name: array}; bf16 and fp8 as their bits, where ml_dtypes is not installed."""
    with open(path, "rb") as at:
        size = int.from_bytes(at.read(8), "little")
        if size > 1 << 27:
            raise AssayError(f"{path}: found a header of {size} bytes, allowed {1 << 27}")
        head, data = json.loads(at.read(size)), at.read()
    made = {}
    for name, about in head.items():
        if name == "__metadata__":
            continue
        if about["dtype"] not in _SAFE:
            raise AssayError(f"{path}: {name}: found {about['dtype']}, allowed: {', '.join(_SAFE)}")
        begin, end = about["data_offsets"]
        dtype = _types.numpy_dtype(_SAFE[about["dtype"]])
        made[name] = np.frombuffer(data[begin:end], dtype=dtype).reshape(about["shape"])
    return made


def store(values, name):
    """Rounds numbers to a type, to nearest and even."""
    if name != "bf16":
        return np.asarray(values, dtype=_types.numpy_dtype(name))
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded.view(_types.numpy_dtype("bf16"))


def widen(array, name):
    """Returns the numbers of an array in f64."""
    if name == "bf16":
        return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.asarray(array, dtype=np.float64)


def _shape(definition, axes, shape):
    known = {name: axis.get("value", axes.get(name)) for name, axis in definition["axes"].items()}
    return tuple(axis if isinstance(axis, int) else known[axis] for axis in shape)


def _inputs(definition, workload, folder):
    """Reads or draws every input of a workload."""
    made = {}
    for name, about in definition["inputs"].items():
        source = workload["inputs"].get(name)
        if source is None:
            made[name] = None
        elif source["type"] == "scalar":
            made[name] = source["value"]
        elif source["type"] == "safetensors":
            made[name] = read_safetensors(os.path.join(folder, source["path"]))[source["tensor_key"]]
        elif source["type"] == "random" and TYPES.get(about["dtype"], "i32")[0] != "i":
            draw = np.random.default_rng(zlib.crc32(f"{workload['uuid']} {name}".encode()))
            made[name] = store(draw.standard_normal(_shape(definition, workload["axes"], about["shape"])),
                               TYPES[about["dtype"]])
        else:
            raise NotCovered(f"{name}: found {source['type']} of {about['dtype']}, allowed: scalar, safetensors, random numbers")
    return made


def _run(solution, given, definition, shapes, deadline):
    """Runs a Solution in an interpreter of its own. Returns (status, text, {output: array})."""
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        root = os.path.realpath(folder)
        for source in solution["sources"]:
            path = os.path.realpath(os.path.join(root, "sources", source["path"]))
            if not path.startswith(os.path.join(root, "sources") + os.sep):
                return "COMPILE_ERROR", f"sources: {source['path']} lies outside", {}
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as to:
                to.write(source["content"])
        order = []
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                kind = TYPES.get(definition["inputs"][name]["dtype"]) or _types.name_of(value.dtype)
                np.save(os.path.join(folder, f"in.{name}.npy"), np.ascontiguousarray(value).view(_types.bits_dtype(kind)))
                order.append([name, kind, None])
            else:
                order.append([name, None, value])
        about = {"entry": solution["spec"]["entry_point"], "inputs": order,
                 "passes_outputs": solution["spec"].get("destination_passing_style", False),
                 "outputs": [[name, TYPES[one["dtype"]], list(shapes[name])] for name, one in definition["outputs"].items()]}
        with open(os.path.join(folder, "call.json"), "w", encoding="utf-8") as to:
            json.dump(about, to)
        try:
            done = subprocess.run([sys.executable, "-m", "assay._trace_worker", folder], stdin=subprocess.DEVNULL, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=deadline, check=False)
        except subprocess.TimeoutExpired:
            return "TIMEOUT", f"no result within {deadline:g} s", {}
        status = {0: "PASSED", 3: "INCORRECT_SHAPE", 4: "INCORRECT_DTYPE"}.get(done.returncode, "RUNTIME_ERROR")
        made = {name: np.load(os.path.join(folder, f"out.{name}.npy")).view(_types.numpy_dtype(kind))
                for name, kind, _ in about["outputs"]} if status == "PASSED" else {}
        return status, done.stdout[-2000:], made


def _errors(expected, got, kinds):
    largest = relative = 0.0
    for name, want in expected.items():
        off = np.abs(widen(got[name], kinds[name]).reshape(want.values.shape) - want.values)
        largest = max(largest, float(np.max(off, initial=0)))
        relative = max(relative, float(np.max(off / np.maximum(np.abs(want.values), 1e-8), initial=0)))
    return {"max_absolute_error": largest, "max_relative_error": relative}


def _evaluate(definition, workload, solution, folder, options):
    """Judges one workload. Returns the Evaluation, and its line for people."""
    given = _inputs(definition, workload, folder)
    op, inputs, params, inout, names = bind(definition, given)
    shapes = {name: _shape(definition, workload["axes"], one["shape"]) for name, one in definition["outputs"].items()}
    kinds = {names[name]: TYPES[one["dtype"]] for name, one in definition["outputs"].items()}
    inputs |= {name: store(np.zeros(shape), kinds[name]) for name, shape in inout.items()}
    status, text, got = _run(solution, given, definition, shapes, options.deadline)
    evaluation = {"status": status, "log": text, "correctness": None, "performance": None,
                  "environment": {"hardware": platform.processor() or platform.machine(), "libs": {"numpy": np.__version__}},
                  "timestamp": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if status != "PASSED":
        return evaluation, f"{status} {text.strip().splitlines()[-1] if text.strip() else ''}"
    ours = {names[name]: value for name, value in got.items()}
    if "lse" in ours:  # base 2
        ours["lse"] = store(widen(ours["lse"], "f32") * np.log(2.0), "f32")
    want = _judge.reference(op, inputs, {name: (kinds[name], value.shape) if name not in inout else None
                                         for name, value in ours.items()}, options.contract, **params)
    keep = tempfile.mkdtemp(prefix="assay-")
    seen = _judge.judge(op, inputs, ours, contract=options.contract, keep=keep, **params)
    evaluation["status"] = "PASSED" if seen else "INCORRECT_NUMERICAL"
    evaluation["log"] = seen.message
    evaluation["correctness"] = _errors(want, ours, kinds)
    evaluation["correctness"]["assay"] = {
        "operator": op, "ratio": None if not np.isfinite(seen.ratio) else seen.ratio,
        "outputs": {one.name: one.verdict for one in seen.outputs.values()}, "replay": seen.replay}
    planted = [line for line in call(["judge", keep, "--tolerance", options.tolerance], good=(0, 1)).stdout.splitlines()
               if line.startswith("tolerance")]
    evaluation["correctness"]["assay"]["tolerance"] = planted[0][len("tolerance"):].strip() if planted else ""
    if seen:
        shutil.rmtree(keep, ignore_errors=True)
        evaluation["correctness"]["assay"]["replay"] = None
    return evaluation, f"{evaluation['status']} ratio {seen.ratio:.3g}; {evaluation['correctness']['assay']['tolerance']}"


def _objects(folder, kind, ending):
    for path in sorted(glob.glob(os.path.join(folder, kind, "**", f"*{ending}"), recursive=True)):
        with open(path, encoding="utf-8") as at:
            yield from (json.loads(line) for line in at if line.strip()) if ending == ".jsonl" else [json.load(at)]


def trace_set(folder, options):
    """Judges every Workload of a folder with every Solution. Returns the Trace lines."""
    definitions = {one["name"]: one for one in _objects(folder, "definitions", ".json")}
    solutions = list(_objects(folder, "solutions", ".json"))
    made = []
    for line in _objects(folder, "workloads", ".jsonl"):
        definition, workload = definitions.get(line["definition"]), line["workload"]
        if definition is None:
            raise AssayError(f"{folder}: workload {workload['uuid']}: found no definition {line['definition']!r}")
        for solution in [one for one in solutions if one["definition"] == definition["name"]] or [None]:
            title = f"{definition['name']} {workload['uuid'][:8]} {solution['name'] if solution else '-'}"
            evaluation = None
            try:
                if solution is None:
                    raise NotCovered("no Solution")
                evaluation, said = _evaluate(definition, workload, solution, folder, options)
            except NotCovered as why:
                said = f"not covered: {why}"
            print(f"{title}: {said}")
            made.append({"definition": definition["name"], "workload": workload,
                         "solution": solution["name"] if solution else None, "evaluation": evaluation})
    return made


def _arguments(about, tensors):
    """Names the arguments of a dumped call by its signature."""
    names = [re.split(r"[:=]", part)[0].strip() for part in
             re.sub(r"\[[^\]]*\]", "", about.get("function_signature", "()").partition("(")[2].rpartition(")")[0]).split(",")]
    named = {}
    for key, value in {**about.get("input_metadata", {}), **tensors}.items():
        if key.startswith("kwarg_"):
            named[key[len("kwarg_"):]] = value
        elif key.startswith("arg_") and key[4:].isdigit() and int(key[4:]) < len(names):
            named[names[int(key[4:])]] = value
    return named


def trace_dumps(folder, options):
    """Judges every dumped call of a folder. Returns a line for each."""
    made = []
    for path in sorted(glob.glob(os.path.join(folder, "**", "metadata.jsonl"), recursive=True)):
        where = os.path.dirname(path)
        with open(path, encoding="utf-8") as at:
            about = json.loads([line for line in at if line.strip()][-1])
        try:
            if not os.path.exists(os.path.join(where, "outputs.safetensors")):
                raise NotCovered("no outputs.safetensors (FLASHINFER_DUMP_SAFETENSORS=1)")
            named = _arguments(about, read_safetensors(os.path.join(where, "inputs.safetensors")))
            op, inputs, params, output = bind_call(about["function_name"], named)
            results = read_safetensors(os.path.join(where, "outputs.safetensors"))
            value = results.get("result", next(iter(results.values())))
            seen = _judge.judge(op, inputs, {output: value}, contract=options.contract, **params)
            status, said = seen.verdict, f"{seen.verdict} ratio {seen.ratio:.3g} {seen.message}"
            made.append({"dump": where, "function": about["function_name"], "operator": op, "verdict": status,
                         "ratio": None if not np.isfinite(seen.ratio) else seen.ratio, "replay": seen.replay})
        except NotCovered as why:
            said = f"not covered: {why}"
            made.append({"dump": where, "function": about["function_name"], "verdict": None, "reason": str(why)})
        print(f"{os.path.basename(where)}: {said}")
    return made


def main(arguments):
    """Runs the command. Exit status as `assay judge`: 0 all right, 1 a wrong result, 3 nothing was judged."""
    parser = argparse.ArgumentParser(prog="python -m assay trace", description=__doc__)
    parser.add_argument("folder", help="a trace set, or a folder with dumps of live calls")
    parser.add_argument("-o", dest="out", help="writes a line of JSON per workload or call")
    parser.add_argument("--contract", type=json.loads, help="where the kernels round, as JSON (docs/truth.md)")
    parser.add_argument("--tolerance", default="0.01,0.01", help="RTOL,ATOL whose power is told (0.01,0.01)")
    parser.add_argument("--deadline", type=float, default=120, help="seconds for one Solution (120)")
    options = parser.parse_args(arguments)
    if not os.path.isdir(options.folder):
        raise AssayError(f"trace: found no folder {options.folder}")
    _ops.operators()
    dumps = not os.path.isdir(os.path.join(options.folder, "definitions"))
    made = (trace_dumps if dumps else trace_set)(options.folder, options)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as to:
            to.writelines(json.dumps(line) + "\n" for line in made)
    verdicts = [line["verdict"] if dumps else line["evaluation"] and line["evaluation"]["status"] for line in made]
    judged = [one for one in verdicts if one]
    good = sum(one in ("PASS", "PASSED") for one in judged)
    print(f"{good} right, {len(judged) - good} wrong, {len(verdicts) - len(judged)} not covered")
    return 3 if not judged else 0 if good == len(judged) else 1
