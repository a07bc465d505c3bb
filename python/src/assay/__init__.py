"""assay: judges kernels that are Python callables, or tensors, against references in f64 (docs/python.md).

    assay.reference(op, inputs, **params)               values and sigma of an operator
    assay.judge(op, inputs, outputs, contract=None)     a verdict on tensors
    assay.record(folder, op, inputs, outputs)           a call of an engine, for `assay judge` later
    @assay.variant(op, claims=...)                      a callable as a kernel
    assay.run(callable)                                 judges it with the suite of its operator
"""
from ._judge import Expected, Judgement, judge, record, reference
from ._ops import operators
from ._program import AssayError, door, program
from ._run import Failure, Result, run
from ._variant import Unsupported, Variant, variant

__version__ = "0.1.0"
__all__ = ["AssayError", "Expected", "Failure", "Judgement", "Result", "Unsupported", "Variant", "door", "judge",
           "operators", "program", "record", "reference", "run", "variant"]
