"""Requests as options: a command line is made of the fields of a request, and only of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from optvet.cli.options import mapping_of
from optvet.spec.described import descriptions
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.parsing import read_bytes, read_toml
from optvet.spec.request import VetRequest, request_of

R = TypeVar("R", bound=BaseModel)

_SHORT = {
    "optimizer_options": "--optimizer-option",
    "runtime_options": "--runtime-option",
    "comparator_options": "--comparator-option",
    "dataset_options": "--dataset-option",
    "converter_options": "--converter-option",
    "passes": "--pass",
    "pools": "--pool",
    "environments": "--environment",
}
"""Spellings of what is mostly given one at a time."""
_COMPLETED = frozenset(
    ("model", "optimizer", "pipeline", "exclude", "runtime", "cross_check", "comparator", "dataset")
)
"""Fields whose values a shell completes, by functions of ``completion``."""
_SHORTEST = {"optimizer_options": "--option"}
_ENVIRONMENT = {"cache_dir": "OPTVET_CACHE", "environments": "OPTVET_ENVIRONMENTS"}


def takes(
    kind: type[R], argument: str = "", several: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command ``function(context, request, …)`` whose options are the fields of ``kind``.

    Args:
        kind: The request; every field is an option.
        argument: The field that is typed without a name, if there is one.
        several: Fields of one value that may be typed several times. Then the function takes
            ``choices`` too, the values by field; the request has the first of each.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(function, eval_str=True).parameters)
        context = own.pop("context")
        own.pop("request")
        own.pop("choices", None)
        texts = descriptions(kind)
        fields = {
            name: _parameter(name, f, texts[name], name == argument, name in several)
            for name, f in kind.model_fields.items()
        }
        config = inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_CONFIG
        )

        def command(**arguments: Any) -> None:
            if arguments["context"].invoked_subcommand is not None:
                return
            field_values = {name: arguments.pop(name) for name in fields}
            choices = {name: field_values[name] or [] for name in several}
            field_values |= {
                name: values[0] if values else None for name, values in choices.items()
            }
            trust = bool(field_values.get("trust"))
            stored = {
                **project_defaults(arguments["context"].command_path, kind, trust),
                **_from_file(kind, arguments.pop("config"), trust),
            }
            typed = {
                n: _value(n, f, field_values[n])
                for n, f in kind.model_fields.items()
                if field_values[n] is not None
            }
            request = request_of(kind, {**stored, **typed})
            more = {"choices": choices} if several else {}
            function(request=request, **more, **arguments)

        first = [fields.pop(argument)] if argument else []
        parameters = [context, *first, *fields.values(), config, *own.values()]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = function.__doc__
        fields |= {p.name: p for p in first}
        return command

    return decorate


_CONFIG = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A TOML file that holds any of these options by name. Command-line options "
        "override the file.",
        show_default=False,
    ),
]


def _parameter(
    name: str, field: FieldInfo, description: str, is_argument: bool, repeated: bool
) -> inspect.Parameter:
    """The option, or the argument, that a field is."""
    text = " ".join(description.split())
    if is_argument:
        about: Any = typer.Argument(
            metavar=name.upper(), help=text, show_default=False, autocompletion=_completer(name)
        )
        kind = list[str] if repeated else str
        return _keyword(name, Annotated[kind, about], inspect.Parameter.empty)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind, flags = _kind_of(name, field)
    flags += [str(also)] if (also := extra.get("also")) else []
    kind = list[kind] if repeated else kind  # type: ignore[valid-type]  # read at run time
    about = typer.Option(
        *flags,
        metavar=str(extra["metavar"] or _choices(field) or "") or None,
        help=text,
        show_default=str(extra["shown"]) or _show_default(field),
        rich_help_panel=str(extra["group"]),
        envvar=_ENVIRONMENT.get(name),
        autocompletion=_completer(name),
    )
    return _keyword(name, Annotated[kind | None, about], None)


def _completer(name: str) -> Callable[..., list[str]] | None:
    """The completer of a value; imported when a shell asks."""
    if name not in _COMPLETED:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from optvet.cli.completion import COMPLETERS

        return COMPLETERS[name](ctx, incomplete)

    return complete


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _plain(annotation: Any) -> Any:
    """A type without ``Annotated`` and ``None``."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if isinstance(annotation, UnionType):
        return next(_plain(a) for a in get_args(annotation) if a is not NoneType)
    return annotation


