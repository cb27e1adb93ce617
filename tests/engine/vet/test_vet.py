import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.answers import detail
from tests.engine.work.faults import nothing, segfault
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.numerics.inject import INJECTIONS
from optvet.engine.vet.find.blame import SHORT_WAITS_S
from optvet.engine.vet.run import vet_model
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.sandbox import Limits, Sandbox, enter
from optvet.engine.work.sandbox.remote import PATIENCE
from optvet.engine.work.trials.building import BuildSpec
from optvet.engine.work.trials.noise_floor import JITTERS, SEEDS
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.errors import (
    InfrastructureError,
    InputError,
    NothingTested,
    UnknownName,
    UsageError,
)
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Traits
from optvet.testing import FILLERS, Planted, PlantedOptions
from optvet_onnxoptimizer import OnnxOptimizer

PRELOAD = (*TRIALS, __name__)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


Vet = Callable[..., VetResult]
elapsed: list[float] = []
"""Seconds of the vets that had limits of their own."""


@pytest.fixture
def vet(tmp_path: Path, sandbox: Sandbox) -> Vet:
    """Vets a model, given as text, with a planted optimizer, in real worker processes."""

    def run(text: str, optimizer: Any, limits: Limits | None = None, **settings: Any) -> VetResult:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        if limits is None:
            return vet_path(path, tmp_path, optimizer, sandbox, **settings)
        settings["timeout"] = limits.timeout_s
        with Sandbox(jobs=2, limits=limits, preload=PRELOAD) as own:
            own.call(nothing)  # the server is up before anybody looks at the clock
            started = time.monotonic()
            result = vet_path(path, tmp_path, optimizer, own, **settings)
            elapsed.append(time.monotonic() - started)
            return result

    return run


def vet_path(
    path: Path, root: Path, optimizer: Any, sandbox: Sandbox, **settings: Any
) -> VetResult:
    plugins = Plugins()
    if optimizer.name not in plugins.names("optimizer"):
        plugins.register("optimizer", optimizer)
    chosen = {"limit": 3, "optimizer": optimizer.name, "cache_dir": root / "cache"} | settings
    model = open_model(path, str(path), root / "cache")
    return vet_model(model, VetRequest(model="model", **chosen), plugins, sandbox=sandbox)


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).normal(size=shape).ravel()
    return "{" + ", ".join(f"{v:.4f}" for v in values) + "}"


NET = f"""
<ir_version: 8, opset_import: ["" : 17], metadata_props: ["author": "someone"]>
net (float[4,8] x) => (float[4,3] y, float[4,5] hidden)
<float[8,5] w = {numbers(8, 5)}, float[5,3] v = {numbers(5, 3, seed=1)}>
{{
    h = MatMul(x, w)
    hidden = Relu(h)
    y = MatMul(hidden, v)
}}
"""


def among_fillers(*names: str, count: int = 10) -> tuple[str, ...]:
    """A pipeline of ``count`` passes with ``names`` spread over it, in this order."""
    fillers = list(FILLERS[: count - len(names)])
    step = len(fillers) // (len(names) + 1)
    for i, name in reversed(list(enumerate(names, 1))):
        fillers.insert(i * step, name)
    return tuple(fillers)


def planted(*names: str, count: int = 10, **more: Any) -> Planted:
    pipeline = among_fillers(*names, count=count)
    return Planted(default=pipeline, **{"offered": pipeline} | more)


def faults(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.severity == "fault"]


def culprits(result: VetResult) -> list[list[str]]:
    return [f.culprit for f in faults(result)]


# Every symptom


@pytest.mark.parametrize(
    ("name", "symptom", "stage", "words"),
    [
        ("drop_relu", "wrong-output", "compare", "output 'y'"),
        ("gelu_for_relu", "wrong-output", "compare", "differs by"),
        ("scale_weight", "wrong-output", "compare", "(its own noise: "),
        ("random_flaky", "wrong-output", "compare", "differs by"),
        ("raise_error", "optimizer-error", "build", "ValueError: planted: no rule for this model"),
        ("abort", "optimizer-abort", "build", "SIGABRT: planted: assertion failed"),
        ("segfault", "optimizer-abort", "build", "SIGSEGV"),
        ("kill_self", "optimizer-abort", "build", "killed by SIGKILL"),
        pytest.param(
            *("kill_parent", "optimizer-abort", "build", "ended the process that started its own"),
            marks=pytest.mark.long,
        ),
        ("invalid_model", "invalid-model", "check", "nowhere"),
        ("foreign_operator", "load-failure", "load", "Planted"),
        ("index_out_of_range", "run-failure", "run", "out of"),
        ("rename_outputs", "interface-change", "check", "'renamed_y', 'renamed_hidden'"),
        ("reorder_outputs", "interface-change", "check", "became ['hidden', 'y']"),
    ],
)
def test_a_symptom_has_its_stage_its_culprit_and_a_confirmation(
    vet: Vet, name: str, symptom: str, stage: str, words: str
) -> None:
    result = vet(NET, planted(name))
    (finding,) = faults(result)
    assert (finding.symptom, finding.stage, finding.culprit) == (symptom, stage, [name])
    assert words in finding.message
    assert finding.confirmed
    assert finding.witness is not None
    assert finding.witness.dataset == "random"
    assert finding.witness.sample.startswith("random-")
    assert result.verdict == "faulty"
    assert result.safe_pipeline == [n for n in result.optimizer.pipeline if n != name]
    assert detail(result, "empty pipeline") == "shows no fault"


def test_the_size_of_a_wrong_output_is_told_with_its_noise(vet: Vet) -> None:
    optimizer = planted("scale_weight", options=PlantedOptions(factor=1.5))
    (finding,) = faults(vet(NET, optimizer))
    assert finding.outputs == ["y", "hidden"]
    assert finding.error == pytest.approx(0.5, rel=1e-3)
    assert finding.noise_floor is not None
    assert 0 < finding.noise_floor < 1e-5


def test_a_hang_is_a_timeout_and_takes_no_longer_than_it_must(vet: Vet) -> None:
    # Four sequences hang: the first look, a prefix, the culprit alone, and its replay.
    result = vet(NET, planted("hang", count=4), Limits(0.7, 1 << 30))
    assert elapsed[-1] < 4 * 0.7 + 10
    (finding,) = faults(result)
    assert (finding.symptom, finding.stage, finding.culprit) == ("timeout", "build", ["hang"])
    assert finding.confirmed


def test_a_hang_in_the_runtime_is_a_timeout_of_its_stage(vet: Vet) -> None:
    result = vet(NET, planted("spin_at_run", count=3), Limits(0.5, 1 << 30))
    (finding,) = faults(result)
    assert (finding.symptom, finding.stage) == ("timeout", "run")
    assert finding.culprit == ["spin_at_run"]
    assert finding.confirmed
    assert finding.witness is not None


def test_a_hang_hides_no_other_fault(vet: Vet) -> None:
    optimizer = planted("hang", "spin_at_run", "drop_relu", count=5)
    result = vet(NET, optimizer, Limits(0.7, 1 << 30), limit=1)
    assert culprits(result) == [["hang"], ["spin_at_run"], ["drop_relu"]]
    assert result.safe_pipeline == ["keep_00", "keep_01"]


@pytest.mark.long
def test_one_hang_too_many_ends_the_search(vet: Vet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optvet.engine.vet.ledger.HANGS", 1)
    limit_s = 3.0
    optimizer = planted("hang", "spin_at_run", count=6)
    result = vet(NET, optimizer, Limits(limit_s, 1 << 30), limit=1)
    assert elapsed[-1] < 5 * limit_s + SHORT_WAITS_S
    (finding,) = faults(result)
    assert (finding.culprit, finding.confirmed, result.verdict) == (["hang"], True, "faulty")
    assert result.safe_pipeline == []
    (words,) = [c.detail for c in result.controls if c.name == "time limit"]
    assert words == (
        "beside 1 that were found, something else reaches the time limit; it was not searched"
    )


def test_a_study_goes_on_behind_passes_that_hang(vet: Vet) -> None:
    optimizer = Planted(offered=("identity", "hang", "spin_at_run", "drop_relu"))
    settings = {"pipeline": "identity", "strategy": "each", "limit": 1}
    result = vet(NET, optimizer, Limits(1.0, 1 << 30), **settings)
    assert culprits(result) == [["hang"], ["spin_at_run"], ["drop_relu"]]
    assert [p.effect for p in result.passes_alone] == ["none", "failed", "failed", "failed"]


def test_a_study_that_ended_early_does_not_claim_to_know_all_that_changed(
    vet: Vet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optvet.engine.vet.ledger.HANGS", 1)
    optimizer = Planted(offered=("identity", "hang", "spin_at_run", "benign_reassociate"))
    settings = {"pipeline": "identity,benign_reassociate", "strategy": "each", "limit": 1}
    result = vet(NET, optimizer, Limits(1.0, 1 << 30), **settings)
    assert detail(result, "every pass alone").startswith("stopped after 2 of 4")
    assert [p.name for p in result.passes_alone] == ["identity", "hang"]
    assert result.changing_passes is None


@pytest.mark.long
def test_an_original_that_hangs_is_waited_for_twice(tmp_path: Path) -> None:
    limit_s = 1.0
    spin = planted("spin_at_run", count=2)
    model = onnx.parser.parse_model(NET).SerializeToString()
    path = tmp_path / "endless.onnx"
    path.write_bytes(spin.apply(Artifact("onnx", model), ("spin_at_run",), PlantedOptions()).data)
    with Sandbox(jobs=2, limits=Limits(limit_s, 1 << 30), preload=PRELOAD) as own:
        own.call(nothing)
        started = time.monotonic()
        with pytest.raises(NothingTested, match="does not end within 1 s, twice; give it more"):
            vet_path(path, tmp_path, planted(count=2), own, limit=20, timeout=limit_s)
    # Time without a core is not counted.
    assert time.monotonic() - started < 2 * limit_s * (1 + PATIENCE) + 10


def test_a_death_in_the_check_of_the_original_does_not_weaken_the_checker(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    with Sandbox(
        jobs=1,
        limits=Limits(60, 1 << 30),
        preload=("numpy", "onnx", "optvet.engine.work.trials.preload", __name__),
    ) as own:
        optimizer = planted(count=2)
        dying = Dying(own, times=1)
        result = vet_path(path, tmp_path, optimizer, dying)  # type: ignore[arg-type]
        assert result.verdict == "clean"
        assert "checker" not in {c.name for c in result.controls}
        with pytest.raises(
            InfrastructureError, match=r"onnx.checker did not end .* twice: SIGSEGV"
        ):
            vet_path(path, tmp_path / "other", optimizer, Dying(own, times=2))  # type: ignore[arg-type]
        # And what died is asked again, not remembered.
        assert vet_path(path, tmp_path / "other", optimizer, own).verdict == "clean"


class Dying:
    """A sandbox in which the first ``times`` checks of the original die."""

    def __init__(self, sandbox: Sandbox, times: int) -> None:
        self.sandbox, self.times = sandbox, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sandbox, name)

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Any:
        original = args and isinstance(args[0], BuildSpec) and args[0].optimizer is None
        if original and function.__name__ == "_build_then" and self.times:
            self.times -= 1
            return self.sandbox.submit(die_checking, **options)
        return self.sandbox.submit(function, *args, **options)


def die_checking() -> None:
    enter("check")
    segfault()


def test_a_memory_hog_is_out_of_memory(vet: Vet) -> None:
    result = vet(NET, planted("eat_memory", count=4), Limits(30.0, 256 << 20))
    (finding,) = faults(result)
    assert (finding.symptom, finding.stage) == ("out-of-memory", "build")
    assert finding.culprit == ["eat_memory"]
    assert finding.confirmed


# Nothing wrong


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.00001, "undecided"), pytest.param(1.5, "faulty", marks=pytest.mark.long)],
)
def test_a_small_difference_is_undecided_where_float64_does_not_fit(
    vet: Vet, factor: float, verdict: str
) -> None:
    # One array of it takes 128 MB in float32 and 256 MB in float64.
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    wide (float[4,8] x) => (float[4,5] y, float z)
    <float[8,5] w = {numbers(8, 5)}, int64[2] shape = {{8192, 4096}}>
    {{
        y = MatMul(x, w)
        top = ReduceMax<keepdims: int = 1>(x)
        many = Expand(top, shape)
        z = ReduceMean<keepdims: int = 0>(many)
    }}
    """
    optimizer = planted("scale_weight", count=1, options=PlantedOptions(factor=factor))
    result = vet(text, optimizer, Limits(60, 225 << 20), limit=2)
    assert result.verdict == verdict, result.reason
    if verdict == "undecided":
        assert faults(result) == []
        assert "y (the evaluation in float64 gave no answer: " in result.reason


def floored(vet: Vet, folder: Path) -> VetResult:
    """Rows that sum to about 1, rounded down: 0.99999994 or 1 by the order of the sum."""
    rng = np.random.default_rng(3)
    rows = rng.uniform(0.1, 1, size=(300, 16)).astype(np.float32)
    rows /= rows.sum(axis=1, keepdims=True)
    ones = "{" + ", ".join(["1"] * 16) + "}"
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    steps (float[300,16] x) => (float[300,1] y) <float[16,1] w = {ones}>
    {{ s = MatMul(x, w)  y = Floor(s) }}
    """
    return vet(text, planted("benign_reassociate"), dataset=(files(folder, x=rows),))


