"""What the fields of options, requests and extras mean: the texts below them in the source.

pydantic's ``use_attribute_docstrings`` reads the same, when a class is made; that takes longer than
all else in it, and few commands show help.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel


def descriptions(kind: type[BaseModel]) -> Mapping[str, str]:
    """The meaning of each field; empty where it has none, or the source is not there."""
    below: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            below |= _texts(base.__module__).get(base.__qualname__, {})
    return {n: f.description or below.get(n, "") for n, f in kind.model_fields.items()}


def below(kind: type) -> Mapping[str, str]:
    """The texts below the attributes of any class, by attribute."""
    return _texts(kind.__module__).get(kind.__qualname__, {})


@cache
def _texts(module: str) -> Mapping[str, Mapping[str, str]]:
    """The texts below fields, by class, of a module that is loaded."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, SyntaxError, TypeError):
        return {}
    return dict(_classes(tree.body, ""))


def _classes(body: list[ast.stmt], within: str) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            found.append((f"{within}{node.name}", _fields(node.body)))
            found += _classes(node.body, f"{within}{node.name}.")
    return found


def _fields(body: list[ast.stmt]) -> dict[str, str]:
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }
