"""Every command and every Python example in README and docs runs; what is promised is there."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.commands import CLEAN, few_diagnosed, quick_timing
from tests.models.test_blocks import network

import optvet.cli
from optvet import InputError, Sample, VetRequest
from optvet.engine import discovery, processes
from optvet.engine.discovery import Plugins
from optvet.engine.environment import releases
from optvet.engine.models.opening import open_model
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.plugin import Comparison
from optvet.spec import hooks
from optvet.spec.contract import CONTRACTS
from optvet.spec.provides import members_of
from optvet.spec.request import OnBad
from optvet.testing import check_comparator

__all__ = ["few_diagnosed", "quick_timing"]

with contextlib.suppress(ImportError):
    # It puts its folder on sys.path when it is first imported, which monkeypatch would undo.
    import onnxruntime.transformers  # noqa: F401

ROOT = Path(__file__).parent.parent
LESSONS = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
"""Pages that a reader follows from top to bottom."""
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {*LESSONS})]
NOT_RUN = {
    "mkdir": "the folder is there",
    "pip": "it would change the environment that runs this test",
    "pytest": "it would run this test within itself; with --optvet it is run",
    "python": "it would change the environment that runs this test",
}


class Command(NamedTuple):
    page: str
    line: int
    words: list[str]
    codes: tuple[int, ...]


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    text = page.read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text[: match.start(1)].count("\n") + 1, match[1]


def console(page: Path, first: int, block: str) -> Iterator[Command]:
    """Lines of a console block that start with ``$``, parted at ``&&``."""
    for number, line in enumerate(block.splitlines(), first):
        shown, _, remark = line.removeprefix("$ ").partition("  # ")
        codes = re.match(r"exit (\d+(?:(?:, | or )\d+)*)", remark)
        for part in shown.split(" && "):
            expected = re.findall(r"\d+", codes[1]) if codes else ["0"]
            yield Command(page.name, number, shlex.split(part), tuple(map(int, expected)))


def commands() -> Iterator[Command]:
    """Commands of console blocks, and steps of workflows."""
    for page in PAGES:
        for first, block in blocks(page, "console"):
            yield from console(page, first, block)
        for first, block in blocks(page, "yaml"):
            for number, line in enumerate(block.splitlines(), first):
                if step := re.match(r" *(?:- run: )?((?:optvet|python) .*?)(?: >> .*)?$", line):
                    yield Command(page.name, number, shlex.split(step[1]), (0,))


def label(command: Command) -> str:
    return f"{command.page}:{command.line}"


ALL = list(commands())


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader who tries all pages has: what one command found out, later ones know."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def place(
    tmp_path: Path,
    caches: Path,
    monkeypatch: pytest.MonkeyPatch,
    few_diagnosed: None,
    quick_timing: None,
) -> Path:
    """A folder with the files that the pages speak of, and the plugin of plugins.md installed."""
    write(tmp_path / "model.onnx", CLEAN)
    write(tmp_path / "converted.onnx", CLEAN.replace("z = Relu(x)", "r = Relu(x) z = Neg(r)"))
    write(tmp_path / "models" / "one.onnx", CLEAN)
    write(tmp_path / "models" / "two.onnx", CLEAN.replace("Relu", "Sigmoid"))
    onnx.save(network(range(24)), tmp_path / "decoder.onnx")
    (tmp_path / "answers").mkdir()
    (tmp_path / "lists").mkdir()
    known = {"schema": "optvet.baseline/1", "findings": []}
    (tmp_path / "known.json").write_text(json.dumps(known))
    (tmp_path / "nightly.toml").write_text('models = ["models/"]\n')
    page = ROOT / "docs" / "campaigns.md"
    (tracked,) = (toml for _, toml in blocks(page, "toml") if "[[known]]" in toml)
    (tmp_path / "tracked.toml").write_text(tracked)
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 3), np.float32))
    ((_, patch),) = blocks(ROOT / "docs" / "repair.md", "json")
    (tmp_path / "patch.json").write_text(patch)
    (matrix,) = (toml for _, toml in blocks(page, "toml") if "onnxmltools" in toml)
    (tmp_path / "matrix.toml").write_text(matrix)
    (several,) = (toml for _, toml in blocks(page, "toml") if "\nversions = " in toml)
    (tmp_path / "releases.toml").write_text(several)
    (precisions,) = (toml for _, toml in blocks(page, "toml") if "\nprecisions = " in toml)
    # One of two models, and not timed: workers of a campaign take as long for that as for a user.
    for costly in ('"zoo:digits-cnn", ', "measure = true"):
        assert costly in precisions
        precisions = precisions.replace(costly, "")
    (tmp_path / "precisions.toml").write_text(precisions)
    ((_, forest), (_, net), *_) = blocks(ROOT / "docs" / "converters.md", "python")
    (tmp_path / "forest.py").write_text(forest)
    (tmp_path / "net.py").write_text(net)
    ((_, segment), *_) = blocks(ROOT / "docs" / "how-to" / "export.md", "python")
    (tmp_path / "segment.py").write_text(segment)
    ((_, plugin), *_) = blocks(ROOT / "docs" / "plugins.md", "python")
    (tmp_path / "optvet_tiny.py").write_text(plugin)
    (owner,) = (b for _, b in blocks(ROOT / "docs" / "plugins.md", "python") if "owner.py" in b)
    (tmp_path / "owner.py").write_text(owner)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "optvet_tiny", raising=False)
    installed = [*entry_points(group="optvet"), EntryPoint("tiny", "optvet_tiny", "optvet")]
    monkeypatch.setattr(discovery, "entry_points", lambda **_: installed)
    monkeypatch.setenv("OPTVET_CACHE", str(caches / "results"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches / "home"))
    monkeypatch.setattr(releases, "_data_folder", lambda: caches / "data")
    # Starting a second worker of a campaign takes longer than its job.
    monkeypatch.setattr(processes, "fitting_jobs", lambda: 1)
    monkeypatch.chdir(tmp_path)
    ((_, detector), *_) = blocks(ROOT / "docs" / "tutorial.md", "python")
    exec(compile(detector, "tutorial.md", "exec"), {})
    return tmp_path


def is_installed(name: str) -> bool:
    """Whether there is a distribution or a module of this name."""
    return bool(list(distributions(name=name))) or find_spec(name.replace("-", "_")) is not None


def ran(command: Command, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command printed; the test is skipped if it needs what is not installed."""
    code = optvet.cli.main(command.words[1:])
    captured = capsys.readouterr()
    absent = re.search(r"it needs ([\w-]+); install optvet\[\w+\]", captured.err + captured.out)
    if absent and not is_installed(absent[1]):
        pytest.skip(absent[0])
    if homeless := re.search(r"it needs the environment '\w+', which is missing", captured.err):
        pytest.skip(homeless[0])
    assert code in command.codes, captured.err + captured.out
    # What is wrong with a command is told as an error.
    return captured.err if command.codes == (2,) else captured.out


