"""``help(optvet.vet)``: the keywords of the Python functions with their types and meanings.

The texts stand in the requests. They are read when a function is asked for by its public name, so
commands that show no help do not spend time on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LINE = "        options: The other fields of ``{}``."
_REQUESTS = {
    "bench": "BenchRequest",
    "bisect": "BisectRequest",
    "convert": "ConvertRequest",
    "hunt": "HuntRequest",
    "repair": "RepairRequest",
    "precision": "PrecisionRequest",
    "vet": "VetRequest",
}
"""Requests by the function that takes their fields as keywords."""


def describe_keywords(public: Any) -> Any:
    """``public``, whose documentation lists its keywords if it is one of the functions."""
    name = getattr(public, "__name__", "")
    request = _REQUESTS.get(name)
    if request is None or not callable(public) or not (text := public.__doc__):
        return public
    line = _LINE.format(request)
    if line in text:
        keywords = "\n".join(_list_keywords(public, request))
        public.__doc__ = text.replace(
            line, f"        options: Fields of ``{request}``:\n{keywords}"
        )
    return public


def _list_keywords(function: Callable[..., Any], request: str) -> list[str]:
    """A paragraph per keyword: its name, default and meaning."""
    import inspect  # with what it needs, a third of the time that ``import optvet`` takes

    from optvet.names import find
    from optvet.spec.described import descriptions

    kind = find(request)
    fields, texts = kind.model_fields, descriptions(kind)
    parameters = inspect.signature(function).parameters
    return [
        _describe(name, _show_default(field), texts[name])
        for name, field in fields.items()
        if name not in parameters
    ]


def _describe(name: str, default: str, meaning: str) -> str:
    import textwrap

    words = f"{name}: {' '.join(meaning.split())}{default}"
    return textwrap.fill(words, 96, initial_indent=" " * 12, subsequent_indent=" " * 16)


def _show_default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if field.is_required() or value in (None, (), "", {}) else f" By default {value!r}."
