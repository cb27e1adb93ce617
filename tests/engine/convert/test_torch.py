"""Both exporters of PyTorch, on sources of one operator or two."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import onnx
import pytest
from pydantic import BaseModel
from tests.needs import needs

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import Sandbox, keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import Converter, Factory
from optvet.spec.records.convert import ConversionResult
from optvet.spec.types import Artifact
from optvet.testing import check_converter, check_source_runtime

needs("torch", reason="needs torch")

SOURCE = """
import numpy as np
import torch
from torch import nn


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def put(a, i):
    a = a.clone()
    a.index_put_((i,), torch.ones(3, 4), accumulate=True)
    return a


def index_put():
    return Function(put)


index_put.example_inputs = (torch.randn(3, 4), torch.tensor([0, 0, 1]))


def log1p():
    return Function(torch.log1p)


log1p.example_inputs = (torch.linspace(1e-7, 1e-5, 9),)


class View(nn.Module):
    def forward(self, x):
        return x.view(int(x.shape[0]), -1).sum(1)


def view():
    return View()


view.example_inputs = (torch.randn(2, 3, 4),)
view.dynamic_axes = {"x": {0: "batch"}}


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.after = nn.Linear(4, 3)

    def forward(self, x):
        return self.after(torch.relu(x).reshape(len(x) // 2, 2, 4))


def halves():
    return Halves()


halves.example_inputs = (torch.randn(2, 4),)
halves.more_inputs = [(torch.randn(6, 4),)]
halves.dynamic_axes = {"x": {0: "batch"}}


def write_to_view(x):
    y = x * 2
    v = y.view(-1)
    v.masked_fill_(v > 0, 7)
    return y + 1


def view_of_written():
    return Function(write_to_view)


view_of_written.example_inputs = (torch.randn(3, 4),)


class Two(nn.Module):
    def forward(self, x):
        return {"rows": (x * 4).to(torch.int64) // 3, "more": x + 1}


def dictionary():
    return Two()


dictionary.example_inputs = (torch.randn(3, 4),)


def smoothed():
    return Function(lambda x, y: nn.functional.cross_entropy(x, y, label_smoothing=0.2))


smoothed.example_inputs = (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]))


def root_mean():
    return nn.RMSNorm(6)


root_mean.example_inputs = (torch.randn(2, 6),)


def half():
    return Function(lambda x: (x.half() @ x.half().T).float())


half.example_inputs = (torch.randn(4, 6),)


def singular():
    return Function(torch.logdet)


rows = (torch.arange(5)[:, None] * 5 + torch.arange(5)) % 8
singular.example_inputs = (torch.stack([(rows + k) % 8 - 3.5 for k in range(3)]),)


def greater():
    return Function(lambda x: x * 2 if x.sum() > 0 else x - 1)


greater.example_inputs = (torch.ones(2, 3),)
greater.more_inputs = [(-torch.ones(2, 3),)]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b.running_mean.normal_(), self.b.running_var.uniform_(0.5, 2)
        self.f = nn.Linear(8, 4)

    def forward(self, image):
        return self.f(torch.relu(self.b(self.c(image))).mean((2, 3)))


def convolution():
    return Convolution()


convolution.example_inputs = {"image": torch.randn(2, 3, 8, 8)}
convolution.dynamic_axes = {"image": {0: "batch"}}


def sign():
    return Function(torch.sign)


sign.example_inputs = (torch.tensor([1.0, -2.0, 0.0, 3.0]),)
sign.more_inputs = [(torch.tensor([1.0, float("nan"), 0.0, 3.0]),)]


def arrays():
    return nn.Linear(4, 2)


arrays.example_inputs = (np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),)


def wrong_kind():
    return 3


wrong_kind.example_inputs = (torch.ones(1),)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keep_servers()
    file = tmp_path_factory.mktemp("sources") / "torch_sources.py"
    file.write_text(SOURCE)
    return file


