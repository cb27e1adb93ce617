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


_REFUSED = frozenset({Symptom.OPTIMIZER_ERROR, Symptom.LOAD_FAILURE, Symptom.RUN_FAILURE})


def is_disputed(symptom: Symptom, bundle: Path, *, by_import: bool = False) -> bool:
    """Whether ONNX's reference evaluator says something else of the original than the runtime did.

    Then it is not known who is wrong, and the optimizer is not accused: the evaluator gives other
    outputs; or it refuses a model that the import refuses too, which the runtime only tolerates.

    Args:
        symptom: Of the finding.
        bundle: Its folder.
        by_import: Whether import and export alone show it.
    """
    refused = by_import and symptom in _REFUSED
    if symptom != Symptom.WRONG_OUTPUT and not refused:
        return False
    with Sandbox(jobs=1, limits=Limits(_TIME_S, _MEMORY_BYTES), preload=("onnx.reference",)) as box:
        outcome = box.call(_disagrees, bundle, fresh=True)
    if outcome.failure is not None:
        # Operators that it lacks are RuntimeErrors.
        return refused and outcome.failure.error_type == "ValueError"
    return bool(outcome.value) and not refused


def _disagrees(bundle: Path) -> bool:
    """Called in a worker; what it raises is no opinion."""
    model = onnx.load(bundle / "model.onnx")
    if draws_random(model):
        return False
    given = {t.name for t in model.graph.initializer}
    inputs = [v.name for v in model.graph.input if v.name not in given]
    names = [v.name for v in model.graph.output]
    feeds = read_arrays(bundle / "inputs.npz", inputs)
    with np.errstate(all="ignore"):
        made = ReferenceEvaluator(model).run(names, feeds)
    expected = read_arrays(bundle / "expected.npz", names)
    outputs = {name: np.asarray(value) for name, value in zip(names, made, strict=True)}
    return any(True for _ in differences(expected, outputs, LOOSER))
