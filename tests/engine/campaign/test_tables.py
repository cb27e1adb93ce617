from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.commands import FAULTY, Run

from optvet.engine.campaign.causes import cause_of
from optvet.engine.campaign.tables import tables_of_findings
from optvet.engine.campaign.tables.failing import only_failing
from optvet.engine.campaign.tables.level_charts import charts
from optvet.engine.campaign.tables.over_many import (
    against_each_other,
    issues,
    kinds,
    operator_sets,
    releases,
)
from optvet.engine.campaign.tracker import read_tracked
from optvet.engine.discovery import Plugins
from optvet.spec.errors import InputError
from optvet.spec.records import (
    CrossCheck,
    Divergence,
    Finding,
    Impact,
    IntervalChart,
    OutputRecord,
    PassNumbers,
    PassRecord,
    Placement,
    Placements,
    PointChart,
    Structure,
    Timing,
    Verdict,
)
from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.tables import CampaignTables
from optvet.spec.records.timing import TimedSide
from optvet.spec.studies import OUTCOMES, FaultRow, StudyData, TrialParts, TrialRow, by_model
from optvet.spec.symptoms import Symptom
from optvet.testing import check_study
from optvet_ditox.counts import outcomes
from optvet_otx import metrics
from optvet_otx.graphs import placement
from optvet_otx.speeds import speed

FILE = """
name = "small"
models = ["models/"]
optimizers = ["onnxoptimizer"]
pipelines = ["default", "eliminate_identity"]
vet = { limit = 1 }
"""


def finding(**fields: Any) -> Finding:
    about = {"symptom": "wrong-output", "severity": "fault", "stage": "compare"}
    return Finding.model_validate({**about, "culprit": ["fuse"], "confirmed": True, **fields})


def seen(issue: str = "", **fields: Any) -> FaultRow:
    found = finding(**fields)
    return FaultRow(issue or "f" * 16, issue or "f" * 16, found, cause_of(found))


def row(model: str, outcome: Any = "same", *, variant: str = "a", **fields: Any) -> TrialRow:
    version = fields.get("version", "1.0")
    known: dict[str, Any] = {
        "key": f"{model} {variant} {version}",
        "model": model,
        "digest": model,
        "source": model,
        "optimizer": "opt",
        "version": version,
        "parts": TrialParts("opt", version, variant),
        "outcome": outcome,
    }
    if outcome == "differs":
        known["faults"] = (seen(),)
    if outcome == "crashes":
        known["faults"] = (seen("c" * 16, symptom="optimizer-error", stage="build"),)
    return TrialRow(**{**known, **fields})


def cells(table: ReportTable | None) -> dict[str, list[Any]]:
    assert table is not None
    return {str(line[0]): line[1:] for line in table.rows}