def command_with(*words: str) -> Command:
    """The first command of the pages that has all of ``words``."""
    return next(c for c in ALL if {*words} <= {*c.words})


def read_by(command: Command) -> Iterator[tuple[str, list[Command]]]:
    """The folder that a command reads, with the commands of the pages that make it."""
    folders = {word.partition("/")[0] for word in command.words}
    hunts = command_with("hunt", "hunted", "--out")
    if "nightly.store" in folders:
        yield "nightly.store", [command_with("run", "nightly.toml")]
    if "hunted/campaign.store" in command.words:
        yield "hunted", [hunts, command_with("hunted/campaign.toml")]
    elif "hunted" in folders and command is not hunts:
        yield "hunted", [hunts]
    if "answers" in command.words:
        yield "answers", [command_with("answers/forest.json")]
    if "precisions.store" in folders:
        yield "precisions.store", [command_with("run", "precisions.toml")]
    if "lists" in command.words:
        yield "lists", [command_with("lists/cnn-fp16.json")]
    if any(word.startswith("one/") for word in command.words):
        yield "one", [command_with("generate", "one")]
    exports = command_with("exported", "--out", "--target")
    if "exported" in command.words and command is not exports:
        yield "exported", [exports]
    if any(word.startswith("kept/") for word in command.words):
        yield "kept", [command_with("kept", "--out", "forest.py:pipeline")]


def marked(command: Command) -> Any:
    """Commands of the README are run each time."""
    return pytest.param(command, marks=[] if command.page == "README.md" else pytest.mark.long)


ONCE = {tuple(c.words): c for c in reversed(ALL) if c.words[0] == "optvet"}
"""Commands of the pages; what several pages have is run where it is first."""


MADE_BY = {
    tuple(makers[-1].words): (folder, len(makers))
    for command in ONCE.values()
    for folder, makers in read_by(command)
}
"""What later commands read, and how many commands make it, by the last of these."""


