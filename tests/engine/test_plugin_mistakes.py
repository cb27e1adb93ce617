"""Mistakes of authors in plugins of every family: told by module, method, expected and got."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.campaign.report import render_report
from optvet.engine.campaign.tables import tables_of_answers
from optvet.engine.campaign.tables.answer_files import KeptAnswers
from optvet.engine.contract import optimizer_returns, other_returns, runtime_returns, source_returns
from optvet.engine.convert.chain import _link
from optvet.engine.convert.worker_steps import convert as convert_source
from optvet.engine.discovery import Plugins
from optvet.engine.environment.scaffold import Family, plugin_files
from optvet.engine.hunt.make_candidates import BrokenMutator, CandidateMaker, CandidateRecipe
from optvet.engine.hunt.vocabulary import Stock
from optvet.engine.models.sources import resolve_model
from optvet.engine.user_models import with_user_model
from optvet.engine.vet.impact.impact import Assessment, ComparatorChoice
from optvet.plugin import (
    Artifact,
    CampaignReport,
    ContractError,
    Deferred,
    OptvetError,
    Sample,
    Vocabulary,
)
from optvet.spec.request import VetRequest

USER_MODEL = """
from optvet.plugin import UserModel, hookimpl

class Acme(UserModel):
    name = "acme"

    def dataset(self):
        return [1]

    def feed(self, item):
        return {}

@hookimpl
def optvet_user_models():
    return [Acme()]
"""

HOOKS = {family.words: f"optvet_{family.words.replace(' ', '_')}s" for family in Family}
HOOKS |= {"study": "optvet_studies", "user model": "optvet_user_models"}
FAMILIES = sorted(HOOKS)

METHODS = {
    "comparator": ("compare", "(self)", "(model, sample, reference, candidate, options, *, noise)"),
    "converter": ("convert", "(self, source)", "(source, options, folder)"),
    "dataset": ("samples", "(self)", "(model, argument, options, *, seed, limit, probe)"),
    "executor": ("start", "(self, options)", "(options, *, jobs)"),
    "generator": ("mutate", "(self, model)", "(candidate, vocabulary, random)"),
    "model source": ("fetch", "(self, reference)", "(reference, cache)"),
    "optimizer": ("apply", "(self, source)", "(source, passes, options)"),
    "reporter": ("render", "(self)", "(report, files)"),
    "runtime": ("load", "(self, artifact)", "(artifact, options)"),
    "study": ("tables", "(self)", "(data)"),
    "user model": ("feed", "(self)", "(item)"),
}
"""A method of each family, parameters that do not fit, and those that are expected."""

SENT = ("comparator", "converter", "dataset", "generator", "optimizer", "runtime", "user model")
"""Families whose objects go to worker processes."""

GOOD = """
from optvet.plugin import hookimpl
from optvet.testing import Planted

@hookimpl
def optvet_optimizers():
    return [Planted(name="good")]
"""


class Package:
    """A module with one plugin, "acme", whose author makes a mistake."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family, self.hook, self.folder = family, HOOKS[family], folder
        self.module = f"acme_{family.replace(' ', '_')}"
        self.text = USER_MODEL if family == "user model" else self._template()

    def _template(self) -> str:
        family = next(f for f in Family if f.words == self.family)
        files = plugin_files(family, "acme", version="0.1")
        return re.sub(r"metadata\.version\(.*\)", '"1.0"', files[f"{self.module}.py"])

    def break_method(self, method: str, body: str) -> None:
        """Put ``body``, a function, in the place of a method of the plugin's class."""
        (kind,) = re.findall(r"return \[(\w+)\(\)\]", self.text.split(f"def {self.hook}")[1])[:1]
        self.text += f"\n\n{body}\n\n{kind}.{method} = wrong\n"

    def point(self, distribution: str = "acme") -> EntryPoint:
        """The entry point of the module, written now."""
        (self.folder / f"{self.module}.py").write_text(self.text)
        info = self.folder / f"{distribution}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0")
        (info / "entry_points.txt").write_text(f"[optvet]\nacme = {self.module}\n")
        (point,) = PathDistribution(info).entry_points
        return point

    @property
    def origin(self) -> str:
        return f"{self.module} (acme 1.0)"


@pytest.fixture(params=FAMILIES)
def package(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Package]:
    monkeypatch.syspath_prepend(tmp_path)
    made = Package(request.param, tmp_path)
    yield made
    for name in (made.module, "another", "good_optimizer"):
        sys.modules.pop(name, None)


def load(package: Package, *others: EntryPoint) -> Plugins:
    """The plugins of ``package`` beside a good one, which must not suffer."""
    (package.folder / "good_optimizer.py").write_text(GOOD)
    good = EntryPoint("good", "good_optimizer", "optvet")
    plugins = Plugins([package.point(), good, *others])
    assert plugins.optimizer("good").name == "good"
    return plugins


