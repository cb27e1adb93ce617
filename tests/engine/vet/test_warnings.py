"""What optimizers and runtimes warn of is recorded beside the verdict, and changes none."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, numpy_helper
from pydantic import BaseModel
from tests.commands import Run, run  # noqa: F401
from tests.engine.work.faults import abort

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.sandbox.remote import LEFT_OUT
from optvet.plugin import LogFormat
from optvet.spec.records import VetResult, WarningRecord
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact
from optvet.testing import Planted

Vet = Callable[..., VetResult]
NET = """<ir_version: {}, opset_import: ["" : 13]>
g (float[1,4] x{}) => (float[1,4] y) {{ t = MatMul(x, w)  i = Identity(t)  y = Relu(i) }}"""
LISTED = ", float[4,4] w"


def model(ir_version: int, inputs: str = "", extra: str = "") -> ModelProto:
    """A small model whose weight may be listed among the inputs; ``extra`` is read by no node."""
    made = onnx.parser.parse_model(NET.format(ir_version, inputs))
    for name in filter(None, ("w", extra)):
        made.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), name))
    return made


@dataclass
class Warns(Planted):
    """Says things in every way that a library may, in Python and in native code."""

    times: int = 1

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        print("Processed 1 graph")
        for i in range(self.times):
            warnings.warn(f"node_{i} has no shape", UserWarning, stacklevel=1)
            print(f"2026-01-02 03:04:05,678 skipped node {i} at 0x7f00{i}", file=sys.stderr)
        os.write(2, b"\x1b[33mfold.cc:12: cannot fold `t`\x1b[0m\n")
        os.write(2, b" 10%|#    |\r100%|#####|\nINFO: 3 rules\n  of 5 files\n=====\n")
        return super().apply(source, passes, options)


@dataclass
class Logging(Planted):
    """Its library has a log, and warns before it dies of a pass."""

    log_format = LogFormat(
        r"\[(?P<severity>\w+)\] (?P<text>.*)", frozenset({"warn"}), frozenset({"error"})
    )

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        os.write(2, b"[warn] one thing\n[note] another thing\n" * len(passes))
        if "drop_relu" in passes:
            abort("[error] assertion failed: rank == 4\n")
        return super().apply(source, passes, options)


@dataclass
class Floods(Planted):
    """Writes a megabyte to stderr, in one line and in many."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        os.write(2, b"a b c\n" * 4000 + b"x" * (1 << 20))
        return super().apply(source, passes, options)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    preload = (
        "numpy",
        "onnx",
        "onnx.checker",
        "onnxoptimizer",
        "onnxruntime",
        "optvet.testing",
        "optvet.engine.work.trials.preload",
        __name__,
    )
    with Sandbox(jobs=1, limits=Limits(60, 1 << 30), preload=preload) as own:
        yield own


@pytest.fixture
def vet(tmp_path: Path, sandbox: Sandbox) -> Vet:
    def vet(made: ModelProto, optimizer: Any, **settings: Any) -> VetResult:
        path, plugins = tmp_path / "model.onnx", Plugins()
        onnx.save(made, path)
        name = optimizer
        if not isinstance(optimizer, str):
            plugins.register("optimizer", optimizer)
            name = optimizer.name
        opened = open_model(path, str(path), tmp_path / "cache")
        chosen = {"optimizer": name, "limit": 3, "cache_dir": tmp_path / "cache"} | settings
        request = VetRequest(model=str(path), **chosen)
        return vet_model(opened, request, plugins, sandbox=sandbox)

    return vet


def planted(kind: type[Planted], **more: Any) -> Planted:
    return kind(default=("keep_01",), offered=("keep_01", "keep_02", "drop_relu"), **more)


def told(result: VetResult) -> list[tuple[str, str, int | None, int]]:
    """Stage, first words, and counts of each warning."""
    return [
        (w.stage, " ".join(w.message.split()[:3]), w.reference, w.candidate)
        for w in result.warnings
    ]


def test_a_warning_that_the_runtime_gives_of_the_optimized_model_alone_is_new(vet: Vet) -> None:
    # ONNX Optimizer raises the IR version, whereby a listed weight becomes an input with a default.
    result = vet(model(3, LISTED), "onnxoptimizer")
    (warning,) = result.warnings
    assert warning.message.startswith("Initializer w appears in graph inputs")
    assert (warning.stage, warning.by, warning.new) == ("load", "onnxruntime", 1)
    assert result.verdict == "clean"


NOP = """<ir_version: 9, opset_import: ["" : 13]>
g (float[2,3] x) => (float[2,3] y) <int64[2] s = {2, 3}> { r = Reshape(x, s)  y = Relu(r) }"""


def test_a_warning_that_one_pass_brings_is_told_of_that_pass_alone(vet: Vet) -> None:
    # The default pipeline removes the unused shape again, so the whole of it brings no warning.
    result = vet(onnx.parser.parse_model(NOP), "onnxoptimizer", strategy="each")
    assert result.warnings == []
    warned = {record.name: record.warnings for record in result.passes if record.warnings}
    (message,) = warned.pop("eliminate_nop_reshape")
    assert message.startswith("Removing initializer 's'.")
    assert warned == {}


