"""Files that a user or a document names are opened by ``optvet.spec.foreign`` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READERS = {
    "onnx.load",
    "np.load",
    "numpy.load",
    "torch.load",
    "sqlite3.connect",
    "zipfile.ZipFile",
    "tarfile.open",
    "wave.open",
    "Image.open",
    "wavfile.read",
    "glob.glob",
    "glob.iglob",
    "os.walk",
    "os.scandir",
    "os.open",
    "shutil.copyfile",
    "shutil.copy",
    "pyarrow.parquet.read_metadata",
}
METHODS = {"open", "read_bytes", "read_text", "glob", "rglob"}
OWN = "files that optvet itself made in this run, in a folder of its own"
CACHE = "files of the user's cache folder, which a digest or a record of the download checks"
PACKAGE = "files of an installed package"
KERNEL = "files of the kernel"
WORKER = "an artifact, in the worker that made or runs it, under its limits of time and memory"

ALLOWED: Mapping[str, str] = {
    "core/optvet/spec/foreign.py": "the reader itself",
    "core/optvet/spec/files.py": "writes",
    "core/optvet/engine/scripts/comparing.py": "part of written scripts, of their own files",
    "core/optvet/engine/scripts/drawing.py": "part of written scripts, of their own files",
    "core/optvet/engine/scripts/parts.py": PACKAGE,
    "core/optvet/engine/scripts/with_files.py": PACKAGE,
    "core/optvet/engine/scripts/rendering.py": PACKAGE,
    "core/optvet/engine/campaign/job.py": OWN,
    "core/optvet/engine/database.py": "looked at by check_files before",
    "core/optvet/engine/campaign/rescue.py": "a copy that the reader made",
    "core/optvet/engine/campaign/store.py": "looked at by damage.check_folder before",
    "core/optvet/engine/convert/kept_answer.py": PACKAGE,
    "core/optvet/engine/convert/parts.py": OWN,
    "core/optvet/engine/environment/environments.py": OWN,
    "core/optvet/engine/bisect/in_release.py": "the null device",
    "core/optvet/engine/environment/releases.py": "releases that pip installed for optvet",
    "core/optvet/engine/environment/scaffold.py": PACKAGE,
    "core/optvet/engine/recording/kit.py": PACKAGE,
    "core/optvet/engine/hunt/progress_log.py": OWN,
    "core/optvet/engine/hunt/sources/steps.py": WORKER,
    "core/optvet/engine/hunt/vocabulary.py": CACHE,
    "core/optvet/engine/models/large.py": CACHE,
    "core/optvet/engine/processes.py": KERNEL,
    "core/optvet/engine/repair/propose/tried_candidates.py": OWN,
    "core/optvet/engine/work/sandbox/cores.py": KERNEL,
    "core/optvet/spec/removal.py": "removes what it opens, and reads nothing",
    "core/optvet/engine/work/cache/whole_answers.py": OWN,
    "core/optvet/engine/work/cache/environment_fingerprint.py": PACKAGE,
    "core/optvet/engine/work/cache/disk.py": CACHE,
    "core/optvet/engine/work/trials/candidate.py": WORKER,
    "core/optvet/engine/work/cache/modified_installs.py": PACKAGE,
    "core/optvet/engine/work/timing/profiled_run.py": OWN,
    "core/optvet/engine/work/sandbox/landlock.py": "names folders to the kernel, and reads none",
    "core/optvet/spec/scratch.py": OWN,
    "core/optvet/engine/environment/packages.py": PACKAGE,
    "core/optvet/cli/cache.py": CACHE,
    "core/optvet/cli/completion.py": PACKAGE,
    "core/optvet/testing/converters.py": OWN,
    "plugins/converters/": WORKER,
    "plugins/optimizers/": WORKER,
    "plugins/runtimes/": WORKER,
    "plugins/generators/optvet_fusions/": PACKAGE,
    "plugins/generators/optvet_onnx_tests.py": PACKAGE,
    "plugins/studies/optvet_converter_study/": PACKAGE,
    "plugins/reporters/optvet_html/": PACKAGE,
    "plugins/models/optvet_catalogue/": CACHE,
    "plugins/models/optvet_hf_models/": CACHE,
    "plugins/models/optvet_onnx_hub/__init__.py": CACHE,
    "plugins/models/optvet_onnx_hub/archive.py": CACHE,
    "plugins/models/optvet_onnx_hub/manifest.py": CACHE,
    "plugins/models/optvet_onnx_hub/web.py": CACHE,
    "plugins/models/optvet_zoo/": PACKAGE,
    "plugins/datasets/optvet_audio.py": "wavfile maps a file that check_file has looked at before",
}
"""Where files are opened otherwise, and why they may."""


def opens(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that open a file, or look for files, to be read."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        mode = next((k.value for k in node.keywords if k.arg == "mode"), None)
        if name == "open":
            mode = node.args[1] if len(node.args) > 1 else mode
        elif name == "zipfile.ZipFile":
            mode = node.args[1] if len(node.args) > 1 else mode
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "open":
            mode = node.args[0] if node.args and name not in READERS else mode
        if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
            if set(mode.value) & set("wax") and set(mode.value) <= set("rwaxbt+"):
                continue
        method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if name == "open" or name in READERS or method:
            yield node


def dotted(function: ast.expr) -> str:
    """What is called, as ``a.b.c``; quicker than ``ast.unparse``."""
    if isinstance(function, ast.Attribute):
        return f"{dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else "()"


def opened(tree: ast.AST) -> set[str]:
    """Names of files that the one reader has opened."""
    bound = [
        (item.context_expr, item.optional_vars)
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
    ]
    bound += [(n.value, n.targets[0]) for n in ast.walk(tree) if isinstance(n, ast.Assign)]
    return {
        name.id
        for value, name in bound
        if isinstance(name, ast.Name) and "open_file(" in ast.unparse(value)
    }


def is_harmless(call: ast.Call, names: set[str]) -> bool:
    """Of a file that is opened already, of the kernel, or of an installed distribution."""
    text = ast.unparse(call)
    given = call.args[0] if call.args else None
    receiver = text.partition("(")[0]
    return (
        "/proc/" in text
        or "'/sys/" in text
        or (isinstance(given, ast.Name) and given.id in names)
        or receiver.startswith(("distribution.", "found.read_text", "ours.read_text"))
        or receiver in ("archive.open", "self.open", "oracle.open", "self._opener.open")
        or (receiver == "os.open" and "O_WRONLY" in text)
    )


@cache
def found_in(file: Path) -> list[str]:
    text = file.read_text()
    tree = ast.parse(text)
    names = opened(tree) if "open_file(" in text else set[str]()
    calls = (call for call in opens(tree) if not is_harmless(call, names))
    return [f"{call.lineno}: {ast.unparse(call)[:90]}" for call in calls]


FILES = sorted(f for room in ("core", "plugins") for f in (ROOT / room).rglob("*.py"))


def allowed(file: Path) -> str | None:
    name = file.relative_to(ROOT).as_posix()
    return next((key for key in ALLOWED if name == key or name.startswith(f"{key}")), None)


@pytest.mark.long
def test_files_that_others_name_are_opened_by_the_one_reader() -> None:
    found = {
        file.relative_to(ROOT).as_posix(): calls
        for file in FILES
        if allowed(file) is None and (calls := found_in(file))
    }
    assert found == {}, "open them by optvet.spec.foreign, or say in ALLOWED why not"


def test_every_exception_is_one() -> None:
    used = {allowed(file) for file in FILES if found_in(file)}
    assert sorted(ALLOWED.keys() - used) == []


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open('rb')",
        "path.open(newline='')",
        "path.read_bytes()",
        "onnx.load(path)",
        "zipfile.ZipFile(path)",
        "folder.rglob('*')",
        "sqlite3.connect(path)",
        "Image.open(path)",
    ],
)
def test_what_opens_a_file_is_seen(code: str) -> None:
    (call,) = opens(ast.parse(code))
    assert not is_harmless(call, set())


@pytest.mark.parametrize("code", ["open(path, 'wb')", "path.open('a')", "path.open(mode='x')"])
def test_writing_is_not_reading(code: str) -> None:
    assert list(opens(ast.parse(code))) == []
