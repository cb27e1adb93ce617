import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

from optvet.engine.discovery import Plugins
from optvet.spec.protocols import Feeds
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact, Traits
from optvet.testing import Planted, check_optimizer, check_runtime

with contextlib.suppress(ImportError):
    # It puts its folder on sys.path when it is first imported, which monkeypatch would undo.
    import onnxruntime.transformers  # noqa: F401

PLUGINS = Plugins()


@pytest.fixture(autouse=True)
def _importable(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look for the classes of this file where it lies."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath)


@pytest.mark.long
@pytest.mark.parametrize("name", PLUGINS.names("optimizer"))
def test_every_discovered_optimizer_conforms(name: str) -> None:
    check_optimizer(PLUGINS.optimizer(name))


# Others run sources of converters, and are checked with those in tests/engine/convert.
ONNX = [n for n in PLUGINS.names("runtime") if "onnx" in PLUGINS.runtime(n).accepts]


@pytest.mark.parametrize("name", ONNX)
def test_every_discovered_runtime_conforms(name: str) -> None:
    check_runtime(PLUGINS.runtime(name))


def test_the_planted_optimizer_conforms() -> None:
    check_optimizer(Planted(default=("identity", "benign_reassociate")))


def test_an_optimizer_with_a_required_pass_conforms() -> None:
    check_optimizer(Planted(default=("identity", "lower"), required=("lower",)))


# What the suites refuse: optimizers


class Loose(BaseModel):
    level: int = 1


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    level: int = 1


class Careless(Planted):
    """Knows every pass, whatever its name."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        known = [n for n in passes if n in {p.name for p in self.passes()}]
        return super().apply(source, known, options)


class Mislabelled(Planted):
    """Calls an ONNX model something else."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        return Artifact("acme", super().apply(source, passes, options).data)


class Forgetful(Planted):
    """Shows how to run its models, and loses an output."""

    def snippet(self, passes: Sequence[str], options: BaseModel) -> str:
        return "return model"

    def run_snippets(self, passes: Sequence[str], options: BaseModel) -> Sequence[str]:
        return ["return {'y': 0, 'z': 0} if not optimized else {'y': 0}"]


class Flagless(Planted):
    def passes(self) -> list:  # type: ignore[type-arg]
        return [p for p in super().passes() if p.name != "identity"]


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Planted(name=" "), "name of an optimizer"),
        (Planted(default=("drop_tables",), offered=("identity",)), r"does not list: \['drop_tab"),
        (Planted(options=Loose()), "options: Loose must be frozen"),
        (Planted(name="x", required=("lower",)), r"lacks the required \['lower'\]"),
        (
            Planted(default=("mark", "mark"), traits=Traits(repeatable=False)),
            r"lists \['mark'\] twice, but traits.repeatable is False",
        ),
        (Planted(offered=("identity", "identity")), r"must be unique; \['identity'\] are not"),
        (Flagless(), r"has passes it does not list: \['identity'\]"),
        (Planted(default=("random_flaky",)), "the same call gave 4 different artifacts"),
        (Planted(round_trip=("raise_error",)), "no optional pass.*: error in stage .*no rule for"),
        (Planted(round_trip=("abort",)), "no optional pass.*abort in stage build: SIGABRT"),
        (Planted(default=("invalid_model",)), "the default pipeline.*is no valid ONNX model"),
        (Mislabelled(), "artifact is of format 'acme', but traits.produces is 'onnx'"),
        (Forgetful(default=("identity",)), r"outputs \['y', 'z'\], optimized \['y'\]; expected"),
        pytest.param(
            Careless(), "apply ignores the unknown pass 'no_such_pass", marks=pytest.mark.long
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_optimizer_is_refused_with_the_reason(optimizer: Planted, message: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check_optimizer(optimizer)


def test_an_optimizer_that_cannot_be_pickled_is_refused() -> None:
    class Local(Planted):
        pass

    with pytest.raises(AssertionError, match=r"planted: cannot be pickled: .*Local"):
        check_optimizer(Local())


def test_members_that_are_missing_are_named() -> None:
    class Half:
        name = "half"

    with pytest.raises(AssertionError, match="half: does not provide apply, options, passes"):
        check_optimizer(Half())  # type: ignore[arg-type]


# What the suites refuse: runtimes


@dataclass
class Interpreter:
    """Knows the two tiny models, and has the flaw that it is told to have."""

    flaw: str = ""
    name: str = "interpreter"
    accepts: frozenset[str] = frozenset({"onnx"})
    preload: Sequence[str] = ()
    options: BaseModel = field(default_factory=Frozen)
    deployed: BaseModel = field(default_factory=Frozen)

    def version(self) -> str:
        return "1"

    def load(self, artifact: Artifact, options: BaseModel) -> Session:
        if b"affine" not in artifact.data and b"counting" not in artifact.data:
            if self.flaw == "lenient":
                return InterpreterSession(self.flaw)
            if self.flaw == "fragile":
                import os

                os.abort()
            raise ValueError("not a model")
        return InterpreterSession(self.flaw)


class InterpreterSession:
    def __init__(self, flaw: str) -> None:
        self.flaw = flaw
        self.buffer = np.zeros((2, 2), np.float32)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        if "i" in feeds:
            return {"twice": feeds["i"] * 2, "drop": ~feeds["keep"]}
        if self.flaw == "indulgent" and not feeds:
            return {}
        x = feeds["x"]
        if x.dtype != np.float32 or x.ndim != 2:
            raise ValueError("bad feed")
        weight = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
        z = x @ weight + np.array([0.5, -4], np.float32)
        y = np.maximum(z, 0)
        if self.flaw == "wide":
            y = y.astype(np.float64)
        if self.flaw == "wrong":
            y = y + 1
        if self.flaw == "buffer":
            self.buffer[:] = y
            y = self.buffer
        return {"z": z, "y": y} if self.flaw == "order" else {"y": y, "z": z}


def test_a_correct_runtime_conforms() -> None:
    check_runtime(Interpreter())


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("order", r"outputs are \['z', 'y'\], expected \['y', 'z'\]"),
        ("wide", "output 'y': is of type float64, the model says float32"),
        ("wrong", "output 'y': is .*, expected .*4.5"),
        ("buffer", "output 'y': is .*, expected .*4.5"),
        ("indulgent", "a run without an input must raise an exception; it passed"),
        ("lenient", "loading bytes that are no onnx model must raise an exception; it passed"),
        ("fragile", r"loading bytes .* it ended in abort \(SIGABRT\)"),
    ],
)
def test_a_broken_runtime_is_refused_with_the_reason(flaw: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_runtime(Interpreter(flaw))


def test_a_runtime_of_another_format_needs_a_converter() -> None:
    with pytest.raises(AssertionError, match="give artifact_from_onnx"):
        check_runtime(Interpreter(accepts=frozenset({"other"})))
    check_runtime(Interpreter(accepts=frozenset({"other"})), artifact_from_onnx=as_other)


def as_other(data: bytes) -> Artifact:
    return Artifact("other", data)