def test_a_sensitive_output_costs_few_inferences(vet: Vet, tmp_path: Path) -> None:
    # What is explained by the first draws needs no more of them: 23 would be made for a fault.
    result = floored(vet, tmp_path)
    assert [f.symptom for f in result.findings] == ["sensitivity"]
    assert result.cost.by_purpose["noise"].inferences <= 14


def test_a_harmless_pipeline_is_clean_and_all_of_it_is_safe(vet: Vet) -> None:
    result = vet(NET, planted())
    assert (result.verdict, result.findings, result.reason) == ("clean", [], "")
    assert result.safe_pipeline == result.optimizer.pipeline
    assert {o.name: o.verdict for o in result.outputs} == {"y": "same", "hidden": "same"}
    assert result.samples == 3


def test_re_ordered_sums_are_drift_and_nobody_is_blamed(vet: Vet) -> None:
    result = vet(NET, planted("benign_reassociate"), limit=8)
    assert (result.verdict, faults(result)) == ("drift", [])
    assert "benign_reassociate" in result.safe_pipeline
    assert {o.verdict for o in result.outputs} == {"drift"}


def test_a_benign_pass_next_to_a_faulty_one_is_not_blamed(vet: Vet) -> None:
    result = vet(NET, planted("benign_reassociate", "drop_relu"))
    assert culprits(result) == [["drop_relu"]]
    assert "benign_reassociate" in result.safe_pipeline


def test_lost_metadata_is_a_note_with_its_culprit(vet: Vet) -> None:
    result = vet(NET, planted("drop_metadata"))
    (note,) = result.findings
    assert (note.symptom, note.severity) == ("metadata-change", "note")
    assert note.culprit == ["drop_metadata"]
    assert note.message == "metadata_props: author=someone became none"
    assert result.verdict == "clean"


def test_a_declared_rename_is_mapped_and_no_finding(vet: Vet) -> None:
    result = vet(NET, planted("rename_declared"))
    assert (result.verdict, result.findings) == ("clean", [])


def test_a_fault_behind_a_declared_rename_is_found_all_the_same(vet: Vet) -> None:
    result = vet(NET, planted("rename_declared", "drop_relu"))
    assert culprits(result) == [["drop_relu"]]
    assert result.findings[0].outputs == ["y", "hidden"]


def test_a_lossy_pass_within_its_declared_tolerance_is_drift(vet: Vet) -> None:
    result = vet(NET, planted("round_weights"))
    assert (result.verdict, faults(result)) == ("drift", [])


def test_a_fault_beyond_the_tolerance_of_a_lossy_pass_is_found(vet: Vet) -> None:
    optimizer = planted("round_weights", "scale_weight", options=PlantedOptions(factor=1.2))
    result = vet(NET, optimizer)
    assert culprits(result) == [["scale_weight"]]


LABELS = f"""
<ir_version: 8, opset_import: ["" : 17]>
labels (float[64,8] x) => (int64[64] label)
<float[8,5] w = {numbers(8, 5)}, float[5,3] v = {numbers(5, 3, seed=1)}>
{{
    h = MatMul(x, w)
    hidden = Relu(h)
    scores = MatMul(hidden, v)
    label = ArgMax<axis: int = 1, keepdims: int = 0>(scores)
}}
"""


def test_a_loss_excuses_no_more_labels_than_it_turns_in_the_original(vet: Vet) -> None:
    assert faults(vet(LABELS, planted("round_weights"))) == []
    result = vet(LABELS, planted("round_weights", "drop_relu"))
    assert culprits(result) == [["drop_relu"]]


# Several culprits


def test_two_independent_culprits_are_both_found(vet: Vet) -> None:
    result = vet(NET, planted("drop_relu", "scale_weight"))
    assert sorted(culprits(result)) == [["drop_relu"], ["scale_weight"]]
    assert all(f.confirmed for f in result.findings)
    assert set(result.safe_pipeline) == set(FILLERS[:8])


