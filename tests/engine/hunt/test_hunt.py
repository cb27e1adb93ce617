"""Hunts in a planted optimizer: what is found, blamed, kept, and found again."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.engine.hunt.small import SmallPool, plugins_with

from optvet import InputError, UnknownName, UsageError
from optvet.engine.bundle.folder import read_record, write_arrays
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.confirm import Confirmer
from optvet.engine.hunt.cross_check import Applied, is_disputed
from optvet.engine.hunt.learn import learn, passes_together
from optvet.engine.hunt.loop import HuntBudget
from optvet.engine.hunt.make_candidates import MadeCandidate
from optvet.engine.hunt.outcome import CandidateOutcome, Seed
from optvet.engine.hunt.progress_log import LoggedStep, read_journal, read_log, write_record
from optvet.engine.hunt.quick_oracle import Examined, examine
from optvet.engine.hunt.resolve_optimizer import resolve_optimizer
from optvet.engine.hunt.run import hunt
from optvet.engine.hunt.state import HuntState, HuntStore, Sign, Suspect
from optvet.engine.hunt.summary import HuntProgress
from optvet.engine.hunt.suspects import is_unproductive
from optvet.engine.hunt.suspicions import REACHED, Rewrite, SuspicionKey
from optvet.plugin import Artifact, Candidate, Traits, Vocabulary
from optvet.spec.errors import InfrastructureError, PluginError
from optvet.spec.hunt import HuntRequest, budget_of
from optvet.spec.records import HuntSummary
from optvet.spec.symptoms import Symptom
from optvet.testing import Planted, PlantedOptions


def asked(out: Path, budget: str = "40", **more: Any) -> HuntRequest:
    given: dict[str, Any] = {"optimizer": "planted", "out": out, "pools": ("small",), "jobs": 2}
    return HuntRequest(**(given | {"budget": budget, "cache_dir": out / "cache"} | more))


def applied(name: str) -> Applied:
    """The planted optimizer with one pass."""
    planted = Planted(default=(name,), offered=(name,))
    return Applied(planted, planted.options, (name,))


def counted(summary: HuntSummary) -> dict[str, Any]:
    """The summary without what depends on the clock."""
    return summary.model_dump(mode="json", exclude={"seconds", "vetting_seconds"})


def test_a_planted_fault_is_found_blamed_reduced_and_bundled(tmp_path: Path) -> None:
    plugins = plugins_with("keep_01", "drop_relu", "keep_02")
    events: list[HuntProgress] = []
    summary = hunt(asked(tmp_path / "out"), plugins, progress=events.append)
    assert summary.candidates == 40
    assert summary.valid > 20
    assert summary.fired == ["drop_relu"]
    (finding,) = summary.findings
    assert (finding.culprit, finding.symptom, finding.severity) == (
        ["drop_relu"],
        "wrong-output",
        "fault",
    )
    assert finding.nodes == 1
    assert finding.models > 1
    bundle = tmp_path / "out" / finding.bundle
    assert read_record(bundle).fingerprint == finding.fingerprint
    written = {f.name for f in bundle.iterdir()}
    assert {"model.onnx", "inputs.npz", "repro.py", "ISSUE.md"} <= written
    assert [e.found for e in events if e.found] == [finding.model_copy(update={"models": 1})]
    assert json.loads((tmp_path / "out" / "hunt.json").read_text())["schema"] == "optvet.hunt/1"


def test_a_second_model_of_a_finding_leads_to_the_bundle_that_is_there(tmp_path: Path) -> None:
    plugins = plugins_with("drop_relu")
    tested = resolve_optimizer(asked(tmp_path), plugins)
    confirmer = Confirmer(tested, 0, plugins, tmp_path, 1, frozenset())
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    model = onnx.parser.parse_model(text).SerializeToString()
    key = SuspicionKey(("drop_relu",), Symptom.WRONG_OUTPUT, "values")
    suspect = Suspect(0, model, {"x": X}, ("drop_relu",), key, ())
    first, second = confirmer.confirm(suspect), confirmer.confirm(suspect)
    assert first
    assert second == first


@pytest.mark.long
def test_two_passes_that_break_models_only_together_are_blamed_together(tmp_path: Path) -> None:
    summary = hunt(asked(tmp_path / "out", "30"), plugins_with("mark", "keep_01", "exploit"))
    faults = [f.culprit for f in summary.findings if f.severity == "fault"]
    assert faults == [["mark", "exploit"]]


@pytest.mark.long
def test_a_pass_that_is_wrong_when_it_runs_twice_is_blamed_twice(tmp_path: Path) -> None:
    # It gives its weights the same names again.
    passes = ("keep_01", "benign_reassociate")
    summary = hunt(asked(tmp_path / "out", "60"), plugins_with(*passes))
    found = {(*f.culprit, f.symptom) for f in summary.findings}
    assert found == {("benign_reassociate", "benign_reassociate", "invalid-model")}


def test_a_pass_that_kills_its_process_is_blamed_and_no_model_is_lost(tmp_path: Path) -> None:
    summary = hunt(asked(tmp_path / "out", "12"), plugins_with("keep_01", "segfault"))
    assert summary.candidates == 12
    assert summary.deaths > 0
    (finding,) = summary.findings
    assert (finding.culprit, finding.symptom) == (["segfault"], "optimizer-abort")


@pytest.mark.long
def test_a_pass_that_always_kills_hides_no_pair_of_others(tmp_path: Path) -> None:
    plugins = plugins_with("abort", "mark", "keep_01", "exploit")
    summary = hunt(asked(tmp_path / "out", "80"), plugins)
    found = {tuple(f.culprit) for f in summary.findings if f.severity == "fault"}
    assert found == {("abort",), ("mark", "exploit")}
    # One of all passes and two of this one, of each of two batches.
    assert summary.deaths <= 6
    assert summary.left_out == {"abort": 4}


@pytest.mark.long
def test_an_optimizer_without_faults_has_no_findings(tmp_path: Path) -> None:
    passes = ("keep_01", "benign_reassociate", "round_weights", "rename_declared")
    plugins = plugins_with(*passes, repeatable=False)
    summary = hunt(asked(tmp_path / "out", "150"), plugins)
    assert summary.findings == []
    assert "benign_reassociate" in summary.fired


TWO_FAULTS = ("drop_relu", "add_to_sub", "keep_01")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[HuntSummary, Path]:
    """A hunt that found two faults, and its folder."""
    folder = tmp_path_factory.mktemp("ended") / "out"
    return hunt(asked(folder, jobs=1, seed=3), plugins_with(*TWO_FAULTS)), folder


@pytest.mark.long
def test_equal_seeds_and_counts_give_equal_findings_whatever_the_jobs(
    tmp_path: Path, ended: tuple[HuntSummary, Path]
) -> None:
    first, _ = ended
    second = hunt(asked(tmp_path / "b", jobs=2, seed=3), plugins_with(*TWO_FAULTS))
    assert counted(first) == counted(second)
    assert {tuple(f.culprit) for f in first.findings} == {("drop_relu",), ("add_to_sub",)}


@pytest.mark.long
def test_an_interrupted_hunt_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    plugins = plugins_with("drop_relu", "keep_01")
    whole = hunt(asked(tmp_path / "whole", "50"), plugins)

    def stop(event: HuntProgress) -> None:
        if event.doing.startswith("vetting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hunt(asked(tmp_path / "cut", "50"), plugins, progress=stop)
    again = hunt(asked(tmp_path / "cut", "50", resume=True), plugins)
    assert counted(again) == counted(whole)
    assert (tmp_path / "cut" / again.findings[0].bundle / "finding.json").exists()


@pytest.mark.parametrize("place", ["optvet.engine.hunt.confirm.vetted", "os.replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_what_the_machine_lacks_loses_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    plugins = plugins_with("drop_relu")
    seen = list[str]()

    def fail(*given: Any, **more: Any) -> None:
        raise OSError(number, os.strerror(number), "/d")

    def lack(event: HuntProgress) -> None:
        if event.doing.startswith("vetting"):
            seen.append(event.doing)
            monkeypatch.setattr(place, fail)

    with pytest.raises((InfrastructureError, OSError), match=os.strerror(number)):
        hunt(asked(tmp_path, "20"), plugins, progress=lack)
    monkeypatch.undo()
    again = hunt(asked(tmp_path, "20", resume=True), plugins)
    assert seen
    assert [f.culprit for f in again.findings] == [["drop_relu"]]


@pytest.mark.release
def test_what_is_known_is_not_reported_again(
    tmp_path: Path, ended: tuple[HuntSummary, Path]
) -> None:
    first, folder = ended
    (relu,) = (f for f in first.findings if f.culprit == ["drop_relu"])
    known = (folder / relu.bundle,)
    second = hunt(asked(tmp_path / "b", seed=3, known=known), plugins_with(*TWO_FAULTS))
    assert second.known == [relu.fingerprint]
    assert [f.culprit for f in second.findings] == [["add_to_sub"]]
    assert [f.name for f in (tmp_path / "b" / "findings").iterdir()] == [
        Path(second.findings[0].bundle).name
    ]


def test_only_the_asked_passes_are_hunted_in(tmp_path: Path) -> None:
    request = asked(tmp_path / "out", "30", passes=("keep_01",))
    summary = hunt(request, plugins_with("drop_relu", "keep_01"))
    assert (summary.findings, summary.unfired) == ([], ["keep_01"])


class Rash:
    """A mutator that fails."""

    name = "rash"
    weight = 100.0

    def mutate(self, candidate: Candidate, vocabulary: Vocabulary, random: Random) -> Candidate:
        raise ValueError("no idea")


@pytest.mark.long
def test_a_mutator_that_fails_costs_its_models_and_is_told(tmp_path: Path) -> None:
    plugins = plugins_with("drop_relu").register("generator", Rash())
    summary = hunt(asked(tmp_path / "out", "60"), plugins)
    (words,) = summary.complaints
    assert words.startswith("mutator 'rash' ")
    assert words.endswith("raised ValueError: no idea")
    assert summary.candidates == 60
    assert {tuple(f.culprit) for f in summary.findings} == {("drop_relu",)}


@dataclass
class Secretive(Planted):
    """An optimizer that fails when it is asked what its passes changed."""

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: BaseModel
    ) -> Sequence[str]:
        raise KeyError("log")


def test_a_plugin_that_cannot_say_what_its_passes_changed_is_told(tmp_path: Path) -> None:
    passes = ("keep_01", "benign_reassociate")
    traits = Traits(ordered=False, single=True, repeatable=False)
    secretive = Secretive(default=passes, offered=passes, traits=traits)
    plugins = Plugins().register("generator", SmallPool()).register("optimizer", secretive)
    summary = hunt(asked(tmp_path / "out"), plugins)
    assert summary.complaints == ["changing_passes of optimizer 'planted' raised KeyError: 'log'"]


@pytest.mark.long
def test_where_no_pass_is_seen_to_change_a_model_none_is_said_not_to(tmp_path: Path) -> None:
    passes = ("keep_01", "drop_relu")
    planted = Planted(default=passes, offered=passes, traits=Traits(ordered=False, single=True))
    plugins = Plugins().register("generator", SmallPool()).register("optimizer", planted)
    summary = hunt(asked(tmp_path / "out", "40"), plugins)
    assert (summary.fired, summary.unfired) == ([], [])
    assert summary.signatures > 0
    assert [f.culprit for f in summary.findings] == [["drop_relu"]]


# What is refused


def test_a_folder_with_another_hunt_is_refused(tmp_path: Path) -> None:
    plugins = plugins_with("keep_01")
    hunt(asked(tmp_path, "5"), plugins)
    with pytest.raises(UsageError, match="holds a hunt already; say --resume"):
        hunt(asked(tmp_path, "5"), plugins)
    with pytest.raises(UsageError, match="holds a hunt with another seed"):
        hunt(asked(tmp_path, "5", resume=True, seed=1), plugins)
    with pytest.raises(UsageError, match="holds no hunt"):
        hunt(asked(tmp_path / "none", "5", resume=True), plugins)


def test_wrong_names_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    plugins, out = plugins_with("keep_01"), tmp_path / "out"
    for more in ({"optimizer": "plantd"}, {"passes": ("keep_1",)}, {"pools": ("smal",)}):
        with pytest.raises(UnknownName, match="did you mean"):
            hunt(asked(out, "5", **more), plugins)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no bundle"):
        hunt(asked(out, "5", known=(tmp_path / "empty",)), plugins)
    assert not out.exists()


def test_a_budget_is_a_time_or_a_number() -> None:
    assert budget_of("1000") == (1000, None)
    assert budget_of("90s") == (None, 90.0)
    assert budget_of("1.5h") == (None, 5400.0)
    for wrong in ("0", "x", "", "0s", "5 days", "-3"):
        with pytest.raises(ValueError, match="is no budget"):
            budget_of(wrong)


# What a worker leaves behind


@pytest.mark.parametrize(
    ("done", "seconds", "size"), [(0, 0.0, 40), (40, 13.0, 40), (40, 0.4, 320), (800, 20.0, 0)]
)
def test_a_round_takes_no_more_models_than_fit_into_the_time(
    done: int, seconds: float, size: int
) -> None:
    budget = HuntBudget.of("20s", largest=320, least=40)
    assert budget.next_round(HuntState(number=done, seconds=seconds)) == size


def test_a_record_is_whole_though_the_machine_writes_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:1])))
    journal = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(2):
        write_record(journal, number, CandidateOutcome(number, "sweep"), 0.5)
    os.close(journal)
    found = read_journal(tmp_path / "journal", CandidateOutcome)
    assert [(index, record.number) for index, record, _ in found] == [(0, 0), (1, 1)]


def test_a_journal_ends_where_it_cannot_be_read(tmp_path: Path) -> None:
    first = pickle.dumps((0, CandidateOutcome(0, "sweep"), 0.5))
    records = [first, b"\x80\x05garbage", first]
    journal = tmp_path / "journal"
    journal.write_bytes(b"".join(len(r).to_bytes(8, "big") + r for r in records))
    expected = (0, CandidateOutcome(0, "sweep"), 0.5)
    assert list(read_journal(journal, CandidateOutcome)) == [expected]
    assert list(read_journal(journal, LoggedStep)) == []


@pytest.mark.parametrize(
    "content", [b"", b"1\n", b"x\n1\nrun\n\0", b"[" * 9000, b"1\n1\nrun\n\0" + b"x" * 9000]
)
def test_a_crumb_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert read_log(path, "SIGSEGV") is None


# The quick oracle


def judged(tmp_path: Path, text: str, *passes: str, **feeds: np.ndarray) -> list[Any]:
    subject = resolve_optimizer(asked(tmp_path), plugins_with(*passes, repeatable=False))
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    data = model.SerializeToString()
    found = examine(subject, data, feeds, lambda step, passes: None, frozenset(), Random(0))
    return [found.valid, *((s.passes, s.symptom) for s in found.suspicions)]


X = np.linspace(-1, 1, 4, dtype=np.float32)


def test_the_quick_oracle_suspects_the_pass_that_changes_values(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
    found = judged(tmp_path, text, "keep_01", "drop_relu", x=X)
    assert found == [True, (("drop_relu",), "wrong-output")]


def test_the_quick_oracle_does_not_judge_what_is_invalid(tmp_path: Path) -> None:
    for text in (
        "g (float[4] x) => (float[5] y) { y = Relu(x) }",
        "g (float[4] x) => (float[4] y) { y = NoSuchOperator(x) }",
    ):
        assert judged(tmp_path, text, "drop_relu", x=X) == [False]


MIXED = """g (float[4] x) => (float[8] y)
    { r = RandomNormalLike(x) s = Relu(x) y = Concat<axis = 0>(r, s) }"""
SCALED = """g (float[9] x) => (float[9] y)
    { r = RandomUniformLike(x) s = Relu(x) y = Mul(r, s) }"""


@pytest.mark.parametrize(
    ("text", "name", "suspected"),
    [
        (MIXED, "drop_relu", True),
        (MIXED, "keep_01", False),
        # Two draws of a few bits are equal in many elements, and those are not stable.
        ("g (float[9] x) => (float[9] y) { c = Abs(x) y = Bernoulli(c) }", "keep_01", False),
        (SCALED, "drop_relu", True),
    ],
)
def test_what_is_stable_of_a_random_output_is_looked_at_like_any_other(
    text: str, name: str, suspected: bool, tmp_path: Path
) -> None:
    x = np.linspace(-1, 1, 9 if "9" in text else 4, dtype=np.float32)
    found = judged(tmp_path, text, name, x=x)
    assert found == [True, ((name,), "wrong-output")][: 1 + suspected]


def test_passes_that_do_nothing_together_are_not_tried_alone(tmp_path: Path) -> None:
    plugins = plugins_with("drop_relu", "keep_00", "keep_01", repeatable=False)
    subject = resolve_optimizer(asked(tmp_path), plugins)
    state = HuntState(valid=100)
    state.rewrites[Rewrite("drop_relu", ("Relu",))] = 50
    assert passes_together(state, subject) == (("keep_00", "keep_01"),)
    state.alone.append("keep_00")
    assert passes_together(state, subject) == (("keep_01",),)
    tried: list[tuple[str, ...]] = []
    text = "g (float[4] x) => (float[4] y) { a = Neg(x) y = Relu(a) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    examine(
        replace(subject, together=(("keep_00", "keep_01"),)),
        model.SerializeToString(),
        {"x": X},
        lambda step, passes: tried.append(tuple(passes)),
        frozenset(),
        Random(0),
    )
    assert ("keep_00", "keep_01") in tried
    assert ("drop_relu",) in tried
    assert ("keep_00",) not in tried


class Live:
    """The planted optimizer, whose artifacts are live objects that its runtime runs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        made = self.inner.apply(source, passes, options)
        digest = hashlib.sha256(made.data).hexdigest()
        fired = tuple(name for name in passes if name.startswith("drop"))
        return Artifact("live", handle=made, fingerprint=digest, changing_passes=fired)

    def load(self, model: Artifact, options: BaseModel) -> Any:
        return self.inner.load(model.handle if model.format == "live" else model, options)


