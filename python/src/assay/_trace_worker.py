"""python -m assay._trace_worker FOLDER: calls one Solution in this process. Exit status 3: a shape is wrong, 4: a type."""
import importlib.util
import json
import os
import sys

import numpy as np

from . import _types
from ._program import AssayError


def main(folder):
    """Calls the Solution, and writes its outputs."""
    with open(os.path.join(folder, "call.json"), encoding="utf-8") as at:
        about = json.load(at)
    how = "torch" if importlib.util.find_spec("torch") else "numpy"
    given = {}
    for name, kind, value in about["inputs"]:
        if kind is not None:
            array = np.load(os.path.join(folder, f"in.{name}.npy")).view(_types.numpy_dtype(kind))
            value = _types.views(array, kind, how)
        given[name] = value
    file, _, entry = about["entry"].partition("::")
    path = os.path.join(folder, "sources", file)
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("solution", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs = {name: _types.views(np.zeros(shape, dtype=_types.numpy_dtype(kind)), kind, how)
               for name, kind, shape in about["outputs"]}
    if about["passes_outputs"]:
        getattr(module, entry)(*given.values(), *outputs.values())
        result = outputs
    else:
        result = getattr(module, entry)(*given.values())
    if not isinstance(result, dict):
        result = dict(zip(outputs, result if isinstance(result, (tuple, list)) else (result,)))
    for name, kind, shape in about["outputs"]:
        if name not in result or list(result[name].shape) != shape:
            print(f"{name}: found {list(result[name].shape) if name in result else 'nothing'}, allowed {shape}")
            return 3
        try:
            bits = _types.same_bits(result[name], kind, name)
        except AssayError as why:
            print(why)
            return 4
        np.save(os.path.join(folder, f"out.{name}.npy"), np.ascontiguousarray(bits))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
