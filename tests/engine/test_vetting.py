"""What a Python program can call."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import optvet
from optvet import UsageError, VetRequest
from optvet.engine import vetting
from optvet.engine.discovery import Plugins
from optvet.engine.vet.run import vetted_model

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
faulty (float[3,2] a, float[3,4] b) => (float[2,4] y) { t = Transpose(a)  y = Gemm(t, b) }"""
FEEDS = {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 4), np.float32)}


@pytest.fixture
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_a_model_may_be_a_proto_bytes_or_a_path(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    results = [
        optvet.vet(given, dataset=FEEDS, cache_dir=tmp_path / "cache", jobs=1)
        for given in (model, model.SerializeToString(), path)
    ]
    assert {r.model.digest for r in results} == {results[0].model.digest}
    assert {r.findings[0].culprit[0] for r in results} == {"fuse_transpose_into_gemm"}
    # The same model and inputs: only the first was run.
    assert [r.cost.inferences > 0 for r in results] == [True, False, False]


def test_inputs_may_be_an_iterator_of_arrays(model: onnx.ModelProto, tmp_path: Path) -> None:
    several = (FEEDS for _ in range(3))
    result = optvet.vet(model, dataset=several, cache_dir=tmp_path, jobs=1)
    assert (result.samples, result.datasets[0].name) == (3, "given")


def test_a_request_is_taken_as_it_is(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    request = VetRequest(model=str(path), pipeline="default,-fuse_transpose_into_gemm", limit=1)
    request = request.model_copy(update={"cache_dir": tmp_path / "cache"})
    result = optvet.vet(request)
    assert result.verdict == "clean"
    assert "fuse_transpose_into_gemm" not in result.optimizer.pipeline


def test_the_safe_pipeline_can_be_asked_for_and_pasted(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    result = optvet.vet(model, dataset=FEEDS, cache_dir=tmp_path, jobs=1)
    assert result.safe_option == "default,-fuse_transpose_into_gemm"
    again = optvet.vet(
        model, dataset=FEEDS, cache_dir=tmp_path, jobs=1, pipeline=result.safe_option
    )
    assert (again.verdict, again.optimizer.pipeline) == ("clean", result.safe_pipeline)
    body = "\n".join(f"    {line}" for line in result.safe_code.splitlines())
    scope: dict[str, object] = {}
    exec(f"def optimize(model):\n{body}", scope)  # what it is printed for
    made = scope["optimize"](model)  # type: ignore[operator]
    assert isinstance(made, onnx.ModelProto)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 3}, "unknown option 'timeout_s'; did you mean 'timeout'"),
        ({"strategy": "eech"}, "did you mean 'each'"),
        ({"memory": "lots"}, "--memory: 'lots' is not a size"),
        ({"timeout": 0}, "not a number of seconds above 0"),
        ({"dataset": [3]}, "sample 0 is a int"),
        ({"exclude": "nosuch"}, "unknown pass of onnxoptimizer 'nosuch'"),
        ({"pipeline": "default,-nosuch"}, "unknown pass of onnxoptimizer 'nosuch'"),
    ],
)
def test_what_is_wrong_is_said(
    options: dict[str, Any], message: str, model: onnx.ModelProto, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        optvet.vet(model, cache_dir=tmp_path, **options)


def test_bundles_are_written_replayed_and_compared(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    request = VetRequest(model=str(path), limit=1, jobs=1, cache_dir=tmp_path / "cache")
    (bundle,) = optvet.write_bundles(optvet.vet(request), request, tmp_path / "out")
    assert optvet.replay(bundle.path).outcome == "still there"
    same = optvet.compare(model, path, dataset=FEEDS, cache_dir=tmp_path / "cache")
    assert same.diverges_at is None


def test_a_model_is_reduced_by_a_command(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) { a = Abs(x)  b = Relu(a)  c = Neg(b)  y = Identity(c) }"""
    small = optvet.reduce(onnx.parser.parse_model(text), "grep -q Neg {model}")
    assert [n.op_type for n in small.graph.node] == ["Neg"]


def test_where_a_fault_lies_is_told_only_where_other_runtimes_were_asked(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[1,2,6,6] x) => (float[1,2,7,7] y)
    <int64[8] pads = {0,0,1,0,0,0,0,1}, int64[4] axes = {0,1,3,2}, float zero = {0}> {
      p = Pad(x, pads, zero, axes)
      w = Constant<value = float[2,2,1,1] {1, 2, 3, 4}>()
      y = Conv(p, w) }"""
    model = onnx.parser.parse_model(text)
    for others, location in (((), ""), (("onnx_reference",), "in the model: ")):
        result = optvet.vet(model, cache_dir=tmp_path, cross_check=others, limit=2, jobs=1)
        (fault,) = (f for f in result.findings if f.severity == "fault")
        assert fault.symptom == "wrong-output"
        assert fault.location.startswith(location)
        assert bool(fault.location) == bool(others)


def test_one_model_of_several_that_fails_in_optvet_or_vanishes_does_not_stop_the_others(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        onnx.save(model, tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "inputs.npz", a=FEEDS["a"], b=FEEDS["b"])
    request = VetRequest(
        model=str(tmp_path),
        dataset=(f"files:{tmp_path / 'inputs.npz'}",),
        cache_dir=tmp_path / "cache",
        jobs=1,
    )
    requests = vetting.requests_for(request, Plugins())
    (tmp_path / "b.onnx").unlink()

    def broken_for_a(given: Any, *args: Any, **more: Any) -> Any:
        if given.path.name == "a.onnx":
            raise KeyError(0)
        return vetted_model(given, *args, **more)

    monkeypatch.setattr(vetting, "vetted_model", broken_for_a)
    a, b, c = vetting.vet_each(requests, Plugins())
    assert str(a.error).startswith("internal error: KeyError: 0; this is a bug in optvet")
    assert a.error is not None
    assert isinstance(a.error.__cause__, KeyError)
    assert "no such file" in str(b.error)
    assert c.result is not None
    assert [answer.error.exit_code for answer in (a, b) if answer.error] == [3, 2]
