"""What a candidate declares of the output that it repairs."""

import numpy as np
import onnx.parser
import pytest

from optvet.engine.convert.align import Known, SuspectRegion, Tolerances
from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import attribute, declare_output, propose
from optvet.graph.unfold import Unfolded
from optvet.spec.converters import SourceInside, SourceValue
from optvet.spec.records.repair import SetOutputType

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4,1] y) { y = Neg(x) }"""


@pytest.mark.parametrize(
    ("wanted", "declares"),
    [
        # Of an estimator: scores of float64, without the axis that a converter adds.
        (np.zeros(4), []),
        (np.zeros((4, 1), np.float32), []),
        (np.zeros((4, 2)), [SetOutputType(output="y", type="float32", axes=2)]),
        (np.zeros(8), [SetOutputType(output="y", type="float32", axes=1)]),
    ],
)
def test_an_output_of_the_right_size_stays_as_it_is_declared(
    wanted: np.ndarray, declares: list[SetOutputType]
) -> None:
    aligned = AlignedRun(
        Unfolded(onnx.parser.parse_model(MODEL)),
        SourceInside((SourceValue("predict", wanted),)),
        Tolerances([0.0]),
        {"y": np.zeros((4, 1), np.float32)},
        Known({}, frozenset(), frozenset()),
        SuspectRegion(),
        "y",
        0,
    )
    candidate = propose("attribute", "Neg.alpha", attribute("y", "alpha", 2.0))
    (edit,) = declare_output(aligned, candidate).edits
    assert edit.operations[1:] == declares
