"""What the user requires: measured, localized like any other property, and met by what is safe."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.plugin import Artifact, Comparison, Pass, Summary, Traits
from optvet.spec.errors import UsageError
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.testing import FILLERS, Planted
from optvet_tensor import TensorComparator, TensorOptions

PRELOAD = (*TRIALS, __name__)
BIASED = """
<ir_version: 8, opset_import: ["" : 17]>
biased (float[4,3] x) => (float[4,3] y, float[4,3] z)
<float[3] a = {0, 0, 0}, float[3] b = {0, 0, 0}, float[3] c = {0, 0, 0}>
{ s = Add(x, a)  t = Add(s, b)  y = Add(t, c)  z = Add(x, c) }
"""
NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2,2] x) => (float[2,2] y)
<float[2,2] w = {0.3, -0.7, 0.9, 0.123}> { h = MatMul(x, w)  y = Relu(h) }
"""
RANDOM = """
<ir_version: 8, opset_import: ["" : 17]>
noise (float[4] x) => (float[4] y) { n = RandomNormalLike(x)  y = Add(x, n) }
"""


@dataclass
class Biasing:
    """Passes ``a``, ``b`` and ``c`` add 1 to the weight of that name, and declare to be lossy."""

    name: str = "biasing"
    order: tuple[str, ...] = ("a", "b", "c")
    steps: tuple[float, float, float] = (1.0, 1.0, 1.0)
    preload: Sequence[str] = ("onnx",)
    options = TensorOptions()
    traits = Traits()

    def version(self) -> str:
        return f"1 {self.steps}"

    def passes(self) -> Sequence[Pass]:
        return [Pass(name, lossy=True, tolerance=1e9) for name in self.order]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": self.order}

    def apply(self, source: Artifact, passes: Sequence[str], options: Any) -> Artifact:
        model = onnx.load_from_string(source.data)
        for weight in model.graph.initializer:
            if weight.name in passes:
                step = self.steps["abc".index(weight.name)]
                raised = numpy_helper.to_array(weight) + np.float32(step)
                weight.CopyFrom(numpy_helper.from_array(raised, weight.name))
        return Artifact("onnx", model.SerializeToString(deterministic=True))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


Vet = Callable[..., VetResult]


@pytest.fixture
def vet(tmp_path: Path, sandbox: Sandbox) -> Vet:
    """Vets a model, given as text, beside which a record may lie."""

    def run(text: str, optimizer: Any, *, record: str = "", **settings: Any) -> VetResult:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        if record:
            path.with_suffix(".toml").write_text(record)
        plugins = settings.pop("plugins", None) or Plugins()
        plugins.register("optimizer", optimizer)
        chosen = {"limit": 3, "optimizer": optimizer.name, "cache_dir": tmp_path / "cache"}
        request = VetRequest(model=str(path), **(chosen | settings))
        opened = open_model(path, str(path), tmp_path / "cache")
        return vet_model(opened, request, plugins, sandbox=sandbox)

    return run


def unmet(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.symptom == "requirement"]


def test_what_is_met_is_told_and_is_no_finding(vet: Vet) -> None:
    result = vet(BIASED, Biasing(), require=["max_abs<=3.01", "y:cosine>=-1"], atol="3.01")
    assert (result.verdict, result.findings) == ("drift", [])
    assert [r.met for r in result.requirements] == [True, True, True]
    assert result.requirements[0].measured == pytest.approx(3, abs=1e-5)
    assert result.safe_pipeline == ["a", "b", "c"]


def test_an_unmet_requirement_is_a_finding_that_leaves_the_verdict_alone(vet: Vet) -> None:
    result = vet(BIASED, Biasing(steps=(0, 5, 0)), require="max_abs<=1")
    (finding,) = result.findings
    assert (result.verdict, finding.symptom, finding.severity) == (
        "drift",
        "requirement",
        "requirement",
    )
    assert (finding.culprit, finding.confirmed) == (["b"], True)
    assert finding.requirement == "max_abs<=1"
    assert finding.measured == pytest.approx(5, abs=1e-5)
    assert finding.witness is not None
    assert result.safe_pipeline == ["a", "c"]