@pytest.mark.parametrize("command", [*map(marked, reversed(ONCE.values()))], ids=label)
def test_command_of_the_docs_runs(
    command: Command, place: Path, caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, makers in read_by(command):
        made = caches / f"{folder} after {len(makers)}"
        if not made.exists():
            for maker in makers:
                ran(maker, capsys)
            shutil.copytree(folder, made)
        shutil.copytree(made, folder, dirs_exist_ok=True)
    assert ran(command, capsys)
    if makes := MADE_BY.get(tuple(command.words)):
        folder, count = makes
        made = caches / f"{folder} after {count}"
        if not made.exists():
            shutil.copytree(folder, made)


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[pytest.mark.release] * (p.stem in ("upgrade", "export")))
        for p in LESSONS
    ],
    ids=lambda p: p.stem,
)
def test_a_lesson_runs_from_top_to_bottom(
    page: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [(line, "python", code) for line, code in blocks(page, "python")]
    steps += [(line, "console", code) for line, code in blocks(page, "console")]
    for line, kind, text in sorted(steps):
        if kind == "console":
            for command in console(page, line, text):
                if command.words[0] == "optvet":
                    ran(command, capsys)
        elif named := re.match(r'"""(\w+\.py)"""', text):
            (place / named[1]).write_text(text)
        else:
            exec(compile(text, str(page), "exec"), {"__name__": "example"})


def test_the_notebook_runs_and_shows_its_results(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tools"))
    notebook = importlib.import_module("notebook")
    cells = json.loads(notebook.FILE.read_text())["cells"]
    notebook.run(cells)
    shown = [c["outputs"][0]["data"] for c in cells if c.get("outputs")]
    assert sum("text/html" in data for data in shown) >= 2


MODELS_AS_TESTS = [c for c in ALL if c.words[:2] == ["pytest", "--optvet"]]


@pytest.mark.long
@pytest.mark.parametrize("command", MODELS_AS_TESTS, ids=label)
def test_models_of_the_docs_are_tests(command: Command, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "optvet_pytest", *command.words[1:]],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in command.codes, done.stdout + done.stderr
    assert " passed in " in done.stdout


def test_actions_of_the_workflow_are_pinned_by_commit() -> None:
    uses = re.findall(r"uses: (\S+)", (ROOT / "docs" / "ci.md").read_text())
    assert uses
    foreign = [u for u in uses if not u.startswith("optvet/optvet@v")]  # its own, by version
    assert [u for u in foreign if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", u)] == []


def test_every_other_command_is_left_out_for_a_reason() -> None:
    assert {c.words[0] for c in ALL} - {"optvet"} <= set(NOT_RUN)


def test_the_picture_of_the_finds_shows_what_the_page_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    drawn = runpy.run_path(str(ROOT / "docs" / "images" / "draw_finds.py"))
    page = (ROOT / "docs" / "finds.md").read_text()
    picture = (ROOT / "docs" / "images" / "finds.svg").read_text()
    assert drawn["picture"](page) == picture
    total, wrong, programs = re.search(
        r"(\d+) faults in released versions of (\d+) programs. (\d+)",
        (ROOT / "README.md").read_text(),
    ).group(1, 3, 2)  # type: ignore[union-attr]
    assert f"{total} causes in {programs} programs" in picture
    assert f"| all | {total} | {wrong} |" in page


def test_readme_has_exactly_two_commands_to_set_up() -> None:
    setups = [line for _, b in blocks(ROOT / "README.md", "console") for line in b.splitlines()]
    assert [s for s in setups if "pip" in s] == [
        "$ pip install -e . && optvet vet zoo:shufflenet",
        "$ pip install -e '.[dev]' && pytest",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_of_the_docs_runs(page: Path, place: Path) -> None:
    for _, code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {"__name__": "example"})


def test_plugin_of_the_docs_is_blamed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert optvet.cli.main(["vet", "model.onnx", "--optimizer", "tiny"]) == 1
    shown = capsys.readouterr().out
    assert "drop_relu" in shown
    assert "wrong-output" in shown
    assert "forget_node_names" not in shown.replace("verified  forget_node_names", "")


def test_plugin_of_the_docs_conforms(place: Path) -> None:
    code = next(b for _, b in blocks(ROOT / "docs" / "plugins.md", "python") if "def test_" in b)
    example: dict[str, Any] = {"__name__": "example"}
    exec(code, example)
    example["test_tiny_conforms"]()


def test_dataset_of_the_docs_reads_lines(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(b for _, b in blocks(ROOT / "docs" / "plugins.md", "python") if "Lines" in b)
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    exec(code, vars(module))
    plugins = Plugins([]).register("dataset", vars(module)["Lines"]())
    model = open_model(place / "model.onnx", "model.onnx", place / "cache")
    (place / "numbers.txt").write_text("1 2 3 4 5 6\n1 2 3\n0 0 0 0 0 0\n")

    def inputs(on_bad: OnBad) -> Inputs:
        cut = Slice(on_bad=on_bad)
        specs = ("lines:numbers.txt",)
        return Inputs(model, plugins, specs, {}, cut=cut, seed=0, probe=lambda feeds: [])

    with pytest.raises(InputError, match=r"line 2: cannot reshape.*; mend it"):
        list(inputs("refuse"))
    made = inputs("skip")
    assert [s.id for s in made] == ["line 1", "line 3"]
    assert list(made.skipped) == ["line 2"]
    assert made.records()[0].provenance == {"file": "numbers.txt"}


def test_comparator_of_the_docs_counts_labels(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(b for _, b in blocks(ROOT / "docs" / "plugins.md", "python") if "Labels" in b)
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    example = vars(module)
    exec(code, example)
    scores = {"y": np.array([2.0, 1.9, 0.0])}
    check_comparator(example["Labels"](), "labelling", scores, {"y": scores["y"][::-1]})
    plugins = Plugins([]).register("comparator", example["Labels"]())
    labels = plugins.comparator("labels")
    model = open_model(place / "model.onnx", "model.onnx", place / "cache")

    def compare(*scores: float) -> Comparison:
        reference, candidate = {"y": np.array([2.0, 1.9, 0.0])}, {"y": np.array(scores)}
        sample = Sample("s", {})
        return labels.compare(
            model, sample, reference, candidate, labels.options, noise={"y": 0.01}
        )

    same, other = compare(2.1, 1.9, 0.1), compare(1.0, 1.9, 0.0)
    assert (same.changed, other.changed, other.sensitive) == (False, True, False)
    assert labels.summarise([same, other], labels.options).headline == "1 of 2 labels changed"


def test_every_hook_is_in_the_guide_for_plugin_authors() -> None:
    guide = (ROOT / "docs" / "plugins.md").read_text()
    missing = [n for n in vars(hooks) if n.startswith("optvet_") and f"`{n}`" not in guide]
    assert missing == []


def test_the_table_of_contracts_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    made = importlib.import_module("contract")
    assert made.PAGE.read_text() == made.page(), "run: python docs/tools/contract.py"
    # Every optional member that plugins import is told in a row.
    source = (ROOT / "core" / "optvet" / "plugin.py").read_text()
    optional = source.partition("# Optional members")[2].partition("    # ")[0]
    names = re.findall(r'"(\w+)"', optional)
    rows = made.table()
    kinds = [k for c in CONTRACTS.values() for k in (*c.may, *c.sets, *c.parts)]
    assert {*names} <= {"PluginExtras", *(k.__name__ for k in kinds)}
    assert all(f"`{member}" in rows for k in kinds for member in members_of(k))
    # The page of the site has each member's whole text.
    whole = importlib.import_module("reference").pages()["plugins"]
    assert all(f"\n## {k.__name__}\n" in whole for k in kinds)
    assert "narrows the search; it is never evidence. |" in whole


def test_every_option_of_vet_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {f"--{name.replace('_', '-')}" for name in VetRequest.model_fields} - {"--model"}
    optvet.cli.main(["vet", "--help"])
    # Long names are cut on a narrow screen.
    shown = set(re.findall(r"--[a-z][a-z-]+(?![a-z-]*…)", capsys.readouterr().out))
    options = (fields | shown) - {"--help", "--cache", "--no-cache", "--reduce"} | {"--no-cache"}
    page = (ROOT / "docs" / "cli.md").read_text()
    assert {o for o in options if f"`{o}" not in page} == set()


def test_every_symptom_is_documented() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text()
    assert [s for s in optvet.Symptom if s not in page and s != "slowdown"] == []


@pytest.mark.parametrize(
    ("family", "name"), [("reporter", "reports.md"), ("converter", "converters.md")]
)
def test_every_reporter_and_converter_has_a_line(family: str, name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    names = [e.name for e in Plugins().all() if e.family == family and e.built_in]
    assert names
    assert [n for n in names if f"`{n}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets: Callable[[str], list[str]] = re.compile(r"\]\((?!https?:)([^)#]+)").findall
    missing = [t for t in targets(page.read_text()) if not (page.parent / t).exists()]
    assert missing == []


def test_modules_that_the_pages_name_are_there() -> None:
    rooms = "spec|graph|engine|report|cli|testing"
    named = {
        name
        for page in PAGES
        for name in re.findall(rf"`((?:{rooms})/[\w/]+?\.py)`", page.read_text())
    }
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / "core" / "optvet" / name).is_file()] == []


def test_the_finds_are_sorted_and_as_many_as_their_page_says() -> None:
    root = Path(__file__).parents[1]
    script = [sys.executable, str(root / "benchmarks" / "finds.py")]
    counted = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    *programs, everything = counted.splitlines()
    numbers = [int(n) for n in re.findall(r"\d+", everything)]
    causes, contrived = numbers[0], numbers[-1]
    page = " ".join((root / "docs" / "finds.md").read_text().split())
    said = f"{causes} distinct causes in {len(programs)} programs"
    assert f"{said}, {causes - contrived} of them on plausible models, {contrived} on" in page
