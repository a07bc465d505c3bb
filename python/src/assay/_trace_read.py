"""FlashInfer Trace: reads Definitions, Workloads, Solutions and safetensors, and refuses what contradicts itself."""
import glob
import json
import math
import os

import numpy as np

from . import _types
from ._program import AssayError
from ._trace_bind import TYPES, NotCovered

_SAFE = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "I32": "i32", "I64": "i64"}
_MOST = 1 << 28  # elements of one tensor
_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "an object", bool: "true or false"}


def shown(text):
    """Returns a text of others with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def _pairs(pairs):
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"found key {shown(twice)!r} twice in one object, allowed once")
    return made


def _constant(word):
    raise ValueError(f"found {word}, allowed numbers that are finite")


def parse(text, where):
    """Reads JSON. A key that stands twice and NaN are refused."""
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except (ValueError, RecursionError) as why:
        raise AssayError(f"{where}: JSON: {shown(why)}") from None


def read_bytes(path):
    """Reads a file, which is no folder, pipe or device."""
    if not os.path.isfile(path):
        raise AssayError(f"{shown(path)}: found {'another kind of file' if os.path.lexists(path) else 'no file'}, allowed a regular file")
    try:
        with open(path, "rb") as at:
            return at.read()
    except OSError as why:
        raise AssayError(f"{shown(path)}: cannot be read: {why.strerror}") from None


def read_text(path):
    """Reads a file of UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise AssayError(f"{shown(path)}: found bytes that are no UTF-8") from None


def objects(folder, kind, ending):
    """Yields (where, object) of the files of a folder."""
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), kind, "**", f"*{ending}"), recursive=True)):
        text = read_text(path)
        lines = enumerate(text.split("\n"), 1) if ending == ".jsonl" else [(0, text)]
        for number, line in lines:
            if ending == ".jsonl" and not line.strip():
                continue
            where = shown(f"{path}:{number}" if number else path)
            one = parse(line, where)
            if not isinstance(one, dict):
                raise AssayError(f"{where}: found no object, allowed one")
            yield where, one


def field(one, where, name, kind, *fallback):
    """Returns a member that is of a kind, or the fallback where there is none."""
    if name not in one and fallback:
        return fallback[0]
    value = one.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = f"found {shown(json.dumps(value))[:60]}" if name in one else "found none"
        raise AssayError(f"{where}: {name}: {found}, allowed {_KINDS[kind]}")
    return value


def _length(value, where):
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise AssayError(f"{where}: found {shown(json.dumps(value))[:60]}, allowed a whole number from 0 to {_MOST}")
    return value


def check_definition(one, where):
    """Refuses a Definition that lacks something."""
    field(one, where, "name", str)
    field(one, where, "reference", str, "")
    for side in ("axes", "inputs", "outputs"):
        for name, about in field(one, where, side, dict).items():
            if not isinstance(about, dict):
                raise AssayError(f"{where}: {side}: {shown(name)}: found no object, allowed one")
    if not one["outputs"]:
        raise AssayError(f"{where}: outputs: found none, allowed one or more")


def check_solution(one, where):
    """Refuses a Solution that lacks something."""
    field(one, where, "name", str)
    field(one, where, "definition", str)
    field(field(one, where, "spec", dict), where, "entry_point", str)
    for source in field(one, where, "sources", list):
        if not isinstance(source, dict):
            raise AssayError(f"{where}: sources: found no object, allowed one")
        field(source, where, "path", str)
        field(source, where, "content", str)


def check_workload(line, where, definitions):
    """Refuses a line that lacks something, or is of no Definition."""
    name, workload = field(line, where, "definition", str), field(line, where, "workload", dict)
    field(workload, where, "uuid", str)
    field(workload, where, "axes", dict)
    field(workload, where, "inputs", dict)
    if name not in definitions:
        raise AssayError(f"{where}: definition: found {shown(name)!r}, allowed: {', '.join(map(shown, definitions)) or 'none is there'}")


def _check_tensors(definition, side):
    for name, about in definition[side].items():
        here = f"{side}: {shown(name)}"
        dtype, shape = field(about, here, "dtype", str), about.get("shape")
        if shape is not None and dtype not in TYPES:
            raise NotCovered(f"{here}: dtype: found {shown(dtype)!r}, allowed: {', '.join(TYPES)}")
        for axis in field(about, here, "shape", list) if shape is not None else ():
            if isinstance(axis, str) and axis not in definition["axes"]:
                raise AssayError(f"{here}: shape: found axis {shown(axis)!r}, allowed: {', '.join(map(shown, definition['axes']))}")
            if not isinstance(axis, str):
                _length(axis, f"{here}: shape")


