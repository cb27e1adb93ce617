"""What workers of tests import before they begin; servers of equal lists are shared."""

TRIALS = (
    "numpy",
    "onnx",
    "onnx.checker",
    "onnxruntime",
    "onnxoptimizer",
    "optvet_onnxruntime.runtime",
    "optvet.testing",
    "optvet.engine.work.trials.preload",
)
"""For workers that apply passes and run models."""