def test_what_import_and_export_lose_hides_no_pass(tmp_path: Path) -> None:
    planted = Planted(default=("drop_relu",), offered=("drop_relu",), round_trip=("lose_type",))
    subject = resolve_optimizer(asked(tmp_path), Plugins().register("optimizer", planted))
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    model = onnx.parser.parse_model(text).SerializeToString()
    found = examine(subject, model, {"x": X}, lambda step, passes: None, frozenset(), Random(0))
    assert [(s.passes, s.symptom) for s in found.suspicions] == [
        ((), "invalid-model"),
        (("drop_relu",), "wrong-output"),
    ]


@pytest.mark.parametrize("together", [(), (("keep_00", "drop_relu"),)])
def test_passes_are_told_apart_by_what_identifies_their_result(
    together: tuple[tuple[str, ...], ...], tmp_path: Path
) -> None:
    plugins = plugins_with("drop_relu", "keep_00", repeatable=False)
    subject = resolve_optimizer(asked(tmp_path), plugins)
    candidate = replace(subject.candidate, runtime=Live(subject.candidate.runtime))
    live = replace(
        subject, optimizer=Live(subject.optimizer), candidate=candidate, together=together
    )
    tried: list[tuple[str, ...]] = []
    text = "g (float[4] x) => (float[4] y) { a = Neg(x) y = Relu(a) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    found = examine(
        live,
        model.SerializeToString(),
        {"x": X},
        lambda step, passes: tried.append(tuple(passes)),
        frozenset(),
        Random(0),
    )
    assert ("drop_relu",) in {s.passes for s in found.suspicions}
    # What changed something in a group is told by the optimizer.
    assert (("keep_00",) in tried) == (not together)