def check_call(definition, workload):
    """Refuses a Workload whose axes and inputs are not those of its Definition, and a Definition that contradicts itself.
    Raises NotCovered for what is not known here."""
    known, axes = definition["axes"], workload["axes"]
    for axis, about in known.items():
        here = f"axes: {shown(axis)}"
        kind = field(about, here, "type", str)
        if kind not in ("const", "var"):
            raise NotCovered(f"{here}: type: found {shown(kind)!r}, allowed: const, var")
        if kind == "var" and axis not in axes:
            raise AssayError(f"{here}: found none, allowed a whole number")
        value = _length(about.get("value") if kind == "const" else axes[axis], here)
        if axes.get(axis, value) != value:
            raise AssayError(f"{here}: found {shown(axes[axis])}, allowed {value}, that of its Definition")
    for axis in axes:
        if axis not in known:
            raise AssayError(f"axes: found {shown(axis)!r}, allowed: {', '.join(map(shown, known))}")
    _check_tensors(definition, "inputs")
    _check_tensors(definition, "outputs")
    for given, source in workload["inputs"].items():
        here = f"inputs: {shown(given)}"
        if given not in definition["inputs"]:
            raise AssayError(f"{here}: found, allowed: {', '.join(map(shown, definition['inputs']))}")
        if not isinstance(source, dict):
            raise AssayError(f"{here}: found no object, allowed one")
        for key in ("path", "tensor_key") if field(source, here, "type", str) == "safetensors" else ():
            field(source, here, key, str)


def shape_of(definition, axes, shape):
    """Returns the lengths of a shape of a Definition, in a Workload."""
    known = {name: axis.get("value", axes.get(name)) for name, axis in definition["axes"].items()}
    return tuple(known[axis] if isinstance(axis, str) else axis for axis in shape)


def check_input(definition, workload, name, value):
    """Refuses an input that is not what its Definition says."""
    about, where = definition["inputs"][name], f"inputs: {shown(name)}"
    if about.get("shape") is None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise AssayError(f"{where}: found {shown(value)[:60]!r}, allowed a finite number: its Definition has no shape")
        return
    shape, kind = shape_of(definition, workload["axes"], about["shape"]), TYPES[about["dtype"]]
    if not isinstance(value, np.ndarray):
        raise AssayError(f"{where}: found {shown(value)[:60]!r}, allowed a tensor of {list(shape)}")
    if value.shape != shape:
        raise AssayError(f"{where}: shape: found {list(value.shape)}, allowed {list(shape)}")
    if value.dtype != _types.numpy_dtype(kind):
        raise AssayError(f"{where}: dtype: found {value.dtype}, allowed {kind}, that of its Definition")


def inside(folder, path):
    """Returns the path of a file below a folder; refuses one elsewhere."""
    root, whole = os.path.realpath(folder), os.path.realpath(os.path.join(folder, path))
    if not whole.startswith(root + os.sep):
        raise AssayError(f"{shown(path)}: found a path out of the folder, allowed one below {shown(folder)}")
    return whole


def read_safetensors(path):
    """Returns {name: array}; bf16 and fp8 as their bits, where ml_dtypes is not installed."""
    data, where, made, last = read_bytes(path), shown(path), {}, 0
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, 1 << 27):
        raise AssayError(f"{where}: found a header of {size} bytes, allowed {max(min(len(data) - 8, 1 << 27), 0)}")
    head, data = parse(data[8:8 + size].decode("utf-8", "replace"), where), data[8 + size:]
    if not isinstance(head, dict):
        raise AssayError(f"{where}: found no object, allowed one")
    head.pop("__metadata__", None)
    for name, about in head.items():
        here = f"{where}: {shown(name)}"
        if not isinstance(about, dict) or field(about, here, "dtype", str) not in _SAFE:
            raise AssayError(f"{here}: found {shown(json.dumps(about))[:80]}, allowed a dtype of: {', '.join(_SAFE)}")
        shape = [_length(length, f"{here}: shape") for length in field(about, here, "shape", list)]
        dtype, offsets = _types.numpy_dtype(_SAFE[about["dtype"]]), field(about, here, "data_offsets", list)
        begin, end = [_length(at, f"{here}: data_offsets") for at in offsets] if len(offsets) == 2 else (0, -1)
        if not begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
            raise AssayError(f"{here}: data_offsets: found {shown(offsets)[:60]}, allowed [begin, end] of "
                             f"{math.prod(shape) * dtype.itemsize} bytes within {len(data)}")
        made[name] = np.frombuffer(data[begin:end], dtype=dtype).reshape(shape)
    for begin, end, name in sorted((*about["data_offsets"], name) for name, about in head.items()):
        if begin < last and begin < end:
            raise AssayError(f"{where}: {shown(name)}: data_offsets: found {begin}, where another tensor has not ended")
        last = max(last, end)
    return made
