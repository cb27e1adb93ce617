"""``optvet plugins``: what is installed, and what it can do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet import UnknownName, UsageError, __version__
from optvet.cli.commands import Group, add
from optvet.cli.env import pythons_of
from optvet.cli.options import Debug
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, table_of, text
from optvet.cli.terminal import Terminal, one_line
from optvet.engine.discovery import Plugins
from optvet.engine.environment.extras import missing_extra, wanted_extra
from optvet.engine.environment.scaffold import Family, write_plugin
from optvet.engine.plugin_entries import Loaded
from optvet.plugin import Optimizer, Pass, Runtime
from optvet.spec.described import descriptions
from optvet.spec.records import PluginDescription, PluginDescriptions, PluginEntry, PluginList

app = typer.Typer(
    cls=Group, help="List and describe installed plugins.", invoke_without_command=True
)


@app.callback()
def _plugins(context: typer.Context, json_to: Json = None, debug: Debug = False) -> None:
    """List every plugin by family: version, origin, and what is missing where it cannot be used."""
    if context.invoked_subcommand is not None:
        return
    terminal, plugins = context.ensure_object(Terminal), pythons_of(None).among(Plugins())
    found = plugins.all()
    # Of generators all are used that need no argument.
    chosen = {p.family for p in found} - {None, "generator"}
    defaults = {(f, plugins.default(f)) for f in chosen if f is not None}
    if json_to is not None:
        entries = [PluginEntry(**_entry(p), default=_is_default(p, defaults)) for p in found]
        document = PluginList(schema="optvet.plugins/1", plugins=entries)
        write_document(terminal, json_to, document.to_json())
    if json_to != "-":
        terminal.show(_list(found, defaults))


@add(app, "show")
def _show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Options of a plugin; of an optimizer, its passes and pipelines too."""
    terminal, found = context.ensure_object(Terminal), pythons_of(None).among(Plugins()).all()
    chosen = [p for p in found if p.name == name]
    if not chosen:
        raise UnknownName("plugin", name, {p.name for p in found}, "(see: optvet plugins)")
    if json_to is not None:
        descriptions = [PluginDescription(**_describe(p)) for p in chosen]
        document = PluginDescriptions(schema="optvet.plugin/2", plugins=descriptions)
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    for plugin in chosen:
        terminal.show(*_screen(plugin))


def _families() -> list[str]:
    return [family.value for family in Family]


@add(app, "new", no_args_is_help=True)
def _new(
    context: typer.Context,
    family: Annotated[
        str, typer.Argument(metavar="FAMILY", show_default=False, autocompletion=_families)
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder to write.", show_default="NAME"),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a package with a plugin of FAMILY to start from.

    Families: comparator, converter, dataset, executor, generator, model-source, optimizer,
    reporter, runtime, study.

    It has one module, its entry point, and tests that it passes.
    """
    terminal = context.ensure_object(Terminal)
    if family not in _families():
        raise UnknownName("family", family, _families(), f"(families: {', '.join(_families())})")
    kind = Family(family)
    taken = next((p for p in Plugins().all() if (p.family, p.name) == (kind.words, name)), None)
    if taken is not None:
        raise UsageError(f"there is a {kind.words} {name!r}: {taken.origin}; choose another name")
    folder = Path(name) if out is None else out.expanduser()
    files = write_plugin(kind, name, folder, version=__version__)
    where = shlex.quote(str(folder))
    lines = [*(str(folder / f) for f in files), f"next: pip install -e {where} && pytest {where}"]
    terminal.show(*map(text, lines), soft_wrap=True)


# --- as values -----------------------------------------------------------------------------------


def _entry(plugin: Loaded) -> dict[str, Any]:
    return {
        "family": plugin.family,
        "name": plugin.name,
        "version": plugin.version,
        "origin": plugin.origin,
        "problem": plugin.problem,
        "extra": missing_extra(plugin),
        "more_with": wanted_extra(plugin),
    }


def _describe(plugin: Loaded) -> dict[str, Any]:
    entry = _entry(plugin)
    if plugin.problem is not None:
        return entry
    entry["options"] = _options(getattr(plugin.plugin, "options", None))
    if plugin.family == "runtime":
        runtime: Runtime = plugin.plugin
        entry["deployed"] = runtime.deployed.model_dump(mode="json")
    if plugin.family == "optimizer":
        optimizer: Optimizer = plugin.plugin
        entry["passes"] = [_pass(p) for p in optimizer.passes()]
        entry["pipelines"] = {k: list(v) for k, v in optimizer.pipelines().items()}
    if plugin.family == "comparator":
        from optvet.engine.vet.impact.comparator_options import metrics_of

        entry["metrics"] = metrics_of(plugin.plugin, plugin.plugin.options)
    return entry


def _pass(item: Pass) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        "default": item.default,
        "required": item.required,
        "lossy": item.lossy,
        "tolerance": item.tolerance,
        "interface": sorted(item.interface),
        "known_limits": [
            {"symptoms": sorted(limit.symptoms), "reason": limit.reason}
            for limit in item.known_limits
        ],
        "description": item.description,
    }


def _options(defaults: BaseModel | None) -> list[dict[str, Any]]:
    """Name, type, default and meaning of each option."""
    if defaults is None:
        return []
    schema = type(defaults).model_json_schema()
    values, texts = defaults.model_dump(mode="json"), descriptions(type(defaults))
    return [
        {
            "name": name,
            "type": _type(field, schema.get("$defs", {})),
            "default": values[name],
            "description": texts[name],
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _type(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A JSON Schema type in a few words: ``integer``, ``a|b``, ``list of string``."""
    if "$ref" in field:
        field = definitions.get(field["$ref"].rpartition("/")[2], {})
    if "enum" in field:
        return "|".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if "anyOf" in field:
        return " or ".join(_type(choice, definitions) for choice in field["anyOf"])
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field.get('items', {}), definitions)}"
    return kind