class Recorded:
    """An optimizer that records what it was applied to."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.times = inner, Counter[tuple[bytes, tuple[str, ...]]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        self.times[source.data, tuple(passes)] += 1
        return cast(Artifact, self.inner.apply(source, passes, options))


def test_no_passes_are_applied_to_one_model_a_second_time(tmp_path: Path) -> None:
    plugins = plugins_with("drop_relu", "keep_00", "keep_01", repeatable=False)
    subject = resolve_optimizer(asked(tmp_path), plugins)
    recorded = Recorded(subject.optimizer)
    tested = replace(subject, optimizer=recorded, together=(("drop_relu",), ("keep_00",)))
    text = "g (float[4] x) => (float[4] y) { a = Neg(x) y = Relu(a) }"
    data = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model, tried = data.SerializeToString(), []
    for each in (tested, tested.for_one_candidate()):
        found = examine(each, model, {"x": X}, lambda *_: None, frozenset(), Random(0))
        tried.append((found, recorded.times.copy()))
        recorded.times.clear()
    (found, times), (found_once, times_once) = tried
    assert found_once == found
    assert found.suspicions
    assert times.total() > len(times)
    assert times_once == dict.fromkeys(times, 1)


class Unwritten:
    """A runtime that leaves its outputs as the memory is."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.runs = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def load(self, model: Artifact, options: BaseModel) -> Any:
        self.session = self.inner.load(model, options)
        return self

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.runs += 1
        return {n: v + self.runs for n, v in self.session.run(feeds).items()}


