"""Passes that make a model slower are named. The planted work takes a hundred times the model's
own, so that no noise of a machine hides it or makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from pydantic import BaseModel, ConfigDict

from optvet.cli.errors import exit_code
from optvet.engine.bench import bench
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.vet.speed.slowdown import of_profiles, of_structure
from optvet.engine.work.timing import stopwatch
from optvet.graph import structure
from optvet.plugin import Artifact, Pass, Traits
from optvet.spec.bench import BenchRequest
from optvet.spec.records import BenchVariant, VetResult
from optvet.spec.records.placement import OperatorTime, Placement
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Symptom

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2,8] x) => (float[2,8] y) { h = Relu(x)  y = Sigmoid(h) }
"""
MANY = tuple(f"pass_{i:02}" for i in range(48))
SLOW = 2.0
"""Three times the time counts, and the planted work takes far more."""


class NoOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


NONE = NoOptions()
ONE_THREAD = {"threads": 1}
"""Several threads wait for each other, for long on a machine that has more to do."""


@dataclass
class Burdens:
    """Passes that do nothing, but for ``slow``, and import and export where ``always`` is set."""

    offered: tuple[str, ...]
    slow: frozenset[str] = frozenset()
    always: bool = False
    name = "burdens"
    preload: Sequence[str] = ("onnx",)
    options: BaseModel = NONE
    traits = Traits()

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass(name) for name in self.offered]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": self.offered}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        model.producer_name = ",".join(passes)
        if self.always or self.slow & set(passes):
            burden(model.graph)
        return Artifact("onnx", model.SerializeToString())


def burden(graph: onnx.GraphProto, size: int = 160, steps: int = 2) -> None:
    """Add work in proportion to ``size`` cubed before the last node; the output stays the same.

    Every step depends on the input, so that no runtime computes it in advance, and nothing of it
    is removed: a product with 0 is not 0 if the value is infinite.
    """
    last = graph.node[-1]
    value = last.input[0]
    weight = np.random.default_rng(0).normal(0, 0.05, (size, size)).astype(np.float32)
    graph.initializer.extend(
        [
            numpy_helper.from_array(weight, "burden_w"),
            numpy_helper.from_array(np.zeros((), np.float32), "burden_0"),
        ]
    )
    made = [
        helper.make_node("ReduceMean", [value], ["burden_m"], keepdims=0),
        helper.make_node("Add", ["burden_w", "burden_m"], ["burden_t0"]),
    ]
    for i in range(steps):
        product = f"burden_p{i}"
        made.append(helper.make_node("MatMul", [f"burden_t{i}", "burden_w"], [product]))
        made.append(helper.make_node("Tanh", [product], [f"burden_t{i + 1}"]))
    made += [
        helper.make_node("ReduceMean", [f"burden_t{steps}"], ["burden_s"], keepdims=0),
        helper.make_node("Mul", ["burden_s", "burden_0"], ["burden_z"]),
        helper.make_node("Add", [value, "burden_z"], ["burden_y"]),
    ]
    last.input[0] = "burden_y"
    end = graph.node.pop()
    graph.node.extend([*made, end])


