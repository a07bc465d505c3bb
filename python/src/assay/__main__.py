"""python -m assay: the program, with --callable FILE.py or --callable MODULE for kernels that are Python callables."""
import os
import sys

from . import _settings
from ._program import AssayError, door, program


def _split(arguments):
    """Takes --callable FILE out of the arguments; it may come once."""
    rest, spec = [], None
    at = iter(arguments)
    for word in at:
        if word == "--callable" or word.startswith("--callable="):
            if spec is not None:
                raise AssayError("--callable: found twice, allowed once")
            spec = word.partition("=")[2] if "=" in word else next(at, "")
        else:
            rest.append(word)
    return rest, spec


def main():
    """Runs the program in place of this process, or with the callables of a file."""
    try:
        if sys.argv[1:2] == ["trace"]:
            from . import _trace
            return _trace.main(sys.argv[2:])
        arguments, spec = _split(sys.argv[1:])
        if spec is None:
            os.execv(program(), ["assay", *arguments])
        if not arguments:
            raise AssayError("--callable: found no command, allowed: run, replay, shrink, fuzz, list")
        variants = _settings.load(spec)
        settings = _settings.text(variants, spec)
        command = [program(), *arguments, "--plugin", door()]
        if arguments[0] in ("run", "fuzz", "contract") and not any(word.startswith("--variant") for word in arguments):
            for one in variants:
                command += ["--variant", f"{one.op}={one.name}"]
        return _settings.follow(command, settings, spec)
    except AssayError as why:
        print(f"assay: {why}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
