"""The Python interface: each option of a command is a typed keyword, and does something."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import types
import typing
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel

import optvet
import optvet.plugin
from optvet.spec import keywords
from optvet.spec.errors import InputError

FAULTY = """<ir_version: 8, opset_import: ["" : 17]>
faulty (float[3,2] a, float[3,4] b) => (float[2,4] y) { t = Transpose(a)  y = Gemm(t, b) }"""
"""fuse_transpose_into_gemm of onnxoptimizer 0.4.2 changes what it computes."""
FEEDS = {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 4), np.float32)}


@pytest.mark.parametrize(
    ("options", "request_type", "apart"),
    [
        (keywords.VetOptions, optvet.VetRequest, {"model", "dataset"}),
        (keywords.BenchOptions, optvet.BenchRequest, {"model", "dataset"}),
        (keywords.ConvertOptions, optvet.ConvertRequest, {"model", "dataset"}),
        (keywords.RepairOptions, optvet.RepairRequest, {"model", "dataset", "out", "apply"}),
        (keywords.PrecisionOptions, optvet.PrecisionRequest, {"model", "dataset"}),
        (keywords.HuntOptions, optvet.HuntRequest, {"optimizer"}),
        (keywords.BisectOptions, optvet.BisectRequest, {"model", "dataset"}),
    ],
)
def test_keywords_are_the_fields_of_the_request(
    options: type, request_type: type[BaseModel], apart: set[str]
) -> None:
    assert typing.get_type_hints(options).keys() == request_type.model_fields.keys() - apart


@pytest.mark.parametrize(
    "name",
    (
        "vet advise bench bisect compare convert known precision repair hunt reduce replay Campaign"
    ).split(),
)
def test_every_parameter_of_a_function_has_a_type_of_its_own(name: str) -> None:
    function = getattr(optvet, name)
    for parameter in inspect.signature(function).parameters.values():
        assert str(parameter.annotation) not in ("Any", "<class 'inspect._empty'>"), parameter


@pytest.mark.long
def test_a_script_of_a_user_is_checked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from collections.abc import Iterator\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "import onnx\n"
        "import optvet\n"
        "Inputs = dict[str, np.ndarray]\n"
        "def follow(text: str, done: int, total: int | None) -> None: ...\n"
        "progress: optvet.Progress = follow\n"
        'one: Inputs = {"x": np.ones(2)}\n'
        "def several() -> Iterator[Inputs]:\n"
        "    yield one\n"
        'path, proto = Path("m.onnx"), onnx.load("m.onnx")\n'
        "request = optvet.VetRequest(model='m.onnx')\n"
        "for model in (path, 'zoo:resnet50', proto, proto.SerializeToString(), request):\n"
        "    optvet.vet(model, progress=progress)\n"
        'for data in ("random", ["random", "files:a"], one, [one, one], several()):\n'
        "    optvet.vet(path, dataset=data, rtol=1e-3, memory='2G')\n"
        "timed: optvet.BenchResult = optvet.bench(path, dataset=one, optimizer=['onnxsim'])\n"
        "layers: optvet.ModelComparison = optvet.compare(path, proto, dataset=one, seed=1)\n"
        "right: optvet.ConversionResult = optvet.convert(path, via='tvm', random=2)\n"
        "mended: optvet.RepairResult = optvet.repair(path, out='r', via='tvm', tries=3)\n"
        "hunted: optvet.HuntSummary = optvet.hunt('onnxsim', budget='60s', out=path)\n"
        "again: optvet.Replayed = optvet.replay(path, trust=False)\n"
        "small: onnx.ModelProto = optvet.reduce(path, 'grep {model}', jobs=2)\n"
        "kept: optvet.PrecisionResult = optvet.precision(path, to='fp16', keep=['a'], rank=True)\n"
        "since: optvet.BisectResult = optvet.bisect(path, package='a', good='0.8', room='9G')\n"
        "may: optvet.AdviceResult = optvet.advise(proto, versions='onnxsim==0.8', confirm=True)\n"
        "faults: optvet.KnownFaults = optvet.known(package='onnxsim', known=[path])\n"
        "for answer in (kept, timed, layers, right, mended, hunted, again, since, may, faults):\n"
        "    print(answer.to_dict(), answer._repr_html_())\n"
        "print(timed.to_dataframe(), layers.to_dataframe())\n"
        'found: optvet.VetResult = optvet.vet("m.onnx", timeout=60, exclude=["a"], reduce=True)\n'
        "print(found.verdict, found.to_dict())\n"
        'optvet.convert("m.onnx", via=["openvino"], cross_check="tvm")\n'
        'optvet.vet("m.onnx", timout=60)\n'
        'optvet.hunt("onnxsim", seed="a")\n'
    )
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if "error:" in line]
    assert len(lines) == 2, ran.stdout + ran.stderr
    assert '"timout"' in lines[0]
    assert '"seed"' in lines[1]


@pytest.mark.long
def test_vet_writes_the_bundles_that_it_is_asked_for(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(FAULTY), model)
    for given, name in ((model, "first"), (model, "kept"), (model.read_bytes(), "bytes")):
        out = tmp_path / name
        found = optvet.vet(given, reduce=True, out=out, limit=1, jobs=1, cache_dir=tmp_path / "c")
        assert found.verdict == "faulty"
        (finding,) = found.findings
        bundle = out / str(finding.bundle)
        assert (bundle / "model.onnx").is_file()
    replayed = optvet.replay(bundle)
    assert replayed.outcome == "still there"
    assert repr(replayed).startswith("<Replayed: still there: ")


def test_answers_are_short_in_a_shell_and_safe_in_a_notebook(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(FAULTY)
    model.graph.output[0].name = model.graph.node[1].output[0] = "<b>y\n</b>"
    found = optvet.vet(model, limit=1, jobs=1, cache_dir=tmp_path)
    assert repr(found).startswith("<VetResult: faulty: ")
    assert len(repr(found).splitlines()) == 1
    assert str(found) == repr(found)
    page = found._repr_html_()
    assert "fuse_transpose_into_gemm" in page
    assert "<b>y" not in page
    assert found.to_dict() == json.loads(found.to_json())
    assert [row["symptom"] for row in found.rows()] == ["optimizer-error"]


def test_a_conversion_is_judged_and_repaired(tmp_path: Path) -> None:
    """A bias of the converted model is wrong; its source tells the right one."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x) => (float[2,3] y) <float[3] b = {%s}> { h = Add(x, b) y = Relu(h) }"""
    right, wrong = (onnx.parser.parse_model(text % bias) for bias in ("1, 2, 3", "1, 2, 9"))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    found = optvet.convert(right, converted=tmp_path / "wrong.onnx", jobs=1)
    assert (found.verdict, [row["state"] for row in found.rows()]) == ("faulty", ["fault"])
    mended = optvet.repair(right, converted=tmp_path / "wrong.onnx", out=tmp_path / "out", jobs=1)
    assert mended.verdict == "repaired"
    again = optvet.convert(right, converted=tmp_path / "out" / "repaired.onnx", jobs=1)
    assert again.verdict == "right"


