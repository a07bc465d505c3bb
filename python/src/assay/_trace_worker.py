"""python -m assay._trace_worker FOLDER: calls one Solution in this process. Exit status 3: a shape is wrong, or the number
of outputs; 4: a type; 5: the Solution ends the process."""
import importlib.util
import json
import os
import sys

import numpy as np

from . import _settings, _types
from ._program import AssayError


def main(folder):
    """Calls the Solution, and writes its outputs."""
    with open(os.path.join(folder, "call.json"), encoding="utf-8") as at:
        about = json.load(at)
    how = "torch" if importlib.util.find_spec("torch") else "numpy"
    given = []
    for number, (kind, value) in enumerate(about["inputs"]):
        if kind is not None:
            array = np.load(os.path.join(folder, f"in.{number}.npy")).view(_types.numpy_dtype(kind))
            value = _types.views(array, kind, how)
        given.append(value)
    _settings.UNDER_JUDGEMENT[0] = True  # what a Solution asks the judge is no computation of its own
    file, _, entry = about["entry"].partition("::")
    path = os.path.join(folder, "sources", file)
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("solution", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs = {name: _types.views(np.zeros(shape, dtype=_types.numpy_dtype(kind)), kind, how)
               for name, kind, shape in about["outputs"]}
    if about["passes_outputs"]:
        getattr(module, entry)(*given, *outputs.values())
        result = outputs
    else:
        result = getattr(module, entry)(*given)
    if not isinstance(result, dict):
        result = list(result) if isinstance(result, (tuple, list)) else [result]
        if len(result) != len(outputs):
            print(f"found {len(result)} outputs, allowed {len(outputs)}: {', '.join(outputs)}")
            return 3
        result = dict(zip(outputs, result))
    if set(result) - set(outputs):
        print(f"found output {', '.join(map(str, set(result) - set(outputs)))}, allowed: {', '.join(outputs)}")
        return 3
    for number, (name, kind, shape) in enumerate(about["outputs"]):
        found = list(result[name].shape) if hasattr(result.get(name), "shape") else "nothing" if name not in result else "no tensor"
        if found != shape:
            print(f"{name}: found {found}, allowed {shape}")
            return 3
        try:
            bits = _types.same_bits(result[name], kind, name)
        except AssayError as why:
            print(why)
            return 4
        np.save(os.path.join(folder, f"out.{number}.npy"), np.ascontiguousarray(bits))
    return 0


if __name__ == "__main__":
    try:
        STATUS = main(sys.argv[1])
    except SystemExit as why:
        print(f"it ended the interpreter: exit status {why.code}")
        STATUS = 5
    sys.exit(STATUS)
