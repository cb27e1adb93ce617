"""Reduction of sources: what is kept shows the fault, outside of the whole and without optvet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import Run, run
from tests.engine.convert import plain
from tests.engine.convert.part_scripts import BLIND, last_lines

from optvet import UsageError
from optvet.engine.convert import parts
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.reduce.converted_source import reduced_or_why_not
from optvet.engine.scripts import comparing
from optvet.engine.scripts.confined_run import Ended, try_script
from optvet.engine.scripts.parts import PART_SCRIPT
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import SourcePart, SplitsSource
from optvet.spec.records.convert import ConversionFinding, ConversionPlace
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact

__all__ = ["run"]

TORCH = """
import torch

example_inputs = (torch.linspace(-3, 3, 24).reshape(6, 4),)
INDEX = torch.tensor([[0, 1, 0, 2], [0, 1, 2, 2], [1, 1, 0, 0]] * 2)


class Mean(torch.nn.Module):
    def forward(self, x):
        return torch.zeros(3, 4).scatter_reduce(0, INDEX, x, reduce="mean", include_self=False)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mean = torch.nn.Linear(4, 4), Mean()

    def forward(self, x):
        return self.mean(torch.relu(self.first(x)))


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), Block(), torch.nn.Linear(4, 2))

"""
ESTIMATORS = """
import numpy as np

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4)).astype(np.float32)
y = (X[:, 0] + X[:, 1] > 0).astype(int)
holes = np.where(rng.random(X.shape) < 0.2, np.float32("nan"), X)
example_inputs = (holes[:40],)


def pipe():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler

    forest = RandomForestClassifier(5, random_state=0)
    return make_pipeline(StandardScaler(), MaxAbsScaler(), forest).fit(holes, y)
"""


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> list[Ended]:
    """How scripts of bundles ended, which are tried in a Python that does not see optvet."""
    ends: list[Ended] = []

    def try_blind(script: Path, *about: Any, **options: Any) -> Ended:
        (script.parent / "blind.py").write_text(BLIND)
        ends.append(try_script(script.with_name("blind.py"), *about, **options))
        return ends[-1]

    monkeypatch.setattr(parts, "try_script", try_blind)
    return ends


@pytest.mark.long
def test_a_module_is_reduced_to_the_submodule_at_fault(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, blind: list[Ended]
) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(TORCH)
    asked = ("net.py:net", "--via", "torch_dynamo", "--random", "0", "--no-edges", "--no-sizes")
    checked = ("--cross-check", "onnx_reference")
    ran = run("convert", *asked, *checked, "--reduce", "part", "--json", "-")
    assert ran.code == 1
    reduced = json.loads(ran.out)["reduced"]
    assert (reduced["part"], reduced["size"], reduced["size_before"]) == ("1.mean", 1, 6)
    assert reduced["reproduces"] is True
    assert {"part.pt2", "part.py", "comparing.py", "running.py", PART_SCRIPT} <= set(
        reduced["files"]
    )
    assert len(blind) == 1


@pytest.mark.release
def test_a_source_is_reduced_on_an_input_that_is_wrong_on_every_runtime(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Log(Sigmoid(x)) rounds differently in ONNX Runtime and in the reference evaluator on the
    # example, but gives -infinity in both on large negative numbers.
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "import torch\n\nexample_inputs = (torch.tensor([-8.478373527526855, 3.5, -8.067647]),)\n"
        "\n\ndef net():\n    return torch.nn.LogSigmoid()\n"
    )
    asked = ("net.py:net", "--via", "torch_script", "--cross-check", "onnx_reference")
    ran = run("convert", *asked, "--reduce", "part", "--json", "-")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert document["findings"][0]["kind"] == "convert"
    assert document["findings"][0]["cross_check"][0]["sample"].startswith("edge")
    assert document["reduced"]["reproduces"] is True


@pytest.mark.long
def test_a_pipeline_is_reduced_to_the_step_at_fault(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, blind: list[Ended]
) -> None:
    pytest.importorskip("skl2onnx")
    monkeypatch.chdir(tmp_path)
    Path("pipe.py").write_text(ESTIMATORS)
    asked = ("pipe.py:pipe", "--via", "skl2onnx", "--random", "0", "--no-edges", "--no-sizes")
    ran = run("convert", *asked, "--reduce", "part")
    assert ran.code == 1
    assert "reduced to randomforestclassifier, 1 of 3" in ran.out
    (script,) = blind
    assert (script.code, script.printed.splitlines()[-1]) == (1, comparing.SAID)
    again = run("convert", "part/part.py:part", "--via", "skl2onnx")
    assert again.code == 1


KERAS = """
import numpy as np

example_inputs = (np.random.default_rng(0).normal(size=(2, 6)).astype("float32"),)


def net():
    import keras
    from keras import layers as k

    bins = k.Discretization(bin_boundaries=[0.1, 0.5], name="bins")
    return keras.Sequential([keras.Input((6,)), k.Dense(4), k.ReLU(), bins, k.Rescaling(0.5)])