def test_an_output_that_is_wrong_in_a_later_round_is_a_fault(vet: Vet) -> None:
    result = vet(NET, planted("abort", "scale_weight"))
    assert {f.symptom for f in result.findings} == {"optimizer-abort", "wrong-output"}
    wrong = {n for f in result.findings for n in f.outputs}
    assert wrong
    assert {o.name for o in result.outputs if o.verdict == "fault"} == wrong


def test_culprits_of_different_symptoms_are_all_found(vet: Vet) -> None:
    result = vet(NET, planted("scale_weight", "reorder_outputs", "abort", "raise_error", count=20))
    assert sorted((f.symptom.value, f.culprit[0]) for f in faults(result)) == [
        ("interface-change", "reorder_outputs"),
        ("optimizer-abort", "abort"),
        ("optimizer-error", "raise_error"),
        ("wrong-output", "scale_weight"),
    ]


def test_a_pair_is_the_culprit_where_neither_is_alone(vet: Vet) -> None:
    result = vet(NET, planted("mark", "exploit", count=30))
    assert culprits(result) == [["mark", "exploit"]]
    assert "exploit" not in result.safe_pipeline
    assert result.cost.by_purpose["localize"].applications <= 40


def test_a_pair_in_the_other_order_is_innocent(vet: Vet) -> None:
    result = vet(NET, planted("exploit", "mark"))
    assert (result.verdict, result.findings) == ("clean", [])


def test_a_triple_is_found_in_order(vet: Vet) -> None:
    result = vet(NET, planted("mark", "mark_again", "exploit_twice", count=20))
    assert culprits(result) == [["mark", "mark_again", "exploit_twice"]]


def test_a_fault_that_a_later_pass_heals_is_no_finding(vet: Vet) -> None:
    result = vet(NET, planted("drop_relu", "heal"))
    assert (result.verdict, faults(result)) == ("clean", [])
    assert result.safe_pipeline == result.optimizer.pipeline


def test_each_finds_a_culprit_that_is_healed_in_the_pipeline(vet: Vet) -> None:
    result = vet(NET, planted("drop_relu", "heal"), strategy="each", pairs=False)
    assert culprits(result) == [["drop_relu"]]


@pytest.mark.parametrize(
    ("passes", "spared"),
    [
        (("identity", "lower"), 24),  # All together are the pipeline.
        (("mark", "drop_relu"), 17),
        # Far from each other: little more than one by one.
        (("scale_weight", "forget_shapes", "round_weights"), -1),
        (("raise_error", "invalid_model"), 0),
    ],
)
def test_passes_that_never_restore_are_tried_together(
    vet: Vet, tmp_path: Path, passes: tuple[str, ...], spared: int
) -> None:
    asked = {"strategy": "each", "pairs": False, "limit": 2, "pipeline": "all"}
    one_way = Traits(repeatable=True, one_way=True)
    one_by_one = vet(NET, planted(*passes, count=24), **asked)
    other = tmp_path / "other"
    together = vet(NET, planted(*passes, count=24, traits=one_way), cache_dir=other, **asked)
    assert together.passes_alone == one_by_one.passes_alone
    assert culprits(together) == culprits(one_by_one)
    assert {p.name for p in together.passes_alone if p.effect != "none"} <= set(passes)
    assert one_by_one.cost.applications - together.cost.applications >= spared


@pytest.mark.parametrize("guessed", [0, 3, 24], ids=["none", "wrong", "all"])
def test_records_of_passes_do_not_depend_on_the_guess(
    vet: Vet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guessed: int
) -> None:
    """As if the model without its weights were changed by other passes than the model is."""
    passes = ("round_weights", "drop_relu", "scale_weight")
    asked = {"strategy": "each", "pairs": False, "limit": 2, "pipeline": "all"}
    one_by_one = vet(NET, planted(*passes, count=24), **asked, cache_dir=tmp_path / "other")
    monkeypatch.setattr(
        TrialRunner, "guess_changing", lambda _, names: frozenset(names[len(names) - guessed :])
    )
    one_way = Traits(repeatable=True, one_way=True)
    guided = vet(NET, planted(*passes, count=24, traits=one_way), **asked)
    assert guided.passes_alone == one_by_one.passes_alone
    assert {p.name for p in guided.passes_alone if p.effect != "none"} == set(passes)


def test_a_pass_may_be_listed_twice(vet: Vet) -> None:
    result = vet(NET, Planted(), pipeline="keep_01,drop_relu,keep_02,drop_relu")
    assert {tuple(c) for c in culprits(result)} == {("drop_relu",)}
    assert "drop_relu" not in result.safe_pipeline


# The round trip


@pytest.mark.parametrize(
    ("fault", "symptom", "safe"),
    [
        ("drop_relu", "wrong-output", list(among_fillers("identity"))),
        ("raise_error", "optimizer-error", []),
        ("abort", "optimizer-abort", []),
        ("reorder_outputs", "interface-change", list(among_fillers("identity"))),
    ],
)
def test_what_the_empty_pipeline_shows_is_blamed_on_the_round_trip(
    vet: Vet, fault: str, symptom: str, safe: list[str]
) -> None:
    result = vet(NET, planted("identity", round_trip=(fault,)))
    (finding,) = faults(result)
    assert (finding.symptom, finding.culprit, finding.confirmed) == (symptom, [], True)
    assert detail(result, "empty pipeline") == f"shows {symptom}; {finding.set_aside}"
    judged = ("a copy was judged", "passes were compared with what it makes of")
    assert finding.set_aside.startswith(judged if safe else "nothing else was judged")
    assert result.safe_pipeline == safe


TWO_PARTS = f"""
<ir_version: 8, opset_import: ["" : 17]>
parts (float[4,8] x) => (float[4,8] rectified, float[4,5] product)
<float[8,5] w = {numbers(8, 5)}>
{{
    rectified = Relu(x)
    product = MatMul(x, w)
}}
"""


def test_a_pass_is_still_blamed_for_what_the_round_trip_leaves_alone(vet: Vet) -> None:
    result = vet(TWO_PARTS, planted("scale_weight", round_trip=("drop_relu",)))
    assert sorted((f.culprit, f.outputs) for f in faults(result)) == [
        ([], ["rectified"]),
        (["scale_weight"], ["product"]),
    ]