def test_passes_that_exceed_a_tolerance_only_together_are_blamed_together(vet: Vet) -> None:
    result = vet(BIASED, Biasing(), atol="1.5")
    assert [f.culprit for f in unmet(result)] == [["a", "b"], ["a", "c"]]
    assert result.safe_pipeline == ["a"]


def test_a_requirement_on_one_output_says_nothing_of_the_others(vet: Vet) -> None:
    result = vet(BIASED, Biasing(steps=(4, 0, 2)), require="z:max_abs<=1")
    (finding,) = unmet(result)
    assert (finding.culprit, finding.outputs) == (["c"], ["z"])
    assert finding.measured == pytest.approx(2, abs=1e-5)
    assert result.safe_pipeline == ["a", "b"]


def test_a_tolerance_of_one_output_takes_the_place_of_the_general_one(vet: Vet) -> None:
    result = vet(BIASED, Biasing(steps=(4, 0, 2)), atol=["1", "y:7"])
    told = {r.requirement: r.met for r in result.requirements}
    assert told == {"rtol=0, atol=1": False, "y: rtol=0, atol=7": True}
    assert [f.culprit for f in unmet(result)] == [["c"]]


def test_each_of_two_requirements_with_one_culprit_is_told(vet: Vet) -> None:
    result = vet(BIASED, Biasing(steps=(0, 5, 0)), require=["max_abs<=1", "rmse<=2"])
    assert [(f.requirement, f.culprit) for f in unmet(result)] == [
        ("max_abs<=1", ["b"]),
        ("rmse<=2", ["b"]),
    ]


def test_import_and_export_alone_may_be_what_does_not_meet_it(vet: Vet) -> None:
    passes = FILLERS[:2]
    optimizer = Planted(default=passes, offered=passes, round_trip=("scale_weight",))
    result = vet(NET, optimizer, require="max_rel<=1e-3")
    assert [f.culprit for f in unmet(result)] == [[]]
    assert result.safe_pipeline == []


def test_a_fault_that_breaks_a_requirement_is_told_as_both(vet: Vet) -> None:
    passes = (*FILLERS[:2], "drop_relu")
    result = vet(NET, Planted(default=passes, offered=passes), require="max_abs<=1e-3")
    assert result.verdict == "faulty"
    assert {(f.symptom.value, *f.culprit) for f in result.findings} == {
        ("wrong-output", "drop_relu"),
        ("requirement", "drop_relu"),
    }
    assert result.safe_pipeline == list(FILLERS[:2])


def test_an_optimizer_that_crashes_leaves_a_safe_pipeline_that_meets_it(vet: Vet) -> None:
    passes = ("round_weights", "raise_error", FILLERS[0])
    result = vet(NET, Planted(default=passes, offered=passes), rtol="1e-6", atol="1e-6")
    assert (result.verdict, result.requirements[0].met) == ("faulty", None)
    assert [f.culprit for f in unmet(result)] == [["round_weights"]]
    assert result.safe_pipeline == [FILLERS[0]]


def test_all_samples_of_several_chunks_count(vet: Vet) -> None:
    result = vet(BIASED, Biasing(steps=(0, 5, 0)), require="samples_changed<=39", limit=40)
    (finding,) = unmet(result)
    assert (finding.culprit, finding.measured) == (["b"], 40)
    assert result.safe_pipeline == ["a", "c"]


