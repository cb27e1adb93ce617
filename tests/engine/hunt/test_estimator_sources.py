"""Sources that hunts in converters of estimators are made of, and the scripts beside them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.needs import needs

from optvet.engine.discovery import Plugins
from optvet.engine.scripts.parts import PART_SCRIPT, part_files
from optvet.plugin import Artifact, Factory, Feeds, Runtime, SourceStep, SplitsSource
from optvet.spec.converters import ConverterExtras, MakesSources, SourceExtras, TellsSource
from optvet.spec.extras import extras

needs("skl2onnx", reason="needs optvet[estimators]")

SNIPPET = """\
import onnxruntime
session = onnxruntime.InferenceSession(model.SerializeToString())
names = [output.name for output in session.get_outputs()]
return dict(zip(names, session.run(None, feeds)))"""


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Plugins().runtime("estimator")


def written(
    runtime: Runtime, folder: Path, *names: str, sample: int = 0, feeds: Feeds | None = None
) -> str | None:
    """The source of estimators in float32."""
    assert isinstance(runtime, MakesSources)
    steps = [SourceStep(name, "float32", sample) for name in names]
    name = runtime.make_source(steps, False, folder, feeds)
    return None if name is None else (folder / name).read_text()


def source_in(folder: Path) -> Artifact:
    return Artifact("estimator", path=folder / "part.py", handle=Factory("part"))


def test_what_is_written_is_fitted_and_takes_the_inputs_that_are_given(
    runtime: Runtime, tmp_path: Path
) -> None:
    table = np.array([[0.5], [-1.25], [np.nan]], np.float32)
    text = written(runtime, tmp_path, "SimpleImputer", "Ridge", sample=11, feeds={"x": table})
    assert text is not None
    assert "make_pipeline(SimpleImputer(" in text
    assert "np.array([[0.5], [-1.25], [np.nan]], np.float32)" in text
    assert isinstance(runtime, TellsSource)
    taken = runtime.source_facts(source_in(tmp_path), runtime.options).inputs["x"]
    np.testing.assert_array_equal(taken, table)
    session = runtime.load(source_in(tmp_path), runtime.options)
    assert session.run({"x": taken})["variable"].shape == (3, 1)


def test_samples_differ_in_settings_and_equal_ones_are_equal(
    runtime: Runtime, tmp_path: Path
) -> None:
    texts = [written(runtime, tmp_path, "DecisionTreeClassifier", sample=n) for n in range(12)]
    again = [written(runtime, tmp_path, "DecisionTreeClassifier", sample=n) for n in range(12)]
    assert texts == again
    made = {text.rpartition("return ")[2] for text in texts if text is not None}
    assert len(made) > 4
    assert any("max_leaf_nodes=" in each for each in made)


@pytest.mark.parametrize("library", ["LGBM", "XGB", "XGBRF"])
@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
def test_settings_and_targets_of_boosted_trees_fit_each_other(
    runtime: Runtime, tmp_path: Path, library: str, kind: str
) -> None:
    pytest.importorskip("lightgbm")
    pytest.importorskip("xgboost")
    texts = [written(runtime, tmp_path, library + kind, sample=n) for n in range(40)]
    made = [text for text in texts if text is not None]
    assert len(made) >= 32
    assert len({text.rpartition("return ")[2] for text in made}) > 20
    assert all("subsample=0.5, subsample_freq=1" in text for text in made if "='rf'" in text)


def test_a_setting_that_is_left_out_is_gone_and_the_table_stays(
    runtime: Runtime, tmp_path: Path
) -> None:
    assert isinstance(runtime, MakesSources)
    settings_of = extras(runtime, SourceExtras).source_settings

    def text(step: SourceStep) -> str:
        return (tmp_path / (runtime.make_source([step], False, tmp_path) or "")).read_text()

    steps = [SourceStep("DecisionTreeClassifier", "float32", n) for n in range(20)]
    told = {step: settings_of([step])[0] for step in steps}
    names = {name for settings in told.values() for name in settings}
    assert names > {"gaps", "classes", "labels", "max_depth"}
    for step, settings in told.items():
        plain = replace(step, without=frozenset(settings))
        assert settings_of([plain]) == [{}]
        assert "DecisionTreeClassifier(random_state=0)" in text(plain)
        assert re.findall(r"default_rng.*", text(plain)) == re.findall("default_rng.*", text(step))
        assert ("nan" in text(step).rpartition("y =")[0]) == ("gaps" in settings)
        assert "x[::" not in text(plain)
        assert "* 2 // len(x)\n" in text(plain)


def test_steps_that_do_not_fit_give_no_source(runtime: Runtime, tmp_path: Path) -> None:
    assert written(runtime, tmp_path, "Ridge", "StandardScaler") is None
    assert not list(tmp_path.iterdir())


def test_what_cannot_transform_ends_a_pipeline(runtime: Runtime) -> None:
    last = set(extras(runtime, SourceExtras).last_operators())
    assert last >= {"LinearSVC", "Ridge"}
    assert not last & {"StandardScaler", "KMeans"}


def test_what_answers_for_its_own_rows_alone_is_no_source(runtime: Runtime) -> None:
    assert isinstance(runtime, MakesSources)
    assert not set(runtime.source_operators()) & {"MDS", "OPTICS", "EmpiricalCovariance"}


def test_converters_take_the_estimators_that_they_list(runtime: Runtime) -> None:
    pytest.importorskip("lightgbm")
    pytest.importorskip("onnxmltools")
    plugins = Plugins()
    trees, others = plugins.converter("onnxmltools"), plugins.converter("skl2onnx")
    assert isinstance(runtime, MakesSources)
    made = set(runtime.source_operators())
    boosted = {f"LGBM{kind}" for kind in ("Classifier", "Regressor")}
    boosted |= {f"XGB{kind}" for kind in ("Classifier", "Regressor")}
    boosted |= {f"XGBRF{kind}" for kind in ("Classifier", "Regressor")}
    assert made & set(extras(trees, ConverterExtras).taken_operators()) == boosted
    assert set(extras(others, ConverterExtras).taken_operators()) >= {
        "KMeans",
        "LinearSVC",
        "Pipeline",
        "StandardScaler",
    }
    assert not set(extras(others, ConverterExtras).taken_operators()) & {"Birch", *boosted}


@pytest.mark.parametrize(
    ("converter", "operator"),
    [("skl2onnx", "LinearSVC"), ("skl2onnx", "KMeans"), ("onnxmltools", "LGBMClassifier")],
)
def test_the_script_of_a_right_conversion_says_that_there_is_no_fault(
    runtime: Runtime, tmp_path: Path, converter: str, operator: str
) -> None:
    pytest.importorskip("lightgbm")
    assert written(runtime, tmp_path, operator, sample=2) is not None
    assert isinstance(runtime, SplitsSource)
    script = runtime.script(converter, {})
    assert script is not None
    for name, text in part_files(script, [SNIPPET], 1e-4).items():
        (tmp_path / name).write_text(text)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", PART_SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the fault is not there" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 0