@pytest.mark.parametrize("has_arbiter", [True, False])
def test_an_evaluator_judges_what_a_runtime_leaves_unwritten(
    has_arbiter: bool, tmp_path: Path
) -> None:
    subject = resolve_optimizer(asked(tmp_path), plugins_with("drop_relu", "keep_00"))
    unwritten = replace(subject.candidate, runtime=Unwritten(subject.candidate.runtime))
    arbiter = subject.arbiter if has_arbiter else None
    tested = replace(subject, candidate=unwritten, reference=unwritten, arbiter=arbiter)
    text = "g (float[4] x) => (float[4] y) { a = Neg(x) y = Relu(a) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    feeds, data = {"x": X}, model.SerializeToString()
    found = examine(tested, data, feeds, lambda *step: None, frozenset(), Random(0))
    assert (found.valid, found.by_arbiter, found.rewrites) == (has_arbiter, has_arbiter, ())
    shown = [(s.passes, s.symptom) for s in found.suspicions]
    assert shown == ([(("drop_relu",), "wrong-output")] if has_arbiter else [])


def test_models_whose_result_is_not_defined_accuse_nothing(tmp_path: Path) -> None:
    suspected = [True, (("raise_error",), "optimizer-error")]
    for scale, valid in ((0.5, True), (0.0, False), (-0.5, False)):
        text = (
            f"g (float[4] x) => (uint8[4] y) <float s = {{{scale}}}, uint8 z = {{3}}> "
            "{ y = QuantizeLinear(x, s, z) }"
        )
        assert judged(tmp_path, text, "raise_error", x=X) == (suspected if valid else [False])
    text = 'g (uint8[2] x, uint8[2] s) => (uint8[2] y) { y = BitShift<direction = "LEFT">(x, s) }'
    numbers = np.array([1, 9], np.uint8)
    for shifts, valid in (([0, 7], True), ([1, 8], False)):
        given = np.array(shifts, np.uint8)
        found = judged(tmp_path, text, "raise_error", x=numbers, s=given)
        assert found == (suspected if valid else [False])


