"""python -m assay trace DIR: Definitions, Workloads and Solutions of FlashInfer Trace, and dumps of live calls
(docs/doors/trace.md)."""
import argparse
import datetime
import glob
import json
import math
import os
import platform
import re
import shutil
import tempfile
import zlib

import numpy as np

from . import _contract, _judge, _ops, _types
from ._program import AssayError, call
from ._trace_bind import TYPES, NotCovered, bind, bind_call
from ._trace_read import (check_call, check_definition, check_input, check_solution, check_workload, field, inside, objects, parse,
                          read_safetensors, read_text, shape_of, shown)
from ._trace_run import run


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


def _inputs(definition, workload, folder):
    """Reads or draws every input of a workload."""
    made = {}
    for name, about in definition["inputs"].items():
        source = workload["inputs"].get(name)
        if source is None:
            made[name] = None
            continue
        if source["type"] == "scalar":
            made[name] = source.get("value")
        elif source["type"] == "safetensors":
            tensors = read_safetensors(inside(folder, source["path"]))
            if source["tensor_key"] not in tensors:
                raise AssayError(f"inputs: {name}: tensor_key: found {source['tensor_key']!r}, allowed: {', '.join(tensors)}")
            made[name] = tensors[source["tensor_key"]]
        elif source["type"] == "random" and about.get("shape") is not None and TYPES[about["dtype"]][0] != "i":
            draw = np.random.default_rng(zlib.crc32(f"{workload['uuid']} {name}".encode(errors="replace")))
            shape = shape_of(definition, workload["axes"], about["shape"])
            if math.prod(shape) > 1 << 28:
                raise AssayError(f"inputs: {name}: shape: found {list(shape)}, allowed up to 2^28 elements")
            made[name] = store(draw.standard_normal(shape), TYPES[about["dtype"]])
        else:
            raise NotCovered(f"{name}: found {source['type']} of {about['dtype']}, allowed: scalar, safetensors, random numbers")
        check_input(definition, workload, name, made[name])
    return made


def _errors(expected, got, kinds):
    largest = relative = 0.0
    for name, want in expected.items():
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(widen(got[name], kinds[name]).reshape(want.values.shape) - want.values)
            largest = np.maximum(largest, np.max(off, initial=0))  # NaN stays NaN
            relative = np.maximum(relative, np.max(off / np.maximum(np.abs(want.values), 1e-8), initial=0))
    largest, relative = float(largest), float(relative)
    return {"max_absolute_error": largest if np.isfinite(largest) else None,
            "max_relative_error": relative if np.isfinite(relative) else None}


def _ours(outputs, names):
    """Names the outputs as we do, with logarithms to base e."""
    made = {names[name]: value for name, value in outputs.items()}
    if "lse" in made:  # base 2
        made["lse"] = store(widen(made["lse"], "f32") * np.log(2.0), "f32")
    return made


def _compare_reference(call_, want, options):
    """Runs the Definition's own reference, where it is Python that runs here. Raises NotCovered where it computes another
    thing than our operator; 5 % of a value and of the tensor's RMS are no other thing. Returns what is to be said."""
    definition, given = call_["definition"], call_["given"]
    text = definition.get("reference", "")
    if not re.search(r"^def run\(", text, re.MULTILINE):
        return "reference not run: it has no function run"
    own = {"spec": {"entry_point": "main.py::run"}, "sources": [{"path": "main.py", "content": text}]}
    status, said, got = run(own, given, definition, call_["shapes"], options.deadline)
    if status != "PASSED":
        last = said.strip().splitlines()[-1] if said.strip() else ""
        return f"reference not run: {status} {last}"
    for name, value in _ours(got, call_["names"]).items():
        expected, values = want[name].values, widen(value, call_["kinds"][name]).reshape(want[name].values.shape)
        finite = np.isfinite(expected)
        rms = float(np.sqrt(np.mean(np.square(expected[finite])))) if finite.any() else 0.0
        near = np.abs(values[finite] - expected[finite]) <= 0.05 * np.abs(expected[finite]) + 0.05 * rms
        if not near.all() or not np.array_equal(values[~finite], expected[~finite], equal_nan=True):
            raise NotCovered(f"its reference is no {call_['op']}: {name}: {int(np.sum(~near))} of {near.size} elements differ")
    return ""


