"""The sizes of what is in core, and that core names no plugin."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from optvet.engine.discovery import Plugins

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "optvet"
FILES = sorted(p for p in CORE.rglob("*.py") if "templates" not in p.parts)
MODULE_LINES, CLASS_LINES, BODY_LINES = 600, 400, 60
WORDS = frozenset(
    {"files", "image", "images", "json", "local", "markdown", "random", "tensor", "text", "token"}
)
"""Names of plugins that are words of English or of ONNX too, and mean that in core."""


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


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


def test_classes_modules_and_functions_of_core_fit_the_eye() -> None:
    found = {place for file in FILES for place in too_long(file)}
    assert found == set()


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


def test_core_names_no_built_in_plugin_and_no_library_of_one(names: set[str]) -> None:
    found = {
        f"{file.relative_to(CORE).as_posix()} {text}"
        for file in FILES
        for text in texts(file)
        if text in names
    }
    assert found == set()


def test_core_imports_no_plugin_and_no_library_of_one(names: set[str]) -> None:
    imported = set()
    for file in FILES:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Import):
                imported |= {(file.name, a.name.partition(".")[0]) for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add((file.name, node.module.partition(".")[0]))
    assert {(file, module) for file, module in imported if module in names} == set()
