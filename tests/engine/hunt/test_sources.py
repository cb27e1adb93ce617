"""Hunts in a converter: a framework without any library, whose converter breaks one operator."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from tests.engine.convert.plain import HEAD, NoOptions, PlainConverter, PlainRuntime

from optvet.engine.convert.conversion_inputs import ConversionInput, inputs_of
from optvet.engine.convert.worker_steps import Converted, describe
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import MADE, environments_root
from optvet.engine.hunt.file_issues import file_issues
from optvet.engine.hunt.findings_report import read_summary, report_of
from optvet.engine.hunt.progress_log import LoggedStep, StepLimit
from optvet.engine.hunt.run import hunt
from optvet.engine.hunt.sources.plan import SourceRecipe, recipe_of
from optvet.engine.hunt.sources.steps import (
    FUNCTION,
    MakeSource,
    ObserveResult,
    SourceBatch,
    SourceCase,
    SourceOutcome,
    _is_undefined,
    write_source,
)
from optvet.engine.hunt.sources.target import resolve_converter
from optvet.engine.hunt.summary import HuntProgress
from optvet.engine.hunt.versions import environment_of
from optvet.engine.hunt.workers import results_of
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.plugin import (
    Artifact,
    Factory,
    Feeds,
    PartScript,
    Sample,
    SourceFacts,
    SourcePart,
    SourceStep,
)
from optvet.spec.errors import UsageError
from optvet.spec.hunt import HuntRequest

ARITHMETIC = {"double": ("x + x", "Add (x, x)"), "square": ("x * x", "Mul (x, x)")}
"""What each operator computes, and what the converter writes for it."""
SOURCES = {
    **ARITHMETIC,
    "negate": ("-x", "Abs (x)"),
    "shake": ("x + np.random.random()", "Identity (x)"),
}
SOURCE = """\
from pathlib import Path
from types import SimpleNamespace

import numpy as np

HERE = Path(__file__).resolve().parent
example_inputs = (np.array({example}, np.float32),)


def function(x):
{lines}
    return x


def part():
    return SimpleNamespace(function=function, stages=({text!r},))
