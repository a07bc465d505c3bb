"""@assay.variant: a callable as one implementation of an operator."""
import inspect

from . import _contract, _ops
from ._program import AssayError

REGISTRY = {}


class Unsupported(Exception):
    """A function `supports` raises it, with the reason, for a call that the callable declines."""


class Variant:
    """A callable with what it claims and promises. It can still be called."""

    def __init__(self, function, op, name, claims, contract, tensors, supports):
        self.function, self.op, self.name, self.claims = function, op, name, claims
        self.contract, self.tensors, self.supports = contract, tensors, supports
        self.__name__, self.__doc__, self.__wrapped__ = function.__name__, function.__doc__, function
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__
        table = _ops.operator(op)
        names = [one["name"] for one in table["args"]] + [one["name"] for one in table["params"]]
        self.enums = {one["name"]: one["names"].split(",") for one in table["params"] if one["kind"] == "enum"}
        self.bools = {one["name"] for one in table["params"] if one["kind"] in ("bool", "integer")}
        self.takes = self._parameters(function, names)
        left = [] if self.takes is None else [name for name in names if name not in self.takes]
        self.usual = {one["name"]: one["default"] for one in table["params"] if one["name"] in left}
        self.absent = [one["name"] for one in _ops.arguments(table, ("in",)) if one["optional"] and one["name"] in left]
        self.outputs = [one["name"] for one in _ops.arguments(table, ("out", "inout"))]

    def _parameters(self, function, names):
        """Returns the names that the callable takes; None: all of them, by **keywords."""
        found = []
        for one in inspect.signature(function).parameters.values():
            if one.kind is one.VAR_KEYWORD:
                return None
            if one.kind in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY):
                raise AssayError(f"{function.__name__}: found the parameter {one.name}, allowed: parameters by name")
            if one.name not in names:
                if one.default is not one.empty:
                    continue
                raise AssayError(f"{function.__name__}: found the parameter {one.name!r}, allowed for {self.op}: "
                                 f"{', '.join(names)}")
            found.append(one.name)
        return found

    def __call__(self, *arguments, **keywords):
        return self.function(*arguments, **keywords)

    def __repr__(self):
        return f"<assay.variant {self.op}={self.name}>"


def _values(table, axis):
    """Returns the values of an axis that is a parameter or an optional argument: those of an enum, or false and true for
    a switch and for an argument; [] for another axis."""
    for one in table["params"]:
        if one["name"] == axis:
            return one["names"].split(",") if one["kind"] == "enum" else ["false", "true"]
    return ["false", "true"] if any(one["name"] == axis for one in table["args"]) else []


def _usual_claims(table):
    """Returns the claims that a plain callable has where it says nothing: f32 and every value of the other axes."""
    made = []
    for axis in table["axes"].split(","):
        made.append({"dtype": "f32", "kv_dtype": "same", "out_dtype": "same", "mode": "decode,prefill,chunked,mixed"}.get(
            axis, ",".join(_values(table, axis))))
    return "|".join(made)


def _allowed_claims(table, axis):
    first = next(one["dtypes"].split(",") for one in table["args"] if not one["dtypes"].startswith("="))
    return {"dtype": first, "kv_dtype": ["same", "e4m3", "e5m2"], "out_dtype": ["same", *first],
            "mode": ["decode", "prefill", "chunked", "mixed"]}.get(axis) or _values(table, axis)


def _check_claims(table, claims):
    """Refuses claims of other axes, and values that an axis does not have."""
    axes = table["axes"].split(",")
    lists = claims.split("|")
    if len(lists) != len(axes):
        raise AssayError(f"claims: found {len(lists)} lists in {claims!r}, allowed {len(axes)}: {' | '.join(axes)}")
    for axis, words in zip(axes, lists):
        for word in words.split(","):
            if word not in _allowed_claims(table, axis):
                raise AssayError(f"claims: {axis}: found {word!r}, allowed: {', '.join(_allowed_claims(table, axis))}")


def variant(op, claims=None, contract=None, name=None, tensors="numpy", supports=None):
    """Makes a callable a variant of the operator. It takes arguments and parameters of the operator by their names; an
    output that it does not take, it returns (one array, a tuple in the operator's order, or a dict).

    claims    one list per axis of the operator, as in "f32,bf16|same|nhd|decode"; None: f32
    contract  where it rounds and what it promises: a dict (docs/truth.md); it adds to the usual one
    tensors   "numpy", "torch", "bits" (bf16 and fp8 as whole numbers), or a function of a NumPy array
    supports  a function of the same names, which raises assay.Unsupported; it sees shapes and types, no values
    """
    table = _ops.operator(op)
    if tensors not in ("numpy", "torch", "bits") and not callable(tensors):
        raise AssayError(f"tensors: found {tensors!r}, allowed: numpy, torch, bits, or a function")
    claims = claims if claims is not None else _usual_claims(table)
    _check_claims(table, claims)
    made = dict(_contract.USUAL, **_contract.checked(contract, True))

    def wrap(function):
        title = name or function.__name__
        if not title.replace("_", "").isalnum():
            raise AssayError(f"name: found {title!r}, allowed: letters, digits and _")
        one = Variant(function, op, title, claims, made, tensors, supports)
        REGISTRY[(op, title)] = one
        return one

    return wrap