def test_tables_of_a_real_campaign(run: Run, models: Path, place: Path) -> None:
    (place / "small.toml").write_text(FILE)
    assert run("campaign", "run", "small.toml", "-q").code == 1
    (place / "known.toml").write_text(
        '[[known]]\nculprit = "fuse_transpose_*"\nurl = "https://tracker.example/7"\n'
    )
    ran = run("campaign", "tables", "small.store", "--known", "known.toml", "--json", "t.json")
    assert ran.code == 0, ran.err
    assert "https://tracker.example/7" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    document = CampaignTables.model_validate_json((place / "t.json").read_text())
    tables = {table.title: table for table in document.tables}
    (kind,) = tables["Faults by symptom, stage and cause"].rows
    assert kind[:2] == ["optimizer-error", "build"]
    assert kind[3:] == [1, 1, 1]
    assert tables["Issues"].rows[0][-1] == "https://tracker.example/7"
    models_ = cells(tables["Each model under each variant"])
    assert models_["faulty.onnx"] == ["optimizer-error", "0"]
    assert models_["clean.onnx"] == ["0", "0"]
    matrix = cells(tables["Variants against each other"])
    assert matrix["onnxoptimizer default"] == ["0 of 1, 1 crashed", "0 of 1, 1 crashed"]
    sequences = tables["Operator sequences that occur only in failing models"]
    assert sequences.rows == [["Transpose → Gemm", "onnxoptimizer", 1, 1]]
    assert "left out" not in sequences.note
    # A graph of which it is not certain that it is the one that failed tells nothing.
    (models / "faulty.onnx").write_bytes((models / "clean.onnx").read_bytes())
    ran = run("campaign", "tables", "small.store", "--json", "t.json")
    document = CampaignTables.model_validate_json((place / "t.json").read_text())
    (changed,) = (t for t in document.tables if t.title == sequences.title)
    assert changed.rows == []
    assert "Models left out because their files changed or are gone: 1." in changed.note
    onnx.save(onnx.parser.parse_model(FAULTY), models / "faulty.onnx")

    ran = run("campaign", "tables", "small.store", "--study", "ditox", "--format", "markdown")
    assert "| optimizable | 1 |" in ran.out
    assert "| round trip | 0 | 27 of 28 classifiers |" in ran.out
    assert "2 of its 2 models are others" in ran.out

    ran = run("campaign", "tables", "small.store", "--study", "otx", "--format", "csv")
    parts = ran.out.split("\n\n")
    nodes = list(csv.reader(io.StringIO(parts[1])))
    ran = run("campaign", "tables", "small.store", "--study", "otx", "--format", "latex")
    assert ran.out.count(r"\begin{tabular}") == ran.out.count(r"\end{table}") == len(parts)
    assert r"\caption{OTX: nodes per level}" in ran.out
    assert r"level & models & nodes & optimized & change \% & OTX \%" in ran.out
    # The pipeline that fails has made no graph; Identity is gone in one of two nodes.
    assert nodes[0] == ["# OTX: nodes per level"]
    assert [line[1:5] for line in nodes[2:]] == [["1", "2", "1", "-50.0"], ["2", "4", "3", "-25.0"]]


@pytest.mark.long
def test_a_campaign_may_only_detect(run: Run, models: Path, place: Path) -> None:
    (place / "small.toml").write_text(FILE.replace("limit = 1", 'limit = 1, strategy = "none"'))
    assert run("campaign", "run", "small.toml", "-q").code == 1
    shown = " ".join(run("campaign", "show", "small.store").out.split())
    assert "optimizer-error: the whole pipeline" in shown
    ran = run("campaign", "tables", "small.store", "--study", "ditox", "--format", "markdown")
    assert "| not searched | 1 |" in ran.out
    assert "| fuse_transpose_into_gemm |" not in ran.out
    assert run("report", "small.store", "--format", "markdown", "--out", "summary.md").code == 0
    assert "culprits not searched" in (place / "summary.md").read_text()


LEVELS = """
name = "levels"
models = ["models/clean.onnx"]
optimizers = ["onnxruntime"]
pipelines = ["basic", "extended"]
vet = { limit = 1, structure = true }
"""


@pytest.mark.long
def test_levels_of_a_real_runtime_have_operators_placement_and_charts(
    run: Run, models: Path, place: Path
) -> None:
    (place / "levels.toml").write_text(LEVELS)
    assert run("campaign", "run", "levels.toml", "-q").code == 0
    asked = ("levels.store", "--study", "otx")
    assert run("campaign", "tables", *asked, "--json", "t.json").code == 0
    document = CampaignTables.model_validate_json((place / "t.json").read_text())
    tables = {table.title: table for table in document.tables}
    # Identity is gone at the first level; the study's figure stands beside ours.
    assert cells(tables["OTX: nodes per level"])["onnxruntime basic"][:5] == [1, 2, 1, -50, -22]
    assert cells(tables["OTX: operators per level"])["Relu"] == [50, 100, 100, 18, 0]
    base = cells(tables["OTX: nodes on the wanted provider"])["clean.onnx"]
    assert base == [100, 100, 100, None, None, None, None]
    placed = cells(tables["OTX: placement per level"])
    assert placed["onnxruntime extended"] == [1, 1, "CPUExecutionProvider 100%", 0]
    each = tables["OTX: each model at each level"].rows
    assert [line[1:] for line in each] == [
        [level, 2, 1, "Relu 1 (100%)", "CPUExecutionProvider 100%", None]
        for level in ("onnxruntime basic", "onnxruntime extended")
    ]
    assert run("report", "levels.store", "--out", "report.html").code == 0
    page = (place / "report.html").read_text()
    assert page.count('<svg class="chart"') == 2
    assert "onnxruntime basic: Relu 1" in page