def _prepare(definition, workload, folder, options):
    """Reads a workload, and computes what our reference says of it."""
    check_call(definition, workload)
    given = _inputs(definition, workload, folder)
    op, inputs, params, inout, names = bind(definition, given)
    shapes = {name: shape_of(definition, workload["axes"], one["shape"] or []) for name, one in definition["outputs"].items()}
    kinds = {names[name]: TYPES[one["dtype"]] for name, one in definition["outputs"].items()}
    inputs |= {name: store(np.zeros(shape), kinds[name]) for name, shape in inout.items()}
    for name, value in inputs.items():
        # Dead rows of a cache may hold anything; elsewhere nothing is defined for NaN and infinities.
        if not name.endswith("_cache") and isinstance(value, np.ndarray) and not np.isfinite(widen(value, _kind(value))).all():
            raise NotCovered(f"{name}: found NaN or an infinity, allowed finite numbers")
    want = _judge.reference(op, inputs, {names[name]: (kinds[names[name]], shapes[name]) if names[name] not in inout else None
                                         for name in shapes}, options.contract, **params)
    made = {"definition": definition, "given": given, "op": op, "inputs": inputs, "params": params, "names": names,
            "shapes": shapes, "kinds": kinds, "want": want}
    made["said"] = _compare_reference(made, want, options)
    return made


def _kind(array):
    return "bf16" if array.dtype == np.uint16 else None


