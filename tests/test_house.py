"""The sizes of what is in core, and that core names no plugin."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from optvet.engine.discovery import Plugins

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "optvet"
FILES = sorted(p for p in CORE.rglob("*.py") if "templates" not in p.parts)
MODULE_LINES, CLASS_LINES, BODY_LINES = 600, 400, 60
WORDS = frozenset(
    "converters files image images json local markdown random study tensor text token"
    " upstream".split()
)
"""Names of plugins that are words of English or of ONNX too, and mean that in core."""


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def _parsed_once() -> Iterator[None]:
    """Keep the trees of all files, which take 150 MB, no longer than the tests of this file run."""
    yield
    parsed.cache_clear()


def too_long(file: Path) -> Iterator[str]:
    where = file.relative_to(CORE).as_posix()
    if len(file.read_text(encoding="utf-8").splitlines()) > MODULE_LINES:
        yield where
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        is_class = isinstance(node, ast.ClassDef)
        start = node.lineno if is_class else node.body[0].lineno
        limit = CLASS_LINES if is_class else BODY_LINES
        if (node.end_lineno or start) - start + 1 > limit:
            yield f"{where} {node.name}"


@pytest.mark.long
def test_classes_modules_and_functions_of_core_fit_the_eye() -> None:
    found = {place for file in FILES for place in too_long(file)}
    assert found == set()


@pytest.mark.long
def test_each_name_of_a_class_stands_for_one_type() -> None:
    homes: dict[str, list[str]] = {}
    for file in (*FILES, *sorted((ROOT / "plugins").rglob("*.py"))):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef):
                place = f"{file.relative_to(ROOT).as_posix()}:{node.lineno}"
                homes.setdefault(node.name.lstrip("_"), []).append(place)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def texts(file: Path) -> Iterator[str]:
    """String constants of a file other than docstrings and the texts below attributes."""
    tree = parsed(file)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            yield from [node.value] if isinstance(node.value, str) else []


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Names of built-in plugins, of their modules, and of the libraries below them."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    found = {entry.name for entry in Plugins().all()} | set(group["optvet"].values())
    for entry in Plugins().all():
        libraries = getattr(entry.plugin, "libraries", {})
        found |= {*libraries, *libraries.values()}
    assert {"onnxruntime", "onnxoptimizer", "tvm", "optvet_zoo"} <= found
    return found - WORDS - {"onnx"}  # whose library core itself is built on


@pytest.mark.long
def test_core_names_no_built_in_plugin_and_no_library_of_one(names: set[str]) -> None:
    found = {
        f"{file.relative_to(CORE).as_posix()} {text}"
        for file in FILES
        for text in texts(file)
        if text in names
    }
    # Rename the plugin; or, if it is a word that core means otherwise, add it to WORDS.
    assert found == set()


@pytest.mark.long
def test_core_imports_no_plugin_and_no_library_of_one(names: set[str]) -> None:
    imported = set()
    for file in FILES:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Import):
                imported |= {(file.name, a.name.partition(".")[0]) for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add((file.name, node.module.partition(".")[0]))
    foreign = names - sys.stdlib_module_names  # a plugin may be called like one, as "html" is
    assert {(file, module) for file, module in imported if module in foreign} == set()


# Names for type checkers alone


def read_at_run_time(tree: ast.AST, guarded: frozenset[str]) -> Iterator[str]:
    """Names of ``guarded`` that code reads where nothing binds them; annotations are not code."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        guarded -= {a.arg for a in ast.walk(tree.args) if isinstance(a, ast.arg)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                guarded -= {(a.asname or a.name).partition(".")[0] for a in node.names}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                guarded -= {node.id}
    if isinstance(tree, ast.Name) and tree.id in guarded:
        yield f"{tree.id}, line {tree.lineno}"
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns"):
            continue
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, ast.AST) and not is_guard(inner):
                yield from read_at_run_time(inner, guarded)


def is_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def for_type_checkers(tree: ast.Module) -> frozenset[str]:
    """Names that are imported for type checkers, and by nothing else of the module."""
    guards = [n for n in tree.body if isinstance(n, ast.If) and is_guard(n) and not n.orelse]
    imports = [n for g in guards for n in ast.walk(g) if isinstance(n, ast.Import | ast.ImportFrom)]
    return frozenset((a.asname or a.name).partition(".")[0] for n in imports for a in n.names)


@pytest.mark.long
def test_what_is_imported_for_type_checkers_is_not_read_at_run_time() -> None:
    planted = ast.parse(
        "if TYPE_CHECKING:\n    from a import b\ndef f(x: b) -> b:\n    return b(x)"
    )
    assert list(read_at_run_time(planted, for_type_checkers(planted))) == ["b, line 4"]
    wrong = []
    for file in (*FILES, *sorted((ROOT / "plugins").rglob("*.py"))):
        tree = parsed(file)
        if names := for_type_checkers(tree):
            wrong += [f"{file.relative_to(ROOT)}: {w}" for w in read_at_run_time(tree, names)]
    assert wrong == []


@pytest.mark.long
def test_nothing_in_core_and_plugins_is_dead() -> None:
    pytest.importorskip("vulture", reason="needs vulture, of the extra dev")
    # Settings are in pyproject.toml. Tests and benchmarks are read too, as users of what they test.
    command = [sys.executable, "-m", "vulture"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert told.returncode in (0, 3), told.stderr
    dead = [line for line in told.stdout.splitlines() if line.startswith(("core/", "plugins/"))]
    assert dead == []


def test_each_change_is_one_line_of_the_changelog() -> None:
    _, _, changes = (ROOT / "CHANGELOG.md").read_text().partition("\n## ")
    lines = [line for line in changes.splitlines()[1:] if line]
    prose = "Beyond onnx, "
    # A merge that joins two versions leaves halves of entries, and entries that stand twice.
    assert [n for n in lines if not n.startswith(("- ", "### ", "## ", prose))] == []
    assert len(set(lines)) == len(lines)