def test_rounding_is_not_suspected(tmp_path: Path) -> None:
    text = (
        "g (float[1,4] x) => (float[1,1] y) <float[4,1] w = {1.1, -2.3, 3.7, 0.001}> "
        "{ y = MatMul(x, w) }"
    )
    assert judged(tmp_path, text, "benign_reassociate", x=X[None]) == [True]


def test_outputs_of_which_two_runtimes_give_other_values_accuse_no_optimizer(
    tmp_path: Path,
) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Abs(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"x": X})
    for expected, disputed in ((np.abs(X), False), (np.zeros_like(X), True)):
        write_arrays(tmp_path / "expected.npz", {"y": expected})
        for symptom in (Symptom.WRONG_OUTPUT, Symptom.SENSITIVITY):
            given = applied("abs_to_neg")
            assert is_disputed(symptom, tmp_path, given, error=1.0, noise=0.0) is disputed
    assert not is_disputed(Symptom.INVALID_MODEL, tmp_path, applied("abs_to_neg"))


@pytest.mark.parametrize(("number", "disputed"), [(-2, False), (np.nan, True)])
def test_nan_that_becomes_an_integer_accuses_no_optimizer(
    number: float, disputed: bool, tmp_path: Path
) -> None:
    text = (
        '<ir_version: 7, opset_import: ["" : 19]> g (float[1] x) => (uint8[1] y) '
        "<float s = {1}, uint8 z = {128}> { r = Relu(x)  y = QuantizeLinear(r, s, z) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"x": np.array([number], np.float32)})
    expected = 0 if np.isnan(number) else 128
    write_arrays(tmp_path / "expected.npz", {"y": np.array([expected], np.uint8)})
    assert is_disputed(Symptom.WRONG_OUTPUT, tmp_path, applied("drop_relu")) is disputed


def test_what_a_pass_refuses_for_the_shape_of_an_operand_accuses_it_of_nothing(
    tmp_path: Path,
) -> None:
    for axes, disputed in (("int64[1] a = {0}", False), ("int64[1,1] a = {0}", True)):
        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[1,4] y) '
        model = onnx.parser.parse_model(f"{text} <{axes}> {{ y = Unsqueeze(x, a) }}")
        onnx.save(model, tmp_path / "model.onnx")
        write_arrays(tmp_path / "inputs.npz", {"x": X})
        for symptom in (Symptom.OPTIMIZER_ERROR, Symptom.INTERFACE_CHANGE):
            assert is_disputed(symptom, tmp_path, applied("abs_to_neg")) is disputed
        assert not is_disputed(Symptom.CRASH, tmp_path, applied("abs_to_neg"))


