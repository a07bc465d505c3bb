"""FlashInfer Trace: runs a Solution, or a Definition's reference, in an interpreter of its own."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

import numpy as np

from . import _types
from ._trace_bind import TYPES, NotCovered

_LANGUAGES = ("python", "triton")


def _stop(running):
    """Ends the interpreter, and what it has left in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def _load(path, kind, shape):
    """Returns (status, text, array) of an output. The Solution's process wrote the file, and may have written another."""
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as why:  # noqa: BLE001: a damaged file may raise anything
        return "RUNTIME_ERROR", f"{os.path.basename(path)}: it left no output: {why}", None
    if list(array.shape) != list(shape):
        return "INCORRECT_SHAPE", f"found {list(array.shape)}, allowed {list(shape)}", None
    if array.dtype != _types.bits_dtype(kind):
        return "INCORRECT_DTYPE", f"found {array.dtype}, allowed the bits of {kind}", None
    return "PASSED", "", array.view(_types.numpy_dtype(kind))


def _write_sources(solution, root):
    """Writes the sources. Returns what is wrong with them, or with the entry point; "": nothing."""
    for source in solution["sources"]:
        path = os.path.realpath(os.path.join(root, source["path"]))
        if not path.startswith(root + os.sep):
            return f"sources: {source['path']} lies outside"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as to:
            to.write(source["content"])
    file, _, function = solution["spec"]["entry_point"].partition("::")
    named = os.path.realpath(os.path.join(root, file))
    if not function or not file.endswith(".py") or not named.startswith(root + os.sep) or not os.path.isfile(named):
        return f"entry_point: found {solution['spec']['entry_point']}, allowed FILE.py::FUNCTION, with FILE.py among the sources"
    return ""


def run(solution, given, definition, shapes, deadline):
    """Runs a Solution. Returns (status, text, {output: array})."""
    language = solution["spec"].get("language", "python")
    if language not in _LANGUAGES:
        raise NotCovered(f"language: found {language}, allowed: {', '.join(_LANGUAGES)}")
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        root = os.path.realpath(folder)
        wrong = _write_sources(solution, os.path.join(root, "sources"))
        if wrong:
            return "COMPILE_ERROR", wrong, {}
        order = []
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                kind = TYPES[definition["inputs"][name]["dtype"]]
                np.save(os.path.join(root, f"in.{len(order)}.npy"), np.ascontiguousarray(value).view(_types.bits_dtype(kind)))
                order.append([kind, None])
            else:
                order.append([None, value])
        about = {"entry": solution["spec"]["entry_point"], "inputs": order,
                 "passes_outputs": bool(solution["spec"].get("destination_passing_style", False)),
                 "outputs": [[name, TYPES[one["dtype"]], list(shapes[name])] for name, one in definition["outputs"].items()]}
        with open(os.path.join(root, "call.json"), "w", encoding="utf-8") as to:
            json.dump(about, to)
        # A file takes the text: a process that is left could hold a pipe open.
        with open(os.path.join(root, "said"), "w+b") as said:
            running = subprocess.Popen([sys.executable, "-m", "assay._trace_worker", root], stdin=subprocess.DEVNULL,
                                       stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = running.wait(deadline)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _stop(running)
            said.seek(max(said.seek(0, os.SEEK_END) - 2000, 0))
            text = said.read().decode("utf-8", "backslashreplace")
        if code is None:
            return "TIMEOUT", f"no result within {deadline:g} s", {}
        if code != 0:
            return {3: "INCORRECT_SHAPE", 4: "INCORRECT_DTYPE"}.get(code, "RUNTIME_ERROR"), text or f"exit status {code}", {}
        made = {}
        for number, (name, kind, shape) in enumerate(about["outputs"]):
            status, why, made[name] = _load(os.path.join(root, f"out.{number}.npy"), kind, shape)
            if status != "PASSED":
                return status, f"{text}\n{name}: {why}", {}
        return "PASSED", text, made
