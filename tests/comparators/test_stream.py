"""Streams: the state is carried from frame to frame, and what adds up is seen."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.plugin import Model, ModelConfig, ValueInfo
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.testing import Planted, PlantedOptions, pretend_model
from optvet_tensor.stream import StreamComparator, StreamOptions, states_of, stem, turned

COMPARATOR = StreamComparator()
# The state adds up what comes in.
IDENTITY = ", ".join(str(float(i // 8 == i % 8)) for i in range(64))
INTEGRATOR = f"""
<ir_version: 8, opset_import: ["" : 17]>
integrator (float[1,8] x, float[1,8] state) => (float[1,8] y, float[1,8] stateN)
<float[8,8] w = {{{IDENTITY}}}, float[1] one = {{1}}>
{{
    turned = MatMul(x, w)
    stateN = Add(state, turned)
    y = Mul(stateN, one)
}}
"""


Vet = Callable[..., VetResult]


@pytest.fixture
def vet(tmp_path: Path) -> Vet:
    def run(passes: tuple[str, ...], **options: object) -> VetResult:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(INTEGRATOR), path)
        path.with_suffix(".toml").write_text(
            """
            task = "voice-activity detection"
            [inputs.x]
            kind = "uniform"
            [inputs.state]
            kind = "const"
            value = 0.0
            """
        )
        optimizer = Planted(default=passes, options=PlantedOptions(factor=1.5))
        plugins = Plugins().register("optimizer", optimizer)
        request = VetRequest(
            model="model",
            optimizer="planted",
            limit=2,
            cache_dir=tmp_path / "cache",
            comparator_options=options,
        )
        return vet_model(open_model(path, str(path), tmp_path / "cache"), request, plugins)

    return run


@pytest.mark.long
def test_a_vet_compares_the_state_that_successive_frames_leave(vet: Vet) -> None:
    good = vet(("keep_00",)).impact
    assert good is not None
    assert (good.comparator, good.chosen_by) == ("stream", "task 'voice-activity detection'")
    assert good.headline.startswith("0 of 2 streams changed after 8 frames")
    short, long = (vet(("scale_weight",), frames=n).impact for n in (2, 16))
    assert short is not None
    assert long is not None
    assert short.changed == long.changed == 2
    # All frames add the same share, so the error of the sum grows with their number.
    ratio = (long.metrics["max_abs"] or 0) / (short.metrics["max_abs"] or 1)
    assert ratio > 4
    assert long.metrics["state_change"] == pytest.approx(long.metrics["max_change"])


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("state", "stateN", True),
        ("conv_cache", "conv_cache_out", True),
        ("h", "hn", True),
        ("hidden_in", "hidden_out", True),
        ("h0", "new_h0", True),
        ("x_in", "x_out", False),
        ("input", "output", False),
        ("state", "cache", False),
    ],
)
def test_states_are_known_by_their_names(old: str, new: str, same: bool) -> None:
    shape = (1, 4)
    inputs = (ValueInfo("frame", "float", (1, 9)), ValueInfo(old, "float", shape))
    outputs = (ValueInfo("enhanced", "float", (1, 9)), ValueInfo(new, "float", shape))
    model = _model(inputs, outputs)
    assert states_of(model, StreamOptions()) == ({old: new} if same else {})
    assert (COMPARATOR.matches(model, {}) > 0.9) is same


def _model(inputs: tuple[ValueInfo, ...], outputs: tuple[ValueInfo, ...]) -> Model:
    config = ModelConfig(task="speech enhancement")
    return replace(pretend_model(), inputs=inputs, outputs=outputs, config=config)


def test_values_of_another_type_or_shape_are_no_state() -> None:
    frame = ValueInfo("frame", "float", (1, 9))
    for other in (ValueInfo("state", "int64", (1, 4)), ValueInfo("state", "float", (1, 5))):
        model = _model((frame, ValueInfo("state", "float", (1, 4))), (other,))
        assert states_of(model, StreamOptions()) == {}
    model = _model((frame, ValueInfo("state", "float", None)), (ValueInfo("b", "float", None),))
    assert states_of(model, StreamOptions(states={"state": "b"})) == {"state": "b"}


def test_the_first_frame_is_the_samples_and_others_are_turned() -> None:
    frame = np.arange(8.0).reshape(1, 8)
    assert np.array_equal(turned(frame, 0, 4), frame)
    assert turned(frame, 1, 4)[0].tolist() == [6, 7, 0, 1, 2, 3, 4, 5]
    rate = np.array(16000)
    assert turned(rate, 3, 4) is rate
    assert stem("frame") == "frame"
