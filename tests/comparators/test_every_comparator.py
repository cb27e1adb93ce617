"""No comparator stumbles over outputs that are not its own."""

from pathlib import Path

import numpy as np
import pytest

from optvet import Model, Sample
from optvet.engine.discovery import Plugins

OUTPUTS = {
    "scalar": np.float32(1.5).reshape(()),
    "empty": np.zeros((0,), np.float32),
    "empty rows": np.zeros((0, 4), np.float32),
    "vector": np.arange(5, dtype=np.float32),
    "nan": np.full((2, 3), np.nan, np.float32),
    "half": np.ones((1, 3, 4), np.float16),
    "integer": np.arange(6).reshape(1, 6),
    "boolean": np.array([True, False]),
    "text": np.array(["a", "b"], dtype=object),
    "rank five": np.zeros((1, 2, 2, 2, 2), np.float32),
}


def model() -> Model:
    path = Path("m.onnx")
    return Model("m.onnx", path, path, "0", (), (), 8, {"ai.onnx": 17}, 0, 1)


@pytest.mark.parametrize("name", Plugins().names("comparator"))
@pytest.mark.parametrize("kind", OUTPUTS)
def test_any_output_gets_a_score(name: str, kind: str) -> None:
    comparator = Plugins().comparator(name)
    assert 0.0 <= comparator.matches(model(), {"y": OUTPUTS[kind]}) <= 1.0


@pytest.mark.parametrize("name", Plugins().names("comparator"))
@pytest.mark.parametrize("kind", OUTPUTS)
def test_what_a_comparator_claims_it_can_compare(name: str, kind: str) -> None:
    comparator = Plugins().comparator(name)
    outputs = {"y": OUTPUTS[kind]}
    if comparator.matches(model(), outputs) <= 0:
        return
    sample = Sample("s", {})
    compared = comparator.compare(model(), sample, outputs, outputs, comparator.options, noise={})
    assert not compared.changed
    assert comparator.summarise([compared], comparator.options).headline