def test_a_malformed_round_trip_does_not_hide_what_passes_do_behind_it(vet: Vet) -> None:
    result = vet(NET, planted("drop_relu", round_trip=("forget_shapes",)))
    assert [(f.symptom, f.culprit, f.confirmed) for f in faults(result)] == [
        ("invalid-model", [], True),
        ("wrong-output", ["drop_relu"], True),
    ]
    assert result.safe_pipeline == [n for n in result.optimizer.pipeline if n != "drop_relu"]


SEQUENCE = f"""
<ir_version: 8, opset_import: ["" : 17]>
pair (float[4,8] x) => (float[4,5] product, seq(float[4,8]) parts)
<float[8,5] w = {numbers(8, 5)}>
{{
    rectified = Relu(x)
    product = MatMul(rectified, w)
    parts = SequenceConstruct(rectified)
}}
"""


def test_a_type_that_the_round_trip_loses_is_given_back_and_passes_are_judged(vet: Vet) -> None:
    result = vet(SEQUENCE, planted("drop_relu", "scale_weight", round_trip=("lose_type",)))
    lost, *others = faults(result)
    assert (lost.symptom, lost.culprit, lost.confirmed) == ("invalid-model", [], True)
    assert lost.set_aside == "a copy was judged that has the type of output 'parts'"
    assert sorted((f.symptom, f.culprit) for f in others) == [
        ("wrong-output", ["drop_relu"]),
        ("wrong-output", ["scale_weight"]),
    ]
    assert all(f.confirmed and f.divergence is not None for f in others)
    left = {"drop_relu", "scale_weight"}
    assert result.safe_pipeline == [n for n in result.optimizer.pipeline if n not in left]


def test_with_its_lost_type_given_back_a_right_optimizer_has_one_fault(vet: Vet) -> None:
    result = vet(SEQUENCE, planted("benign_reassociate", round_trip=("lose_type",)))
    assert [(f.symptom, f.culprit) for f in faults(result)] == [("invalid-model", [])]
    assert {o.verdict for o in result.outputs} <= {"same", "drift"}
    assert result.safe_pipeline == result.optimizer.pipeline


def test_a_malformed_round_trip_that_cannot_be_loaded_is_told_once(vet: Vet) -> None:
    result = vet(NET, planted("drop_relu", round_trip=("invalid_model",)))
    (fault,) = faults(result)
    assert (fault.symptom, fault.culprit) == ("invalid-model", [])
    assert (
        fault.set_aside == "nothing else was judged: with that ignored, it still shows load-failure"
    )


def test_what_strict_inference_alone_refuses_is_a_note_if_it_runs_and_is_right(vet: Vet) -> None:
    result = vet(NET, planted("misdeclare"))
    assert result.verdict == "clean"
    (note,) = [f for f in result.findings if f.symptom == "invalid-model"]
    assert (note.severity, note.culprit) == ("note", ["misdeclare"])
    assert note.message.startswith("strict shape inference fails, but the model runs: ")


def test_a_pass_may_be_malformed_in_its_own_way_beside_the_round_trip(vet: Vet) -> None:
    """The checker tells the first complaint only, so the other shows when that is mended."""
    result = vet(NET, planted("invalid_model", round_trip=("forget_shapes",)))
    assert [(f.symptom, f.culprit) for f in faults(result)] == [
        ("invalid-model", []),
        ("invalid-model", ["invalid_model"]),
    ]


def test_a_complaint_about_another_name_is_the_round_trips_own(vet: Vet) -> None:
    result = vet(NET, planted("rename_weight", round_trip=("unlist_weights",)))
    assert [(f.symptom, f.culprit) for f in faults(result)] == [("invalid-model", [])]


def test_under_each_what_all_inherit_from_the_round_trip_is_not_blamed_on_them(vet: Vet) -> None:
    result = vet(NET, planted("identity", round_trip=("drop_relu",)), strategy="each")
    assert culprits(result) == [[]]


# Other traits


def test_an_optimizer_with_an_order_of_its_own_is_searched_by_sets(vet: Vet) -> None:
    traits = Traits(ordered=False, composable=False)
    # Asked for in the wrong order, applied in the right one.
    optimizer = planted("exploit", "mark", traits=traits)
    result = vet(NET, optimizer)
    assert [sorted(c) for c in culprits(result)] == [["exploit", "mark"]]


def test_a_required_pass_is_in_every_trial_and_never_dropped(vet: Vet) -> None:
    optimizer = planted("drop_relu", "lower", required=("lower",))
    result = vet(NET, optimizer)
    assert culprits(result) == [["drop_relu"]]
    assert result.findings[0].confirmed
    assert "lower" in result.safe_pipeline
    assert detail(result, "empty pipeline") == "shows no fault"


def test_a_list_of_passes_gets_those_that_are_required(vet: Vet) -> None:
    optimizer = planted("drop_relu", "lower", required=("lower",))
    result = vet(NET, optimizer, pipeline="drop_relu")
    assert result.optimizer.pipeline == ["drop_relu", "lower"]
    assert culprits(result) == [["drop_relu"]]


@pytest.mark.parametrize("strategy", ["walk", "subset", "each"])
def test_every_strategy_finds_a_single_culprit(vet: Vet, strategy: str) -> None:
    result = vet(NET, planted("drop_relu"), strategy=strategy)
    assert culprits(result) == [["drop_relu"]]


def test_without_a_search_the_whole_pipeline_shows_the_fault(vet: Vet) -> None:
    optimizer = planted("drop_relu", "benign_reassociate")
    result = vet(NET, optimizer, strategy="none")
    (fault,) = faults(result)
    assert (fault.symptom, fault.confirmed, fault.localized) == ("wrong-output", True, False)
    assert fault.culprit == list(optimizer.default)
    assert fault.divergence is None
    assert fault.blamed() == "the whole pipeline (10 passes, culprits not searched)"
    assert result.safe_pipeline == []
    assert detail(result, "culprits") == "not searched: --strategy is none"
    # The pipeline, once more, and for the evaluator; and the empty one.
    assert result.cost.applications <= 4


