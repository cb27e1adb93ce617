"""A pytest plugin: models are collected as tests, and the fixture ``vet`` vets a model in a test.

::

    pytest --optvet models/ --optvet-optimizer NAME

    def test_the_export_survives(vet):
        vet("model.onnx", optimizer=NAME)

pytest imports this module in every project whose environment has optvet. So it imports only what
pytest has loaded already, and is not part of the package ``optvet``, whose import takes longer.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from onnx import ModelProto

    from optvet import VetRequest, VetResult

Vet = Callable[..., "VetResult"]
"""The type of the fixture ``vet``."""

_WIDEST = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; without them the plugin does nothing."""
    group = parser.getgroup("optvet", "vetting of ONNX models")
    group.addoption(
        "--optvet",
        action="store_true",
        help="Collect ONNX models: files *.onnx are tests, one per optimizer.",
    )
    group.addoption(
        "--optvet-optimizer",
        metavar="NAME",
        action="append",
        default=[],
        help="Optimizer to vet models with; may be given several times.",
    )
    group.addoption(
        "--optvet-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="Option of `optvet vet` for models and for the fixture `vet`, such as strategy=each.",
    )
    group.addoption(
        "--optvet-strict",
        action="store_true",
        help="What cannot be decided or tested fails; by default it is an expected failure or is "
        "skipped.",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a model, if ``--optvet`` is given."""
    if file_path.suffix == ".onnx" and parent.config.getoption("optvet"):
        root = parent.config.rootpath
        below = file_path.relative_to(root) if file_path.is_relative_to(root) else file_path
        # pytest prints and writes what it takes for the path as it is.
        shown = root.joinpath(*map(_name, below.parts))
        model: ModelFile = ModelFile.from_parent(parent, path=shown)
        model.model = file_path
        return model
    return None


def _name(name: str) -> str:
    """The name of a file or folder; escaped where a terminal or a CI system reads a command."""
    if name.isprintable() and not re.search("::|##", name):
        return name
    return re.sub(r"[^\w .+=@()-]", lambda c: f"%{ord(c[0]):02x}", name)


@pytest.fixture
def vet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vet:
    """Vet a model: ``vet(model, optimizer=NAME, …)``; the test fails if there are findings.

    The first argument is a path or name of a model, a serialized model or a ``ModelProto``; the
    others are the options of ``optvet vet``. Returns an ``optvet.VetResult``.
    """
    config = request.config

    def vet(model: str | os.PathLike[str] | bytes | ModelProto, **options: Any) -> VetResult:
        if isinstance(model, str | os.PathLike):
            reference = os.fspath(model)
        else:
            # A file that is kept, so that the command in a message can be run.
            path = tmp_path_factory.mktemp("optvet") / "model.onnx"
            path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
            reference = str(path)
        fields = {name: _plain(value) for name, value in options.items()}
        return _vet(config, {**_options(config), **fields, "model": reference})

    return vet


class ModelFile(pytest.File):
    """A model file, with one test per optimizer.

    Attributes:
        model: The file; ``path`` is what pytest shows of it.
    """

    model: Path

    def collect(self) -> Iterator[ModelItem]:
        """One test per optimizer."""
        from optvet import OptvetError
        from optvet.engine.discovery import Plugins

        plugins = Plugins()
        try:
            names = self.config.getoption("optvet_optimizer") or [plugins.default("optimizer")]
            for name in names:
                plugins.optimizer(name)
        except OptvetError as error:
            raise self.CollectError(_show(str(error))) from None
        for name in dict.fromkeys(names):
            item: ModelItem = ModelItem.from_parent(self, name=name)
            item.model = self.model
            yield item


class ModelItem(pytest.Item):
    """The test of a model and an optimizer."""

    model: Path

    def runtest(self) -> None:
        """Vet it."""
        path = _relative(self.model)
        fields = {**_options(self.config), "model": path, "optimizer": self.name}
        _vet(self.config, fields)

    def reportinfo(self) -> tuple[Path, None, str]:
        """File, line and name of the test in reports."""
        return self.path, None, f"{self.path.name} under {self.name}"


# --- one answer ----------------------------------------------------------------------------------


def _vet(config: pytest.Config, requested: Mapping[str, Any]) -> VetResult:
    """The answer, if it has no findings; else raises the outcome of the test."""
    import optvet
    from optvet.cli.errors import FINDINGS, UNDECIDED, exit_code
    from optvet.engine.work.sandbox import keep_servers
    from optvet.spec.request import request_of

    keep_servers()
    # With several workers of pytest, each vets in one process; else they would fight for them.
    settled: dict[str, Any] = {"jobs": 1} if hasattr(config, "workerinput") else {}
    if folder := os.environ.get("OPTVET_CACHE"):
        settled["cache_dir"] = folder
    try:
        request = request_of(optvet.VetRequest, {**settled, **requested})
        result = optvet.vet(request)
    except optvet.Unsupported as error:
        _leave_out(config, str(error), pytest.skip.Exception)
    except optvet.NothingTested as error:
        _leave_out(config, str(error), pytest.xfail.Exception)
    except optvet.OptvetError as error:
        raise pytest.fail.Exception(_show(str(error)), pytrace=False) from None
    code = exit_code(result, request.fail_on)
    if code == FINDINGS:
        raise pytest.fail.Exception(_show(_message(result, request)), pytrace=False)
    if code == UNDECIDED:
        _leave_out(config, f"undecided: {result.reason}", pytest.xfail.Exception)
    return result


def _leave_out(
    config: pytest.Config, reason: str, outcome: Callable[..., BaseException]
) -> NoReturn:
    """End a test without a verdict on the optimizer: it is skipped or, if strict, fails."""
    if config.getoption("optvet_strict"):
        raise pytest.fail.Exception(_show(reason), pytrace=False) from None
    # Not by pytest.xfail(), which does nothing under --runxfail: then it would have passed.
    raise outcome(_show(reason), pytrace=False) from None


def _show(words: str) -> str:
    """A message for pytest's output, which a CI system searches for commands."""
    from optvet.spec.words import printable, without_commands

    return without_commands(printable(words))


def _message(result: VetResult, request: VetRequest) -> str:
    """The output of ``optvet vet`` below a one-line summary, and the command that repeats it."""
    from optvet.cli.render import text
    from optvet.cli.terminal import plain
    from optvet.cli.vet_next import next_command
    from optvet.cli.vet_screen import headline, screen

    counted = [f for f in result.findings if f.severity != "note" or f.symptom in request.fail_on]
    found = (f"{f.symptom}: {f.blamed()}" for f in counted)
    first = f"{request.model} under {result.optimizer.name}: {'; '.join(found)}\n"

    question = request.model_copy(update={"jobs": None, "cache_dir": None})
    again = shlex.join(["optvet", "vet", *question.arguments()])
    width = min(_WIDEST, int(os.environ.get("COLUMNS") or _WIDEST))
    head = plain(text(first), soft_wrap=True)
    shown = plain(headline(result), *screen(result, question), width=width)
    following = plain(text(f"repeat    {again}"), next_command(result, question), soft_wrap=True)
    return f"{head}{shown}{following}".rstrip()


# --- options -------------------------------------------------------------------------------------


def _options(config: pytest.Config) -> dict[str, Any]:
    """Options by name, parsed from ``KEY=VALUE``; a value may be JSON.

    Raises:
        UsageError: One is not of this form.
    """
    return dict(map(_option, config.getoption("optvet_option")))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        words = f"--optvet-option {text!r}: expected KEY=VALUE, such as strategy=each"
        raise pytest.UsageError(words)
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value


def _plain(value: Any) -> Any:
    """An option as text that a command line can repeat."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _relative(path: Path) -> str:
    """A path relative to the working directory, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