"""


@pytest.mark.release
def test_a_keras_model_is_reduced_to_the_layer_at_fault(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Pythons({}, environments_root()).python_of("tf") is None:
        pytest.skip("the environment 'tf' is not made; make it: optvet env make tf")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(KERAS)
    asked = ("net.py:net", "--via", "tf2onnx", "--random", "0", "--no-edges", "--no-sizes")
    ran = run("convert", *asked, "--reduce", "part", "--json", "-")
    assert ran.code == 1
    reduced = json.loads(ran.out)["reduced"]
    assert (reduced["part"], reduced["size"], reduced["size_before"]) == ("bins", 1, 4)
    assert reduced["reproduces"] is True
    assert {"part.keras", "part.py", PART_SCRIPT} <= set(reduced["files"])


def test_nothing_is_written_where_there_is_no_fault(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("skl2onnx")
    monkeypatch.chdir(tmp_path)
    sound = ESTIMATORS.replace("holes[:40]", "X[:40]").replace("holes, y", "X, y")
    Path("pipe.py").write_text(sound)
    asked = ("pipe.py:pipe", "--via", "skl2onnx", "--random", "0", "--no-edges", "--no-sizes")
    ran = run("convert", *asked, "--reduce", "part")
    assert (ran.code, Path("part").exists()) == (0, False)


def test_a_source_that_nothing_takes_apart_is_refused(tmp_path: Path) -> None:
    wrong = "g (float[n,3] x) => (float[n,3] y) { y = Abs(x) }"
    (tmp_path / "source.py").write_text(
        "import numpy as np\nfrom tests.engine.convert.plain import Net\n"
        "example_inputs = (np.array([[1.5, -2, 3]], np.float32),)\n"
        f"def net():\n    return Net(lambda x: np.maximum(x, 0), ({wrong!r},))\n"
    )
    request = ConvertRequest(model=f"{tmp_path / 'source.py'}:net", via=("plain_to_onnx",))
    plugins = plain.plugins()
    result = convert_model(request, plugins)
    with pytest.raises(UsageError, match="'plain' cannot split its sources"):
        parts.reduce_source(
            request, result, plugins, tmp_path / "part", progress=lambda *about: None
        )
    answer = reduced_or_why_not(
        request, result, plugins, tmp_path / "part", progress=lambda *about: None
    )
    assert "'plain' cannot split its sources" in answer.note
    assert not (tmp_path / "part").exists()


def finding(
    place: ConversionPlace | None = None, error: float | None = None, noise: float | None = None
) -> ConversionFinding:
    return ConversionFinding(
        symptom=Symptom.WRONG_OUTPUT,
        severity="fault",
        stages=["c/convert"],
        kind="convert",
        culprit="c/convert",
        place=place,
        error=error,
        noise=noise,
    )


def test_the_smallest_parts_around_the_place_are_tried_first() -> None:
    every = [
        SourcePart("", 4, frozenset({"", "a", "a.b", "c"})),
        SourcePart("a", 2, frozenset({"a", "a.b"})),
        SourcePart("a.b", 1, frozenset({"a.b"})),
        SourcePart("c", 1, frozenset({"c"})),
    ]
    at = finding(ConversionPlace(module="a.b"))
    assert [p.name for p in parts._sort_by_size(every, at)] == ["a.b", "a", ""]
    graph = finding(ConversionPlace(module="net_1/a.b"))
    assert [p.name for p in parts._sort_by_size(every, graph)] == ["a.b", "a", ""]
    assert [p.name for p in parts._sort_by_size(every, finding())] == ["a.b", "c", "a", ""]


def test_the_tolerance_lies_between_noise_and_error() -> None:
    assert parts.tolerance_of(finding(error=1e-2, noise=1e-6)) == pytest.approx(1e-4)
    assert parts.tolerance_of(finding(error=1.0)) < 1e-3
    assert parts.tolerance_of(finding(error=float("inf"))) == 1e-4


@pytest.mark.parametrize(
    ("script", "shows"),
    [
        (f"print('{comparing.SAID}'); raise SystemExit(1)", True),
        ("raise RuntimeError('no library')", False),
        (f"print('{comparing.SAID}')", False),
        pytest.param("import time; time.sleep(60)", False, marks=pytest.mark.long),
    ],
)
def test_a_script_that_fails_itself_does_not_show_a_fault(
    tmp_path: Path, script: str, shows: bool
) -> None:
    (tmp_path / PART_SCRIPT).write_text(script)
    assert parts.script_shows(tmp_path, 5.0) is shows


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
@pytest.mark.parametrize(
    ("converter", "library"),
    [pytest.param("openvino", "openvino", marks=pytest.mark.release), ("tvm", "tvm")],
)
def test_scripts_of_other_formats_run_the_converted_model(
    tmp_path: Path, converter: str, library: str
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip(library)
    runtime = Plugins().runtime("torch_program")
    assert isinstance(runtime, SplitsSource)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    torch.export.save(torch.export.export(net, (torch.ones(2, 3),)), tmp_path / "net.pt2")
    source = Artifact("torch-program", path=tmp_path / "net.pt2")
    feeds = {"input": np.ones((2, 3), np.float32)}
    runtime.write_part(source, feeds, runtime.options, "", tmp_path)
    script = runtime.script(converter, {})
    assert script is not None
    # No error is as small as the second: the script has to show one.
    said = last_lines(tmp_path, script, (), (1e-3, -1.0))
    assert said == [("the fault is not there", "0"), (comparing.SAID, "1")]
