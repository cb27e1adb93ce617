"""Options of plugins that an untrusted file must not set.

A bundle, or the record beside a model, sets options of plugins. Most are numbers and names, which
are harmless. An option that names code, a command or a file is *sensitive*: it is refused unless
the user trusts the file. A plugin marks such an option in its option model::

    extra_passes: Annotated[tuple[str, ...], Sensitive("runs Python code")] = ()

An unmarked option is sensitive too if its type is a path, an address or an import, or if its name
contains a word such as "file". ``Harmless`` marks an exception.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import AnyUrl, BaseModel, ImportString
from pydantic.fields import FieldInfo

_WORDS = frozenset(
    "binary callback cmd code command dir directory dll env environment exec executable file "
    "files folder folders hook import lib libraries library module modules path paths plugin "
    "plugins program python script scripts shell uri url urls".split()
)
_TYPES: tuple[type, ...] = (os.PathLike, AnyUrl)


@dataclass(frozen=True)
class Sensitive:
    """Marks an option that a file may set only if the user trusts it.

    Attributes:
        what: What the option does, as the end of a sentence "it …": "runs Python code from a file".
        reads_data: The option names a file that is only read, as data. The record of a model may
            then name a file in its own folder.
        unless: Predicate for values that are harmless, and therefore allowed.
    """

    what: str
    reads_data: bool = False
    unless: Callable[[Any], bool] = lambda value: False


@dataclass(frozen=True)
class Harmless:
    """Marks an option that is not sensitive, though its type or name looks like it.

    Attributes:
        why: The reason.
    """

    why: str


def sensitive_options(options: type[BaseModel]) -> dict[str, Sensitive]:
    """The sensitive options of ``options``, by name; marked ones, and those that look like it."""
    found = {name: _sensitive(name, field) for name, field in options.model_fields.items()}
    return {name: mark for name, mark in found.items() if mark is not None}


def data_files(options: BaseModel) -> dict[str, str]:
    """The files that ``options`` name to be read as data, by the option's name."""
    marks = sensitive_options(type(options)).items()
    named = {name: getattr(options, name) for name, mark in marks if mark.reads_data}
    unless = {name: mark.unless for name, mark in marks}
    return {n: v for n, v in named.items() if isinstance(v, str) and v and not unless[n](v)}


def unmarked_options(options: type[BaseModel]) -> dict[str, str]:
    """Unmarked options that look sensitive, by name, with the reason."""
    return {
        name: looks
        for name, field in options.model_fields.items()
        if not any(isinstance(m, Sensitive | Harmless) for m in _marks(field))
        and (looks := _looks(name, field)) is not None
    }


def _sensitive(name: str, field: FieldInfo) -> Sensitive | None:
    marks = list(_marks(field))
    marked = next((m for m in marks if isinstance(m, Sensitive)), None)
    if marked is not None or any(isinstance(m, Harmless) for m in marks):
        return marked
    looks = _looks(name, field)
    if looks is not None:
        return Sensitive(f"{looks}, so it may name code or a file")
    for part in _parts(field.annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return next(iter(sensitive_options(part).values()), None)
    return None


def _looks(name: str, field: FieldInfo) -> str | None:
    for part in _parts(field.annotation):
        if isinstance(part, type) and issubclass(part, _TYPES):
            return f"is of type {part.__name__}"
    # ``ImportString[X]`` is ``Annotated[X, ImportString()]``.
    if any(ImportString in (mark, type(mark)) for mark in _marks(field)):
        return "is of type ImportString"
    # The value of a switch or a number cannot name a file or code.
    if all(part in (bool, int, float, type(None)) for part in _leaves(field.annotation)):
        return None
    word = next((w for w in name.lower().split("_") if w in _WORDS), None)
    return None if word is None else f"has {word!r} in its name"


def _marks(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    for part in _parts(field.annotation):
        yield from getattr(part, "__metadata__", ())
        if part is ImportString:
            yield part


def _parts(annotation: Any) -> Iterator[Any]:
    """``annotation`` and all annotations nested in it."""
    yield annotation
    for inner in typing.get_args(annotation):
        yield from _parts(inner)


def _leaves(annotation: Any) -> Iterator[Any]:
    inside = typing.get_args(annotation)
    if not inside:
        yield annotation
    for inner in inside:
        yield from _leaves(inner)