def test_a_warning_is_told_though_another_model_that_computes_the_same_was_run_before(
    vet: Vet,
) -> None:
    made = onnx.parser.parse_model(NOP)
    both = "eliminate_nop_reshape,eliminate_unused_initializer"
    assert vet(made, "onnxoptimizer", pipeline=both).warnings == []
    # The same artifact but for a weight that no node reads.
    assert told(vet(made, "onnxoptimizer", pipeline="eliminate_nop_reshape")) == [
        ("load", "Removing initializer 's'.", 0, 1)
    ]


def test_what_computes_the_same_under_other_names_is_run_on_one_sample(vet: Vet) -> None:
    made = model(8, extra="spare")
    result = vet(made, "onnxoptimizer", strategy="each", pairs=False, limit=10)
    changed = {record.name for record in result.passes if record.effect == "changed"}
    assert {"rename_input_output", "eliminate_unused_initializer"} <= changed
    assert 0 < result.cost.by_purpose["each"].inferences <= len(changed) < 10
    assert result.samples == 10
    # The load of the renamed model warned, as that of the original did.
    assert told(result) == [("load", "Removing initializer 'spare'.", 1, 0)]
    assert not any(record.warnings for record in result.passes)


def test_what_the_runtime_says_of_both_models_is_recorded_and_not_new(vet: Vet) -> None:
    result = vet(model(8, extra="spare"), "onnxoptimizer", pipeline="eliminate_identity")
    assert told(result) == [("load", "Removing initializer 'spare'.", 1, 1)]
    assert [w.new for w in result.warnings] == [0]


def test_a_clean_model_has_no_warnings(vet: Vet) -> None:
    assert vet(model(8), "onnxoptimizer").warnings == []


def test_python_warnings_prints_and_native_writes_to_stderr_are_warnings(vet: Vet) -> None:
    result = vet(model(8), planted(Warns))
    assert told(result) == [
        ("build", "UserWarning: node_0 has", 0, 1),
        ("build", "skipped node 0", 0, 1),
        ("build", "fold.cc: cannot fold", 0, 1),
    ]
    assert [w.by for w in result.warnings] == ["planted"] * 3
    assert result.verdict == "clean"


def test_warnings_that_differ_in_names_numbers_and_times_count_as_one(vet: Vet) -> None:
    result = vet(model(8), planted(Warns, times=5))
    assert [w.candidate for w in result.warnings] == [5, 5, 1]


def test_python_gives_a_warning_again_in_a_process_that_has_given_it_before(
    vet: Vet, sandbox: Sandbox
) -> None:
    first = vet(model(8), planted(Warns), cache=False)
    assert vet(model(8), planted(Warns), cache=False).warnings == first.warnings


def test_an_answer_from_the_cache_has_the_same_warnings(vet: Vet) -> None:
    for made, optimizer in ((model(3, LISTED), "onnxoptimizer"), (model(8), planted(Warns))):
        first, again = vet(made, optimizer), vet(made, optimizer)
        assert (again.cost.applications, again.cost.inferences) == (0, 0)
        assert again.warnings == first.warnings != []


def test_a_log_format_tells_warnings_from_notes_and_from_the_cause_of_a_crash(vet: Vet) -> None:
    logging = planted(Logging)
    assert told(vet(model(8), logging)) == [("build", "one thing", 0, 1)]
    result = vet(model(8), logging, pipeline="keep_02,drop_relu,keep_01")
    (finding,) = result.findings
    assert (str(finding.symptom), finding.culprit) == ("optimizer-abort", ["drop_relu"])
    assert "rank == 4" in finding.message
    assert "one thing" not in finding.message


def test_what_is_beyond_the_limit_is_left_out_and_said_to_be(vet: Vet) -> None:
    result = vet(model(8), planted(Floods))
    assert result.verdict == "clean"
    assert sum(len(w.message) for w in result.warnings) < 2000
    assert any(w.message == LEFT_OUT for w in result.warnings)


def test_answers_without_warnings_are_still_read() -> None:
    field = VetResult.model_fields["warnings"]
    assert not field.is_required()
    unknown = WarningRecord(stage="run", by="a", message="b", reference=None, candidate=3)
    assert unknown.new == 0


def test_the_screen_tells_new_warnings_in_a_line_and_all_of_them_on_request(
    tmp_path: Path,
    run: Run,  # noqa: F811
) -> None:
    path = tmp_path / "old.onnx"
    onnx.save(model(3, LISTED), path)
    given = ("vet", path, "--optimizer", "onnxoptimizer", "--cache-dir", tmp_path / "cache")
    plain, full = run(*given), run(*given, "--warnings")
    assert plain.code == full.code == 0
    line = " ".join(plain.out.split("warnings", 1)[1].split())
    assert line.startswith('1 new after optimization, by onnxruntime: "Initializer w appears')
    assert "(--warnings shows all)" in line
    assert "original  optimized" in full.out
    assert "original  optimized" not in plain.out
