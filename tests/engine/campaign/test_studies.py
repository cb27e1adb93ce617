"""The offline variant of each study: every column of each of its tables says something."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import pytest
from tests.commands import Run

from optvet.cli.tables import cell_text
from optvet.plugin import BenchResult, KernelProfile, TrialParts, TrialRow
from optvet.spec.records.devices import KernelUse
from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.tables import CampaignTables
from optvet_otx.figures import by_level
from optvet_otx.gpu import devices, kernel_counts, kernels

STUDIES = Path(__file__).parents[3] / "studies"
GPU = "(needs a GPU)"


def require(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the study is about {name}; install optvet[all]")


def part_of(study: str, model: str, **keys: str) -> Path:
    """The offline variant's set of jobs of one model, with other values for some keys."""
    folder = STUDIES / study
    head, *sets = (folder / "offline.toml").read_text().split("[[jobs]]\n")
    (own,) = (each for each in sets if f'"{model}"' in each)
    text = f"{head}[[jobs]]\n{own}".replace("data/", f"{folder}/data/")
    for key, value in keys.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    file = Path("part.toml")
    file.write_text(text)
    return file


def tables_of(run: Run, study: str, *more: str, file: Path | None = None) -> list[ReportTable]:
    asked = str(file or STUDIES / study / "offline.toml")
    assert run("campaign", "run", asked, "--store", "s", "-q").code in (0, 1, 5)
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


def assert_shown(tables: list[ReportTable]) -> None:
    """The page of the studies has these tables, with the columns and the models of now."""
    page = (STUDIES.parent / "docs" / "studies.md").read_text().replace("\\", "").splitlines()
    for table in tables:
        at = page.index(f"| {' | '.join(table.columns)} |")
        rows = list(takewhile(lambda line: line.startswith("| "), page[at + 2 :]))
        firsts = [line.split(" | ")[0].removeprefix("| ") for line in rows]
        here = [cell_text(row[0]) for row in table.rows]
        assert firsts[: len(here)] == here[: len(firsts)] != [], table.title


@pytest.mark.long
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
    warnings = {str(row[2]): row[3:] for row in findings.rows if row[5] == "warning"}
    assert set(warnings) == {"eliminate_nop_reshape", "fuse_pad_into_conv", "all passes"}
    message, *rest = warnings["eliminate_nop_reshape"]
    assert str(message).startswith("Removing initializer 'same'. It is not used by any node")
    assert rest == ["warning", "warning", "the pass", "reshaped.onnx (op. 13)", 1]
    assert str(warnings["all passes"][0]).startswith("Initializer gpu_0/conv3_0_w_0 appears in")
    (theirs,) = (t for t in tables if t.title == "DiTOX: the study's findings")
    assert theirs.rows[12][5] == 1, "unused initializers are left"
    assert_shown(tables[:6])
    boxes = cells(tables, "DiTOX: detectors")["zoo:canvas-detector", "12"]
    assert boxes[4:9] == pytest.approx([100] * 5, abs=0.01)


@pytest.mark.release
def test_every_column_of_otx_is_filled_without_a_gpu(run: Run) -> None:
    require("onnxruntime")
    tables = tables_of(run, "otx", file=part_of("otx", "zoo:canvas-detector"))
    assert {t.title for t in tables if GPU in t.title} == {
        f"OTX: kernels {GPU}",
        f"OTX: number of kernels {GPU}",
        f"OTX: device {GPU}",
    }
    assert empty_columns(tables) == set()
    times = next(t for t in tables if t.title == "OTX: time per model and level")
    assert "warm-up runs" in times.columns
    (row, *_) = times.rows
    assert int(str(row[times.columns.index("warm-up runs")])) > 0
    assert_shown([times.model_copy(update={"rows": times.rows[:3]})])
    detector = cells(tables, "OTX: detectors")["zoo:canvas-detector", "precision"]
    assert detector[2:4] == [1.0, 1.0], "against labels, of both models"
    (scores,) = (t for t in tables if t.title == "OTX: scores per model and level")
    scored = {(str(row[1]), str(row[2])): row for row in scores.rows}
    for level in ("basic", "extended", "all"):
        iou = scored[f"onnxruntime {level}", "IoU"]
        assert iou[4:7] == [pytest.approx(79.94, abs=0.01)] * 2 + [pytest.approx(100, abs=1e-3)]
    no_gpu = next(t for t in tables if t.title == f"OTX: number of kernels {GPU}")
    assert "--ncu" in str(no_gpu.rows[0][-1])


@pytest.mark.long
def test_each_score_of_otx_stands_against_labels_and_levels_stay_one_over_all_data(
    run: Run,
) -> None:
    require("onnxruntime")
    tables = tables_of(run, "otx", file=part_of("otx", "zoo:digits-cnn", measure="false"))
    (scores,) = (t for t in tables if t.title == "OTX: scores per model and level")
    scored = {(str(row[1]), str(row[2])): row for row in scores.rows}
    for score in ("top-1", "top-5"):
        assert scored["onnxruntime all", score][3:7] == [8, 100, 100, 100]
    (per_level,) = (t for t in tables if t.title == "OTX: scores per level")
    assert [row[:4] for row in per_level.rows[:2]] == [
        ["onnxruntime basic", "top-1", 1, 1],
        ["onnxruntime basic", "top-5", 1, 1],
    ]