@functools.cache
def convert(source: Path, function: str, via: str) -> ConversionResult:
    request = ConvertRequest(model=f"{source}:{function}", via=(via,))
    return convert_model(request, Plugins())


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "symptom", "stage"),
    [
        ("index_put", "wrong-output", "torch_script/convert"),
        ("view", "interface-change", "torch_script/trace"),
    ],
)
def test_a_fault_of_torchscript_is_found_in_its_stage(
    source: Path, function: str, symptom: str, stage: str
) -> None:
    result = convert(source, function, "torch_script")
    finding = result.findings[0]
    assert (finding.symptom, finding.stages) == (symptom, [stage])


def test_the_operator_is_named_with_its_line_and_what_it_became(source: Path) -> None:
    place = convert(source, "index_put", "torch_script").findings[0].place
    assert place is not None
    assert place.operator.startswith("aten.")
    assert "index_put" in place.operator
    assert place.line.startswith(f"{source}:")
    assert place.node == "ScatterND"


def test_a_write_through_a_view_that_is_lost_is_the_place(source: Path) -> None:
    place = convert(source, "view_of_written", "torch_script").findings[0].place
    assert place is not None
    assert place.words() == "aten.masked_fill_ → Add: its write is lost"
    number = source.read_text().splitlines().index("    v.masked_fill_(v > 0, 7)") + 1
    assert place.line == f"{source}:{number}"


def test_an_output_in_a_dictionary_is_named_by_its_key(source: Path) -> None:
    # The exporter takes dictionaries; so does the trace that is judged before it.
    result = convert(source, "dictionary", "torch_script")
    assert result.findings[0].outputs == ["rows"]
    assert "'rows'" in result.findings[0].message


@pytest.mark.long
def test_an_argument_that_was_traced_as_a_constant_is_named(source: Path) -> None:
    place = convert(source, "view", "torch_script").findings[0].place
    assert place is not None
    assert place.words() == "aten.view.size"
    now, wanted = place.attributes["size"]
    assert now == "[2, -1]" != wanted
    assert place.line.startswith(f"{source}:")


