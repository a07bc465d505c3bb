"""Arrays of every kind of tensor: NumPy, ml_dtypes, torch, and whatever speaks DLPack. NumPy alone is needed."""
import sys

import numpy as np

from ._program import AssayError

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

_PLAIN = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64)}
_SMALL = {"bf16": ("bfloat16", np.uint16), "e4m3": ("float8_e4m3fn", np.uint8), "e5m2": ("float8_e5m2", np.uint8)}
_TORCH = {"bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def numpy_dtype(name):
    """Returns the NumPy type of "bf16" and so on. Without ml_dtypes the bits of bf16 and fp8 are whole numbers."""
    if name in _PLAIN:
        return _PLAIN[name]
    long, bits = _SMALL[name]
    return np.dtype(getattr(ml_dtypes, long)) if ml_dtypes is not None else np.dtype(bits)


def bits_dtype(name):
    """Returns the type of the bits that a file holds."""
    return np.dtype(_SMALL[name][1]) if name in _SMALL else _PLAIN[name]


def name_of(dtype):
    """Returns "f32" for np.float32 and so on; None for a type that operators do not take."""
    dtype = np.dtype(dtype)
    for name, known in _PLAIN.items():
        if dtype == known:
            return name
    for name, (long, _) in _SMALL.items():
        if dtype.name == long:
            return name
    return None


def _from_torch(tensor):
    import torch
    tensor = tensor.detach().cpu()
    name = _TORCH.get(str(tensor.dtype).removeprefix("torch."))
    if name is None:
        return tensor.numpy(), None
    return tensor.view(torch.int16 if name == "bf16" else torch.uint8).numpy().view(bits_dtype(name)), name


def as_array(value, what):
    """Returns (array, type name or None) of a tensor. What is no tensor and no number is refused."""
    torch, given = sys.modules.get("torch"), type(value).__name__
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value)
    if not isinstance(value, np.ndarray):
        try:
            value = np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as why:
            raise AssayError(f"{what}: found a value of type {given}, which is no tensor of the CPU: {why}") from why
    if value.dtype == object:
        raise AssayError(f"{what}: found a value of type {given}, allowed: tensors")
    return value, name_of(value.dtype)


def typed(array, name, allowed, what):
    """Returns the type name of an array; where it has bits alone, the type that is asked for."""
    if name in allowed:
        return name
    same = [one for one in allowed if bits_dtype(one) == array.dtype and one in _SMALL]
    if len(same) == 1:
        return same[0]
    raise AssayError(f"{what}: found {array.dtype}, allowed: {', '.join(allowed)}")


def views(array, name, how):
    """Returns the array as the callable wants it: "numpy", "torch", "bits", or a function of the NumPy array."""
    if how in (None, "numpy"):
        return array
    if callable(how):
        return how(array)
    bits = array.view(bits_dtype(name))
    if how == "bits":
        return bits
    import torch
    if name not in _SMALL:
        return torch.from_numpy(bits)
    signed = bits.view(np.int16) if name == "bf16" else bits
    return torch.from_numpy(signed).view(getattr(torch, _SMALL[name][0]))


def same_bits(result, name, what):
    """Returns a result as an array whose type has this name, without rounding it."""
    array, found = as_array(result, what)
    if found == name or (found is None and array.dtype == bits_dtype(name)) or array.dtype == numpy_dtype(name):
        return array.view(bits_dtype(name))
    if name in _SMALL and array.dtype == bits_dtype(name):
        return array
    raise AssayError(f"{what}: found {array.dtype}, allowed: {numpy_dtype(name)} ({name})")
