"""The interpreter of a worker: calls the callables on what the plug-in sends (python/door/interpreter.c).

A question is a length of four bytes and JSON; so is an answer, whose first letter is its kind: d done, u unsupported,
x an exception. Tensors are views of the shared memory, with the strides and gaps that they have in the judge's."""
import json
import mmap
import os
import signal
import socket
import struct
import sys
import traceback

os.environ["ASSAY_IN_WORKER"] = "1"

import numpy as np  # noqa: E402

from . import _settings, _types, _variant  # noqa: E402


class Shared:
    """The shared memory, mapped anew when it has grown."""

    def __init__(self, file):
        self.file, self.map = file, None

    def array(self, size, about):
        """Returns a view of one tensor."""
        if self.map is None or len(self.map) < size:
            self.map = mmap.mmap(self.file, size)
        dtype = _types.numpy_dtype(about["dtype"])
        if 0 in about["shape"]:
            return np.empty(about["shape"], dtype=dtype)
        strides = [stride * dtype.itemsize for stride in about["stride"]]
        return np.ndarray(about["shape"], dtype=dtype, buffer=self.map, offset=about["offset"], strides=strides)


class Shape:
    """What `supports` sees of a tensor."""

    def __init__(self, about):
        self.dtype, self.shape = about["dtype"], tuple(about["shape"])
        self.strides = tuple(about["stride"])


def _params(variant, params):
    made = {}
    for name, value in params.items():
        if name in variant.enums:
            made[name] = variant.enums[name][int(value)]
        elif name in variant.bools:
            made[name] = int(value)
        else:
            made[name] = value
    return made


def _chosen(variant, known):
    return known if variant.takes is None else {name: known[name] for name in variant.takes}


def _store(variant, arrays, types, taken, result):
    """Copies what was returned to the outputs that the callable does not take."""
    open_ones = [name for name in variant.outputs if name in arrays and (variant.takes is None or name not in taken)]
    if result is None:
        if open_ones and variant.takes is not None and not any(name in taken for name in variant.outputs):
            raise TypeError(f"found None, allowed: a tensor for {', '.join(open_ones)}")
        return
    if variant.takes is None:
        open_ones = [name for name in variant.outputs if name in arrays]
    if isinstance(result, dict):
        pairs = list(result.items())
    elif isinstance(result, (tuple, list)):
        pairs = list(zip(open_ones, result, strict=True))
    else:
        wanted = open_ones or [name for name in variant.outputs if name in arrays]
        if len(wanted) > 1:
            wanted = [name for name in wanted if name not in variant.takes] if variant.takes else wanted
        pairs = [(wanted[0], result)]
    for name, value in pairs:
        if name not in arrays:
            raise TypeError(f"found a result {name!r}, allowed: {', '.join(open_ones)}")
        bits = _types.same_bits(value, types[name], name)
        if bits.shape != arrays[name].shape:
            raise TypeError(f"{name}: found the shape {list(bits.shape)}, allowed {list(arrays[name].shape)}")
        arrays[name].view(_types.bits_dtype(types[name]))[...] = bits


def call(variant, shared, question):
    """Calls the callable on the tensors of a question."""
    arrays, types, known = {}, {}, {}
    for about in question["args"]:
        known[about["name"]] = None
        if "offset" in about:
            types[about["name"]] = about["dtype"]
            arrays[about["name"]] = shared.array(question["bytes"], about)
            known[about["name"]] = _types.views(arrays[about["name"]], about["dtype"], variant.tensors)
    known.update(_params(variant, question["params"]))
    chosen = _chosen(variant, known)
    _settings.UNDER_JUDGEMENT[0] = True
    _store(variant, arrays, types, chosen, variant.function(**chosen))
    return "d"


def _refuse_left_out(variant, question):
    """Declines a call that has what the callable does not take: an optional argument, or an unusual parameter."""
    for about in question["args"]:
        if "dtype" in about and about["name"] in variant.absent:
            raise _variant.Unsupported(f"{about['name']}: found a tensor, allowed none: the callable does not take it")
    for name, value in question["params"].items():
        if name in variant.usual and value != variant.usual[name]:
            raise _variant.Unsupported(f"{name}: found {value:g}, allowed {variant.usual[name]:g}: "
                                       "the callable does not take it")


def supports(variant, question):
    """Asks whether the callable takes a call of these shapes, types and parameters."""
    _refuse_left_out(variant, question)
    if variant.supports is None:
        return "d"
    known = {about["name"]: Shape(about) if "dtype" in about else None for about in question["args"]}
    known.update(_params(variant, question["params"]))
    variant.supports(**known)
    return "d"


def reason(why):
    """Returns the last line of a traceback, with the place in the callable's own file."""
    last = traceback.format_exception_only(why)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(why.__traceback__) if os.path.dirname(frame.filename) !=
              os.path.dirname(os.path.abspath(__file__))]
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"python: {last}{place}"


def gpu_is_lost():
    """Tells whether a fault of a kernel has ended the GPU's context. Every later call would fail with its error."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if cupy is not None:
            cupy.cuda.runtime.deviceSynchronize()
    except Exception:  # pylint: disable=broad-except
        return True
    return False


def answer(variants, shared, question):
    """Returns the answer to one question. Where the GPU is lost the process ends, so that no other call has its error."""
    try:
        variant = variants()[question["row"]]
        return supports(variant, question) if question["what"] == "supports" else call(variant, shared, question)
    except _variant.Unsupported as why:
        return f"u{why}"
    except (Exception, _settings.Stop) as why:  # pylint: disable=broad-except
        if gpu_is_lost():
            print(f"assay: the GPU was lost: {reason(why)}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGABRT)
        return f"x{reason(why)}"


def rows():
    """Returns a function that gives the variants in the order of the settings; it imports them once."""
    made, load = [], None
    for line in os.environ["ASSAY_PYTHON_DOOR"].splitlines():
        key, _, value = line.partition(" ")
        if key == "variant":
            made.append(tuple(value.split(" ", 1)))
        elif key == "load":
            load = value
        elif key == "path" and value not in sys.path:
            sys.path.append(value)
    kept = {}

    def variants():
        if "list" not in kept:
            _settings.import_spec(load)
            kept["list"] = [_variant.REGISTRY[one] for one in made]
        return kept["list"]

    return variants


def receive(talk, size):
    """Receives so many bytes; None where the worker has ended."""
    made = bytearray()
    while len(made) < size:
        piece = talk.recv(size - len(made))
        if not piece:
            return None
        made += piece
    return bytes(made)


def main():
    """Answers questions until the worker ends."""
    talk, shared, variants = socket.socket(fileno=int(sys.argv[1])), Shared(int(sys.argv[2])), rows()
    while (head := receive(talk, 4)) is not None:
        body = receive(talk, struct.unpack("=I", head)[0])
        if body is None:
            break
        said = answer(variants, shared, json.loads(body)).encode(errors="replace")
        talk.sendall(struct.pack("=I", len(said)) + said)


if __name__ == "__main__":
    main()