"""
REFUSED = "refuses"
PART = Factory(FUNCTION)


class MakingRuntime(PlainRuntime):
    """Makes sources of ``SOURCES``."""

    source_preload: Sequence[str] = ()

    def source_operators(self) -> Mapping[str, Sequence[str]]:
        return {name: ["float32"] for name in [*SOURCES, REFUSED]}

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Feeds | None = None,
    ) -> str | None:
        if dynamic:
            return None
        names = [step.operator for step in steps]
        refused = REFUSED in names
        lines = "" if refused else "\n".join(f"    x = {SOURCES[n][0]}" for n in names)
        nodes = [] if refused else [SOURCES[name][1] for name in names]
        text = "refuse" if refused else as_model(nodes)
        example = [1.5, -2.0] if feeds is None else next(iter(feeds.values())).tolist()
        (folder / "part.py").write_text(SOURCE.format(example=example, lines=lines, text=text))
        return "part.py"

    def parts(self, artifact: Artifact, feeds: Feeds, options: NoOptions) -> Sequence[SourcePart]:
        return []

    def write_part(
        self, artifact: Artifact, feeds: Feeds, options: NoOptions, name: str, folder: Path
    ) -> str:
        raise AssertionError("sources of hunts are not split")

    def script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        source = "given = list(example_inputs)\nexpected = [part().function(*given)]"
        text = f"{HEAD!r} + part().stages[-1]"
        convert = f"onnx.save(onnx.parser.parse_model({text}), target)"
        return PartScript("plain_to_onnx", ("onnx",), "import onnx.parser", source, convert)


def as_model(nodes: Sequence[str]) -> str:
    """ONNX text that takes the nodes one after the other."""
    values = ["x", *(f"v{i}" for i in range(1, len(nodes))), "y"]
    lines = [
        f"{after} = {node.replace('x', before)}"
        for (before, after), node in zip(itertools.pairwise(values), nodes, strict=True)
    ]
    return f"g (float[2] x) => (float[2] y) {{ {' '.join(lines)} }}"


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    extended = Plugins().extend("runtime", MakingRuntime())
    return extended.extend("converter", PlainConverter())


def asked(out: Path, budget: str, **more: object) -> HuntRequest:
    given = {"optimizer": "converter:plain_to_onnx", "out": out, "jobs": 1, "budget": budget}
    return HuntRequest.model_validate(given | more)


@pytest.fixture(scope="module")
def hunted(plugins: Plugins, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hunt") / "out"
    hunt(asked(out, "30"), plugins)
    return out


def test_what_the_converter_breaks_is_found_and_reduced_to_one_operator(hunted: Path) -> None:
    summary = read_summary(hunted)
    assert summary.optimizer == "converter:plain_to_onnx"
    assert summary.candidates == 30
    assert summary.refused > 0
    assert set(summary.fired) >= set(ARITHMETIC)
    (finding,) = summary.findings
    assert (finding.symptom, finding.severity, finding.nodes) == ("wrong-output", "fault", 1)
    assert finding.culprit == ["plain_to_onnx/read"]
    assert "-x" in (hunted / finding.bundle / "part.py").read_text()
    assert all("negate" in key for key in finding.keys)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("y = Frobnicate (x)", "refused"),
        ("y = BitCast <to = 6> (x)", "open"),  # of a later operator set
        ("y = Not (x)", "open"),
        ("y = Neg (x)", "open"),
    ],
)
def test_an_operator_that_stays_the_frameworks_is_refused_and_one_used_wrongly_is_judged(
    text: str, state: str, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ {text} }}")
    made = Artifact("onnx", model.SerializeToString())
    sample = Sample("example", {"x": np.array([1.5, -2.0], np.float32)})
    given = ConversionInput(sample, "example")
    expected = {"example": {"y": -sample.feeds["x"]}}
    case = SourceCase(made, SourceFacts(sample.feeds), [given], expected, Converted((made,)))
    case.keep(tmp_path)
    runtime = Plugins().reference_runtime()
    step = ObserveResult(RuntimeConfig(runtime, runtime.options))
    assert step.take(SourceRecipe((), False), 0, tmp_path).state == state


def test_sources_that_differ_from_run_to_run_are_no_findings(hunted: Path) -> None:
    summary = read_summary(hunted)
    assert not any("shake" in key for f in summary.findings for key in f.keys)
    assert "shake" in summary.unfired


def test_a_bundle_is_replayed_reported_and_filed(hunted: Path, tmp_path: Path) -> None:
    summary = read_summary(hunted)
    here = environment_of(Path(sys.executable), {"onnx"})
    report = report_of(summary, hunted, [here])
    assert "30 sources" in report
    assert "| shows | shows |" in report
    assert "def part():" in report
    (issue,) = file_issues(summary, hunted, tmp_path / "issues", [here])
    text = (tmp_path / "issues" / issue.folder / "ISSUE.md").read_text()
    for title in ("# plain", "## To reproduce", "## Expected", "## Actual", "## Versions"):
        assert title in text
    assert "## Severity\n\nWrong without an error, on a plausible model" in text


def test_a_hunt_goes_on_where_it_ended(plugins: Plugins, hunted: Path) -> None:
    before = read_summary(hunted)
    with pytest.raises(UsageError, match="holds a hunt already"):
        hunt(asked(hunted, "32"), plugins)
    with pytest.raises(UsageError, match="another seed"):
        hunt(asked(hunted, "32", resume=True, seed=1), plugins)
    after = hunt(asked(hunted, "32", resume=True), plugins)
    assert after.candidates == 32
    assert after.findings[0].fingerprint == before.findings[0].fingerprint


def test_a_hunt_that_was_interrupted_while_it_vetted_goes_on_with_what_is_suspected(
    plugins: Plugins, hunted: Path, tmp_path: Path
) -> None:
    def stop(event: HuntProgress) -> None:
        if event.doing.startswith("vetting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hunt(asked(tmp_path / "out", "30"), plugins, progress=stop)
    assert read_summary(tmp_path / "out").pending > 0
    again = hunt(asked(tmp_path / "out", "30", resume=True), plugins)
    assert (again.candidates, again.pending) == (30, 0)
    (finding,) = again.findings
    assert finding.fingerprint == read_summary(hunted).findings[0].fingerprint


def test_a_hunt_of_an_earlier_version_is_refused(plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "sources.json").write_text("{}")
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"an earlier version kept in sources\.json"):
            hunt(asked(tmp_path, "1", resume=resume), plugins)


def one_of(feeds: Feeds) -> np.ndarray:
    return next(iter(feeds.values()))


class NanRuntime(MakingRuntime):
    """Sources whose example has a NaN."""

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Feeds | None = None,
    ) -> str | None:
        values = np.array([np.nan, 1.5], np.float32) if feeds is None else one_of(feeds)
        # As text, which numpy reads: NaN has no name in Python.
        shown = np.array(values.astype(str), object)
        return super().make_source(steps, dynamic, folder, {"x": shown})


def test_numbers_that_the_hunt_put_in_are_contrived_and_those_of_a_source_are_not(
    plugins: Plugins, tmp_path: Path
) -> None:
    extended = Plugins().extend("runtime", NanRuntime()).extend("converter", PlainConverter())
    tested = resolve_converter(asked(tmp_path / "out", "1"), extended)
    recipe = SourceRecipe((SourceStep("double", "float32", 0),))
    make = MakeSource(tested.maker, tested.format)

    def contrived(sample: str) -> list[str]:
        written = write_source(make, recipe, 0, sample, tmp_path)
        assert written is not None
        return written[1]

    assert write_source(make, recipe, 0, "example", tmp_path) == ("part.py", [])
    facts = describe(tested.maker, Artifact(tested.format, path=tmp_path / "part.py", handle=PART))
    infinite = next(
        i.sample.id
        for i in inputs_of(facts, seed=0, random=1, edges=True, sizes=True)
        if i.origin == "edge" and not np.isfinite(one_of(i.sample.feeds)).any()
    )
    assert contrived(infinite) == ["an input that is infinite or NaN"]


def test_what_a_hunt_in_a_converter_cannot_use_is_refused(plugins: Plugins, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="--pool"):
        hunt(asked(out, "1", pools=("hints",)), plugins)
    with pytest.raises(UsageError, match="--pass"):
        hunt(asked(out, "1", passes=("p",)), plugins)
    with pytest.raises(UsageError, match="--runtime-option"):
        hunt(asked(out, "1", runtime_options={"intra_op_threads": 1}), plugins)
    with pytest.raises(UsageError, match="runtime:NAME"):
        hunt(asked(out, "1", optimizer="converter:onnx_version"), plugins)
    with pytest.raises(UsageError, match="holds no hunt"):
        hunt(asked(out, "1", resume=True), plugins)
    assert not out.exists()


class SpinsOnDoubles:
    """A step that never ends for one operator."""

    def take(self, recipe: SourceRecipe, seed: int, place: Path) -> SourceOutcome:
        while recipe.operators == ("double",):
            pass
        return SourceOutcome("right")


def test_a_source_that_never_ends_ends_its_worker_and_not_the_hunt(tmp_path: Path) -> None:
    names = ("negate", "double", "square")
    recipes = [SourceRecipe((SourceStep(name, "float32", 0),)) for name in names]
    listed = [(recipe, tmp_path) for recipe in recipes]
    limit = StepLimit(1.0, of_cpu=True)
    batch = SourceBatch((SpinsOnDoubles(),), listed, 0, tmp_path / "batch", limit)
    with Sandbox(jobs=1) as sandbox:
        found, seconds = results_of(sandbox, batch)
    assert found == [
        SourceOutcome("right"),
        LoggedStep(1, "source", ("double",), None, "SIGXCPU"),
        SourceOutcome("right"),
    ]
    # What it used counts, though it left no record.
    assert seconds >= 1.0


def test_every_operator_comes_once_before_any_comes_twice() -> None:
    operators = {f"op{i}": ["float32", "int64"] for i in range(20)}
    first = [recipe_of(n, 3, operators) for n in range(20)]
    assert sorted(r.operators for r in first) == sorted((name,) for name in operators)
    assert {r.steps[0].dtype for r in first} == {"float32"}
    later = [recipe_of(n, 3, operators) for n in range(20, 220)]
    assert {len(r.steps) for r in later} == {1, 2, 3}
    assert {s.dtype for r in later for s in r.steps} == {"float32", "int64"}
    assert later == [recipe_of(n, 3, operators) for n in range(20, 220)]


def test_what_no_step_reads_comes_last_and_alone_where_there_is_nothing_else() -> None:
    operators = {name: ["float32"] for name in "abcd"}
    names = ["".join(recipe_of(n, 3, operators, "cd").operators) for n in range(4, 200)]
    assert {len(each) for each in names} == {1, 2, 3}
    assert not any(set(each[:-1]) & set("cd") for each in names)
    assert {each[-1] for each in names} == set("abcd")
    alone = [recipe_of(n, 3, {"c": ["float32"], "d": ["float32"]}, "cd") for n in range(50)]
    assert {recipe.operators for recipe in alone} == {("c",), ("d",)}


class ChoosyConverter(PlainConverter):
    """Says which operators it takes."""

    def taken_operators(self) -> Collection[str]:
        return {"double", "negate", "unknown"}


class EndingRuntime(MakingRuntime):
    """Nothing follows a negation."""

    def last_operators(self) -> Collection[str]:
        return ["negate"]


def test_a_hunt_makes_sources_of_what_the_converter_takes_alone(tmp_path: Path) -> None:
    choosy = Plugins().extend("runtime", EndingRuntime()).extend("converter", ChoosyConverter())
    summary = hunt(asked(tmp_path / "out", "20"), choosy)
    assert (summary.fired, summary.unfired, summary.refused) == (["double", "negate"], [], 0)
    assert [finding.operators for finding in summary.findings] == [["negate"]]


WRONG = {"negated": ("-x", "Abs (x)"), "squared": ("x * x", "Identity (x)")}


class SettingRuntime(MakingRuntime):
    """One operator, which is wrong in two of its settings; another one does nothing."""

    def source_operators(self) -> Mapping[str, Sequence[str]]:
        return {"scale": ["float32"]}

    def source_settings(self, steps: Sequence[SourceStep]) -> Sequence[Mapping[str, str]]:
        drawn = (["idle", ("negated", "squared", "quick")[s.sample % 3]] for s in steps)
        told = zip(steps, drawn, strict=True)
        return [{n: f"{n}=True" for n in names if n not in s.without} for s, names in told]

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Feeds | None = None,
    ) -> str | None:
        wrong = (WRONG.keys() & settings for settings in self.source_settings(steps))
        pairs = [WRONG[next(iter(w))] if w else ARITHMETIC["double"] for w in wrong]
        lines = "\n".join(f"    x = {text}" for text, _ in pairs)
        text = as_model([node for _, node in pairs])
        example = [1.5, -2.0] if feeds is None else one_of(feeds).tolist()
        (folder / "part.py").write_text(SOURCE.format(example=example, lines=lines, text=text))
        return "part.py"


def test_each_setting_that_makes_an_operator_wrong_is_a_finding(tmp_path: Path) -> None:
    extended = Plugins().extend("runtime", SettingRuntime()).extend("converter", PlainConverter())
    summary = hunt(asked(tmp_path / "out", "20"), extended)
    told = {f"scale({name}=True)" for name in WRONG}
    assert {name for f in summary.findings for name in f.operators} == told
    assert len(summary.findings) == len(summary.causes) == len(told)
    assert sum(f.models for f in summary.findings) > len(told)


class DemandingConverter(PlainConverter):
    """Takes what nothing makes."""

    def taken_operators(self) -> Collection[str]:
        return ["unknown"]


def test_a_converter_that_takes_no_known_operator_is_refused(tmp_path: Path) -> None:
    extended = Plugins().extend("runtime", MakingRuntime())
    with pytest.raises(UsageError, match="no operators to make sources of: it knows none"):
        hunt(asked(tmp_path / "out", "1"), extended.extend("converter", DemandingConverter()))


def test_smaller_recipes_are_parts_in_order() -> None:
    steps = tuple(SourceStep(name, "float32", 0) for name in "abc")
    smaller = list(SourceRecipe(steps, dynamic=True).smaller())
    assert ["".join(r.operators) for r in smaller] == ["a", "b", "c", "ab", "bc", "abc"]
    assert not any(r.dynamic for r in smaller)


def test_the_order_depends_on_the_seed() -> None:
    operators = {f"op{i}": ["float32"] for i in range(30)}
    state = random.getstate()
    assert recipe_of(0, 1, operators) != recipe_of(0, 2, operators)
    assert random.getstate() == state


def test_each_plugin_is_used_in_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("litert", "jax", "tf"):
        made = environments_root() / name / MADE
        made.parent.mkdir(parents=True)
        made.touch()

    def homes(converter: str) -> tuple[str, str, str]:
        tested = resolve_converter(asked(tmp_path, "1", optimizer=converter), Plugins())
        return tested.maker_home, tested.converter_home, tested.target_home

    # PyTorch is here, and TFLite is run where litert_torch is.
    assert homes("converter:litert_torch") == ("", "litert", "litert")
    assert homes("converter:jax2onnx") == ("jax", "jax", "")
    assert homes("converter:torch_script") == ("", "", "")


@pytest.mark.parametrize(
    ("node", "undefined"),
    [("Gather(x, i)", True), ("LpNormalization<p = 3>(x)", False), ("Identity(x)", False)],
)
def test_what_has_no_answer_on_any_input_is_what_the_converter_made(
    node: str, undefined: bool
) -> None:
    graph = f"g (float[2] x, int64[1] i) => (float[n] y) {{ y = {node} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {graph}')
    artifact = Artifact("onnx", model.SerializeToString())
    feeds = {"x": np.ones(2, np.float32), "i": np.array([5])}
    assert _is_undefined(artifact, feeds) == undefined