def test_metrics_per_level_have_mean_and_extremes() -> None:
    def impact(value: float | None) -> Impact:
        return Impact(
            comparator="classification",
            chosen_by="",
            headline="",
            metrics={"top1_agreement": value},
            changed=0,
            sensitive=0,
            samples=1,
        )

    rows = [row(f"m{i}", impact=impact(v)) for i, v in enumerate((1.0, 0.5, None))]
    (line,) = metrics(rows).rows
    assert line[1:] == ["classification", "top1_agreement", 2, 0.75, 0.5, 1.0]


def test_nodes_on_another_provider_have_no_kernel_on_the_wanted_one() -> None:
    def placed(providers: dict[str, int]) -> Placements:
        found = Placement(
            wanted="GPU", runs=1, providers=providers, seconds=0, operators=[], slowest=[]
        )
        return Placements(optimized=found)

    rows = [row("a", placements=placed({"GPU": 6, "CPU": 2})), row("b")]
    rows.append(row("c", placements=placed({"CPU": 2})))
    (line,) = placement(rows).rows
    assert line[1:] == [2, 10, "GPU 60%, CPU 40%", 4]


# What is counted

Outcomes = st.lists(
    st.tuples(
        st.sampled_from("abcdef"), st.sampled_from(["x", "y", "z"]), st.sampled_from(OUTCOMES)
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda told: told[:2],
)


@given(Outcomes)
def test_every_model_has_one_outcome_per_optimizer(told: list[tuple[str, str, Any]]) -> None:
    rows = [row(model, outcome, variant=variant) for model, variant, outcome in told]
    table = outcomes(rows, [])
    *each, optimizable, everything = (int(str(line[1])) for line in table.rows)
    assert sum(each) == everything == len({model for model, _, _ in told})
    assert optimizable == each[0] + each[1]


@given(Outcomes)
def test_variants_are_compared_symmetrically(told: list[tuple[str, str, Any]]) -> None:
    rows = [row(model, outcome, variant=variant) for model, variant, outcome in told]
    table = against_each_other(rows)
    if len({variant for _, variant, _ in told}) < 2:
        assert table is None
        return
    assert table is not None
    square = [line[1:] for line in table.rows]
    assert square == [list(column) for column in zip(*square, strict=True)]


def test_variants_that_differ_may_both_be_wrong_or_crash() -> None:
    under: dict[str, list[Any]] = {
        "a": ["same", "differs", "same", "crashes"],
        "b": ["differs", "differs", "same", "same"],
    }
    rows = [
        row(model, outcome, variant=variant)
        for variant, told in under.items()
        for model, outcome in zip("pqrs", told, strict=True)
    ]
    found = cells(against_each_other(rows))
    assert found["opt a"] == ["1 of 3, 1 crashed", "1 of 3, 1?, 1 crashed"]
    assert found["opt b"] == ["1 of 3, 1?, 1 crashed", "2 of 4"]


def test_the_worst_job_stands_for_a_model() -> None:
    rows = [row("m", "same"), row("m", "crashes", variant="b"), row("m", "waits", variant="c")]
    assert by_model(rows)["m"].outcome == "crashes"


def test_the_same_crash_of_many_models_is_one_issue() -> None:
    crash = {"symptom": "optimizer-error", "stage": "build"}
    rows = [
        row("a", "crashes", faults=(seen("same", **crash),)),
        row("b", "crashes", faults=(seen("same", culprit=["other"], **crash),)),
        row("c", "crashes", faults=(seen("else", **crash),)),
    ]
    (kind,) = kinds(rows).rows
    assert kind[3:] == [2, 3, 3]
    first, second = issues(rows, None).rows
    assert (first[3], first[-1], second[-1]) == ("fuse and 1 more", 2, 1)


def test_faults_of_releases_are_correlated_over_models_of_all_of_them() -> None:
    def release(version: str, faulty: str, models: str = "abcd") -> list[TrialRow]:
        return [row(m, "differs" if m in faulty else "same", version=version) for m in models]

    # Version 1.10 comes after 1.9; model "z" is only in it, and says nothing of progress.
    rows = [*release("1.10", "", "abcdz"), *release("1.9", "ab"), *release("1.2", "abcd")]
    table = releases(rows)
    assert [(line[1], line[4]) for line in table.rows] == [("1.2", 4), ("1.9", 2), ("1.10", 0)]
    assert "rho -0.82" in table.note
    assert "n 12" in table.note


def test_a_correlation_that_is_not_defined_is_not_told() -> None:
    rows = [row(m, "same", opset=o) for m, o in zip("abc", (9, 11, 13), strict=True)]
    table = operator_sets(rows)
    assert [line[:3] for line in table.rows] == [[9, 1, 1], [11, 1, 1], [13, 1, 1]]
    assert "not defined" in table.note
    assert "fewer than" in operator_sets(rows[:2]).note


# Causes


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("NOT_IMPLEMENTED : Could not find an implementation for Foo(13)", "incompatibility"),
        ("DispatchError: No ONNX function found for <OpOverload(op='prims.f')>", "incompatibility"),
        ("'tf.AvgPool3D' op is neither a custom op nor a flex op", "incompatibility"),
        ("failed to legalize operation 'tf.TensorListReserve'", "incompatibility"),
        ("Type Error: Type parameter (T) bound to different types", "type"),
        ("[ShapeInferenceError] Inferred elem type differs from existing elem type", "type"),
        ("Shape mismatch: dimension 2 is 3, expected 4", "shape"),
        ("TypeError: f() got an unexpected keyword argument 'axis'", "API misuse"),
        ("the type and the shape of 'x' are wrong", "unclear"),
        ("Segmentation fault", "unclear"),
        ("", "unclear"),
    ],
)
def test_causes_of_failures_are_read_off_their_messages(message: str, cause: str) -> None:
    found = cause_of(finding(symptom="optimizer-error", stage="build", message=message))
    assert found.name == cause


