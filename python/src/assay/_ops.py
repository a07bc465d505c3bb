"""The tables of the operators, as `assay list ops --json` prints them."""
import functools
import json
import re

from ._program import AssayError, call


@functools.lru_cache(maxsize=None)
def operators():
    """Returns the table of every operator, by its name."""
    return {op["name"]: op for op in map(json.loads, call(["list", "ops", "--json"]).stdout.splitlines())}


def operator(name):
    """Returns the table of one operator."""
    known = operators()
    if name not in known:
        raise AssayError(f"operator: found {name!r}, allowed: {', '.join(known)}")
    return known[name]


def arguments(op, roles):
    """Returns the arguments of these roles ("in", "out", "inout"), in the operator's order."""
    return [argument for argument in op["args"] if argument["role"] in roles]


def check_names(what, found, allowed):
    """Refuses a name that is not allowed."""
    for name in found:
        if name not in allowed:
            raise AssayError(f"{what}: found {name!r}, allowed: {', '.join(allowed) or 'none'}")


def _axes(op, argument, params):
    shapes = argument["shape"].split("|")
    layout = params.get("layout", 0)
    for param in op["params"]:
        if param["name"] == "layout" and isinstance(layout, str):
            layout = param["names"].split(",").index(layout)
    return shapes[min(int(layout), len(shapes) - 1)].split(",") if shapes[0] else []


def dimensions(op, arrays, params):
    """Finds the operator's dimensions from the shapes of arrays: {name: length}."""
    found = {}
    for argument in op["args"]:
        array = arrays.get(argument["name"])
        axes = _axes(op, argument, params)
        if array is None or len(axes) != len(array.shape):
            continue
        for axis, length in zip(axes, array.shape):
            if re.fullmatch(r"\w+", axis) and axis in op["dims"]:
                found.setdefault(axis, int(length))
            elif re.fullmatch(r"\w+\+\d+", axis):
                found.setdefault(axis.split("+")[0], int(length) - int(axis.split("+")[1]))
            elif re.fullmatch(r"\w+/\d+", axis):
                found.setdefault(axis.split("/")[0], int(length) * int(axis.split("/")[1]))
    return found


def shape_of(op, argument, arrays, params):
    """Returns the shape that an argument has in this call."""
    known = dimensions(op, arrays, params)
    shape = []
    for axis in _axes(op, argument, params):
        times, name, over = re.fullmatch(r"(?:(\d+)\*)?(\w+?)(?:/(\d+))?", axis).groups() if re.fullmatch(
            r"(?:(\d+)\*)?(\w+?)(?:/(\d+))?", axis) else (None, axis, None)
        if name not in known:
            raise AssayError(f"{argument['name']}: its length along {axis} follows from no input: give the output's shape")
        shape.append(known[name] * int(times or 1) // int(over or 1))
    return tuple(shape)


def dtype_of(op, argument, types):
    """Returns the type that an argument has by default: that of the argument it follows, or its only one."""
    listed = argument["dtypes"].split(",")
    if listed[0].startswith("="):
        followed = listed[0][1:]
        return types.get(followed) or dtype_of(op, next(a for a in op["args"] if a["name"] == followed), types)
    return listed[0]
