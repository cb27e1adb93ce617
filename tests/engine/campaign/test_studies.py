"""The offline variant of each study: every column of each of its tables says something."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.commands import Run

from optvet.spec.records.report import ReportTable
from optvet.spec.records.tables import CampaignTables

STUDIES = Path(__file__).parents[3] / "studies"
GPU = "(needs a GPU)"


def require(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the study is about {name}; install optvet[all]")


def tables_of(run: Run, study: str, *more: str, models: tuple[str, ...] = ()) -> list[ReportTable]:
    chosen = [part for model in models for part in ("--models", model)]
    file = str(STUDIES / study / "offline.toml")
    assert run("campaign", "run", file, "--store", "s", "-q", *chosen).code in (0, 1, 5)
    ran = run("campaign", "tables", "s", "--study", study, "--json", "t.json", *more)
    assert ran.code == 0, ran.err
    return CampaignTables.model_validate_json(Path("t.json").read_text()).tables


def empty_columns(tables: list[ReportTable]) -> set[tuple[str, str]]:
    return {
        (table.title, column)
        for table in tables
        if GPU not in table.title
        for place, column in enumerate(table.columns)
        if all(row[place] in (None, "") for row in table.rows)
    }


def cells(tables: list[ReportTable], title: str) -> Mapping[tuple[str, str], Sequence[object]]:
    (table,) = (t for t in tables if t.title == title)
    return {(str(row[0]), str(row[1])): row for row in table.rows}


def test_every_column_of_ditox_is_filled_without_a_network(run: Run) -> None:
    require("onnxoptimizer", "pycocotools", "sacrebleu")
    tables = tables_of(run, "ditox")
    assert empty_columns(tables) == set()
    (shares, *_) = tables
    found = {str(row[1]): row[2] for row in shares.rows}
    assert found["crashed, or became an invalid model"] == 1  # digits-transposed
    assert found["classification: other results"] == 1  # digits-padded
    (findings,) = (t for t in tables if t.title == "DiTOX: findings")
    blamed = {str(row[2]): row[4] for row in findings.rows}
    assert blamed["fuse_transpose_into_gemm"] == "crash"
    assert blamed["fuse_pad_into_conv"] == "accuracy"
    boxes = cells(tables, "DiTOX: detectors")["zoo:canvas-detector", "12"]
    assert boxes[4:9] == pytest.approx([100] * 5, abs=0.01)


def test_every_column_of_otx_is_filled_without_a_gpu(run: Run) -> None:
    require("onnxruntime")
    tables = tables_of(run, "otx", models=("zoo:canvas-detector",))
    assert {t.title for t in tables if GPU in t.title} == {
        f"OTX: kernels {GPU}",
        f"OTX: device {GPU}",
    }
    assert empty_columns(tables) == set()


def test_every_column_of_the_study_of_converters_is_filled(run: Run) -> None:
    require("onnx2torch")
    tables = tables_of(run, "converters")
    assert empty_columns([t for t in tables if t.title.startswith("Converters")]) == set()
    (stages, *_) = tables
    assert stages.rows[-1][2] == 74  # the study's share of the conversion of nodes
    told = {row[0]: row for t in tables if "sequences" in t.title for row in t.rows}
    assert any("NonZero" in str(sequence) for sequence in told), told


def test_every_column_of_fetafix_is_filled(run: Run) -> None:
    require("onnx2torch")
    images = ("--dataset", f"files:{STUDIES / 'fetafix' / 'digits.npz'}")
    source = STUDIES / "ditox" / "digits-padded.onnx"
    lost = STUDIES / "fetafix" / "digits-lost.onnx"
    Path("answers").mkdir()
    how = ("--converted", lost, *images, "--out", "mended", "--json", "answers/digits.json")
    assert run("repair", source, *how).code == 0
    for name, other in (("before", lost), ("after", "mended/repaired.onnx")):
        told = ("--limit", 16, "--json", f"answers/digits.{name}.json")
        assert run("compare", source, other, *images, *told).code in (0, 1)
    tables = tables_of(run, "fetafix", "--answers", "answers")
    assert empty_columns([t for t in tables if t.title.startswith("FetaFix")]) == set()
    (labels,) = (t for t in tables if t.title == "FetaFix: labels before and after repair")
    (row,) = labels.rows
    assert (row[0], row[2], row[5], row[7]) == ("digits", 16, 0, "repaired")
    differ = row[3]
    assert isinstance(differ, int)
    assert 2 <= differ <= 14