@pytest.fixture(autouse=True)
def _short_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time each model for a fifth as long: the planted work is seen in some rounds."""
    monkeypatch.setattr(stopwatch, "_REPEAT_S", 0.1)
    monkeypatch.setattr(stopwatch, "_QUICK_REPEAT_S", 0.1)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    return path


Bench = Callable[..., BenchVariant]


@pytest.fixture
def timed(net: Path, tmp_path: Path) -> Bench:
    def timed(optimizer: Burdens, **options: object) -> BenchVariant:
        request = BenchRequest(
            model=str(net),
            optimizer=("burdens",),
            repeats=6,
            threshold=SLOW,
            runtime_options=ONE_THREAD,
            cache_dir=tmp_path / "cache",
            **options,  # type: ignore[arg-type]  # checked by pydantic
        )
        result = bench(request, Plugins().register("optimizer", optimizer))
        (variant,) = result.variants
        return variant

    return timed


@pytest.mark.release
def test_a_slow_pass_among_48_is_named_with_at_most_ten_sequences_timed(timed: Bench) -> None:
    variant = timed(Burdens(MANY, slow=frozenset({"pass_29"})))
    assert variant.timing is not None
    assert variant.timing.verdict == "slower"
    (slowdown,) = variant.slowdowns
    assert slowdown.culprit == ["pass_29"]
    assert slowdown.timing.verdict == "slower"
    assert slowdown.timing.baseline == "empty pipeline"
    assert variant.sequences_timed <= 10
    assert variant.fast_option == "default,-pass_29"
    assert variant.fast_timing is not None
    assert variant.fast_timing.verdict == "no-difference"
    # Structure and profile both tell which operators the time goes to.
    assert any("MatMul" in reason for reason in slowdown.reasons)
    assert any("profile" in reason for reason in slowdown.reasons)


@pytest.mark.long
def test_what_import_and_export_cost_is_blamed_on_no_pass(timed: Bench) -> None:
    variant = timed(Burdens(("a", "b"), always=True))
    (slowdown,) = variant.slowdowns
    assert slowdown.culprit == []
    assert slowdown.timing.baseline == "original"
    assert variant.fast_pipeline is None
    assert variant.blame_undecided == ""


def vetted(net: Path, optimizer: Burdens, **options: object) -> VetResult:
    folder = net.parent / "cache"
    request = VetRequest(
        model=str(net),
        optimizer="burdens",
        slower_than=SLOW,
        runtime_options=ONE_THREAD,
        limit=2,
        cache_dir=folder,
        **options,  # type: ignore[arg-type]  # checked by pydantic
    )
    plugins = Plugins().register("optimizer", optimizer)
    return vet_model(open_model(net, str(net), folder), request, plugins)


@pytest.mark.long
def test_vet_reports_a_slow_pass_beside_its_verdict_and_leaves_it_out(net: Path) -> None:
    optimizer = Burdens(("a", "b", "c"), slow=frozenset("b"))
    result = vetted(net, optimizer, measure=True)
    assert (result.verdict, exit_code(result)) == ("clean", 1)
    assert result.timing is not None
    assert result.timing.verdict == "slower"
    (finding,) = [f for f in result.findings if f.symptom == Symptom.SLOWDOWN]
    assert (finding.culprit, finding.severity, finding.confirmed) == (["b"], "requirement", True)
    assert finding.measured is not None
    assert finding.measured > 1 + SLOW
    assert "times the time of the empty pipeline" in finding.message
    assert result.safe_pipeline == ["a", "c"]
    control = result.control("timing")
    assert control is not None
    assert control.state == "failed"


def test_vet_times_nothing_unless_it_is_asked_to(net: Path) -> None:
    result = vetted(net, Burdens(("a",), slow=frozenset("a")))
    assert result.timing is None
    assert result.control("timing") is None
    assert Symptom.SLOWDOWN not in {f.symptom for f in result.findings}


def test_weights_that_became_inputs_explain_a_slowdown() -> None:
    listed = """<ir_version: {}, opset_import: ["" : 17]>
    g (float[2,2] x, float[2,2] w) => (float[2,2] y) <float[2,2] w = {{1, 2, 3, 4}}>
    {{ y = MatMul(x, w) }}"""
    before, after = (
        structure.facts(onnx.parser.parse_model(listed.format(version)), 100) for version in (3, 4)
    )
    (reason,) = of_structure(before, after)
    assert reason.startswith("1 weights became graph inputs")
    assert of_structure(after, before) == []


def test_the_profile_names_operators_whose_time_grew_and_no_others() -> None:
    def placement(**milliseconds: float) -> Placement:
        total = sum(milliseconds.values())
        operators = [
            OperatorTime(operator=name, nodes=2, seconds=ms / 1e3, share=ms / total)
            for name, ms in milliseconds.items()
        ]
        return Placement(
            wanted="P",
            runs=1,
            providers={"P": 4},
            seconds=total / 1e3,
            operators=operators,
            slowest=[],
        )

    (line,) = of_profiles(placement(Conv=10, Relu=1), placement(Conv=15, Relu=1.2, Mul=4))
    assert "2 Conv take 15 ms, where 2 took 10 ms" in line
    assert "2 Mul take 4 ms, where there were none" in line
    assert "Relu" not in line
    assert of_profiles(placement(Conv=10), placement(Conv=10.5)) == []
