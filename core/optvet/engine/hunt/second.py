"""A second opinion on what a model means: the runtime that judges may be wrong itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from optvet.engine.bundle.files import read_arrays
from optvet.engine.hunt.truth import LOOSER, differences
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.graph.structure import draws_random
from optvet.spec.symptoms import Symptom

_MEMORY_BYTES = 4 << 30
_TIME_S = 30.0


def is_disputed(symptom: Symptom, bundle: Path) -> bool:
    """Whether ONNX's reference evaluator gives other outputs of the original than the runtime did.

    Then it is not known who is wrong, and the optimizer is not accused. What the evaluator cannot
    run is not disputed.
    """
    if symptom != Symptom.WRONG_OUTPUT:
        return False
    with Sandbox(jobs=1, limits=Limits(_TIME_S, _MEMORY_BYTES), preload=("onnx.reference",)) as box:
        outcome = box.call(_disagrees, bundle, fresh=True)
    return outcome.failure is None and bool(outcome.value)


def _disagrees(bundle: Path) -> bool:
    """Called in a worker; what it raises is no opinion."""
    model = onnx.load(bundle / "model.onnx")
    if draws_random(model):
        return False
    given = {t.name for t in model.graph.initializer}
    inputs = [v.name for v in model.graph.input if v.name not in given]
    names = [v.name for v in model.graph.output]
    feeds = read_arrays(bundle / "inputs.npz", inputs)
    expected = read_arrays(bundle / "expected.npz", names)
    with np.errstate(all="ignore"):
        made = ReferenceEvaluator(model).run(names, feeds)
    outputs = {name: np.asarray(value) for name, value in zip(names, made, strict=True)}
    return any(True for _ in differences(expected, outputs, LOOSER))
