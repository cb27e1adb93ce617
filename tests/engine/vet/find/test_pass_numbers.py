"""Each pass alone has the numbers of a vet of its own, on the first chunk or on all samples."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.answers import detail
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.vetting import GivenInputs
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import PassRecord, VetResult
from optvet.spec.records.pass_tables import PassesAlone, pass_tables
from optvet.spec.request import VetRequest
from optvet.testing import Planted

NET = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,12] x) => (float[1,12] probabilities) { r = Relu(x)  probabilities = Softmax(r) }
"""
PASSES = ("drop_relu", "raise_error", "keep_00", "keep_01")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=TRIALS) as shared:
        yield shared


def feeds(count: int, *, below: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """Inputs that are above zero, where a Relu does nothing, but for those ``below``."""
    draw = np.random.default_rng(0)
    above = [draw.uniform(0.5, 4, (1, 12)).astype(np.float32) for _ in range(count)]
    return [{"x": -x if i in below else x} for i, x in enumerate(above)]


def vet(folder: Path, sandbox: Sandbox, inputs: list[dict[str, np.ndarray]], **more: Any) -> Any:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    plugins = Plugins()
    plugins.register("optimizer", Planted(default=("keep_00",), offered=PASSES))
    plugins.register("dataset", given := GivenInputs(tuple(inputs)))
    request = VetRequest(
        model="model", optimizer="planted", strategy="each", dataset=(given.name,), cache=False,
        comparator="classification", **more,
    )  # fmt: skip
    return vet_model(open_model(path, "model", folder), request, plugins, sandbox=sandbox)


def record(result: VetResult, name: str) -> PassRecord:
    (found,) = [r for r in result.passes_alone if r.name == name]
    return found


def test_a_pass_alone_has_verdict_errors_metrics_and_size(tmp_path: Path, sandbox: Sandbox) -> None:
    result = vet(tmp_path, sandbox, feeds(4, below=(1, 2, 3)))
    wrong = record(result, "drop_relu")
    assert wrong.numbers is not None
    assert (wrong.effect, wrong.numbers.verdict, wrong.numbers.samples) == ("failed", "faulty", 4)
    assert wrong.numbers.worst is not None
    assert wrong.numbers.worst.error == pytest.approx(2.4315, rel=1e-3)
    assert wrong.numbers.impact is not None
    # Of an input below zero the original gives one probability to all labels.
    assert wrong.numbers.impact.metrics["reordered_top5"] == 0.75
    assert (wrong.numbers.impact.samples, wrong.numbers.impact.details) == (4, [])
    assert wrong.numbers.structure is not None
    assert wrong.numbers.structure.operators == {"Identity": 1, "Softmax": 1}
    assert result.round_trip is not None
    assert (result.round_trip.verdict, result.round_trip.structure.nodes) == ("clean", 2)
    assert result.round_trip.impact.metrics["reordered_top5"] == 0


def test_a_pass_that_fails_has_a_verdict_and_no_numbers_of_outputs(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(tmp_path, sandbox, feeds(2, below=()))
    failed, idle = record(result, "raise_error"), record(result, "keep_01")
    assert failed.numbers is not None
    assert (failed.numbers.verdict, failed.numbers.impact) == ("faulty", None)
    assert "planted" in failed.message
    assert (idle.effect, idle.numbers) == ("none", None)


def test_further_chunks_are_tried_if_all_are_asked_for(tmp_path: Path, sandbox: Sandbox) -> None:
    inputs = feeds(40, below=(36, 38))  # a chunk has 32
    first = vet(tmp_path, sandbox, inputs)
    assert (record(first, "drop_relu").effect, first.findings[0].culprit) == (
        "changed",
        ["raise_error"],
    )
    every = vet(tmp_path, sandbox, inputs, each_on="all")
    wrong = record(every, "drop_relu")
    assert wrong.numbers is not None
    assert wrong.numbers.impact is not None
    assert (wrong.effect, wrong.symptom, wrong.numbers.samples) == ("failed", "wrong-output", 40)
    assert wrong.numbers.impact.metrics["reordered_top5"] == 0.05
    found = {tuple(f.culprit): f for f in every.findings}
    assert found["drop_relu",].confirmed
    assert detail(every, "every pass alone") == "tried on 40 samples"


def test_a_table_counts_passes_that_do_nothing_and_lists_the_others(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(tmp_path, sandbox, feeds(4, below=(1, 2, 3)))
    alone = PassesAlone(("model",), result.passes_alone, result.round_trip)
    (table,) = pass_tables([alone], ["model"], most=3)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["pass"] for row in rows] == [
        "import and export", "drop_relu", "raise_error", "2 others",
    ]  # fmt: skip
    assert rows[1]["verdict"] == "faulty"
    assert (rows[1]["nodes"], rows[2]["nodes"], rows[3]["effect"]) == (2, None, "none")
    assert rows[2]["symptom"] == "optimizer-error"
    assert table.columns[-3:] == [*result.round_trip.impact.metrics][:3]
