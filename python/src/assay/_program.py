"""The program inside the wheel, and how it is called."""
import os
import subprocess

_ENGINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine")


class AssayError(Exception):
    """Something that the caller gave is refused; the text names it, what was found and what is allowed."""


def _file(variable, *parts):
    path = os.environ.get(variable) or os.path.join(_ENGINE, *parts)
    if not os.path.isfile(path):
        raise AssayError(f"{variable}: found no file {path}, allowed: a wheel of assay-kernels, or the path of a build")
    return path


def program():
    """Returns the path of the program `assay`."""
    return _file("ASSAY_PROGRAM", "bin", "assay")


def door():
    """Returns the path of the plug-in that calls Python."""
    return _file("ASSAY_PYTHON_DOOR_FILE", "python_door.so")


def call(arguments, settings=None, good=(0,), **options):
    """Runs the program. Raises AssayError with its message where the status is not among the good ones."""
    environment = dict(os.environ)
    environment.pop("ASSAY_PYTHON_DOOR", None)
    if settings is not None:
        environment["ASSAY_PYTHON_DOOR"] = settings
    try:
        done = subprocess.run([program(), *arguments], env=environment, stdin=subprocess.DEVNULL, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **options)
    except OSError as why:
        raise AssayError(f"{program()}: cannot be run: {why.strerror}") from None
    if done.returncode not in good:
        lines = [line for line in done.stderr.splitlines() if line.startswith("assay: ")] or done.stderr.splitlines()
        raise AssayError(lines[-1].removeprefix("assay: ") if lines else f"assay: exit status {done.returncode}")
    return done