def the_problem(package: Package, plugins: Plugins) -> str:
    """What is listed for the broken package; using its plugin says the same, and is its fault."""
    entries = [e for e in plugins.all() if e.problem and e.origin == package.origin]
    (problem,) = {e.problem or "" for e in entries}
    with pytest.raises(OptvetError) as caught:
        plugins._get(package.family, "acme")  # type: ignore[arg-type]  # a family, as text
    assert caught.value.exit_code == 3
    for words in (package.family, "'acme'", package.origin, problem):
        assert words in str(caught.value)
    return problem


def test_the_packages_are_right_before_a_mistake_is_made(package: Package) -> None:
    plugins = load(package)
    assert plugins.names(package.family) == sorted(  # type: ignore[arg-type]  # a family, as text
        ["acme", *(["good"] if package.family == "optimizer" else [])]
    )
    assert [e for e in plugins.all() if e.problem] == []


def test_a_misspelt_hook(package: Package) -> None:
    slip = package.hook.replace("optvet_", "optvet_my_")[:-1]
    package.text = package.text.replace(f"def {package.hook}", f"def {slip}")
    problem = the_problem(package, load(package))
    assert problem == f"{slip} is no hook of optvet; did you mean {package.hook}?"


def test_a_hook_without_its_marker(package: Package) -> None:
    package.text = package.text.replace(f"@hookimpl\ndef {package.hook}", f"def {package.hook}")
    plugins = load(package)
    expected = f"{package.hook} has no @hookimpl above it; import it from optvet.plugin"
    assert the_problem(package, plugins) == expected
    if package.family == "converter":  # whose module has a second hook, which is right
        assert plugins.runtime("acme-source").name == "acme-source"


def test_a_hook_with_parameters(package: Package) -> None:
    package.text = package.text.replace(f"def {package.hook}()", f"def {package.hook}(settings)")
    problem = the_problem(package, load(package))
    assert problem == f"{package.hook}() takes settings; expected no parameters"


def test_a_method_with_other_parameters(package: Package) -> None:
    method, own, expected = METHODS[package.family]
    package.break_method(method, f"def wrong{own}: ...")
    taken = own.replace("self, ", "").replace("self", "")
    assert the_problem(package, load(package)) == f"{method}() takes {taken}, expected {expected}"


@pytest.mark.parametrize("error", ["ValueError('no licence')", "SystemExit('no licence')"])
def test_a_hook_that_raises(package: Package, error: str) -> None:
    where = package.text.index(f"def {package.hook}")
    package.text = package.text[:where] + f"def {package.hook}():\n    raise {error}\n"
    kind = error.partition("(")[0]
    assert the_problem(package, load(package)) == f"{package.hook}() raised {kind}: no licence"


def test_a_hook_that_gives_no_list(package: Package) -> None:
    package.text = package.text.split(f"def {package.hook}")[0]
    package.text += f"def {package.hook}():\n    return 3\n"
    problem = the_problem(package, load(package))
    assert problem == f"{package.hook}() returned int, expected a list of plugin objects"


def test_an_object_of_another_kind(package: Package) -> None:
    package.text = package.text.split(f"def {package.hook}")[0]
    package.text += "class Other:\n    name = 'acme'\n\n@hookimpl\n"
    package.text += f"def {package.hook}():\n    return [Other()]\n"
    package.text = package.text.replace("@hookimpl\nclass", "class")
    problem = the_problem(package, load(package))
    if package.family == "user model":
        assert problem == "is Other, expected an instance of UserModel: inherit from it"
    else:
        assert re.match(r"does not provide \w+", problem)
        assert METHODS[package.family][0] in problem


@pytest.mark.parametrize("method", ["near", "far"])
def test_a_misspelt_method(package: Package, method: str) -> None:
    if package.family == "user model":
        pytest.skip("inherits its methods")
    name = METHODS[package.family][0]
    slip = f"{name}s" if method == "near" else "do_it"
    package.text = package.text.replace(f"    def {name}(", f"    def {slip}(")
    advice = f"; did you mean {name} by {slip}?" if method == "near" else ""
    assert the_problem(package, load(package)).startswith(f"does not provide {name}{advice}")


def test_an_object_that_cannot_be_pickled(package: Package) -> None:
    package.break_method(
        "__init__", "def wrong(self):\n    self.lock = __import__('threading').Lock()"
    )
    if package.family not in SENT:
        assert "acme" in load(package).names(package.family)  # type: ignore[arg-type]  # as text
        return
    problem = the_problem(package, load(package))
    assert problem.startswith("its attribute 'lock' cannot be sent to a worker process (TypeError:")