def test_a_campaign_is_run_and_read(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(FAULTY), tmp_path / "m.onnx")
    intact = FAULTY.replace("t = Transpose(a)  y = Gemm(t, b)", "y = Gemm<transA: int = 1>(a, b)")
    onnx.save(onnx.parser.parse_model(intact), tmp_path / "n.onnx")
    file = tmp_path / "c.toml"
    lines = ['models = ["*.onnx"]', 'optimizers = ["onnxoptimizer"]', "[vet]", "limit = 1"]
    file.write_text("\n".join([*lines, 'pipeline = "fuse_transpose_into_gemm"']))
    campaign = optvet.Campaign(file)
    with pytest.raises(optvet.UsageError, match="store"):
        campaign.summary()
    seen: list[tuple[int, int | None]] = []
    found = campaign.run(
        jobs=1,
        cache_dir=tmp_path / "cache",
        progress=lambda text, done, total: seen.append((done, total)),
    )
    assert found == campaign.summary()
    assert repr(found).startswith("<CampaignSummary: c: 2 of 2 jobs answered")
    assert {Path(row["model"]).stem: row["verdict"] for row in found.rows()} == {
        "m": "faulty",
        "n": "clean",
    }
    assert sorted(result.verdict for result in campaign.results()) == ["clean", "faulty"]
    assert seen[-1] == (2, 2)


