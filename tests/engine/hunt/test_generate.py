"""``optvet models generate`` as it is typed: real fragments, checker and runtime."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pydantic import BaseModel
from tests.commands import Run, run
from tests.engine.hunt.small import SmallPool

from optvet.engine.discovery import Plugins
from optvet.engine.generate.adapt import adapted, fitting
from optvet.engine.generate.coverage import operators_at, opsets_for
from optvet.engine.generate.growth_batch import GrowthBatch, fragments_of, newest_opset
from optvet.engine.generate.run import generate
from optvet.engine.hunt.progress_log import ProgressLog
from optvet.engine.hunt.vocabulary import PoolChoice, gather
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.sequences import sequences_of
from optvet.graph.types import element_types
from optvet.graph.walk import node_count, nodes_of, reads
from optvet.plugin import Artifact
from optvet.spec.generate import GenerateRequest
from optvet.spec.records import GeneratedModels

__all__ = ["run"]

SMALL = ("models", "generate", "--nodes", "6-12", "--quiet", "--pool", "onnx-tests")


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the test's own; the pools are gathered once for all tests of this file."""
    cache = tmp_path_factory.getbasetemp() / "generate-cache"
    monkeypatch.setenv("OPTVET_CACHE", str(cache))
    monkeypatch.chdir(tmp_path_factory.mktemp("generate"))


def answer(run: Run, *options: object) -> GeneratedModels:
    ran = run(*SMALL, *options, "--json", "-")
    assert ran.code == 0, ran.err
    return GeneratedModels.model_validate_json(ran.out)


