"""Patterns from names of passes: ``fuse_transpose_into_gemm`` may look for Transpose and Gemm."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import onnx

from optvet.plugin import Fragment, Pattern, Pool, PoolRequest, hookimpl

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_LONGEST = 4
_SHORT = {"bn": "BatchNormalization", "layernorm": "LayerNormalization", "ln": "LayerNormalization"}
"""Abbreviations that names of passes and of papers use for operators."""


class Hints:
    """The operators in the name of a pass, in its order and reversed, and parts of it."""

    name = "hints"
    needs_argument = False

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """Patterns, pass by pass."""
        schemas = onnx.defs.get_all_schemas()
        operators = {s.name.lower(): s.name for s in schemas if s.domain == ""} | _SHORT
        found: list[Pattern] = []
        for each in request.passes:
            found += [Pattern(p, each.name) for p in _patterns(each.name, operators)]
        return found[: request.limit]


def _patterns(name: str, operators: dict[str, str]) -> Iterator[tuple[str, ...]]:
    named = list(_operators(name, operators))[:_LONGEST]
    # A rule about consecutive operators names them once.
    if len(named) == 1:
        named *= 2
    yielded = set[tuple[str, ...]]()
    for size in range(len(named), 0, -1):
        for part in itertools.combinations(named, size):
            for order in (part, part[::-1]):
                if order not in yielded:
                    yielded.add(order)
                    yield order


def _operators(name: str, operators: dict[str, str]) -> Iterator[str]:
    """The longest operators that successive words of ``name`` spell, in order."""
    words = [w.lower() for part in name.split("_") for w in _WORD.findall(part)]
    at = 0
    while at < len(words):
        for end in range(len(words), at, -1):
            word = "".join(words[at:end])
            found = operators.get(word) or operators.get(word.removesuffix("s"))
            if found is not None:
                yield found
                at = end
                break
        else:
            at += 1


@hookimpl
def optvet_generators() -> Iterable[Pool]:
    """The pool of hints."""
    return [Hints()]