@pytest.mark.parametrize(
    ("optimizer", "culprit"),
    [
        (planted("identity", round_trip=("drop_relu",)), []),
        (planted("drop_relu", count=1), ["drop_relu"]),
    ],
)
def test_without_a_search_what_needs_none_is_blamed(
    vet: Vet, optimizer: Planted, culprit: list[str]
) -> None:
    result = vet(NET, optimizer, strategy="none")
    assert culprits(result) == [culprit]
    assert all(f.localized for f in result.findings)


def test_each_tells_what_every_pass_did(vet: Vet) -> None:
    offered = ("identity", "benign_reassociate", "drop_relu", "raise_error")
    result = vet(NET, Planted(offered=offered), strategy="each", pairs=False)
    assert [(r.name, r.effect, r.symptom) for r in result.passes] == [
        ("identity", "none", None),
        ("benign_reassociate", "changed", None),
        ("drop_relu", "failed", "wrong-output"),
        ("raise_error", "failed", "optimizer-error"),
    ]


def test_every_pass_of_the_pipeline_has_a_record_without_each(vet: Vet) -> None:
    passes = ("identity", "benign_reassociate", "drop_relu")
    result = vet(NET, Planted(default=passes, offered=passes))
    assert [(r.name, r.effect, r.evidence, r.symptom) for r in result.passes] == [
        ("identity", "not-measured", "none", None),
        ("benign_reassociate", "not-measured", "none", None),
        ("drop_relu", "failed", "culprit", "wrong-output"),
    ]
    assert result.passes_alone == []


def test_a_pass_is_not_at_fault_for_a_pipeline_that_was_not_searched(vet: Vet) -> None:
    passes = ("identity", "drop_relu")
    result = vet(NET, Planted(default=passes, offered=passes), strategy="none")
    assert {r.effect for r in result.passes} == {"not-measured"}


class Logging(Planted):
    """Logs that one pass changed the model."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        artifact: Artifact = super().apply(source, passes, options)
        return replace(artifact, changing_passes=("benign_reassociate",))


def test_the_log_of_an_optimizer_says_what_passes_did(vet: Vet) -> None:
    passes = ("identity", "benign_reassociate")
    result = vet(NET, Logging(default=passes, offered=passes))
    assert [(r.name, r.effect, r.evidence) for r in result.passes] == [
        ("identity", "none", "log"),
        ("benign_reassociate", "changed", "log"),
    ]


class OnLoad(Planted):
    """Reports of one pass that it changes a model."""

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: object
    ) -> Sequence[str]:
        return [name for name in passes if name == "heal"]


@pytest.mark.parametrize(("kind", "effect"), [(Planted, "unknown"), (OnLoad, "changed")])
def test_a_change_that_nobody_saw_is_not_claimed(
    vet: Vet, kind: type[Planted], effect: str
) -> None:
    # Relu of a Relu: the graph becomes another one, and its outputs do not.
    net = NET.replace("y = MatMul(hidden", "same = Identity(hidden)  y = MatMul(same")
    offered = ("identity", "heal", "scale_weight")
    optimizer = kind(offered=offered, traits=Traits(optimizes_on_load=True))
    result = vet(net, optimizer, strategy="each", pairs=False)
    assert [r.effect for r in result.passes] == ["none", effect, "failed"]


# Undecided


def test_a_fault_that_does_not_show_again_is_undecided(vet: Vet, tmp_path: Path) -> None:
    options = PlantedOptions(state=str(tmp_path / "struck"))
    result = vet(NET, planted("break_once", count=1, options=options))
    assert result.verdict == "undecided"
    assert "not again in a fresh process" in result.reason
    assert list(result.findings) == []


def test_a_model_that_gives_nan_everywhere_is_undecided(vet: Vet) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    nan (float[4] x) => (float[4] y) <float zero = {0}>
    { n = Mul(x, zero)  y = Div(n, zero) }
    """
    result = vet(text, planted())
    assert (result.verdict, result.findings) == ("undecided", [])
    assert result.reason == "every float output of the reference is NaN on every sample"


RANDOM = """
<ir_version: 8, opset_import: ["" : 17]>
noisy (float[64] x) => (float[64] y, float[64] z)
{
    noise = RandomNormalLike(x)
    r = Relu(x)
    y = Add(r, noise)
    z = Abs(x)
}
"""


def test_noise_is_measured_on_each_sample_that_differs_once_for_all_outputs(vet: Vet) -> None:
    # Both outputs magnify a rounding beyond what the graph alone explains, on every sample.
    net = f"""<ir_version: 8, opset_import: ["" : 13]>
    g (float[8,16] x) => (float[8,16] a, float[8,16] b)
    <float[16,16] w = {numbers(16, 16)}, float less = {{0.25}}>
    {{
        m = MatMul(x, w)  h = Mul(m, less)  s = Mul(h, h)  t = Exp(s)  a = Sin(t)
        q = Mul(s, h)  r = Exp(q)  b = Cos(r)
    }}"""
    slightly = {"factor": 1 + 1.2e-7}
    result = vet(net, planted("scale_weight"), limit=8, optimizer_options=slightly)
    assert {o.verdict for o in result.outputs} <= {"drift", "sensitivity"}
    each = JITTERS + len(SEEDS) + INJECTIONS + 1
    assert 8 * JITTERS <= result.cost.by_purpose["noise"].inferences <= 8 * each


def test_a_random_model_with_a_harmless_pipeline_is_not_faulty(vet: Vet) -> None:
    result = vet(RANDOM, planted())
    assert result.verdict in ("clean", "drift")
    assert faults(result) == []


