"""Whatever an optimizer does to its process, what it made is judged as it deserves."""

import ctypes
import hashlib
import locale
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest
from onnx import ModelProto, NodeProto, numpy_helper
from pydantic import BaseModel, ConfigDict
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.errors import ContractError, UsageError
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits

PRELOAD = (*TRIALS, __name__)


class NoOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evil:
    """An optimizer of one pass: ``trick`` is played before the model is returned.

    The model comes back as it was, or destroyed: each weight is doubled.
    """

    name = "evil"
    preload: Sequence[str] = ()
    options: BaseModel = NoOptions()
    traits = Traits()

    def __init__(self, trick: Callable[[bytes, bytes], Any], *, destroys: bool) -> None:
        self.trick, self.destroys = trick, destroys

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass("trick")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("trick",)}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        if "trick" not in passes:
            return source
        original = bytes(bytearray(source.data))
        result = doubled(original) if self.destroys else rewritten(original)
        self.trick(source.data, result)
        return Artifact("onnx", result)


class Wrong(Evil):
    """Returns what ``trick`` returns."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        return self.trick(source.data, source.data) if passes else source


def doubled(data: bytes) -> bytes:
    model = onnx.load_from_string(data)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), tensor.name))
    return bytes(model.SerializeToString())


def rewritten(data: bytes) -> bytes:
    """Other bytes that compute the same."""
    model = onnx.load_from_string(data)
    first = model.graph.node[0]
    twin = onnx.helper.make_node("Identity", [first.output[0]], ["again"])
    for node in model.graph.node[1:]:
        node.input[:] = ["again" if i == first.output[0] else i for i in node.input]
    nodes = [first, twin, *model.graph.node[1:]]
    copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return bytes(model.SerializeToString())


# Tricks: the bytes that were given, and those that will be returned


def nothing(given: bytes, result: bytes) -> None:
    pass


def write_into_the_input(given: bytes, result: bytes) -> None:
    header = bytes.__basicsize__ - 1
    zeroed = result if len(result) == len(given) else bytes(len(given))
    ctypes.memmove(id(given) + header, zeroed, len(zeroed))


class Liar:
    """A session that computes what the original does."""

    original = b""
    real: Any = None

    def __init__(self, *_: object, **__: object) -> None:
        self.session = Liar.real(Liar.original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def patch_the_runtime(given: bytes, result: bytes) -> None:
    import onnxruntime

    Liar.original, Liar.real = given, onnxruntime.InferenceSession
    onnxruntime.InferenceSession = Liar


class Constant:
    def __init__(self, *_: object) -> None:
        pass

    def update(self, *_: object) -> None:
        pass

    def hexdigest(self) -> str:
        return "0" * 64

    def digest(self) -> bytes:
        return bytes(32)


def patch_libraries(given: bytes, result: bytes) -> None:
    def always(*_: object, **__: object) -> bool:
        return True

    hashlib.sha256 = Constant  # type: ignore[assignment]  # what an evil optimizer does
    onnx.checker.check_model = always  # type: ignore[assignment]
    onnx.load_from_string = lambda *_, **__: ModelProto()
    for name in ("array_equal", "allclose", "asarray", "isfinite"):
        setattr(np, name, always)
    for name, module in list(sys.modules.items()):
        if name.startswith("optvet.engine"):
            for attribute in ("run_trial", "content_digest", "contents_of"):
                if hasattr(module, attribute):
                    setattr(module, attribute, always)


def round_upwards(given: bytes, result: bytes) -> None:
    upwards = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]
    assert ctypes.CDLL("libm.so.6").fesetround(upwards) == 0


def flush_to_zero(given: bytes, result: bytes) -> None:
    libm = ctypes.CDLL("libm.so.6")
    environment = ctypes.create_string_buffer(64)
    assert libm.fegetenv(environment) == 0
    if platform.machine() == "x86_64":  # MXCSR: flush to zero, denormals are zero
        control = int.from_bytes(environment.raw[28:32], "little") | 0x8040
        ctypes.memmove(ctypes.byref(environment, 28), control.to_bytes(4, "little"), 4)
    else:  # FPCR: flush to zero
        control = int.from_bytes(environment.raw[:4], "little") | 1 << 24
        ctypes.memmove(environment, control.to_bytes(4, "little"), 4)
    assert libm.fesetenv(environment) == 0


def change_the_process(given: bytes, result: bytes) -> None:
    os.chdir("/")
    os.environ.clear()
    locale.setlocale(locale.LC_ALL, "C")
    os.umask(0o777)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
    sys.setrecursionlimit(120)
    sys.path.clear()
    np.seterr(all="raise")


TRICKS = (
    nothing,
    write_into_the_input,
    patch_the_runtime,
    patch_libraries,
    round_upwards,
    flush_to_zero,
    change_the_process,
)


# The judge


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).normal(size=shape).ravel()
    return "{" + ", ".join(f"{v:.4f}" for v in values) + "}"


# Denormal weights and long sums: both notice how a process rounds.
NET = f"""
<ir_version: 8, opset_import: ["" : 17]>
net (float[4,64] x) => (float[4,3] y, float[4,64] tiny)
<float[64,3] w = {numbers(64, 3)}, float small = {{1e-40}}>
{{
    h = Relu(x)
    y = MatMul(h, w)
    tiny = Mul(h, small)
}}
"""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    # One job: every task of a role is served by the same worker. Not shared: tricks last.
    with Sandbox(jobs=1, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


def vet(optimizer: Any, root: Path, sandbox: Sandbox, text: str = NET, **more: Any) -> VetResult:
    path = root / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    plugins = Plugins()
    plugins.register("optimizer", optimizer)
    chosen = {"limit": 3, "optimizer": optimizer.name, "cache_dir": root / "cache", "jobs": 1}
    model = open_model(path, str(path), root / "cache")
    return vet_model(model, VetRequest(model="model", **chosen | more), plugins, sandbox=sandbox)


@pytest.mark.parametrize("trick", TRICKS)
def test_a_destroyed_model_is_faulty_whatever_its_optimizer_did(
    trick: Callable[[bytes, bytes], Any], tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(Evil(trick, destroys=True), tmp_path, sandbox)
    assert result.verdict == "faulty", (result.reason, result.findings)
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    assert (finding.symptom, finding.culprit, finding.confirmed) == (
        "wrong-output",
        ["trick"],
        True,
    )


@pytest.mark.parametrize("trick", TRICKS)
def test_a_sound_model_is_clean_whatever_its_optimizer_did(
    trick: Callable[[bytes, bytes], Any], tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(Evil(trick, destroys=False), tmp_path, sandbox)
    assert (result.verdict, result.findings) == ("clean", [])


def test_a_large_artifact_is_judged_elsewhere_too(tmp_path: Path, sandbox: Sandbox) -> None:
    rows = 1024  # 0.5 MB of weights: handed over in a memory file
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> net (float[1,{rows}] x) => (float[1,128] y) '
        f"<float[{rows},128] w> {{ y = MatMul(x, w) }}"
    )
    weights = np.random.default_rng(0).normal(size=(rows, 128)).astype(np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    text = onnx.printer.to_text(model)
    evil = Evil(patch_the_runtime, destroys=True)
    assert vet(evil, tmp_path, sandbox, text).verdict == "faulty"


# Wrong types


def returns_none(given: bytes, result: bytes) -> Any:
    return None


def returns_text(given: bytes, result: bytes) -> Any:
    return "model.onnx"


def returns_a_model_in_place_of_its_bytes(given: bytes, result: bytes) -> Any:
    return Artifact("onnx", onnx.load_from_string(given))


def returns_no_format(given: bytes, result: bytes) -> Any:
    return Artifact(None, given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trick", "words"),
    [
        (returns_none, "None, expected an Artifact"),
        (returns_text, "str, expected an Artifact"),
        (
            returns_a_model_in_place_of_its_bytes,
            "ModelProto, expected bytes as the ",
        ),
        (returns_no_format, "None, expected a text as the Artifact's format"),
    ],
)
def test_the_wrong_type_is_the_plugins_error(
    trick: Callable[[bytes, bytes], Any], words: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    with pytest.raises(ContractError, match=rf"optimizer 'evil' \(.*\): apply\(\) gave {words}"):
        vet(Wrong(trick, destroys=False), tmp_path, sandbox)


class InputError(Exception):
    """As a foreign library may call it."""


def raises_an_input_error_of_its_own(given: bytes, result: bytes) -> None:
    raise InputError("no rule for this model")


class Rejected(UsageError):
    """As a plugin may call a refusal of its own."""


def rejects(given: bytes, result: bytes) -> None:
    raise Rejected("this build has no kernels for such a model")


def test_a_refusal_of_a_plugins_own_kind_is_no_finding(tmp_path: Path, sandbox: Sandbox) -> None:
    with pytest.raises(UsageError, match="no kernels for such a model"):
        vet(Evil(rejects, destroys=False), tmp_path, sandbox)


def test_a_foreign_input_error_is_a_finding(tmp_path: Path, sandbox: Sandbox) -> None:
    result = vet(Evil(raises_an_input_error_of_its_own, destroys=False), tmp_path, sandbox)
    assert [f.symptom for f in result.findings] == ["optimizer-error"]