def test_a_name_that_is_taken(package: Package) -> None:
    (package.folder / "another.py").write_text(package.text)
    package.text = package.text.replace("acme-source", "acme-other")  # a converter's runtime
    another = EntryPoint("another", "another", "optvet")
    problem = the_problem(package, load(package, another))
    kinds = "studies" if package.family == "study" else f"{package.family}s"
    both = f"{package.origin} and another"
    assert problem == f"two {kinds} are named 'acme': {both}; rename one"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError: "),
    ],
)
def test_a_module_that_cannot_be_imported(package: Package, text: str, words: str) -> None:
    package.text = f"{text}\n{package.text.replace('from __future__', '# from __future__')}"
    problem = the_problem(package, load(package))
    assert problem.startswith(f"its import raised {words}")


# --- what is found when a method is called -------------------------------------------------------

RELU = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
WRONG = {
    "comparator": "compare() gave int, expected Comparison",
    "converter": "convert() gave int, expected an iterable of Artifact, one per stage",
    "dataset": "samples() gave int, expected an iterable of Sample or Deferred",
    "executor": "start() gave int, expected workers, with submit() and close()",
    "generator": "mutate() gave int, expected a Candidate or None",
    "model source": "fetch() gave int, expected a list of paths",
    "optimizer": "apply() gave int, expected an Artifact",
    "reporter": "render() gave int, expected a text",
    "runtime": "load() gave int, expected a session, which has a method run",
    "study": "tables() gave int, expected an iterable of ReportTable",
    "user model": "acme.feed(), item-0: gave int, expected arrays by input name",
}


def _use(package: Package, plugins: Plugins) -> None:
    """Call the broken method as optvet does."""
    model = package.folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(RELU), model)
    (opened,) = resolve_model(str(model), Plugins(), package.folder)
    plugin = plugins._get(package.family, "acme")  # type: ignore[arg-type]  # a family, as text
    outputs = {"s": {"y": np.ones(2, np.float32)}}

    def use_comparator() -> None:
        assessment = Assessment(ComparatorChoice(plugin, "asked for"), plugin.options, opened)
        assessment.add([Sample("s", {"x": np.ones(2, np.float32)})], outputs, outputs, {})

    def use_converter() -> None:
        options = _link(plugin, {}).options
        convert_source(plugin, artifact, options, package.folder)

    def use_dataset(data: Any) -> None:
        call = partial(data.samples, opened, None, data.options, seed=0, limit=1, probe=list)
        for item in source_returns.samples(data, call):
            item.make() if isinstance(item, Deferred) else None

    def use_mutator() -> None:
        maker = CandidateMaker(Stock(Vocabulary(()), {}), [plugin])
        recipe = CandidateRecipe("corpus", model=model.read_bytes(), feeds=outputs["s"])
        try:
            maker.make(recipe, Random(0))
        except BrokenMutator as error:
            raise ContractError(str(error)) from error

    def use_user_model() -> None:
        _, extended = with_user_model(VetRequest(model="m", user_model="acme"), plugins)
        use_dataset(extended.dataset("acme"))

    report = CampaignReport.model_validate(
        {"schema": "optvet.report/1", "optvet": "1", "name": "c", "number": 1, "created": 0.0}
        | {"finished": None, "versions": {}, "trials": [], "findings": []}
    )
    artifact = Artifact("acme", b"{}")
    calls: dict[str, Callable[[], Any]] = {
        "comparator": use_comparator,
        "converter": use_converter,
        "dataset": lambda: use_dataset(plugin),
        "executor": lambda: other_returns.check_workers(plugin, plugin.options, 1),
        "generator": use_mutator,
        "model source": lambda: resolve_model("acme:relu", plugins, package.folder),
        "optimizer": lambda: optimizer_returns.artifact(plugin, plugin.apply(artifact, (), None)),
        "reporter": lambda: render_report(plugin, report, lambda _: {}),
        "runtime": lambda: runtime_returns.session(plugin, plugin.load(artifact, plugin.options)),
        "study": lambda: tables_of_answers(plugin, KeptAnswers()),
        "user model": use_user_model,
    }
    calls[package.family]()


def test_a_method_that_gives_something_else(package: Package) -> None:
    method = METHODS[package.family][0]
    package.break_method(method, "def wrong(self, *_, **__):\n    return 3")
    plugins = load(package)
    with pytest.raises(OptvetError, match=re.escape(WRONG[package.family])) as caught:
        _use(package, plugins)
    if package.family != "user model":
        assert re.search(rf"'acme' \({package.module}\): ", str(caught.value))


RAISING = {"converter": "stages", "optimizer": "passes", "runtime": "version"}
"""Methods whose exceptions are no answer of what is vetted; of others, that of ``METHODS``."""


def test_a_method_that_raises(package: Package) -> None:
    method = RAISING.get(package.family, METHODS[package.family][0])
    package.break_method(method, "def wrong(self, *_, **__):\n    raise ValueError('no licence')")
    plugins = load(package)
    with pytest.raises(OptvetError) as caught:
        _use(package, plugins)
    assert "acme" in str(caught.value)
    assert re.search(rf"{method}\(\).*(raised|fails:) ?ValueError: no licence", str(caught.value))
