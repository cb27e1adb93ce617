# ruff: noqa: INP001 -- a script, in no package
"""The reference pages, made from the program: options, functions, documents, contracts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import optvet
import optvet.plugin
from optvet.cli.app import COMMANDS, GROUPS, load_command
from optvet.spec import described, hooks, keywords
from optvet.spec.contract import CONTRACTS
from optvet.spec.extras import PluginExtras
from optvet.spec.records import DOCUMENTS
from optvet.spec.symptoms import SYMPTOMS

EXIT_CODES = {
    0: "The model is intact; a difference that rounding explains is no fault.",
    1: "There are findings.",
    2: "An option or an input is wrong.",
    3: "optvet or its environment failed.",
    4: "Undecided or flaky.",
    5: "Nothing could be tested.",
    130: "Interrupted by Ctrl-C.",
}


@cache
def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    return {
        "commands": _page("Every option", "Every command with its options.", _commands()),
        "python": _page("Python interface", "What `import optvet` gives.", _python()),
        "schemas": _page("Documents and schemas", "What `--json` and `--out` write.", _schemas()),
        "symptoms": _page("Symptoms and exit codes", "What can be wrong.", _symptoms()),
        "plugins": _page("Contracts of plugins", "What `optvet.plugin` gives.", _contracts()),
    }


def _page(title: str, what: str, lines: Iterator[str]) -> str:
    note = f"{what} This page is made from the program, version {optvet.__version__}."
    return "\n".join([f"# {title}", "", note, "", *lines, ""])


def _cell(text: object) -> str:
    """A text in a cell of a table."""
    parts = re.split("(`+[^`]*`+)", " ".join(str(text).split()))
    plain = (re.sub(r"([<>*_\[\]])", r"\\\1", part) for part in parts[::2])
    code = [*parts[1::2], ""]
    return "".join(a + b for a, b in zip(plain, code, strict=True)).replace("|", r"\|")


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


# --- commands -------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    for name in {**COMMANDS, **GROUPS}:
        yield from _command(load_command(name), f"optvet {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    parameters = [p for p in command.params if not getattr(p, "hidden", False)]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    names = " ".join(p.metavar or p.name.upper() for p in arguments)
    yield from (f"## {path}", "", " ".join((command.help or "").split()), "")
    if names or not hasattr(command, "commands"):
        yield from ("```text", f"{path} {names}".rstrip() + " [OPTIONS]", "```", "")
    if options:
        yield from _table(("option", "meaning"), (_option(option) for option in options))
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _command(inner, f"{path} {name}")


def _option(option: Any) -> tuple[str, str]:
    spelled = ", ".join(f"`{s}`" for s in [*option.opts, *option.secondary_opts])
    default = option.default
    shown = (
        isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    )
    after = f" Default: `{default}`." if shown else ""
    return spelled, _cell(option.help or "") + after


# --- Python ---------------------------------------------------------------------------------------


def _python() -> Iterator[str]:
    for name in optvet.__all__:
        value = getattr(optvet, name)
        if inspect.isfunction(value):
            yield from _function(f"optvet.{name}", value)
    yield from ("## Types", "")
    types = ((n, getattr(optvet, n)) for n in optvet.__all__)
    yield from _table(
        ("name", "what it is"),
        ((f"`{n}`", _cell(_first(v))) for n, v in types if inspect.isclass(v)),
    )


def _function(name: str, function: Any) -> Iterator[str]:
    signature = inspect.signature(function)
    yield from (f"## {name}", "", "```python", f"def {function.__name__}(")
    star = False
    options = None
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            yield "    *,"
        if parameter.kind is parameter.VAR_KEYWORD:
            options = getattr(keywords, re.findall(r"\w+", str(parameter.annotation))[-1])
        yield f"    {_parameter(parameter)},"
    yield from (f") -> {signature.return_annotation}", "```", "")
    yield from ("```text", inspect.cleandoc(function.__doc__ or ""), "```", "")
    if options is not None:
        helps = {
            p.name: p.help for p in load_command(function.__name__).params if hasattr(p, "help")
        }
        rows = (
            (f"`{n}`", _cell(_type_name(kind)), _cell(helps.get(n) or ""))
            for n, kind in options.__annotations__.items()
        )
        yield from _table(("option", "type", "meaning"), rows)


def _parameter(parameter: inspect.Parameter) -> str:
    """A parameter as code, without the addresses of functions that are defaults."""
    if inspect.isfunction(parameter.default):
        parameter = parameter.replace(default=inspect.Parameter.empty)
    return str(parameter).replace("'", "")


def _type_name(kind: Any) -> str:
    """A type as code, without the modules of its parts."""
    text = getattr(kind, "__forward_arg__", None) or inspect.formatannotation(kind)
    plain = re.sub(r"(?<!')\b(?:[a-z_][a-z_0-9]*[.])+", "", text)
    return f"`{plain}`"


def _first(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0]


# --- documents, symptoms, contracts ---------------------------------------------------------------


def _schemas() -> Iterator[str]:
    yield from ("`optvet schema NAME` prints the JSON Schema of a document.", "")
    rows = (
        (f"`{n}`", f"`{k.model_fields['schema_'].default}`", _cell(_first(k)))
        for n, k in DOCUMENTS.items()
    )
    yield from _table(("name", "schema", "what it is"), rows)
    for name, kind in DOCUMENTS.items():
        yield from (f"## {name}", "", _cell(_first(kind)), "")
        fields = (
            (f"`{field.alias or key}`", _cell(_type_name(field.annotation)))
            for key, field in kind.model_fields.items()
        )
        yield from _table(("field", "type"), fields)


def _symptoms() -> Iterator[str]:
    yield from ("## Symptoms", "")
    rows = (
        (
            f"`{symptom}`",
            info.severity,
            ", ".join(sorted(info.blames)),
            _cell(info.headline),
            _cell(info.expected),
        )
        for symptom, info in SYMPTOMS.items()
    )
    yield from _table(
        ("symptom", "severity", "who can be blamed", "what is wrong", "expected"), rows
    )
    yield from ("## Exit codes", "")
    yield from _table(("code", "meaning"), ((f"`{c}`", text) for c, text in EXIT_CODES.items()))


def _contracts() -> Iterator[str]:
    yield from ("## Hooks", "")
    found = ((n, getattr(hooks, n)) for n in vars(hooks) if n.startswith("optvet_"))
    yield from _table(("hook", "what it returns"), ((f"`{n}`", _cell(_first(f))) for n, f in found))
    for name in optvet.plugin.__all__:
        value = getattr(optvet.plugin, name)
        if inspect.isclass(value) and (getattr(value, "_is_protocol", False) or value in _EXTRAS):
            yield from (f"## {name}", "", "```text", inspect.getdoc(value) or "", "```", "")
            yield from _table(("member", "meaning"), _members(value))


_EXTRAS = {PluginExtras, *(k for c in CONTRACTS.values() for k in (*c.may, *c.parts))}


def _members(kind: Any) -> Iterator[tuple[str, str]]:
    below = described.below(kind)
    for name in sorted({*getattr(kind, "__annotations__", {}), *vars(kind)}):
        if name.startswith("_"):
            continue
        value = inspect.getattr_static(kind, name, None)
        if inspect.isfunction(value):
            parameters = ", ".join(p for p in inspect.signature(value).parameters if p != "self")
            yield f"`{name}({parameters})`", _cell(_before_sections(value))
        else:
            text = _first(value) if isinstance(value, property) else below.get(name, "")
            yield f"`{name}`", _cell(text or kind.__annotations__.get(name, ""))


def _before_sections(function: Any) -> str:
    """A docstring without what it says of arguments and errors one by one."""
    return re.split(r"\n\n(?:Args|Returns|Raises):", inspect.getdoc(function) or "")[0]