@pytest.mark.long
def test_a_function_of_the_user_is_named_with_what_it_is_given(source: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    result = convert(source, "smoothed", "torch_dynamo")
    if result.verdict == "right":
        pytest.skip("this exporter is right")
    place = result.findings[0].place
    assert place is not None
    assert place.operator == "aten._log_softmax (of cross_entropy)"
    assert place.arguments["label_smoothing"] == "0.2"
    assert "reduction" not in place.arguments


def test_a_refusal_names_the_function_that_the_operators_are_of(source: Path) -> None:
    result = convert(source, "root_mean", "torch_script")
    assert result.verdict == "refused"
    assert result.findings[0].place is not None
    assert result.findings[0].place.operator == "rms_norm"


@pytest.mark.long
def test_what_float16_is_rounded_by_is_no_fault(source: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    result = convert(source, "half", "torch_dynamo")
    assert (result.verdict, [f for f in result.findings if f.severity == "fault"]) == ("right", [])


@pytest.mark.long
def test_no_number_where_rounding_decides_the_sign_of_a_determinant_is_no_fault(
    source: Path,
) -> None:
    result = convert(source, "singular", "torch_script")
    assert [f for f in result.findings if f.severity == "fault"] == []


@pytest.mark.long
def test_a_branch_that_was_not_taken_while_tracing_is_named(source: Path) -> None:
    place = convert(source, "greater", "torch_script").findings[0].place
    assert place is not None
    assert (place.operator, place.node) == ("aten.sub", "aten.mul")


def test_a_node_that_fails_is_told_with_the_operator_it_stands_for(source: Path) -> None:
    finding = convert(source, "halves", "torch_script").findings[0]
    assert finding.symptom == "run-failure"
    assert finding.place is not None
    assert (finding.place.operator, finding.place.node) == ("aten.view", "Reshape")
    assert finding.place.line.startswith(f"{source}:")


@pytest.mark.parametrize("via", ["torch_script", "torch_dynamo", "openvino"])
def test_arrays_of_numpy_are_example_inputs_too(source: Path, via: str) -> None:
    for module in {"torch_dynamo": ("onnxscript",), "openvino": ("openvino",)}.get(via, ()):
        pytest.importorskip(module, reason=f"needs {module}")
    assert convert(source, "arrays", via).verdict == "right"


@pytest.mark.long
@pytest.mark.parametrize("via", ["torch_script", "torch_dynamo"])
def test_what_runtimes_read_differently_is_not_blamed_on_the_translation(
    source: Path, via: str
) -> None:
    pytest.importorskip("tvm", reason="needs optvet[tvm]: of NaN it gives what PyTorch does")
    (finding, *_) = convert(source, "sign", via).findings
    assert (finding.symptom, finding.kind, finding.culprit) == (
        "wrong-output",
        "target-runtime",
        "onnxruntime",
    )
    assert finding.place is not None
    assert finding.place.alike
    outcomes = {c.runtime: c.outcome for c in finding.cross_check}
    assert outcomes["onnx_reference"] == "fault"
    assert outcomes["tvm"] == "no-fault"
    assert "torch" not in outcomes


def test_a_folded_batch_norm_is_rounding(source: Path) -> None:
    result = convert(source, "convolution", "torch_script")
    assert (result.verdict, result.findings) == ("right", [])
    assert [s.name for s in result.stages] == ["trace", "convert", "fold"]


@pytest.mark.long
def test_cancellation_in_a_translation_is_found_in_it(source: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    result = convert(source, "log1p", "torch_dynamo")
    assert [f.stages for f in result.findings if f.severity == "fault"] == [
        ["torch_dynamo/convert"]
    ]
    place = result.findings[0].place
    assert place is not None
    assert place.operator == "aten.log1p"
    assert [node.partition(" = ")[2].partition(" ")[0] for node in place.nodes][-1] == "Log"
    states = [s.state for s in result.stages]
    assert states == ["same", "same", "fault", "fault"]


def test_another_object_than_a_module_is_refused(source: Path) -> None:
    with pytest.raises(Exception, match=r"wrong_kind\(\) returned a int, expected a torch.nn"):
        convert(source, "wrong_kind", "torch_script")


def _converted(converter: Converter, source: Artifact, options: BaseModel, folder: Path) -> bytes:
    """What a converter makes in the end; called in a worker."""
    *_, last = converter.convert(source, options, folder)
    return last.data


@pytest.mark.parametrize(
    ("via", "options"),
    [
        ("torch_script", {"opset_version": 16}),
        ("torch_script", {"opset": 16}),
        pytest.param("torch_dynamo", {"opset_version": 18, "strict": True}, marks=pytest.mark.long),
    ],
)
def test_options_have_the_names_of_the_exporter(
    source: Path, tmp_path: Path, via: str, options: dict[str, object]
) -> None:
    if via == "torch_dynamo":
        pytest.importorskip("onnxscript", reason="needs onnxscript")
    converter = Plugins().converter(via)
    given = {**options, "output_names": ("first", "second")}
    chosen = type(converter.options).model_validate(given)
    artifact = Artifact("torch", path=source, handle=Factory("dictionary"))
    with Sandbox(jobs=1, preload=converter.preload) as sandbox:
        data = sandbox.call(_converted, converter, artifact, chosen, tmp_path).value
    assert data is not None
    made = onnx.load_from_string(data)
    assert [output.name for output in made.graph.output] == ["first", "second"]
    assert made.opset_import[0].version == options.get("opset_version", 16)


def test_the_runtime_of_programs_conforms(source: Path) -> None:
    check_source_runtime(Plugins().runtime("torch_program"), source, "convolution")


def test_torchscript_conforms(source: Path) -> None:
    check_converter(Plugins().converter("torch_script"), source, "convolution")


def _count_imports(converter: Converter, source: Artifact, folder: Path) -> int:
    """How many modules a conversion imports; called in a worker."""
    before = set(sys.modules)
    assert list(converter.convert(source, converter.options, folder))
    return len(set(sys.modules) - before)


@pytest.mark.parametrize("name", ["torch_dynamo", "torch_script"])
def test_workers_import_next_to_nothing_to_export(name: str, source: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    plugins = Plugins()
    converter = plugins.converter(name)
    preload = (*plugins.runtime("torch_program").preload, *converter.preload)
    made = Artifact("torch", path=source, handle=Factory("convolution"))
    with Sandbox(jobs=1, preload=preload) as sandbox:
        outcome = sandbox.call(_count_imports, converter, made, tmp_path)
    assert outcome.value is not None
    assert outcome.value < 100