@pytest.mark.long
def test_a_hunt_tells_how_far_it_is(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    found = optvet.hunt(
        "onnxoptimizer",
        passes=["fuse_transpose_into_gemm"],
        pools=["fusions"],
        budget=12,
        jobs=1,
        out=tmp_path / "hunt",
        cache_dir=tmp_path / "cache",
        progress=lambda *event: seen.append(event),
    )
    assert found.candidates >= 12
    assert {total for _, _, total in seen} == {100}
    assert len(found.rows()) == len(found.findings)


@pytest.mark.parametrize("module", [optvet, optvet.plugin], ids=lambda m: str(m.__name__))
def test_every_public_name_is_there(module: types.ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018


def test_a_name_for_authors_of_plugins_warns_in_the_package_itself() -> None:
    with pytest.warns(DeprecationWarning, match=r"import it from optvet\.plugin"):
        assert optvet.__getattr__("hookimpl") is optvet.plugin.hookimpl


def test_help_lists_the_keywords_with_their_meanings() -> None:
    for function in (optvet.vet, optvet.bench, optvet.convert, optvet.repair, optvet.hunt):
        text = inspect.getdoc(function) or ""
        assert "timeout: Wall-clock limit" in text or function is optvet.hunt
        assert "seed: Seed of all random choices" in text
    told = inspect.getdoc(optvet.vet) or ""
    assert "strategy: How to search for culprits" in told
    assert "By default 'auto'." in told
    names = {name for name in optvet.VetRequest.model_fields if name not in ("model", "dataset")}
    assert {name for name in names if f"\n        {name}: " not in told} == set()


def test_what_is_known_of_each_pass_is_told_whatever_the_strategy(tmp_path: Path) -> None:
    def passes(**more: typing.Any) -> dict[str, tuple[str, str]]:
        model = onnx.parser.parse_model(FAULTY)
        found = optvet.vet(model, limit=1, jobs=1, cache_dir=tmp_path, **more)
        assert {p.name for p in found.passes} >= set(found.optimizer.pipeline)
        return {p.name: (p.effect, p.evidence) for p in found.passes}

    together = passes()
    assert together.pop("fuse_transpose_into_gemm") == ("failed", "culprit")
    assert {evidence for _, evidence in together.values()} <= {"log", "none"}
    alone = passes(strategy="each")
    assert alone.pop("fuse_transpose_into_gemm") == ("failed", "alone")
    assert {evidence for _, evidence in alone.values()} == {"alone"}


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"image": np.zeros((1, 64), np.float32)}, "'image' is no input of the model"),
        ({}, "input 'pixels' is missing"),
    ],
)
def test_arrays_by_other_names_are_wrong_input(feeds: dict[str, np.ndarray], words: str) -> None:
    good = {"pixels": np.zeros((1, 64), np.float32)}
    with pytest.raises(InputError, match=f"sample 1 .*{words}.*the model's inputs are 'pixels'"):
        optvet.vet("zoo:digits-mlp", dataset=[good, feeds], jobs=1)


def test_known_faults_are_told_in_python(tmp_path: Path) -> None:
    faults = optvet.known(package="onnxoptimizer")
    (fault,) = (f for f in faults.faults if f.id == "onnxoptimizer-gemm-transpose-without-perm")
    assert repr(faults) == f"<KnownFaults: {len(faults.faults)} known faults of onnxoptimizer>"
    assert {row["package"] for row in faults.rows()} == {"onnxoptimizer"}
    assert fault.id in faults._repr_html_()
    model = onnx.parser.parse_model(FAULTY)
    advice = optvet.advise(model, confirm=True, cache_dir=tmp_path)
    (one,) = advice.advice
    assert (one.fault, one.confirmed) == (fault.id, True)
    assert advice.to_dict()["advice"][0]["fault"] == fault.id
    assert fault.id in repr(advice)
    assert optvet.advise(model, versions="onnxslim==0.1.98").advice == []
    with pytest.raises(optvet.UsageError, match="there is no such file or folder"):
        optvet.known(known=["nowhere"])


def test_a_finding_names_the_known_fault_that_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(FAULTY).SerializeToString())
    for given in (tmp_path / "model.onnx", onnx.load(tmp_path / "model.onnx")):
        found = optvet.vet(given, limit=1, jobs=1, cache_dir=tmp_path / "c")
        assert [f.known for f in found.findings] == [["onnxoptimizer-gemm-transpose-without-perm"]]


def test_a_bisection_takes_names_of_datasets_alone() -> None:
    model = onnx.parser.parse_model(FAULTY)
    with pytest.raises(optvet.UsageError, match="expected names of datasets"):
        optvet.bisect(model, dataset=FEEDS)
    with pytest.raises(optvet.UsageError, match="unknown package 'onnxoptimiser'"):
        optvet.bisect(model, package="onnxoptimiser")