def test_values_are_known_up_to_where_the_evaluator_fails(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,4] x) => (float[1,1,2] y)
        <float[1] w = {2}> { t = Mul(x, w)  y = MaxPool<kernel_shape = [3]>(t) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "expected.npz", {"y": np.zeros((1, 1, 2), np.float32)})
    write_arrays(tmp_path / "inputs.npz", {"x": np.full((1, 1, 4), np.nan, np.float32)})
    assert is_disputed(Symptom.WRONG_OUTPUT, tmp_path, applied("abs_to_neg"))


def test_values_beside_what_the_evaluator_fails_in_are_known(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,4] x) => (float[1,1,2] y, int64[n] r) <int64 e = {3}, int64 s = {1}>
        { y = MaxPool<kernel_shape = [3]>(x)
          b = Constant<value_ints = [0]>()  r = Range(b, e, s) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"x": np.full((1, 1, 4), np.nan, np.float32)})
    assert is_disputed(Symptom.LOAD_FAILURE, tmp_path, applied("abs_to_neg"))


@pytest.mark.long
def test_sequences_and_optional_values_are_asked_about_too(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (seq(float[4]) s, optional(float[4]) n)
        { y = Abs(x)  s = SequenceConstruct(y, x)  n = Optional<type = float[4]>() }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"x": X})
    length, none = np.array(2), np.array(True)
    for parts, disputed in (
        ([length, np.abs(X), X, none], False),
        ([length, X, X, none], True),
        ([length, np.abs(X), X, X], True),
        ([np.array(1), np.abs(X), none], True),
    ):
        write_arrays(tmp_path / "expected.npz", {f"{i}": v for i, v in enumerate(parts)})
        assert is_disputed(Symptom.WRONG_OUTPUT, tmp_path, applied("abs_to_neg")) is disputed


def test_what_only_the_runtime_reads_as_wrong_accuses_no_optimizer(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"x": X})
    write_arrays(tmp_path / "expected.npz", {"y": np.maximum(X, 0)})
    assert is_disputed(Symptom.WRONG_OUTPUT, tmp_path, applied("keep_01"))
    assert not is_disputed(Symptom.WRONG_OUTPUT, tmp_path, applied("drop_relu"))


def test_operators_of_old_that_the_second_runtime_lacks_are_converted(tmp_path: Path) -> None:
    text = (
        '<ir_version: 7, opset_import: ["" : 13]> g (uint8[1] q) => (float[1] y) '
        "<float s = {0.5}> { y = DequantizeLinear(q, s) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"q": np.array([4], np.uint8)})
    write_arrays(tmp_path / "expected.npz", {"y": np.array([3], np.float32)})
    assert is_disputed(Symptom.WRONG_OUTPUT, tmp_path, applied("keep_01"))


def test_a_model_that_the_second_runtime_refuses_too_accuses_nobody(
    tmp_path: Path,
) -> None:
    # Of rank 2, where the standard has a vector; ONNX Runtime takes it.
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, bool[2,2] c) => (float[n] y) '
        "{ y = Compress(x, c) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"x": X, "c": np.ones((2, 2), bool)})
    write_arrays(tmp_path / "expected.npz", {"y": X})
    given = applied("keep_01")
    assert is_disputed(Symptom.OPTIMIZER_ERROR, tmp_path, given, by_import=True)
    assert is_disputed(Symptom.OPTIMIZER_ERROR, tmp_path, given)


@pytest.mark.parametrize(("rank", "disputed"), [("", False), ("[1]", True)])
def test_operands_that_the_standard_does_not_allow_may_be_refused(
    rank: str, disputed: bool, tmp_path: Path
) -> None:
    # ONNX Runtime takes a step of one dimension, where the standard has a scalar.
    text = (
        '<ir_version: 7, opset_import: ["" : 13]> g (int64 n) => (int64[m] y) '
        f"<int64 b = {{0}}, int64{rank} step = {{1}}> {{ y = Range(b, n, step) }}"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"n": np.array(2)})
    write_arrays(tmp_path / "expected.npz", {"y": np.arange(2)})
    assert is_disputed(Symptom.RUN_FAILURE, tmp_path, applied("keep_01")) is disputed