def row_of(model: str, pipeline: str, *data: str) -> TrialRow:
    parts = TrialParts("onnxruntime", "1", pipeline, "", *data)
    return TrialRow(model, model, model, model, "onnxruntime", "1", parts, "same")


def test_data_are_part_of_a_level_only_where_one_model_has_several() -> None:
    rows = [row_of("a", "all", "images:a"), row_of("b", "all", "text:b"), row_of("b", "basic")]
    assert list(by_level(rows[:2])) == ["onnxruntime"]
    rows[2] = row_of("b", "basic", "text:b")
    assert list(by_level(rows)) == ["onnxruntime all", "onnxruntime basic"]
    chunks = [row_of("a", "all", "images:1"), row_of("a", "all", "images:2")]
    assert list(by_level(chunks)) == ["onnxruntime images:1", "onnxruntime images:2"]


@pytest.mark.long
def test_kernels_of_the_original_stand_next_to_those_of_the_optimized(run: Run) -> None:
    require("onnxruntime")
    Path("answers").mkdir()
    how = ("--optimizer", "onnxruntime", "--pipeline", "all", "--repeats", 3, "--ncu", "--no-blame")
    assert run("bench", "zoo:wine-logreg", *how, "--json", "answers/wine.json").code in (0, 1, 4)
    bench = BenchResult.model_validate_json(Path("answers/wine.json").read_text())
    (row,) = kernel_counts([bench]).rows
    assert row[2:5] == [None, None, None]
    assert row[5] == "kernels are not profiled: no GPU was asked for, by --provider"
    base, optimized = devices([bench], []).rows
    assert (base[1], optimized[1], optimized[8]) == ("base", "all", "the runtime used no GPU")
    assert isinstance(base[7], float)
    # As a GPU tells: each kernel of either model, with its utilization apart from its throughput.
    use = KernelUse(
        name="gemm",
        launches=2,
        block=[32, 1, 1],
        grid=[4, 1, 1],
        compute_share=0.5,
        memory_share=0.25,
        utilisation=0.75,
    )
    (variant,) = bench.variants
    profiled = bench.model_copy(
        update={
            "kernels": {
                "original on onnxruntime": KernelProfile(runs=5, launches=8, kernels=[use])
            },
            "variants": [variant.model_copy(update={"kernels": KernelProfile(runs=5, launches=6)})],
        }
    )
    assert [row[2:] for row in kernel_counts([profiled]).rows] == [[8, 6, -25, None]]
    table = kernels([profiled])
    assert table.columns[-3:] == ["SM utilization %", "SM throughput %", "memory throughput %"]
    (line,) = table.rows
    assert line[1:] == ["base", "gemm", 2, "32 x 1 x 1", "4 x 1 x 1", 75, 50, 25]


@pytest.mark.release
def test_every_column_of_the_study_of_converters_is_filled(run: Run) -> None:
    require("onnx2torch")
    tables = tables_of(run, "converters")
    assert empty_columns([t for t in tables if t.title.startswith("Converters")]) == set()
    (stages, *_) = tables
    assert stages.rows[-1][2] == 74  # the study's share of the conversion of nodes
    told = {row[0]: row for t in tables if "sequences" in t.title for row in t.rows}
    assert any("NonZero" in str(sequence) for sequence in told), told
    assert_shown([t for t in tables if t.title.startswith("Converters")])
    single = cells(tables, "Converters: operators that occur only in failing sources")
    assert single["NonZero", "onnx2torch"][2:] == [1, single["NonZero", "onnx2torch"][3], "yes"]
    assert all(" → " not in operator for operator, _ in single)


@pytest.mark.long
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
    assert_shown([t for t in tables if t.title.startswith("FetaFix")])
    (labels,) = (t for t in tables if t.title == "FetaFix: labels before and after repair")
    (row,) = labels.rows
    assert (row[0], row[2], row[5], row[7]) == ("digits", 16, 0, "repaired")
    (pairs,) = (t for t in tables if t.title.startswith("FetaFix: images with another label"))
    found = {(str(r[0]), str(r[3])): r for r in pairs.rows if r[4] == 16}
    assert found["digits-cnn.onnx", "onnx2torch"][1:8] == [
        "onnx", "torch-module", "onnx2torch", 16, 0, 0.0, "right",
    ]  # fmt: skip
    assert any(r[7] == "refused" for r in pairs.rows)
    assert [r[8] for r in pairs.rows if r[0] == "ResNet101"] == ["72", "4"]
    differ = row[3]
    assert isinstance(differ, int)
    assert 2 <= differ <= 14