def _kind_of(name: str, field: FieldInfo) -> tuple[Any, list[str]]:
    """The type as which typer reads an option, and the option's names."""
    flag, plain = f"--{name.replace('_', '-')}", _plain(field.annotation)
    if plain is bool:
        default = field.get_default(call_default_factory=True)
        # One name where the other would say what is so anyway.
        return bool, [flag] if default is False else [f"{flag}/--no-{flag[2:]}"]
    if get_origin(plain) in (tuple, dict):
        return list[str], [flag, *(s[name] for s in (_SHORT, _SHORTEST) if name in s)]
    # What is written in a form of its own, such as 512M, is read by the request.
    own_form = any(isinstance(m, BeforeValidator) for m in field.metadata)
    return (plain if plain in (int, Path) and not own_form else str), [flag]


def _choices(field: FieldInfo) -> str:
    plain = _plain(field.annotation)
    return "|".join(map(str, get_args(plain))) if get_origin(plain) is Literal else ""


def _show_default(field: FieldInfo) -> str | bool:
    default = field.get_default(call_default_factory=True)
    if field.is_required() or default is None or isinstance(default, (bool, tuple, dict)):
        return False
    return f"{default:g}" if isinstance(default, float) else str(default)


def _value(name: str, field: FieldInfo, typed: Any) -> Any:
    plain = _plain(field.annotation)
    flag = _SHORT.get(name, name)
    return mapping_of(flag, typed) if get_origin(plain) is dict else typed


def _from_file(kind: type[BaseModel], path: Path | None, trust: bool) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        stored = read_toml(path, "record")
    except InputError as error:
        raise UsageError(f"--config {error}") from error
    return _check_options(kind, stored, str(path), trust)


def _check_options(
    kind: type[BaseModel], stored: Mapping[str, Any], where: str, trust: bool
) -> Mapping[str, Any]:
    """Options from a file.

    Raises:
        UsageError: A key is unknown, a value is wrong, or code is named without ``trust``.
    """
    if not trust and stored:
        from optvet.engine.discovery import Plugins
        from optvet.engine.trust import check_request

        check_request(where, stored, Plugins())
    # Made complete, so that a wrong key is told with the file that holds it.
    required = (name for name, field in kind.model_fields.items() if field.is_required())
    request_of(kind, {**dict.fromkeys(required, "any"), **stored}, where)
    return stored


def project_defaults(command: str, kind: type[BaseModel], trust: bool) -> Mapping[str, Any]:
    """Options of ``command``, as typed, that ``pyproject.toml`` sets.

    The file is that of the current folder, or of the nearest folder above. ``[tool.optvet]`` has
    one table per command; options of ``vet`` may stand in ``[tool.optvet]`` itself.

    Raises:
        UsageError: The table has what belongs to no command.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the folder was deleted, such as by a pass that was vetted in it
        return {}
    files = (folder / "pyproject.toml" for folder in (here, *here.parents))
    file = next((f for f in files if os.path.isfile(f) and os.access(f, os.R_OK)), None)
    # Most projects have no such table, and TOML of some size takes a while.
    if file is None or b"optvet" not in read_bytes(file, "listing"):
        return {}
    tool = read_toml(file, "listing").get("tool", {})
    # A table of another program is its own; what is ours must be one.
    table = tool.get("optvet", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"[tool.optvet] of {file}: expected a table of options")
    name = command.rpartition(" ")[2]
    tables = {key: table[key] for key in _PROJECT_TABLES if isinstance(table.get(key), dict)}
    where = f"[tool.optvet] of {file}"
    shared = {key: value for key, value in table.items() if key not in tables}
    if unknown := sorted(set(shared) - VetRequest.model_fields.keys()):
        known = {*VetRequest.model_fields, *_PROJECT_TABLES}
        raise UnknownName("option", unknown[0], known, f"(in {where})")
    own = tables.get(name, {})
    return _check_options(kind, {**(shared if name == "vet" else {}), **own}, where, trust)


_PROJECT_TABLES = ("vet", "bench", "convert", "repair", "precision", "hunt")