DROPOUT = """
<ir_version: 8, opset_import: ["" : 17]>
training (float[2,4] x) => (float[2,4] y) <float ratio = {0.5}, bool train = {1}>
{
    y = Dropout(x, ratio, train)
}
"""


@pytest.mark.parametrize("optimizer", ["onnxoptimizer", "onnxruntime"])
@pytest.mark.parametrize("data", [None, "ones"])
def test_dropout_in_training_is_no_fault_of_the_round_trip(
    vet: Vet, tmp_path: Path, optimizer: str, data: str | None
) -> None:
    given = (files(tmp_path, x=np.ones((2, 4), np.float32)),) if data else ()
    result = vet(DROPOUT, Plugins().optimizer(optimizer), dataset=given)
    assert (faults(result), result.reason) == ([], "")
    # Both models make the same of the same draws.
    assert [(o.name, o.verdict) for o in result.outputs] == [("y", "same")]
    assert result.verdict == "clean"


def test_one_draw_of_a_random_output_is_not_compared_with_another(vet: Vet) -> None:
    both = DROPOUT.replace("=> (float[2,4] y)", "=> (float[2,4] y, float[2,4] z)")
    result = vet(both.replace("{\n    y", "{\n    z = Neg(x)\n    y"), planted())
    assert result.impact is not None
    assert (result.impact.changed, list(result.impact.details[0].detail["outputs"])) == (0, ["z"])
    assert {tuple(t.outputs) for t in result.fixed_tolerances} == {("z",)}
    words = "not compared, since two runs of the original may differ: y"
    assert detail(result, "comparator") == words
    alone = vet(DROPOUT, planted())
    assert (alone.verdict, alone.impact, alone.fixed_tolerances) == ("clean", None, [])


def test_a_random_output_whose_distribution_changes_is_a_fault(vet: Vet) -> None:
    result = vet(RANDOM, planted("drop_relu"))
    assert culprits(result) == [["drop_relu"]]
    assert result.findings[0].outputs == ["y"]
    assert result.findings[0].message.startswith("random output 'y': its ")
    assert "y" in detail(result, "reference against itself")


# Sensitivity


def files(path: Path, **arrays: np.ndarray) -> str:
    given: dict[str, Any] = arrays
    np.savez(path / "inputs.npz", **given)
    return f"files:{path / 'inputs.npz'}"


def test_a_label_that_flips_in_a_near_tie_is_a_note_on_the_model(vet: Vet, tmp_path: Path) -> None:
    # Two columns of equal weights: which of the equal sums is larger is up to the rounding.
    column = np.random.default_rng(0).normal(size=64).astype(np.float32)
    weights = np.stack([column, column[::-1]], axis=1)
    flat = "{" + ", ".join(f"{v:.9g}" for v in weights.ravel()) + "}"
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    tie (float[200,64] x) => (int64[200] label) <float[64,2] w = {flat}>
    {{ s = MatMul(x, w)  label = ArgMax <axis: int = 1, keepdims: int = 0> (s) }}
    """
    half = np.random.default_rng(1).normal(size=(200, 32)).astype(np.float32)
    data = files(tmp_path, x=np.concatenate([half, half[:, ::-1]], axis=1))
    result = vet(text, planted("benign_reassociate"), dataset=(data,))
    assert faults(result) == []
    assert result.verdict == "drift"
    (note,) = result.findings
    assert (note.symptom, note.severity) == ("sensitivity", "note")
    assert note.culprit == ["benign_reassociate"]
    assert "as they do under jitter" in note.message


def test_a_floor_at_an_integer_is_sensitivity(vet: Vet, tmp_path: Path) -> None:
    result = floored(vet, tmp_path)
    assert faults(result) == []
    assert [f.symptom for f in result.findings] == ["sensitivity"]


def test_an_infinity_that_becomes_a_wrong_number_is_a_fault(vet: Vet) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    poles (float[64] x) => (float[64] y)
    { r = Relu(x)  y = Reciprocal(r) }
    """
    result = vet(text, planted("drop_relu"), limit=8)
    assert culprits(result) == [["drop_relu"]]


def test_labels_that_change_outright_are_a_fault(vet: Vet) -> None:
    text = NET.replace("float[4,3] y, float[4,5] hidden", "int64[4,1] label").replace(
        "y = MatMul(hidden, v)", "y = MatMul(hidden, v)  label = ArgMax <axis: int = 1> (y)"
    )
    result = vet(text, planted("drop_relu"), limit=8)
    assert culprits(result) == [["drop_relu"]]


# The safe pipeline, cache and cost


def test_the_safe_pipeline_is_really_safe(vet: Vet) -> None:
    optimizer = planted("mark", "drop_relu", "exploit", "scale_weight", "abort", count=16)
    result = vet(NET, optimizer)
    assert result.verdict == "faulty"
    again = vet(NET, optimizer, pipeline=",".join(result.safe_pipeline))
    assert (again.verdict, again.findings) == ("clean", [])


@pytest.mark.parametrize("name", ["drop_relu", "benign_reassociate", "abort", "foreign_operator"])
def test_a_second_vet_runs_nothing(vet: Vet, name: str) -> None:
    optimizer = planted(name)
    first, second = vet(NET, optimizer), vet(NET, optimizer)
    costs = {"cost"}
    assert second.model_dump(exclude=costs) == first.model_dump(exclude=costs)
    assert first.cost.applications > 0
    assert (second.cost.applications, second.cost.inferences) == (0, 0)


def test_without_the_cache_everything_is_done_again(vet: Vet) -> None:
    first = vet(NET, planted("drop_relu"), cache=False)
    second = vet(NET, planted("drop_relu"), cache=False)
    assert second.cost.applications == first.cost.applications > 0