def test_a_record_requires_and_what_is_typed_wins(vet: Vet) -> None:
    record = 'require = ["max_abs<=1", "cosine>=-1"]\natol = [1]\n'
    told = vet(BIASED, Biasing(steps=(0, 5, 0)), record=record).requirements
    assert {r.requirement: r.met for r in told} == {
        "max_abs<=1": False,
        "cosine>=-1": True,
        "rtol=0, atol=1": False,
    }
    assert all(r.origin.endswith("model.toml") for r in told)
    typed = vet(
        BIASED, Biasing(steps=(0, 5, 0)), record=record, require="max_abs<=6", atol="9"
    ).requirements
    assert {r.requirement: r.met for r in typed} == {
        "max_abs<=6": True,
        "cosine>=-1": True,
        "rtol=0, atol=9": True,
    }


def test_a_record_that_states_no_requirement_is_refused_with_its_name(vet: Vet) -> None:
    with pytest.raises(UsageError, match=r"model.toml: key 'require.*METRIC>=NUMBER"):
        vet(BIASED, Biasing(), record='require = ["max_abs"]')


class Raises(Biasing):
    """An optimizer that must not be asked for anything."""

    def apply(self, source: Artifact, passes: Sequence[str], options: Any) -> Artifact:
        raise AssertionError("the work began")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"require": "max_ab<=1"}, "no metric 'max_ab'.*did you mean 'max_abs'"),
        (
            {"require": "psnr_db>=1", "comparator": "tensor"},
            "no metric 'psnr_db'; tensor has .*max_abs.* all have samples_changed",
        ),
        ({"require": "w:max_abs<=1"}, "unknown output 'w'; known: y, z"),
        ({"rtol": "w:1"}, "unknown output 'w'"),
    ],
)
def test_what_nobody_measures_is_refused_before_the_work(
    vet: Vet, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        vet(BIASED, Raises(), **settings)


def test_a_metric_of_another_task_is_refused_once_the_comparator_is_chosen(vet: Vet) -> None:
    with pytest.raises(UsageError, match="no metric 'psnr_db'; tensor has"):
        vet(BIASED, Biasing(), require="psnr_db>=30")


class Silent(TensorComparator):
    """A comparator that does not say which metrics it has."""

    name = "silent"
    preference = 0
    metrics = None  # type: ignore[assignment]

    def matches(self, model: Any, outputs: Mapping[str, np.ndarray]) -> float:
        return 1.0

    def summarise(self, comparisons: Sequence[Comparison], options: TensorOptions) -> Summary:
        return Summary({"loudness": 0.25}, "quiet")


def test_a_comparator_that_does_not_tell_its_metrics_is_asked_after_the_work(vet: Vet) -> None:
    def plugins() -> Plugins:
        return Plugins().register("comparator", Silent())

    result = vet(BIASED, Biasing(), require="loudness<=0.3", plugins=plugins())
    assert [(r.met, r.comparator) for r in result.requirements] == [(True, "silent")]
    with pytest.raises(UsageError, match="no metric 'pitch'; silent has loudness"):
        vet(BIASED, Biasing(), require="pitch<=1", plugins=plugins())


def test_a_model_that_is_random_cannot_be_told_to_meet_a_requirement(vet: Vet) -> None:
    result = vet(RANDOM, Planted(default=FILLERS[:1], offered=FILLERS[:1]), require="max_abs<=0.1")
    assert result.verdict == "undecided"
    assert "two runs of the original may differ in 'y'" in result.reason
    assert unmet(result) == []
    assert result.safe_pipeline == list(FILLERS[:1])


def test_the_same_request_again_runs_nothing(vet: Vet) -> None:
    first = vet(BIASED, Biasing(), require="max_abs<=1")
    again = vet(BIASED, Biasing(), require="max_abs<=1")
    assert again.findings == first.findings
    assert (again.cost.applications, again.cost.inferences) == (0, 0)


IMAGES = """
<ir_version: 8, opset_import: ["" : 17]>
images (float[1,1,16,16] x) => (float[1,1,16,16] y)
<float[1] a = {0}, float[1] b = {0}, float[1] c = {0}>
{ s = Add(x, a)  t = Add(s, b)  y = Add(t, c) }
"""


def test_a_scale_is_one_for_all_samples_of_all_chunks(vet: Vet, tmp_path: Path) -> None:
    for number in range(34):
        value = np.full((1, 1, 16, 16), 200.0 if number > 16 else 0.5, np.float32)
        np.savez(tmp_path / f"{number:02}.npz", x=value)
    result = vet(
        IMAGES,
        Biasing(),
        comparator="image",
        dataset=f"files:{tmp_path}",
        limit=None,
        require=["data_range==255", "psnr_db>=40"],
    )
    assert result.impact is not None
    assert {d.detail["data_range"] for d in result.impact.details} == {255}
    assert result.impact.samples == 34
    assert [(r.met, round(r.measured or 0, 2)) for r in result.requirements] == [
        (True, 255),
        (False, round(20 * float(np.log10(255 / 3)), 2)),
    ]
    assert [f.culprit for f in unmet(result)] == [["a", "b", "c"]]


def test_fixed_tolerances_are_told_beside_a_verdict_that_they_do_not_change(vet: Vet) -> None:
    result = vet(BIASED, Biasing(steps=(5e-4, 0, 0)), dataset="random", limit=2)
    assert (result.verdict, result.findings) == ("drift", [])
    told = {t.name: (t.beyond, t.outputs) for t in result.fixed_tolerances}
    assert told == {
        "1e-7": (2, {"y": 2, "z": 0}),
        "1e-3": (0, {"y": 0, "z": 0}),
        "Polygraphy": (2, {"y": 2, "z": 0}),
        "ONNX backend tests": (2, {"y": 2, "z": 0}),
    }
    assert all(t.samples == 2 for t in result.fixed_tolerances)


# Values inside of the model

CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
chain (float[4,3] x) => (float[4,3] y)
<float[3] a = {1, 1, 1}, float[3] b = {1, 1, 1}, float[3] c = {1, 1, 1}>
{ s = Mul(x, a)  t = Add(s, b)  u = Mul(t, c)  y = Sigmoid(u) }
"""


@pytest.mark.long
def test_an_error_inside_is_blamed_on_the_pass_that_makes_it(vet: Vet) -> None:
    # Pass "a" doubles a factor; pass "b" adds a little, to another value.
    required = ["layer_error<=0.4", "t:layer_error<=2", "Sigmoid:layer_error<=1"]
    required.append("float32:layer_error<=2")
    result = vet(CHAIN, Biasing(order=("a", "b"), steps=(1.0, 1e-3, 0.0)), require=required)
    assert [(f.culprit, f.requirement) for f in unmet(result)] == [(["a"], "layer_error<=0.4")]
    assert result.safe_pipeline == ["b"]
    inside, one, operator, dtype = result.requirements
    assert (inside.met, inside.detail) == (False, "layer_error is 1 at s (Mul)")
    assert one.detail.endswith("at t (Add)")
    assert operator.detail.endswith("at y (Sigmoid)")
    assert dtype.detail == inside.detail


def test_a_requirement_on_values_that_are_not_there_is_undecided(vet: Vet) -> None:
    required = ["Conv:layer_error<=1", "float16:layer_error<=1"]
    result = vet(CHAIN, Biasing(order=("b",)), require=required)
    assert result.verdict == "undecided"
    words = "the two models share no value of the name, operator or type"
    for reading, name in zip(result.requirements, ("Conv", "float16"), strict=True):
        assert f"{words} {name!r}" in reading.detail


def test_differences_that_the_passes_declare_are_said_to_be_declared(vet: Vet) -> None:
    result = vet(BIASED, Biasing(steps=(0, 5, 0)))
    assert (result.verdict, result.impact is not None) == ("drift", True)
    assert result.impact is not None
    assert "differ beyond noise; within the tolerance that the passes declare" in (
        result.impact.headline
    )