def _evaluate(ready, solution, options):
    """Judges a Solution on a workload. Returns the Evaluation, and its line for people."""
    op, inputs, params, kinds = (ready[key] for key in ("op", "inputs", "params", "kinds"))
    status, text, got = run(solution, ready["given"], ready["definition"], ready["shapes"], options.deadline)
    evaluation = {"status": status, "log": text, "correctness": None, "performance": None,
                  "environment": {"hardware": platform.processor() or platform.machine(), "libs": {"numpy": np.__version__}},
                  "timestamp": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if status != "PASSED":
        return evaluation, f"{status} {text.strip().splitlines()[-1] if text.strip() else ''}"
    ours = _ours(got, ready["names"])
    keep = tempfile.mkdtemp(prefix="assay-")
    seen = _judge.judge(op, inputs, ours, contract=options.contract, keep=keep, **params)
    evaluation["status"] = "PASSED" if seen else "INCORRECT_NUMERICAL"
    evaluation["log"] = seen.message
    evaluation["correctness"] = _errors(ready["want"], ours, kinds)
    evaluation["correctness"]["assay"] = {
        "operator": op, "ratio": None if not np.isfinite(seen.ratio) else seen.ratio,
        "outputs": {one.name: one.verdict for one in seen.outputs.values()}, "replay": seen.replay, "reference": ready["said"] or "agrees"}
    planted = [line for line in call(["judge", keep, "--tolerance", options.tolerance], good=(0, 1)).stdout.splitlines()
               if line.startswith("tolerance")]
    evaluation["correctness"]["assay"]["tolerance"] = planted[0][len("tolerance"):].strip() if planted else ""
    if seen:
        shutil.rmtree(keep, ignore_errors=True)
        evaluation["correctness"]["assay"]["replay"] = None
    more = f"; {ready['said']}" if ready["said"] else ""
    return evaluation, f"{evaluation['status']} ratio {seen.ratio:.3g}; {evaluation['correctness']['assay']['tolerance']}{more}"


def _read_set(folder):
    """Reads all of a trace set. Returns ({name: Definition}, [Solution], [Workload line])."""
    definitions, solutions, lines, names = {}, [], [], {}
    for where, one in objects(folder, "definitions", ".json"):
        check_definition(one, where)
        if one["name"] in definitions:
            raise AssayError(f"{where}: name: found {shown(one['name'])!r} twice, allowed once")
        definitions[one["name"]] = one
    for where, one in objects(folder, "solutions", ".json"):
        check_solution(one, where)
        if names.setdefault((one["definition"], one["name"]), where) != where:
            raise AssayError(f"{where}: name: found {shown(one['name'])!r} twice, allowed once for a Definition")
        solutions.append(one)
    for where, line in objects(folder, "workloads", ".jsonl"):
        check_workload(line, where, definitions)
        if names.setdefault((line["definition"], line["workload"]["uuid"], "workload"), where) != where:
            raise AssayError(f"{where}: uuid: found {shown(line['workload']['uuid'])!r} twice, allowed once for a Definition")
        lines.append(line)
    return definitions, solutions, lines


def trace_set(folder, options):
    """Judges every Workload of a folder with every Solution. Returns the Trace lines."""
    definitions, solutions, lines = _read_set(folder)
    made = []

    def say(name, uuid, solution, said, workload=None, evaluation=None, **more):
        print(shown(f"{name} {uuid[:8]} {solution or '-'}: {said}"), flush=True)
        made.append({"definition": name, "workload": workload, "solution": solution, "evaluation": evaluation, **more})

    for line in lines:
        definition, workload = definitions[line["definition"]], line["workload"]
        at, ready = (definition["name"], workload["uuid"]), None
        for solution in [one for one in solutions if one["definition"] == definition["name"]] or [None]:
            name = solution["name"] if solution else None
            try:
                ready = ready or _prepare(definition, workload, folder, options)
                if solution is None:
                    raise NotCovered("no Solution")
                evaluation, said = _evaluate(ready, solution, options)
                say(*at, name, said, workload, evaluation)
            except NotCovered as why:
                say(*at, name, f"not covered: {why}", workload)
            except AssayError as why:
                say(*at, name, f"refused: {why}", workload, refused=str(why))
    for solution in solutions:
        if solution["definition"] not in definitions:
            say(solution["definition"], "-", solution["name"], "not covered: no Definition")
        elif not any(line["definition"] == solution["definition"] for line in lines):
            say(solution["definition"], "-", solution["name"], "not covered: no Workload")
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
        said, about = "", {}
        try:
            last = [line for line in read_text(path).splitlines() if line.strip()][-1:] or [""]
            about = parse(last[0], shown(path))
            for key in ("function_name", "function_signature"):
                field(about if isinstance(about, dict) else {}, shown(path), key, str)
            if not os.path.exists(os.path.join(where, "outputs.safetensors")):
                raise NotCovered("no outputs.safetensors (FLASHINFER_DUMP_SAFETENSORS=1)")
            named = _arguments(about, read_safetensors(os.path.join(where, "inputs.safetensors")))
            op, inputs, params, output = bind_call(about["function_name"], named)
            results = read_safetensors(os.path.join(where, "outputs.safetensors"))
            if len(results) != 1:
                raise NotCovered(f"outputs.safetensors: found {len(results)} tensors, allowed 1")
            value = next(iter(results.values()))
            seen = _judge.judge(op, inputs, {output: value}, contract=options.contract, **params)
            status, said = seen.verdict, f"{seen.verdict} ratio {seen.ratio:.3g} {seen.message}"
            made.append({"dump": where, "function": about["function_name"], "operator": op, "verdict": status,
                         "ratio": None if not np.isfinite(seen.ratio) else seen.ratio, "replay": seen.replay})
        except NotCovered as why:
            said = f"not covered: {why}"
            made.append({"dump": where, "function": about["function_name"], "verdict": None, "reason": str(why)})
        except AssayError as why:
            said = f"refused: {why}"
            made.append({"dump": where, "function": None, "verdict": None, "refused": str(why)})
        print(shown(f"{os.path.basename(where)}: {said}"), flush=True)
    return made


def main(arguments):
    """Runs the command. Exit status as `assay judge`: 0 all right, 1 a wrong result, 2 something was refused, 3 nothing was
    judged."""
    parser = argparse.ArgumentParser(prog="python -m assay trace", description=__doc__)
    parser.add_argument("folder", help="a trace set, or a folder with dumps of live calls")
    parser.add_argument("-o", dest="out", help="writes a line of JSON per workload or call")
    parser.add_argument("--contract", type=json.loads, help="where the kernels round, as JSON (docs/truth.md)")
    parser.add_argument("--tolerance", default="0.01,0.01", help="RTOL,ATOL whose power is told (0.01,0.01)")
    parser.add_argument("--deadline", type=float, default=120, help="seconds for one Solution (120)")
    options = parser.parse_args(arguments)
    if not 0 < options.deadline <= 86400:
        raise AssayError(f"--deadline: found {options.deadline:g}, allowed seconds above 0, up to 86400")
    if options.contract is not None:
        _contract.checked(options.contract, False)
    if options.out and (not os.path.isdir(os.path.dirname(options.out) or ".") or os.path.exists(options.out) and not os.path.isfile(options.out)):
        raise AssayError(f"-o: {options.out}: found no folder for it or no regular file, allowed a file")
    if not os.path.isdir(options.folder):
        raise AssayError(f"trace: found no folder {options.folder}")
    _ops.operators()
    dumps = not os.path.isdir(os.path.join(options.folder, "definitions"))
    made = (trace_dumps if dumps else trace_set)(options.folder, options)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as to:
            to.writelines(json.dumps(line, allow_nan=False) + "\n" for line in made)
    verdicts = [line["verdict"] if dumps else line["evaluation"] and line["evaluation"]["status"] for line in made]
    judged = [one for one in verdicts if one]
    good, refused = sum(one in ("PASS", "PASSED") for one in judged), sum("refused" in line for line in made)
    print(f"{good} right, {len(judged) - good} wrong, {len(verdicts) - len(judged) - refused} not covered"
          + (f", {refused} refused" if refused else ""))
    return 1 if good < len(judged) else 2 if refused else 0 if judged else 3