def files(folder: str) -> dict[str, bytes]:
    """Models and inputs by their paths."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def parts(model: onnx.ModelProto) -> int:
    """Number of parts of the outer graph that no value connects."""
    groups: list[set[str]] = []
    weights = {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        names = {n for n in (*reads(node), *node.output) if n} - weights
        met = [group for group in groups if group & names]
        groups = [g for g in groups if g not in met] + [names.union(*met)]
    return len(groups)


@pytest.mark.long
def test_models_pass_the_checker_are_connected_and_are_as_large_as_asked(run: Run) -> None:
    made = answer(run, "--count", 8, "--out", "out")
    assert [m.file for m in made.models] == [n for n in files("out") if n.endswith(".onnx")]
    assert len(made.models) == 8
    for entry in made.models:
        model = onnx.load(Path("out", entry.file))
        onnx.checker.check_model(model, full_check=True)
        assert 6 <= node_count(model) == entry.nodes <= 12
        assert parts(model) == 1
        assert model.graph.output


@pytest.mark.long
def test_models_run_on_the_inputs_beside_them_and_give_the_same_twice(run: Run) -> None:
    runtime = pytest.importorskip("onnxruntime")
    made = answer(run, "--count", 6, "--out", "out")
    for entry in made.models:
        folder = Path("out", entry.inputs)
        stored = [
            onnx.load_tensor(folder / f"input_{i}.pb") for i in range(len(list(folder.iterdir())))
        ]
        feeds = {t.name: onnx.numpy_helper.to_array(t) for t in stored}
        outputs = []
        for _ in range(2):
            session = runtime.InferenceSession(
                Path("out", entry.file).read_bytes(), providers=["CPUExecutionProvider"]
            )
            outputs.append(session.run(None, feeds))
        assert outputs[0]
        for one, other in zip(*outputs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_equal_seeds_give_equal_files_whatever_the_number_of_workers(run: Run) -> None:
    # A pool is gathered anew for each seed, and this one is small.
    for out, seed, jobs in (("one", 3, 1), ("two", 3, 3), ("other", 4, 3)):
        asked = ("--count", 6, "--out", out, "--seed", seed, "--jobs", jobs)
        ran = run("models", "generate", "--nodes", "6-12", "--quiet", "--pool", "untested", *asked)
        assert ran.code == 0, ran.err
    assert files("one")
    assert files("one") == files("two")
    assert files("one") != files("other")


@pytest.mark.long
def test_operators_that_were_used_least_come_first(run: Run) -> None:
    few = answer(run, "--count", 2, "--out", "few").coverage
    more = answer(run, "--count", 16, "--out", "more").coverage
    assert len(few.operators) < len(more.operators)
    # 16 models of some 9 nodes have room for no more than some dozens of operators.
    assert len(more.operators) > 40


def test_operators_without_a_test_in_onnx_have_fragments(run: Run) -> None:
    asked = ("--pool", "untested", "--nodes", "20-25", "--count", 8, "--out", "out")
    ran = run("models", "generate", "--quiet", "--opset", 18, *asked, "--json", "-")
    assert ran.code == 0, ran.err
    found = GeneratedModels.model_validate_json(ran.out).coverage.operators
    assert {"Optional", "SequenceInsert", "MaxRoiPool", "RandomNormal"} <= found.keys()


def test_coverage_tells_every_operator_or_why_there_is_none(run: Run) -> None:
    made = answer(run, "--count", 2, "--out", "out", "--opset", 17, "--operators", "Relu,Softmax")
    coverage = made.coverage
    models = [onnx.load(Path("out", m.file)) for m in made.models]
    assert {e.version for m in models for e in m.opset_import if not e.domain} == {17}
    kinds = {n.op_type for m in models for n in nodes_of(m.graph)}
    assert coverage.operators.keys() == kinds
    assert kinds <= {"Relu", "Softmax", "Cast", "Clip", "Concat", "Gather", "Reshape"}
    assert coverage.operators.keys() | coverage.missing.keys() == {*operators_at(17)}
    assert coverage.missing["Conv"] == "not among --operators"
    axes = {
        a.i for m in models for n in m.graph.node if n.op_type == "Softmax" for a in n.attribute
    }
    assert {int(v) for v in coverage.attributes.get("Softmax", {}).get("axis", {})} == axes
    pairs = {tuple(s.operators): s.models for s in coverage.pairs}
    found = [set(sequences_of(m, 2)) for m in models]
    assert pairs == {p: sum(p in f for f in found) for p in set().union(*found)}
    lengths = {n: {s for m in models for s in sequences_of(m, n)} for n in (2, 3, 4, 5)}
    assert coverage.sequences == {str(n): len(found) for n, found in lengths.items()}
    assert coverage.sequences["3"] > coverage.sequences["5"] > 0


@pytest.mark.long
def test_operators_of_which_only_an_older_form_runs_are_in_models_of_that_version(run: Run) -> None:
    newest = newest_of_runtime()
    asked = ("--pool", "untested", "--pool", "onnx-tests", "--nodes", "20-25", "--count", 40)
    named = ("--operators", "MaxRoiPool,Mul,Constant,Relu,Abs,Multinomial,RandomNormal")
    ran = run("models", "generate", "--quiet", *asked, *named, "--out", "out", "--json", "a.json")
    assert ran.code == 0, ran.err
    made = GeneratedModels.model_validate_json(Path("a.json").read_text())
    coverage = made.coverage
    assert coverage.opset == newest
    old = {"MaxRoiPool", "Multinomial", "RandomNormal"}
    assert coverage.older.keys() == old
    assert old <= coverage.operators.keys()
    for entry in made.models:
        model = onnx.load(Path("out", entry.file))
        (version,) = (e.version for e in model.opset_import if not e.domain)
        kinds = {n.op_type for n in nodes_of(model.graph)}
        assert version == newest or kinds & old
        assert all(coverage.older[kind] >= version for kind in kinds & old)
    assert "only in models of older operator sets" in " ".join(ran.out.split())
    exact = (*asked, *named, "--opset", newest, "--out", "exact", "--json", "-")
    ran = run("models", "generate", "--quiet", *exact)
    found = GeneratedModels.model_validate_json(ran.out).coverage
    assert (found.older, old - found.missing.keys()) == ({}, set())


def newest_of_runtime() -> int:
    """The version of ONNX's operator set that models have by default."""
    runtime = Plugins().reference_runtime()
    config = RuntimeConfig(runtime, runtime.options)
    return newest_opset(config, onnx.defs.onnx_opset_version(), 7) or 0


