"""The pool of an optimizer's checkout: models of its tests, and patterns that its passes name.

Nothing of the checkout is run: Python is parsed, and other files are searched.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import onnx
import onnx.parser
from onnx import ModelProto

from optvet.plugin import Fragment, Pattern, PoolRequest, UsageError, files_in, read_file
from optvet_windows.cut import read_model, windows_of

_OTHER = frozenset({".cc", ".cpp", ".cxx", ".h", ".hpp"})
_LARGEST_FILE = 2 << 20
_LONGEST = 6
"""Operators of a pattern; of longer ones parts of this length, which overlap."""
_FUNCTION = re.compile(r"^(?=[A-Za-z_].*\()", re.MULTILINE)
"""Where a function of C++ begins: a line that is not indented."""
_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r'"(\w+)"')
_RAW = re.compile(r'R"(\w*)\((.*?)\)\1"', re.DOTALL)


class Upstream:
    """``upstream:FOLDER``: what the tests of an optimizer build, and what its passes look for."""

    name = "upstream"
    needs_argument = True

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """Patterns of operators that one function names, then windows of models.

        Models are files, and strings in ONNX's text form.

        Raises:
            UsageError: The folder has neither.
        """
        place = Path(request.argument or "").expanduser()
        if not request.argument or not place.is_dir():
            raise UsageError("pool 'upstream' needs a checkout: say --pool upstream:FOLDER")
        schemas = onnx.defs.get_all_schemas()
        # Constants are made where a fragment needs some.
        operators = frozenset(s.name for s in schemas if not s.domain) - {"Constant"}
        files = files_in(place, lambda f: f.suffix in {".onnx", ".py", *_OTHER})
        read = [_CodeFile(file, operators) for file in files if file.suffix != ".onnx"]
        patterns = dict.fromkeys(p for source in read for p in source.patterns())
        count = 0
        for pattern in list(patterns)[: request.limit]:
            count += 1
            yield pattern
        models: list[tuple[str, Callable[[], ModelProto]]] = [
            (file.name, partial(read_model, file)) for file in files if file.suffix == ".onnx"
        ]
        models += [(f"{s.file.stem}-{n}", partial(_same, m)) for s in read for n, m in s.models()]
        for window in windows_of(models, request):
            if not isinstance(window, str) and count < request.limit:
                count += 1
                yield window
        if not count:
            raise UsageError(f"pool 'upstream': {place} has no pattern and no model that runs")


def _same(model: ModelProto) -> ModelProto:
    return model


class _CodeFile:
    """A source file: what its functions name, and the strings in it."""

    def __init__(self, file: Path, operators: frozenset[str]) -> None:
        self.file, self._operators = file, operators
        try:
            text = read_file(file, _LARGEST_FILE).decode("utf-8", "replace")
        except OSError:  # too large, or unreadable: what the other files hold is used
            text = ""
        named = _in_python(text) if file.suffix == ".py" else _in_other(text)
        self._named, self._strings = named

    def patterns(self) -> Iterator[Pattern]:
        """Operators that one function names, in the order in which they are computed."""
        for names in self._named:
            found = tuple(name for name in names if name in self._operators)
            for start in range(0, max(1, len(found) - _LONGEST // 2), _LONGEST // 2):
                if len(found) > 1:
                    yield Pattern(found[start : start + _LONGEST], self.file.stem)

    def models(self) -> Iterator[tuple[int, ModelProto]]:
        """Strings that are models in ONNX's text form, with their numbers."""
        for number, text in enumerate(self._strings):
            try:
                yield number, onnx.parser.parse_model(text)
            except onnx.parser.ParseError:
                continue


def _in_python(text: str) -> tuple[list[list[str]], list[str]]:
    """Names that each function calls or quotes, arguments before calls; and strings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return [], []
    nodes = list(ast.walk(tree))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef)]
    strings = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [list(_computed(f)) for f in functions], [s for s in strings if "opset_import" in s]


def _computed(node: ast.AST) -> Iterator[str]:
    """What is named below a node, in the order of the computation: ``op.Add(op.Neg(x), y)``."""
    for child in ast.iter_child_nodes(node):
        # A string that stands for itself describes the code.
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield from _computed(child)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _WORD.findall(node.value)


def _in_other(text: str) -> tuple[list[list[str]], list[str]]:
    """Names that each function quotes, and raw strings."""
    strings = [body for _, body in _RAW.findall(text)]
    functions = [_QUOTED.findall(part) for part in _FUNCTION.split(text)]
    return functions, [s for s in strings if "opset_import" in s]