# --- as text -------------------------------------------------------------------------------------


def _list(found: list[Loaded], defaults: Set[tuple[str | None, str]]) -> Table:
    # Where a plugin of optvet's own is defined says nothing to most; `show` and the JSON tell.
    table = table_of(("family", "dim"), ("name", "bold"), ("version", ""), ("", "dim"))
    before = ""
    for plugin in found:
        family = plugin.family or "not loaded"
        remarks = [text("the default", "not dim")] if _is_default(plugin, defaults) else []
        if not plugin.built_in:
            remarks.append(text(plugin.origin))
        if plugin.problem is not None:
            remarks.append(_trouble(plugin))
        elif (extra := wanted_extra(plugin)) is not None:
            remarks.append(text(f"can do more; install {extra}"))
        if plugin.outdated:
            remarks.append(text(f"works, but {plugin.outdated}", "not dim yellow"))
        shown = "" if family == before else family
        cells = (text(shown), text(plugin.name), text(plugin.version or "–"))
        table.add_row(*cells, Text("\n").join(remarks))
        before = family
    return table


def _is_default(plugin: Loaded, defaults: Set[tuple[str | None, str]]) -> bool:
    return (plugin.family, plugin.name) in defaults and not plugin.displaced


def _trouble(plugin: Loaded) -> Text:
    """Why a plugin cannot be used; an absent library or environment is no fault, and has a cure."""
    extra = missing_extra(plugin)
    if extra is not None:
        return text(f"not installed; install {extra}", "not dim yellow")
    if plugin.elsewhere:
        return text(f"first: optvet env make {plugin.elsewhere}", "not dim yellow")
    return text(one_line(plugin.problem or ""), "not dim red")


def _screen(plugin: Loaded) -> Iterator[RenderableType]:
    title = text(plugin.name, "bold")
    about = " ".join(p for p in (plugin.family, plugin.version) if p)
    title.append_text(text(f"  {about}, {plugin.origin}", "not bold dim"))
    yield title
    if plugin.problem is not None:
        yield text("cannot be used: ", "red").append_text(_trouble(plugin))
        return
    if plugin.outdated:
        yield text(f"works, but {plugin.outdated}", "yellow")
    described = _describe(plugin)
    yield Padding(_option_table(described), (1, 0, 1, 0))
    if plugin.family == "optimizer":
        optimizer: Optimizer = plugin.plugin
        yield from _pass_tables(optimizer)
    if described.get("metrics"):
        yield text(f"metrics for --require: {', '.join(described['metrics'])}")


def _option_table(described: dict[str, Any]) -> RenderableType:
    if not described["options"]:
        return Text("no options", "dim")
    deployed = described.get("deployed")
    columns = [("option", "bold"), ("type", ""), ("default", "")]
    table = table_of(*columns, *([("deployed", "")] if deployed else []), ("", "dim"))
    for option in described["options"]:
        cells = [option["name"], option["type"].replace("|", " | "), json.dumps(option["default"])]
        cells += [json.dumps(deployed[option["name"]])] if deployed else []
        table.add_row(*(text(c) for c in [*cells, option["description"]]))
    return table


def _pass_tables(optimizer: Optimizer) -> Iterator[RenderableType]:
    passes = optimizer.passes()
    table = table_of(("pass", ""), ("kind", "dim"), ("default", ""), ("remarks", "dim"))
    for item in passes:
        cells = (item.name, item.kind, "yes" if item.default else "–", _remarks(item))
        table.add_row(*(text(c) for c in cells))
    yield Padding(table, (0, 0, 1, 0))
    for name, members in optimizer.pipelines().items():
        left_out = [p.name for p in passes if p.name not in members]
        words = f"pipeline {name}: {count(len(members), 'pass', 'es')}"
        if 0 < len(left_out) <= 12:
            words += f", all but {', '.join(left_out)}"
        yield text(words)


def _remarks(item: Pass) -> str:
    remarks = [item.description] if item.description else []
    remarks += ["required"] if item.required else []
    if item.lossy:
        remarks.append(f"lossy, within {item.tolerance}")
    if item.interface:
        remarks.append(f"changes the interface ({', '.join(sorted(item.interface))})")
    return "; ".join([*remarks, *(limit.reason for limit in item.known_limits)])
