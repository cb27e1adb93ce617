"""Campaigns whose jobs are conversions."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from tests.commands import Run
from tests.needs import needs

from optvet import UsageError
from optvet.engine.campaign import Digests, add_campaign, open_store, read_campaign
from optvet.engine.campaign.plan import plan_campaign, requests_of, tool_of
from optvet.engine.campaign.store import DATABASE
from optvet.engine.discovery import Plugins

needs("skl2onnx", reason="needs optvet[estimators]")

SOURCE = """
import numpy as np
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)
example_inputs = (X[:9],)

def linear():
    from sklearn.linear_model import LogisticRegression
    return LogisticRegression().fit(X, y)

def forest():
    from sklearn.ensemble import RandomForestClassifier
    holes = np.where(rng.random(X.shape) < 0.3, np.float32("nan"), X)
    return RandomForestClassifier(5, random_state=0).fit(holes, y)

forest.more_inputs = [(np.full((4, 3), np.nan, np.float32),)]
"""
MATRIX = """
name = "matrix"
models = ["source.py:linear", "source.py:forest"]
via = ["skl2onnx", "onnxmltools"]
[convert]
random = 1
sizes = false
"""


@pytest.fixture
def file(place: Path) -> Path:
    (place / "source.py").write_text(SOURCE)
    (place / "matrix.toml").write_text(MATRIX)
    return place / "matrix.toml"


def test_a_matrix_of_conversions_is_stored_and_reported_as_vets_are(file: Path, run: Run) -> None:
    ended = run("campaign", "run", str(file), "--trust", "--jobs", "2")
    assert ended.code == 1
    assert "4 jobs: 1 faulty, 2 refused, 1 right; 1 finding" in ended.out
    assert "expected xgboost or lightgbm" in ended.out
    again = run("campaign", "run", str(file), "--trust", "--quiet", "--json", "summary.json")
    assert again.code == 1
    summary = json.loads(Path("summary.json").read_text())
    assert {t["attempts"] for t in summary["trials"]} == {1}
    told = {(t["model"].rpartition(":")[2], t["optimizer"]): t for t in summary["trials"]}
    assert told["linear", "skl2onnx"]["verdict"] == "right"
    assert told["forest", "skl2onnx"]["verdict"] == "faulty"
    assert told["linear", "onnxmltools"]["faults"] == []
    (finding,) = summary["findings"]
    assert (finding["symptom"], finding["culprit"]) == ("wrong-output", ["skl2onnx/convert"])

    shown = run("campaign", "show", "matrix.store", finding["fingerprint"])
    assert "FAULTY" in shown.out
    assert "source.py:forest → skl2onnx" in shown.out
    assert run("campaign", "export", "matrix.store", "--out", "all.json").code == 0
    answers = [t["answer"] for t in json.loads(Path("all.json").read_text())["trials"]]
    assert {a["schema"] for a in answers} == {"optvet.convert/1"}
    assert run("campaign", "export", "matrix.store", "--format", "csv", "--out", "t").code == 0
    assert Path("t/trials.csv").read_text().count(",convert,") == 4
    for format in ("html", "markdown", "junit", "sarif", "github", "json"):
        report = run("report", "matrix.store", "--format", format)
        assert "forest" in report.out, format
    tables = run("campaign", "tables", "matrix.store", "--format", "csv")
    assert "wrong-output,compare,algorithmic,1,1,1" in tables.out
    assert "source.py:forest,! " in tables.out

    assert "refused" in tables.out
    study = run("campaign", "tables", "matrix.store", "--study", "converters", "--format", "csv")
    assert "all,4,2,0,0,0,1,0,1,0,0.25" in study.out
    assert "skl2onnx,node conversion,wrong-output,algorithmic,1,1" in study.out
    assert 'estimator,"1 right, 1 differs, 2 refused"' in study.out

    run("campaign", "export", "matrix.store", "--format", "baseline", "--out", "known.json")
    known = run("campaign", "show", "matrix.store", "--baseline", "known.json")
    assert (known.code, "0 new findings, 1 known" in known.out) == (5, True)


def test_requirements_and_labels_of_conversions_are_stored_as_those_of_vets(
    place: Path, run: Run
) -> None:
    (place / "source.py").write_text(SOURCE)
    (place / "c.toml").write_text(
        'models = ["source.py:linear"]\nvia = ["skl2onnx"]\n[convert]\nedges = false\n'
        'require = ["max_change<=1e-3", "probabilities:max_change<=1e-12"]\n'
    )
    ended = run("campaign", "run", "c.toml", "--trust", "--store", "c.store")
    assert ended.code == 1
    assert "1 right; 1 finding" in ended.out
    assert run("campaign", "export", "c.store", "--out", "all.json").code == 0
    (answer,) = (t["answer"] for t in json.loads(Path("all.json").read_text())["trials"])
    assert [r["met"] for r in answer["requirements"]] == [True, False]
    assert run("campaign", "export", "c.store", "--format", "csv", "--out", "t").code == 0
    assert ",requirement," in Path("t/findings.csv").read_text()
    numbers = Path("t/metrics.csv").read_text()
    for name in ("impact,samples", "impact,changed", "output,probabilities.error"):
        assert name in numbers, name
    assert "probabilities:max_change&lt;=1e-12" in run("report", "c.store", "--format", "html").out


def test_only_chains_that_take_a_source_are_asked(place: Path) -> None:
    (place / "a.onnx").write_bytes(b"")
    (place / "source.py").write_text(SOURCE)
    (place / "c.toml").write_text(
        'models = ["source.py:linear", "a.onnx"]\nvia = ["skl2onnx", "onnx2torch"]\n'
    )
    source = read_campaign(place / "c.toml", Plugins(), trust=True)
    asked = [(Path(r.model).name, tool_of(r)) for r in requests_of(source, Plugins())]
    assert asked == [("source.py:linear", "skl2onnx"), ("a.onnx", "onnx2torch")]


def test_two_functions_of_a_file_are_two_models(file: Path) -> None:
    source = read_campaign(file, Plugins(), trust=True)
    with open_store(Path("s"), create=True) as store:
        plan = plan_campaign(source, Plugins(), Digests(store.database), cache_dir=Path("cache"))
    assert len({job.model_digest for job in plan.jobs}) == 2
    assert len({job.key for job in plan.jobs}) == 4
    assert all({"skl2onnx", "estimator"} & job.versions.keys() for job in plan.jobs)


WRONG = {
    'via = ["skl2onnx"]': r"key 'models': missing or empty; name sources",
    'models = ["source.py:f"]\nvia = ["skl2onnx"]': r":1: key 'models': .* runs the code",
    'models = ["a.onnx"]\nvia = ["skl2onnx"]\nbundles = true\noptimizers = ["onnxslim"]': (
        r":4: key 'optimizers': these jobs are conversions"
    ),
    'models = ["a.onnx"]\nvia = ["x"]\n[convert]\nout = "d"': r":4: key 'convert.out': say --out",
    'models = ["a.onnx"]\nvia = ["x"]\n[convert]\nrandm = 1': r":4: .*did you mean 'random'",
    'models = ["a.onnx"]\nvia = ["x"]\n[convert]\nrandom = -1': r":4: key 'convert.random': -1",
    'models = ["a.onnx"]\nvia = ["x"]\n[convert.environments]\ntf = "/tf"': r"'convert'.*programs",
    'models = ["a.onnx"]\n[convert]\nrandom = 1': r":2: key 'convert': say which chains",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_with_line_and_key(place: Path, text: str) -> None:
    (place / "c.toml").write_text(text)
    with pytest.raises(UsageError, match=WRONG[text]):
        read_campaign(place / "c.toml", Plugins())


@pytest.mark.parametrize(
    ("models", "via", "words"),
    [
        ("nowhere.onnx", "onnx2torch", r"key 'models': .*nowhere.onnx: no such file"),
        ("a.onnx", "nothing", r"key 'via': .*'nothing'"),
        ("a.onnx", "skl2onnx", r"key 'models': .*no chain of 'via' takes it"),
        ("a.onnx", "skl2onnx,skl2onnx", r"key 'via': .*whose formats match"),
        ("source.py", "skl2onnx", r"key 'models': .*say which function"),
    ],
)
def test_sources_and_chains_that_cannot_be_are_refused_before_anything_runs(
    file: Path, models: str, via: str, words: str
) -> None:
    (file.parent / "a.onnx").write_bytes(b"")
    file.write_text(f'models = ["{models}"]\nvia = ["{via}"]\n')
    with pytest.raises(UsageError, match=words):
        list(requests_of(read_campaign(file, Plugins(), trust=True), Plugins()))


def test_a_folder_is_the_sources_in_it_or_a_source_itself(place: Path) -> None:
    (place / "models/deep").mkdir(parents=True)
    for name in ("a.onnx", "deep/b.onnx", "notes.txt"):
        (place / "models" / name).write_bytes(b"")
    (place / "c.toml").write_text('models = ["models/"]\nexclude = ["a*"]\nvia = ["onnx2torch"]\n')
    source = read_campaign(place / "c.toml", Plugins())
    assert [Path(r.model).name for r in requests_of(source, Plugins())] == ["b.onnx"]


def test_resuming_conversions_of_python_files_needs_trust(file: Path, run: Run) -> None:
    source = read_campaign(file, Plugins(), trust=True)
    with open_store(Path("s"), create=True) as store:
        digests = Digests(store.database)
        add_campaign(store, plan_campaign(source, Plugins(), digests, cache_dir=Path("cache")))
    ended = run("campaign", "resume", "s")
    assert (ended.code, "--trust" in ended.err) == (2, True)


@pytest.mark.long
def test_stores_know_which_jobs_are_conversions(file: Path, run: Run) -> None:
    run("campaign", "run", str(file), "--trust", "--jobs", "2", "--quiet")
    with sqlite3.connect(Path("matrix.store") / DATABASE) as database:
        kinds = database.execute("SELECT kind, count(*) FROM jobs GROUP BY kind").fetchall()
    assert kinds == [("convert", 4)]
