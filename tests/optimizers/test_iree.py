"""IREE: passes of a compiler on MLIR, each run over the module before it is lowered."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import optvet
from optvet.spec.errors import Unsupported, UsageError
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact
from optvet_iree.compiling import IreeError, compiled, imported
from optvet_iree.optimizer import IreeOptimizer, IreeOptions
from optvet_iree.runtime import IreeRuntime

if importlib.util.find_spec("iree") is None:
    pytest.skip("needs iree; install optvet[iree]", allow_module_level=True)

# Found by vetting all ordered pairs on zoo:digits-cnn.
DEMOTE = "iree-global-opt-demote-contraction-inputs"
LAST = "iree-preprocessing-convert-conv-to-channels-last"
PADDED = """<ir_version: 8, opset_import: ["" : 13]>
g (float[N,1,1,1] x) => (float[N,1,3,3] y)
<float[1,1,1,1] w = {2}, int64[8] p = {0,0,1,1,0,0,1,1}> {
    a = Conv(x, w)  b = Pad(a, p)  y = Conv(b, w) }"""


def proto(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def test_a_model_of_the_zoo_is_clean_and_the_log_names_what_changed_it() -> None:
    result = optvet.vet("zoo:wine-logreg", optimizer="iree", limit=2)
    assert result.verdict == "clean"
    assert "iree-global-opt-erase-unused-linalg-operands" in (result.changing_passes or ())


@pytest.mark.long
def test_two_passes_that_only_fail_together_are_named_and_shown_without_optvet(
    tmp_path: Path,
) -> None:
    onnx.save(proto(PADDED), tmp_path / "m.onnx")
    result = optvet.vet(
        tmp_path / "m.onnx",
        optimizer="iree",
        pipeline=f"{DEMOTE},{LAST}",
        limit=2,
        out=tmp_path / "out",
    )
    (finding,) = (f for f in result.findings if f.severity == "fault")
    assert (finding.symptom, finding.culprit) == (Symptom.OPTIMIZER_ERROR, [DEMOTE, LAST])
    (folder,) = (tmp_path / "out").iterdir()
    ended = subprocess.run([sys.executable, folder / "repro.py"], capture_output=True, text=True)
    assert (ended.returncode, "incorrect number of dynamic sizes" in ended.stderr) == (1, True)


def test_a_model_that_draws_numbers_is_not_judged(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) { y = Bernoulli(x) }"""
    onnx.save(proto(text), tmp_path / "m.onnx")
    with pytest.raises(Unsupported, match="the same random numbers in each session of IREE"):
        optvet.vet(tmp_path / "m.onnx", optimizer="iree", limit=2)


def test_passes_by_their_names_in_mlir_are_added() -> None:
    options = IreeOptions(extra_passes=("linalg-morph-ops",))
    optimizer = IreeOptimizer().configured(options)
    optimizer.check_options(options)
    names = [p.name for p in optimizer.passes()]
    assert names[-1] == "linalg-morph-ops"
    assert "linalg-morph-ops" not in optimizer.pipelines()["default"]
    for wrong, message in (("no-such-pass", "no pass 'no-such-pass'"), ("cse", "already")):
        with pytest.raises(UsageError, match=message):
            IreeOptimizer().check_options(IreeOptions(extra_passes=(wrong,)))
    with pytest.raises(ValueError, match="no name of a pass"):
        IreeOptions(extra_passes=("iree-util-dump-module{path=x}",))


def test_inputs_and_outputs_keep_names_types_and_places() -> None:
    model = proto("""<ir_version: 8, opset_import: ["" : 17]>
        g (int64[N] n, bool[N] c, float[N] x, uint8[N] b)
            => (float[N] y, int64[N] m, bool[N] d, uint8[N] e) {
            y = Where(c, x, x)  m = Add(n, n)  d = Not(c)  e = Add(b, b) }""")
    artifact = IreeOptimizer().apply(Artifact("onnx", model.SerializeToString()), [], IreeOptions())
    session = IreeRuntime().load(artifact, IreeRuntime.options)
    feeds = {
        "x": np.array([1, -2], np.float32),
        "n": np.array([2**40, -3]),
        "c": np.array([True, False]),
        "b": np.array([100, 2], np.uint8),
    }
    outputs = session.run(feeds)
    assert list(outputs) == ["y", "m", "d", "e"]
    values = [v.tolist() for v in outputs.values()]
    assert values == [[1, -2], [2**41, -6], [False, True], [200, 4]]
    assert [v.dtype for v in outputs.values()] == [np.float32, np.int64, np.bool_, np.uint8]


def test_only_the_import_refuses_and_what_the_lowering_does_not_take_is_a_fault() -> None:
    with pytest.raises(IreeError, match="not supported"):
        compiled(b"module { not supported }")


def test_the_operator_set_of_a_model_may_be_imported_as_ai_onnx() -> None:
    model = proto(PADDED.replace('["" : 13]', '["ai.onnx" : 13]'))
    assert imported(model.SerializeToString()).outputs == (("y", np.dtype("float32")),)