def test_older_forms_of_an_operator_are_tried_from_the_newest_on() -> None:
    assert opsets_for("RandomNormal", 21, 7) == [21]
    assert opsets_for("RandomNormal", 22, 7) == [22, 21]
    assert opsets_for("Squeeze", 20, 7) == [20, 12, 10]
    assert opsets_for("Squeeze", 20, 12) == [20, 12]
    assert opsets_for("com.example::Own", 20, 7) == [20]


def test_sequences_follow_the_edges_and_count_paths() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) { a = Relu(x)  b = Abs(a)  c = Neg(a)  y = Add(b, c) }"""
    )
    assert sequences_of(model, 2) == {
        ("Relu", "Abs"): 1,
        ("Relu", "Neg"): 1,
        ("Abs", "Add"): 1,
        ("Neg", "Add"): 1,
    }
    assert sequences_of(model, 3) == {("Relu", "Abs", "Add"): 1, ("Relu", "Neg", "Add"): 1}


def test_a_value_stands_for_a_size_only_within_what_its_fragment_has() -> None:
    sizes = np.array([2, 3], np.int64)
    assert fitting(np.array([10**9, 1], np.int64), sizes) == 0
    assert fitting(np.array([3, 2], np.int64), sizes) == 3
    assert fitting(np.array([2.0], np.float32), sizes) == 0


def test_an_adapted_value_has_type_shape_and_range_of_the_place() -> None:
    place = np.array([[0, 1, 2]], np.int64)
    step = adapted("v", np.array([9.5, -4.0], np.float32), place, lambda kind: f"{kind}.0")
    assert [n.op_type for n in step.nodes] == ["Reshape", "Gather", "Cast", "Clip"]
    assert step.reads == ("v",)
    low, high = step.weights["low.0"], step.weights["high.0"]
    assert low.dtype == place.dtype
    assert (int(low), int(high)) == (0, 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--count", 0), "count"),
        (("--count", 1, "--nodes", "9-3"), "'9-3' is no number of nodes"),
        (("--count", 1, "--opset", 999), "--opset 999: the installed onnx knows"),
        (("--count", 1, "--operators", "Convv"), "Conv"),
        (("--count", 1, "--operators", "RandomNormal"), "no more models could be made"),
        (("--count", 1, "--pool", "nosuch"), "nosuch"),
        (("--count", 1, "--runtime", "nosuch"), "nosuch"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(
    run: Run, options: tuple[object, ...], words: str
) -> None:
    ran = run("models", "generate", "--quiet", "--out", "out", *options)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
    assert not Path("out").exists()


def test_a_folder_with_files_is_left_alone(run: Run) -> None:
    Path("out").mkdir()
    Path("out", "mine.txt").write_text("kept")
    ran = run(*SMALL, "--count", 1, "--out", "out")
    assert ran.code == 2
    assert "holds files already" in " ".join(ran.err.split())
    assert files("out") == {"mine.txt": b"kept"}


def test_the_screen_tells_what_is_covered_and_json_goes_to_a_file(run: Run) -> None:
    ran = run(*SMALL, "--count", 2, "--out", "out", "--json", "answer.json")
    assert ran.code == 0, ran.err
    assert "operators" in ran.out
    assert "2 models of" in ran.out
    assert json.loads(Path("answer.json").read_text())["schema"] == "optvet.generated/1"


class Deadly:
    """A runtime that dies of one operator."""

    name = "deadly"

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # asked before it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def load(self, model: Artifact, options: BaseModel) -> Any:
        kinds = {n.op_type for n in onnx.load_model_from_string(model.data).graph.node}
        if "Neg" in kinds:
            os.abort()
        return self.inner.load(model, options)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_operator_that_ends_workers_is_told_and_in_no_model(jobs: int, tmp_path: Path) -> None:
    plugins = Plugins().register("generator", SmallPool())
    plugins = plugins.register("runtime", Deadly(Plugins().reference_runtime()))
    request = GenerateRequest(
        count=6, nodes="4-6", pools=("small",), runtime="deadly", out=tmp_path / "out", jobs=jobs
    )
    told: list[tuple[str, int, int | None]] = []
    made = generate(request, plugins, progress=lambda *event: told.append(event))
    assert len(made.models) == 6
    assert made.killed == made.deaths["Neg"] == made.dropped > 0
    assert made.coverage.missing["Neg"] == "its worker ended: SIGABRT"
    for entry in made.models:
        model = onnx.load(tmp_path / "out" / entry.file)
        assert "Neg" not in {n.op_type for n in nodes_of(model.graph)}
    assert told[0] == ("gathering fragments", 0, None)
    assert told[-1] == ("models", 6, 6)


def test_a_fragment_that_breaks_what_reads_it_costs_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("perm")

    monkeypatch.setattr("optvet.engine.generate.grow.fitting", fail)
    config = RuntimeConfig(runtime := Plugins().reference_runtime(), runtime.options)
    files = tuple(gathered(tmp_path))
    names = tuple(fragments_of(files, None, frozenset()))
    batch = GrowthBatch(
        0, 0, files, config, 17, None, frozenset(), names, dict.fromkeys(names, 1.0), (4, 6),
        frozenset(), frozenset(), tmp_path / "0",
    )  # fmt: skip
    log = ProgressLog(tmp_path / "log", batch.limit)
    with closing(log), batch.opened(log) as look:
        growth = look(0)
    assert (growth.valid, growth.why) == (False, "KeyError: 'perm'")
    assert growth.refused == {names[1]: growth.why}


def gathered(folder: Path) -> list[Path]:
    """The small pool as a file."""
    runtime, choice = Plugins().reference_runtime(), PoolChoice(SmallPool(), None)
    with Sandbox(jobs=1, limits=Limits(writable=(str(folder),))) as sandbox:
        return gather(
            [choice], [], runtime, runtime.options,
            seed=0, sandbox=sandbox, folder=folder, version="",
        )  # fmt: skip


def test_each_size_has_its_count_and_what_is_excluded_is_in_no_model(run: Run) -> None:
    barred = ("--exclude-operators", "Cast,Gather,Relu", "--exclude-types", "int64,double")
    ran = run(*SMALL[:2], "--quiet", *SMALL[5:], "--count", 2, "--nodes", "4,9-12", *barred,
              "--out", "out", "--json", "-")  # fmt: skip
    assert ran.code == 0, ran.err
    made = GeneratedModels.model_validate_json(ran.out)
    assert sorted(m.nodes == 4 for m in made.models) == [False, False, True, True]
    assert all(m.nodes == 4 or 9 <= m.nodes <= 12 for m in made.models)
    for entry in made.models:
        model = onnx.load(Path("out", entry.file))
        assert not {n.op_type for n in nodes_of(model.graph)} & {"Cast", "Gather", "Relu"}
        kinds = {onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE}
        assert not kinds & set(element_types(model).values())


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--exclude-operators", "Castt"), "did you mean 'Cast'"),
        (("--exclude-types", "float17"), "unknown element type 'float17'"),
        (("--nodes", "5,x"), "'x' is no number of nodes"),
    ],
)
def test_what_cannot_be_excluded_is_refused(run: Run, option: tuple[str, str], words: str) -> None:
    ran = run("models", "generate", "--count", 1, "--out", "out", *option)
    assert ran.code == 2
    assert words in ran.err
    assert not Path("out").exists()