def test_a_pass_that_mostly_shows_what_is_known_is_vetted_no_more() -> None:
    state = HuntState()
    for number in range(5):
        state.signs[SuspicionKey(("p",), Symptom.WRONG_OUTPUT, f"Relu {number}")] = Sign(
            3, 1, ["same"]
        )
        assert is_unproductive(state, SuspicionKey(("p",), Symptom.WRONG_OUTPUT, "other")) is (
            number == 5
        )
    state.signs[SuspicionKey(("p",), Symptom.WRONG_OUTPUT, "Abs")] = Sign(3, 1, [])
    assert is_unproductive(state, SuspicionKey(("p",), Symptom.WRONG_OUTPUT, "other"))
    assert not is_unproductive(state, SuspicionKey(("p",), Symptom.INVALID_MODEL, "other"))
    assert not is_unproductive(state, SuspicionKey(("p", "q"), Symptom.WRONG_OUTPUT, "other"))
    state.signs[SuspicionKey(("p",), Symptom.WRONG_OUTPUT, "Neg")] = Sign(3, 1, ["another"])
    assert not is_unproductive(state, SuspicionKey(("p",), Symptom.WRONG_OUTPUT, "other"))


def test_what_a_pass_that_is_known_to_be_wrong_shows_with_another_is_vetted_no_more() -> None:
    state = HuntState()
    for number in range(3):
        assert not is_unproductive(state, SuspicionKey(("q", "p"), Symptom.WRONG_OUTPUT, "Relu"))
        key = SuspicionKey(("p",), Symptom.WRONG_OUTPUT, f"Relu {number}")
        state.signs[key] = Sign(3, 1, [f"fault {number}"])
    assert is_unproductive(state, SuspicionKey(("q", "p"), Symptom.WRONG_OUTPUT, "Relu"))
    assert not is_unproductive(state, SuspicionKey(("q", "p"), Symptom.LOAD_FAILURE, "Relu"))
    assert not is_unproductive(state, SuspicionKey(("p",), Symptom.WRONG_OUTPUT, "Abs"))


@pytest.mark.parametrize(("kind", "kept", "more"), [("sweep", 6, 1), ("edit", 2, 0)])
def test_seeds_of_one_round_that_resemble_each_other_do_not_crowd_out_others(
    kind: str, kept: int, more: int, tmp_path: Path
) -> None:
    subject = resolve_optimizer(HuntRequest(optimizer="onnxruntime", out=tmp_path), Plugins())
    results: list[CandidateOutcome | LoggedStep] = []
    for number in range(9):
        made = MadeCandidate(f"model {number}".encode(), {}, ())
        rewrite = Rewrite("DivMulFusion", ("Mul",), (f"New{number}",))
        # The last two have an operator that no seed of the pass has: one of them is kept of a pool.
        operators = "Div Mul " * number + ("Sqrt" if number > 6 else "")
        seed = Seed(made, (rewrite,), operators)
        results.append(CandidateOutcome(number, kind, examined=Examined(True), seeds=(seed,)))
    state = HuntState()
    learn(state, results[:7], subject, frozenset({"change-type"}))
    assert len(state.entries) == kept
    learn(state, results[7:], subject, frozenset({"change-type"}))
    kept += more
    assert len(state.entries) == kept
    rewrite = Rewrite("DivMulFusion", ("Mul",))
    prepared = Seed(MadeCandidate(b"prepared", {}, ()), (rewrite,), "change-type")
    again: list[CandidateOutcome | LoggedStep] = [
        CandidateOutcome(9, "edit", examined=Examined(True), seeds=(prepared,))
    ]
    learn(state, again, subject, frozenset({"change-type"}))
    assert len(state.entries) == kept + 1


def test_import_and_export_are_vetted_for_each_operator() -> None:
    state = HuntState()
    for number in range(20):
        state.signs[SuspicionKey((), Symptom.WRONG_OUTPUT, f"Relu {number}")] = Sign(1, 1, ["same"])
    assert not is_unproductive(state, SuspicionKey((), Symptom.WRONG_OUTPUT, "other"))


class FiledOptions(PlantedOptions):
    """How the optimizer gets a model."""

    filed: bool = False


class Filed(Planted):
    """An optimizer that does nothing but with models in files."""

    rare_options: Mapping[str, Any] = {"filed": True}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        filed = isinstance(options, FiledOptions) and options.filed
        return super().apply(source, passes if filed else (), options)


@pytest.mark.long
def test_what_shows_under_rare_options_alone_is_found_with_them(tmp_path: Path) -> None:
    filed = Filed(default=("drop_relu",), offered=("drop_relu",), options=FiledOptions())
    plugins = Plugins().register("generator", SmallPool()).register("optimizer", filed)
    summary = hunt(asked(tmp_path / "out", "300"), plugins)
    assert summary.findings
    for found in summary.findings:
        record = read_record(tmp_path / "out" / found.bundle)
        assert record.optimizer_options["filed"]
    assert "filed = true" in (tmp_path / "out" / "campaign.toml").read_text()
    plain = asked(tmp_path / "plain", "100", optimizer_options={"filed": False})
    assert hunt(plain, plugins).findings == []


