"""Where nodes run, and what a model is made of, of real plugins and of planted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from optvet import ContractError, InputError
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.session import open_session
from optvet.engine.work.trials.node_counts import take_inventory
from optvet.engine.work.trials.placement import find_placement, placement_of
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.plugin import Artifact, Feeds, NodeTime, Profile
from optvet.spec.records import Inventory, Placement
from optvet.spec.request import VetRequest
from optvet.spec.types import Sample
from optvet_onnxoptimizer import OnnxOptimizer
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime

CPU, ELSEWHERE = "CPUExecutionProvider", "FastExecutionProvider"

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n,3] x) => (float[n,2] y)
<float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {7, -8}, float[9] idle = {1,2,3,4,5,6,7,8,9}>
{
    i = Identity(x)
    m = MatMul(i, w)
    a = Add(m, b)
    y = Relu(a)
}
"""

Open = Callable[..., tuple[TrialRunner, list[Sample]]]


@pytest.fixture
def opened(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """A trial runner of ``NET``, and its samples."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath)  # workers import this file by name
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    with ExitStack() as stack:

        def open_lab(**options: Any) -> tuple[TrialRunner, list[Sample]]:
            plugins = Plugins()
            plugins.register("runtime", Partly())
            plugins.register("runtime", Broken())
            plugins.register("runtime", Talkative())
            plugins.register("optimizer", Dying())
            given = {"optimizer": "onnxoptimizer", "runtime": "onnxruntime", **options}
            request = VetRequest(model="m", limit=2, jobs=1, cache_dir=tmp_path / "c", **given)
            model = open_model(path, str(path), tmp_path)
            session = stack.enter_context(open_session(model, request, plugins))
            return session.runner, list(session.inputs())

        yield open_lab


class Partly(OrtRuntime):
    """Tells that it has executed products on another device than the one asked for."""

    name = "partly"

    def profile(
        self, artifact: Artifact, feeds: Sequence[Feeds], options: OrtOptions, folder: Path
    ) -> Profile:
        found = super().profile(artifact, feeds, options, folder)
        nodes = [
            NodeTime(
                n.name,
                n.operator,
                n.provider if n.operator == "MatMul" else ELSEWHERE,
                n.calls,
                n.seconds,
            )
            for n in found.nodes
        ]
        return Profile(ELSEWHERE, found.runs, tuple(nodes))


class Broken(OrtRuntime):
    """Gives something else than a profile."""

    name = "broken"

    def profile(self, *_: object) -> Profile:
        return {"nodes": []}  # type: ignore[return-value]


class Talkative(OrtRuntime):
    """Writes profiles that are too long."""

    name = "talkative"

    def profile(self, *_: object) -> Profile:
        raise InputError("the profile is too long")


@dataclass
class Dying(OnnxOptimizer):
    """Ends its process when it is applied."""

    name: str = "dying"

    def apply(self, *_: object) -> Artifact:
        import os

        os.abort()


def placed(found: Placement | str) -> Placement:
    assert isinstance(found, Placement), found
    return found


def counted(found: Inventory | str) -> Inventory:
    assert isinstance(found, Inventory), found
    return found


def test_nodes_are_those_that_the_session_executes(opened: Open) -> None:
    runner, samples = opened()
    original = placed(find_placement(runner, None, samples))
    assert original.providers == {CPU: 4}  # optimizations are off, as for all verdicts
    assert (original.wanted, original.runs, original.elsewhere) == (CPU, 5, [])
    assert {o.operator for o in original.operators} == {"Identity", "MatMul", "Add", "Relu"}
    assert sum(o.share for o in original.operators) == pytest.approx(1)
    assert sum(n.seconds for n in original.slowest) == pytest.approx(original.seconds)
    optimized = placed(find_placement(runner, runner.case.passes.pipeline, samples))
    assert {o.operator for o in optimized.operators} == {"MatMul", "Add", "Relu"}


def test_an_optimized_session_is_profiled_as_it_is_optimized(opened: Open) -> None:
    runner, samples = opened(optimizer="onnxruntime", pipeline="extended")
    found = placed(find_placement(runner, runner.case.passes.pipeline, samples))
    assert [o.operator for o in found.operators] == ["FusedGemm"]


def test_nodes_without_a_kernel_on_the_wanted_provider_are_named(opened: Open) -> None:
    runner, samples = opened(runtime="partly")
    found = placed(find_placement(runner, None, samples))
    assert found.providers == {ELSEWHERE: 3, CPU: 1}
    assert [(n.operator, n.provider) for n in found.elsewhere] == [("MatMul", CPU)]
    assert found.share_of(CPU) == 0.25


def test_a_runtime_that_cannot_tell_is_a_reason_not_an_error(opened: Open) -> None:
    runner, samples = opened(runtime="onnx_reference")
    words = find_placement(runner, None, samples)
    assert words == "runtime onnx_reference does not report where it executes nodes"


def test_a_runtime_that_breaks_the_contract_is_named(opened: Open) -> None:
    runner, samples = opened(runtime="broken")
    with pytest.raises(ContractError, match=r"'broken' .*profile\(\) gave dict"):
        find_placement(runner, None, samples)


def test_a_profile_that_cannot_be_read_is_a_reason_not_an_error(opened: Open) -> None:
    runner, samples = opened(runtime="talkative")
    words = find_placement(runner, None, samples)
    assert words == "the profile is too long"


def test_an_optimizer_that_dies_leaves_its_end_as_the_reason(opened: Open) -> None:
    runner, samples = opened(optimizer="dying")
    for words in (
        find_placement(runner, runner.case.passes.pipeline, samples),
        take_inventory(runner, runner.case.passes.pipeline, samples[0]),
    ):
        assert isinstance(words, str)
        assert "SIGABRT" in words


def test_no_file_of_a_profile_is_left(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    runner, samples = opened()
    placed(find_placement(runner, None, samples))
    assert list(folder.glob("optvet-profile-*")) == []


def test_shapes_of_a_sample_stand_for_open_dimensions(opened: Open) -> None:
    runner, samples = opened()
    (rows, _) = samples[0].feeds["x"].shape
    before = counted(take_inventory(runner, None, samples[0]))
    assert (before.nodes, before.unused_initializers, before.flops_unknown) == (4, 1, {})
    assert before.flops == 2 * rows * 3 * 2 + 2 * rows * 2
    assert counted(take_inventory(runner, None)).flops_unknown != {}
    after = counted(take_inventory(runner, runner.case.passes.pipeline, samples[0]))
    assert after.operators == {"MatMul": 1, "Add": 1, "Relu": 1}
    assert after.unused_initializers == 0


def test_an_optimizer_that_hides_its_graph_is_asked_to_save_it(opened: Open) -> None:
    runner, samples = opened(optimizer="onnxruntime", pipeline="extended")
    found = counted(take_inventory(runner, runner.case.passes.pipeline, samples[0]))
    assert found.operators == {"com.microsoft::FusedGemm": 1}
    assert found.flops_unknown == {"com.microsoft::FusedGemm": 1}


def test_what_takes_longest_comes_first() -> None:
    nodes = (
        NodeTime("a", "Conv", "x", 1, 2.0),
        NodeTime("b", "Relu", "x", 1, 2.5),
        NodeTime("c", "Conv", "y", 2, 1.5),
    )
    found = placement_of(Profile("x", 4, nodes))
    assert [(o.operator, o.nodes, o.seconds) for o in found.operators] == [
        ("Conv", 2, 3.5),
        ("Relu", 1, 2.5),
    ]
    assert [n.name for n in found.slowest] == ["b", "a", "c"]
    assert (found.seconds, found.elsewhere[0].calls, found.runs) == (6.0, 2, 4)


def test_a_model_without_nodes_has_a_placement() -> None:
    found = placement_of(Profile("x", 1, ()))
    assert (found.nodes, found.seconds, found.operators) == (0, 0, [])