def test_causes_of_wrong_values_are_read_off_where_they_begin() -> None:
    def of(before: list[str], after: list[str], **fields: Any) -> str:
        place = Divergence(value="v", before=before, after=after)
        return cause_of(finding(error=0.5, divergence=place, **fields)).name

    assert of(["v = Relu(x)"], ["v = Identity(x)"]) == "algorithmic"
    assert of(["c = Cast(x)", "v = Relu(c)"], ["v = Relu(x)"]) == "type"
    elsewhere = CrossCheck(runtime="other", outcome="no-fault")
    assert of(["v = Relu(x)"], ["v = Elu(x)"], cross_check=[elsewhere]) == "incompatibility"
    assert cause_of(finding(error=0.5)).name == "unclear"
    assert cause_of(finding(symptom="out-of-memory", stage="run")).name == "other"


# Known findings


def test_entries_that_match_nothing_are_told(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(
        f'[[known]]\nfingerprint = "{"f" * 8}"\nurl = "https://tracker.example/1"\n'
        '[[known]]\noptimizer = "other"\nurl = "https://tracker.example/2"\n'
    )
    rows = [row("a", "differs"), row("b", "crashes")]
    table = issues(rows, read_tracked(file))
    assert [line[-1] for line in table.rows] == ["https://tracker.example/1", "new"]
    assert table.note == "Known, but not found here: https://tracker.example/2."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[known]]\nfingerprint = "abcdef01"', ":1: key 'known[1].url': missing"),
        ('[[known]]\nurl = "https://t.example"', ":1: key 'known[1]': says of no finding"),
        ('[[known]]\nurl = "t.example"\nculprit = "a"', ":2: key 'known[1].url': 't.example'"),
        (
            '[[known]]\nurl = "https://t.example"\nculprits = "a"',
            ":3: key 'known[1].culprits': unknown; did you mean 'culprit'",
        ),
        (
            '[[known]]\nurl = "https://t.example"\nfingerprint = "xyz"',
            ":3: key 'known[1].fingerprint': 'xyz': expected at least its first 8 digits",
        ),
        (
            '[[known]]\nurl = "https://t.example"\nsymptom = "wrong"',
            ":3: key 'known[1].symptom': 'wrong'",
        ),
        ("known = 3", ":1: key 'known': 3"),
        ("[[known", "cannot be read"),
    ],
)
def test_what_is_wrong_with_known_findings_is_told(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(InputError) as raised:
        read_tracked(file)
    assert f"{file}" in str(raised.value)
    assert words in str(raised.value)


def test_speed_per_level_counts_verdicts_and_spans_the_ratios() -> None:
    def timed(verdict: Any, ratio: float | None) -> Timing:
        about: dict[str, Any] = {} if ratio is None else {"low": ratio - 0.1, "high": ratio + 0.1}
        return Timing(
            verdict=verdict,
            baseline="original",
            confidence=0.99,
            threshold=0.05,
            ratio=ratio,
            **about,
        )

    told = [("slower", 1.5), ("faster", 0.5), ("undecided", 1.0), ("no-difference", None)]
    rows = [row(f"m{i}", timing=timed(v, r)) for i, (v, r) in enumerate(told)] + [row("untimed")]
    (line,) = speed(rows).rows
    assert line[1:] == [4, 1, 1, 1, 1, 1.0, 0.5, 1.5, None]
    (chart,) = charts(rows)
    assert isinstance(chart, IntervalChart)
    assert [i.tone for i in chart.intervals] == ["bad", "good", "unsure"]
    compared = timed("faster", 0.5).model_copy(update={"difference": 1e-6})
    *_, points = charts([*rows, row("compared", timing=compared)])
    assert isinstance(points, PointChart)
    assert [(p.x, p.y) for p in points.points] == [(1e-6, 0.5)]
    assert speed([row("untimed")]).rows == []


def test_sequences_of_failing_models_are_those_that_no_sound_model_has() -> None:
    known = {
        "a": frozenset({("Relu", "Abs"), ("Abs", "Neg"), ("Relu", "Abs", "Neg")}),
        "b": frozenset({("Relu", "Abs"), ("Abs", "Neg"), ("Relu", "Abs", "Neg")}),
        "c": frozenset({("Abs", "Neg"), ("Neg", "Abs", "Neg")}),
        "d": frozenset({("Abs", "Neg")}),
    }
    rows = [row("a", "differs"), row("b", "crashes"), row("c"), row("d"), row("e")]
    table = only_failing(rows, known)
    # The triple says no more than its pair; "Abs → Neg" is in sound models too.
    assert cells(table) == {"Relu → Abs": ["opt", 2, 2]}
    assert table is not None
    assert "Models left out because their files changed or are gone: 1." in table.note
    assert only_failing([row("c"), row("d")], known) is None


def test_a_model_that_fails_in_one_of_its_jobs_is_a_failing_model() -> None:
    known = {"a": frozenset({("Relu", "Abs")})}
    rows = [row("a", "same"), row("a", "differs", variant="b")]
    assert cells(only_failing(rows, known)) == {"Relu → Abs": ["opt", 1, 1]}


@pytest.mark.parametrize("name", Plugins().names("study"))
def test_a_study_keeps_the_contract(name: str) -> None:
    check_study(Plugins().study(name))


def test_an_unknown_study_is_refused_with_the_names(run: Run) -> None:
    ran = run("campaign", "tables", "nowhere.store", "--study", "ditix")
    assert ran.code == 2
    assert "did you mean 'ditox'" in ran.err


def impact_of(comparator: str, changed: int = 0, **metrics: float) -> Impact:
    return Impact(
        comparator=comparator,
        chosen_by="test",
        headline="",
        metrics=dict(metrics),
        changed=changed,
        sensitive=0,
        samples=50,
    )


def test_the_study_s_figures_stand_beside_those_of_its_own_models() -> None:
    raised = finding(
        symptom="metadata-change", severity="note", stage="build", culprit=[],
        changed=["ir_version"], message="ir_version: 3 became 4",
    )  # fmt: skip
    rows = [
        row(
            "squeezenet1.0-8",
            task="image-classification",
            source="study:squeezenet1.0-8",
            opset=8,
            impact=impact_of("classification", reordered_top1=0.0, reordered_top10=0.02),
            notes=(raised,),
        ),
        row(
            "yolov3-12",
            "differs",
            task="object-detection",
            source="study:yolov3-12",
            opset=12,
            impact=impact_of("detection", 3, **{"f1@0.5": 0.9, "iou": 0.8, "mAP": 0.7}),
        ),
        row("gpt2-10", "crashes", task="text-generation", source="study:gpt2-10", opset=10),
        row("t5", task="text-generation", impact=impact_of("text", bleu=0.5, exact_match=0.25)),
    ]
    tables = {t.title: t for t in Plugins().study("ditox").tables(StudyData(rows))}
    label, *others = tables["DiTOX: labels in another order"].rows
    assert len(others) == 12  # what else the study prints
    assert label[5:] == [0.0, None, 2.0, "FV", 0, 0, 0.02, "FV"]
    boxes, *others = tables["DiTOX: detectors"].rows
    assert [line[0] for line in others] == ["SSD", "Tiny-YOLOv3", "YOLOv2"]
    assert boxes[4:9] == [90.0, None, None, 70.0, 80.0]
    assert boxes[9:] == [99.45, 99.45, 99.45, 99.99, 84.81]
    (texts,) = tables["DiTOX: texts"].rows
    assert texts[4:] == [50.0, 25.0, 0]
    known = {str(line[1]): line[2:] for line in tables["DiTOX: shares of models"].rows}
    assert known["crashed, or became an invalid model"] == [1, 4, 25.0, 9.2]
    assert known["detection: other results"] == [1, 1, 100.0, 16.6]
    found = tables["DiTOX: findings"].rows
    assert {(line[2], line[4], line[7]) for line in found} == {
        ("fuse", "accuracy", "yolov3-12 (op. 12)"),
        ("fuse", "crash", "gpt2-10 (op. 10)"),
        ("round trip", "warning", "squeezenet1.0-8 (op. 8)"),
    }
    # Only the note on metadata is the study's silent raise of the IR version.
    theirs = {line[2]: line[5] for line in tables["DiTOX: the study's findings"].rows}
    assert theirs["the IR version is raised silently"] == 1
    assert theirs["invalid input scale"] == 0
    assert theirs["list index"] == 0


def test_the_study_s_issues_are_a_raised_version_and_a_grown_graph_alone() -> None:
    of_metadata = {"severity": "note", "stage": "build", "culprit": []}
    notes = {
        "FV": finding(symptom="metadata-change", changed=["ir_version"], **of_metadata),
        "": finding(symptom="metadata-change", changed=["producer_name"], **of_metadata),
        "MG": finding(symptom="bloat", severity="note", stage="build", culprit=["fuse_bn"]),
    }
    read = impact_of("classification", reordered_top1=0.0)
    rows = [row(issue or "none", impact=read, notes=(note,)) for issue, note in notes.items()]
    rows.append(row("wrong", "differs", impact=read))
    rows.append(row("boxes", impact=impact_of("detection", label_order_top1=0.75)))
    tables = {t.title: t for t in Plugins().study("ditox").tables(StudyData(rows))}
    label = tables["DiTOX: labels in another order"]
    place = label.columns.index("issue")
    assert {str(r[0]): r[place] for r in label.rows[:5]} == {
        "FV": "FV", "none": "", "MG": "MG", "wrong": "other", "boxes": "",
    }  # fmt: skip
    assert label.rows[4][5] == 25.0  # of images, the first label changed


def test_each_pass_on_each_model_is_a_row_with_the_study_s_scores() -> None:
    def numbers(verdict: Verdict, nodes: int, **metrics: float) -> PassNumbers:
        return PassNumbers(
            verdict=verdict,
            samples=50,
            outputs=[OutputRecord(name="y", verdict="drift", error=0.5, noise_floor=0.1)],
            impact=impact_of("classification", 5, **metrics),
            structure=Structure(nodes=nodes, size_bytes=9, operators={"Conv": nodes}),
        )

    wrong = numbers("faulty", 3, kendall_tau=0.5, reordered_top5=0.2, f1=0.3)
    passes = (
        PassRecord(name="idle", effect="none"),
        PassRecord(name="fuse", effect="failed", symptom=Symptom.WRONG_OUTPUT, numbers=wrong),
        PassRecord(name="split", effect="failed", symptom=Symptom.OPTIMIZER_ERROR),
    )
    one = replace(row("m", opset=9), passes=passes, round_trip=numbers("clean", 7, kendall_tau=1))
    tables = {t.title: t for t in Plugins().study("ditox").tables(StudyData([one]))}
    table = tables["DiTOX: each pass on each model"]
    found = {str(r[4]): dict(zip(table.columns, r, strict=True)) for r in table.rows}
    assert [*found] == ["import and export", "fuse", "split"]
    assert (found["import and export"]["nodes"], found["import and export"]["tau"]) == (7, 1)
    fuse = found["fuse"]
    assert (fuse["verdict"], fuse["error"], fuse["nodes"], fuse["inputs"]) == ("faulty", 0.5, 3, 50)
    assert (fuse["top 5 %"], fuse["tau"], found["split"]["nodes"]) == (20.0, 0.5, None)
    assert "BLEU" not in table.columns
    (general,) = [t for t in tables_of_findings([one], [one]) if t.title.startswith("Each pass")]
    cells = [dict(zip(general.columns, r, strict=True)) for r in general.rows]
    assert [c["pass"] for c in cells] == ["import and export", "fuse", "split", "1 others"]
    assert (cells[1]["noise"], cells[1]["changed"], cells[1]["f1"]) == (0.1, 5, 0.3)


def test_a_level_is_compared_with_the_study_s_figure_of_the_same_model() -> None:
    side = {"latency_s": 0.5, "throughput": 2.0, "load_s": 1.0, "memory_bytes": 4_000_000_000}
    side |= {"cpu_utilization": 1.5, "warm_ups": 3}
    timing = Timing(
        verdict="faster",
        baseline="original",
        ratio=0.25,
        low=0.2,
        high=0.3,
        confidence=0.95,
        threshold=0.05,
        repeats=10,
        redone=2,
        reference=TimedSide.model_validate(side),
        candidate=TimedSide.model_validate({**side, "throughput": 8.0}),
    )
    one = row("FasterRCNN-12", variant="all", source="study:FasterRCNN-12", timing=timing)
    rows = [replace(one, parts=TrialParts("onnxruntime", "1", "all"))]
    tables = {t.title: t for t in Plugins().study("otx").tables(StudyData(rows))}
    line, *others = tables["OTX: time per model and level"].rows
    assert [other[-1] for other in others] == ["no difference"] * 6
    ratio, theirs = "0.25 (0.20–0.30), faster", "7.79 times as fast"
    assert line[2:] == [500, 500, ratio, 8.0, 4000, 4000, 150, 150, 6, 10, 2, theirs]
    beside = {str(line[1]): line[2:] for line in tables["OTX: detectors"].rows}
    assert beside["samples per s"] == [2.0, 8.0, 0.6, 4.64]
    assert beside["peak memory, GB"] == [4.0, 4.0, 18.23, 1.67]