class Hasty(Filed):
    """The same, but hunts look at models in files."""

    rare_options: Mapping[str, Any] = {}
    quick_options: Mapping[str, Any] = {"filed": True}


def test_what_quick_options_alone_show_is_suspected_and_not_found(tmp_path: Path) -> None:
    hasty = Hasty(default=("drop_relu",), offered=("drop_relu",), options=FiledOptions())
    plugins = Plugins().register("generator", SmallPool()).register("optimizer", hasty)
    summary = hunt(asked(tmp_path / "out", "40"), plugins)
    assert summary.refuted
    assert summary.findings == []
    given = hunt(asked(tmp_path / "given", "40", optimizer_options={"filed": False}), plugins)
    assert not given.refuted


def test_models_run_under_the_options_of_the_runtime(tmp_path: Path) -> None:
    plugins = plugins_with("drop_relu", "keep_01")
    request = asked(tmp_path / "out", "40", runtime_options={"providers": ["CPUExecutionProvider"]})
    summary = hunt(request, plugins)
    assert summary.runtime_options == request.runtime_options
    record = read_record(tmp_path / "out" / summary.findings[0].bundle)
    assert record.runtime_options["providers"] == ["CPUExecutionProvider"]
    table = "[jobs.vet.runtime_options]\nproviders = "
    assert table in (tmp_path / "out" / "campaign.toml").read_text()
    with pytest.raises(UsageError, match="did you mean 'providers'"):
        hunt(asked(tmp_path / "none", runtime_options={"provider": "x"}), plugins)
    with pytest.raises(UsageError, match="another runtime options"):
        hunt(asked(tmp_path / "out", "50", resume=True), plugins)


class Branching(Planted):
    """An optimizer in Python that looks for Exp behind Neg."""

    def code_of(self, name: str, options: BaseModel) -> Sequence[str]:
        """This module."""
        return [__name__]

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        _look([n.op_type for n in onnx.load_model_from_string(source.data).graph.node])
        return super().apply(source, passes, options)


def _look(operators: Sequence[str]) -> bool:
    if "Exp" not in operators:
        return False
    behind = operators[: operators.index("Exp")]
    return "Neg" in behind and _found()


def _found() -> bool:
    return True


def test_models_that_reach_new_code_of_a_pass_are_edited(tmp_path: Path) -> None:
    branching = Branching(default=("keep_01",), offered=("keep_01",))
    plugins = Plugins().register("generator", SmallPool()).register("optimizer", branching)
    hunt(asked(tmp_path / "out", "120"), plugins)
    with closing(HuntStore(tmp_path / "out")) as store:
        state = store.load()
    lines = {int(place.rpartition(":")[2]) for place in state.reached}
    first, found = (f.__code__.co_firstlineno for f in (_look, _found))
    assert {first + 1, first + 2, first + 3, first + 4, found + 1} <= lines
    seeds = [
        [n.op_type for n in onnx.load_model_from_string(entry.model).graph.node]
        for entry in state.entries
        if entry.way == REACHED
    ]
    assert len(seeds) >= 3
    assert any(map(_look, seeds))
    hunt(asked(tmp_path / "other", "40"), plugins, follows_code=False)
    with closing(HuntStore(tmp_path / "other")) as store:
        assert store.load().reached == set()


class Nowhere(Branching):
    """An optimizer that cannot say where its code is."""

    def code_of(self, name: str, options: BaseModel) -> Sequence[str]:
        """A module that is not there."""
        return ["no_module_of_this_name"]


@pytest.mark.long
def test_a_plugin_that_cannot_say_where_its_code_is_ends_no_hunt(tmp_path: Path) -> None:
    nowhere = Nowhere(default=("drop_relu",), offered=("drop_relu",))
    plugins = Plugins().register("generator", SmallPool()).register("optimizer", nowhere)
    summary = hunt(asked(tmp_path / "out"), plugins)
    assert [f.culprit for f in summary.findings] == [["drop_relu"]]
    (told,) = summary.complaints
    assert "code_of of optimizer 'planted' raised ModuleNotFoundError" in told


class Odd(Planted):
    """An optimizer whose plugin returns what no caller expects."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        made = super().apply(source, passes, options)
        return Artifact("onnx", cast("bytes", "no bytes")) if passes else made


def test_what_nobody_can_read_costs_models_and_ends_no_hunt(tmp_path: Path) -> None:
    odd = Odd(default=("keep_01",), offered=("keep_01",))
    plugins = Plugins().register("generator", SmallPool()).register("optimizer", odd)
    summary = hunt(asked(tmp_path / "out", "10"), plugins)
    assert summary.candidates == 10
    assert any("cannot be judged" in words for words in summary.complaints)


def test_a_plugin_that_breaks_its_contract_on_one_model_ends_no_hunt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: object) -> None:
        raise PluginError("output 'y' gave a SparseTensor")

    monkeypatch.setattr(Confirmer, "confirm", confirm)
    summary = hunt(asked(tmp_path / "out", "20"), plugins_with("drop_relu"))
    assert (summary.candidates, summary.findings, summary.pending) == (20, [], 0)
    assert any("SparseTensor" in words for words in summary.complaints)