@pytest.mark.parametrize("position", [0, 13, 38])
def test_a_culprit_among_forty_passes_is_cheap(vet: Vet, position: int) -> None:
    pipeline = [*FILLERS[:38]]
    pipeline.insert(position, "drop_relu")
    result = vet(NET, Planted(default=tuple(pipeline)))
    assert culprits(result) == [["drop_relu"]]
    parts = result.cost.by_purpose
    beyond = sum(c.applications for p, c in parts.items() if p != "walk")
    assert beyond <= 10
    purposes = ("localize", "control", "confirm", "verify", "walk")
    assert sum(parts[p].inferences for p in purposes if p in parts) <= 8
    (search,) = result.cost.searches
    assert (search.symptom, search.among, search.found) == ("wrong-output", 39, 1)
    assert search.needed == 5.3  # log2 of 39
    assert 1 <= search.asked <= 1.5 * search.needed + 3


# What is asked for


def test_an_unknown_pass_suggests_the_nearest(vet: Vet) -> None:
    with pytest.raises(UnknownName, match=r"'drop_rellu'; did you mean 'drop_relu'"):
        vet(NET, Planted(), pipeline="keep_01,drop_rellu")


def test_a_pass_listed_twice_is_refused_where_it_cannot_be_repeated(vet: Vet) -> None:
    optimizer = Planted(traits=Traits(repeatable=False))
    with pytest.raises(UsageError, match="takes each pass once; 'mark' is listed twice"):
        vet(NET, optimizer, pipeline="mark,mark")


def test_an_unknown_option_of_the_optimizer_is_refused(vet: Vet) -> None:
    with pytest.raises(UnknownName, match="option of planted 'facto'; did you mean 'factor'"):
        vet(NET, planted(), optimizer_options={"facto": 2})
    with pytest.raises(UsageError, match="planted: option 'factor' = 'two': expected a"):
        vet(NET, planted(), optimizer_options={"factor": "two"})


def test_an_option_of_the_optimizer_reaches_it(vet: Vet) -> None:
    result = vet(NET, planted("scale_weight"), optimizer_options={"factor": 3})
    assert result.findings[0].error == pytest.approx(2, rel=1e-3)
    assert result.optimizer.options["factor"] == 3


def test_an_option_that_no_dataset_has_is_refused(vet: Vet) -> None:
    with pytest.raises(UnknownName, match="unknown option of dataset random 'nosuch'"):
        vet(NET, planted(count=2), dataset_options={"nosuch": 1})


def test_a_dataset_gets_only_the_options_that_it_has(vet: Vet, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((4, 8), np.float32))
    datasets = ("random", f"files:{tmp_path / 'x.npz'}")
    result = vet(
        NET, planted(count=2), dataset=datasets, dataset_options={"samples": 2}, limit=None
    )
    assert result.samples == 3


def test_names_of_other_runtimes_and_comparators_are_checked_before_the_work(vet: Vet) -> None:
    with pytest.raises(UnknownName, match="unknown runtime 'nosuch'"):
        vet(NET, planted(count=2), cross_check=("nosuch",))
    with pytest.raises(UnknownName, match="unknown comparator 'nosuch'"):
        vet(NET, planted(count=2), comparator="nosuch")


def test_a_cache_that_cannot_be_written_is_told(vet: Vet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Cache, *_: object) -> None:
        self.degraded = "no space left"

    monkeypatch.setattr(Cache, "put", refuse)
    assert detail(vet(NET, planted(count=2)), "cache") == "no space left"


def test_a_model_too_large_for_the_optimizer_is_refused(vet: Vet) -> None:
    with pytest.raises(InputError, match=r"the model has [\d,]+ bytes; planted takes at most 10"):
        vet(NET, planted(traits=Traits(max_model_bytes=10)))


def test_a_model_that_is_invalid_before_optimization_is_refused(vet: Vet) -> None:
    with pytest.raises(InputError, match="not a valid ONNX model"):
        vet(NET.replace("MatMul(x, w)", "MatMul(x, nothing)"), planted())


def test_a_model_that_runs_on_no_sample_tests_nothing(vet: Vet, tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    pick (int64[2] i) => (float[2] y) <float[3] table = {1, 2, 3}>
    { y = Gather(table, i) }
    """
    data = files(tmp_path, i=np.array([7, 8]))
    with pytest.raises(NothingTested, match="runs on none of the 1 samples"):
        vet(text, planted(), dataset=(data,))


# As deployed


def test_as_shipped_agrees_where_nothing_is_wrong(vet: Vet) -> None:
    result = vet(NET, planted())
    assert detail(result, "as shipped") == "agrees"
    assert result.verdict == "clean"


# The real thing


def transposing(names: Sequence[str]) -> str:
    return f"""
    <ir_version: 8, opset_import: ["" : 17]>
    transposing (float[{names[0]},{names[1]}] x) => (float[{names[1]},3] y)
    <float[{names[0]},3] w = {numbers(4, 3)}, float[3] b = {{1, 2, 3}}>
    {{ t = Transpose(x)  y = Gemm(t, w, b) }}
    """


def test_onnx_optimizer_dies_of_a_transpose_without_perm(vet: Vet) -> None:
    result = vet(transposing(("4", "5")), OnnxOptimizer())
    (finding,) = faults(result)
    assert finding.culprit == ["fuse_transpose_into_gemm"]
    assert finding.confirmed
    assert "fuse_transpose_into_gemm" not in result.safe_pipeline
    assert len(result.safe_pipeline) == len(result.optimizer.pipeline) - 1


def test_onnx_optimizer_is_vetted_on_a_healthy_model(vet: Vet) -> None:
    result = vet(NET, OnnxOptimizer())
    assert result.verdict in ("clean", "drift")
    assert faults(result) == []


def test_a_model_older_than_what_runtimes_promise_is_told_so(vet: Vet) -> None:
    old = '<ir_version: 3, opset_import: ["" : 6]> g (float[2] x) => (float[2] y) { y = Add(x, x) }'
    with pytest.raises(InputError, match=r"its opset is 6, and runtimes promise 7 and later only"):
        vet(old, planted("identity"))
