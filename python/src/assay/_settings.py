"""Where callables come from, and what the plug-in is told of them."""
import importlib
import importlib.util
import os
import shlex
import subprocess
import sys

from . import _variant
from ._program import AssayError, door

IN_WORKER = "ASSAY_IN_WORKER"


class Stop(BaseException):
    """Ends the import of a file in the interpreter of a worker, where the file would begin a run of its own."""


def in_worker():
    """Tells whether this process is the interpreter of a worker."""
    return os.environ.get(IN_WORKER) == "1"


# True from the first call of a callable on. What a callable asks the judge is no computation of its own.
UNDER_JUDGEMENT = [False]


def import_spec(spec):
    """Imports FILE.py or MODULE."""
    if not spec.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(spec)
    path = os.path.abspath(spec)
    if not os.path.isfile(path):
        raise AssayError(f"--callable: found no file {spec!r}, allowed: FILE.py or a module")
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0]
    made = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(made)
    sys.modules[name] = module
    try:
        made.loader.exec_module(module)
    except Stop:
        pass
    return module


def load(spec):
    """Imports FILE.py or MODULE without beginning its own runs, and returns its variants."""
    before = os.environ.get(IN_WORKER)
    os.environ[IN_WORKER] = "1"
    try:
        module = import_spec(spec)
    finally:
        if before is None:
            del os.environ[IN_WORKER]
    found = [one for one in vars(module).values() if isinstance(one, _variant.Variant)]
    found += [one for one in _variant.REGISTRY.values() if one not in found]
    if not found:
        raise AssayError(f"--callable: {spec}: found no @assay.variant, allowed: a file with one")
    return found


def spec_of(variants):
    """Returns the FILE.py or MODULE that defines the callables; the worker imports it."""
    specs = set()
    for one in variants:
        code = getattr(one.function, "__code__", None)
        path = code.co_filename if code is not None else None
        if "<locals>" in one.__qualname__:
            raise AssayError(f"{one.name}: found a function inside another one, allowed: one at the top of a file, which "
                             f"the interpreter of a worker can import")
        module = sys.modules.get(one.__module__)
        package = getattr(module, "__package__", None)
        if package:
            specs.add(one.__module__)
        elif path is not None and os.path.isfile(path):
            specs.add(os.path.abspath(path))
        else:
            raise AssayError(f"{one.name}: found no file of it, allowed: a callable from a file or a package")
    if len(specs) > 1:
        raise AssayError(f"run: found callables of {len(specs)} files ({', '.join(sorted(specs))}), allowed: one file")
    return specs.pop()


def text(variants, spec):
    """Returns the settings that the plug-in reads (python/door/settings.c)."""
    lines = [f"python {sys.executable}", f"load {os.path.abspath(spec) if spec.endswith('.py') else spec}"]
    lines += [f"path {entry}" for entry in sys.path if entry and "\n" not in entry]
    for one in variants:
        lines += [f"variant {one.op} {one.name}", f"claims {one.claims}", f"asks {int(one.supports is not None or one.takes is not None)}"]
        lines += [f"contract {field} {value:.17g}" if not isinstance(value, str) else f"contract {field} {value}"
                  for field, value in one.contract.items()]
    return "\n".join(lines) + "\n"


def replay(line, spec):
    """Makes a line that can be pasted of one that the program printed."""
    plugin = f"--plugin {shlex.quote(door())}"
    for quoted in (plugin, f"--plugin '{door()}'", f"--plugin {door()}"):
        line = line.replace(quoted, f"--callable {shlex.quote(spec)}")
    for command in ("replay", "shrink", "run"):
        line = line.replace(f"assay {command} ", f"{shlex.quote(sys.executable)} -m assay {command} ")
    return line


def follow(command, settings, spec):
    """Runs the program and passes its lines on, with replay lines that name the callables. Returns its exit status."""
    environment = dict(os.environ, ASSAY_PYTHON_DOOR=settings)
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="replace") as child:
        for line in child.stdout:
            sys.stdout.write(replay(line, spec))
            sys.stdout.flush()
        return child.wait()
