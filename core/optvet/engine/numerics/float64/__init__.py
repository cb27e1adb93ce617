"""A float64 oracle: what a model would compute if its arithmetic hardly rounded.

The graph is rewritten in double precision (``promote``) and interpreted by ONNX's reference
evaluator (``evaluate``). The evaluator is slow in places and silently wrong in others, so the
operators below take the place of its own; each says why. The distance of a float32 runtime from
this result is that runtime's own rounding error, the noise floor under every comparison.

What stays as the model says it, because it is the model's meaning and not its arithmetic:

- Float attributes (``epsilon``, ``alpha``): the standard stores them as float32.
- Quantization: the inputs of QuantizeLinear and its kin are rounded to float32, as their schema
  demands, so that a value on the boundary of two steps falls as it does in a float32 runtime.
- A Cast to a half type in a model without half-typed weights or inputs: there the rounding is
  asked for, so it is carried out and the result continues in double. In a half-precision model
  such casts only place the values, and they are promoted like everything else.
"""

from optvet.engine.numerics.float64.evaluate import Evaluation, evaluate, evaluator, taken_out
from optvet.engine.numerics.float64.promote import NotPromotable, promote

__all__ = ["Evaluation", "NotPromotable", "evaluate", "evaluator", "promote", "taken_out"]
