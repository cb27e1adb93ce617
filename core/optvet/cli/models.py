"""``optvet models``: what can be vetted by name, what a model is, and fetching it."""

from __future__ import annotations

import fnmatch
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.padding import Padding

from optvet import InfrastructureError, UsageError
from optvet.cli.commands import Group, add
from optvet.cli.options import CacheDir, Debug, cache_folder
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, size, table_of, text
from optvet.cli.terminal import Terminal
from optvet.engine.contract import source_returns
from optvet.engine.discovery import Plugins
from optvet.plugin import Model, ModelCard, ValueInfo
from optvet.spec.extras import extras
from optvet.spec.files import file_sha256, replacing
from optvet.spec.foreign import open_file
from optvet.spec.protocols import ModelSourceExtras
from optvet.spec.records import (
    ModelDescription,
    ModelDescriptions,
    ModelEntry,
    ModelList,
    PulledModel,
    PulledModels,
)

app = typer.Typer(
    cls=Group, help="List, fetch and make models to vet by name.", invoke_without_command=True
)

IR_FLOOR = 4
_LISTED_INPUTS = 12
_NEWEST = 10_000
"""No opset is as new."""
_OPSET = re.compile(r"\bopset (\d+)\b")

Reference = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A path, a folder, or a name such as zoo:resnet50.",
        show_default=False,
    ),
]


@app.callback()
def _models(context: typer.Context, json_to: Json = None, debug: Debug = False) -> None:
    """List the models of all sources; `optvet vet zoo:NAME` vets one."""
    if context.invoked_subcommand is None:
        _list(context.ensure_object(Terminal), None, [], None, range(_NEWEST), json_to)


@add(app, "list")
def _models_list(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="Only from this source; sources on the network are contacted only if named.",
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Only with this tag or task; all, if repeated."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="PATTERN", help="Only names like this: resnet, *-int8, …"),
    ] = None,
    opset: Annotated[
        int | None, typer.Option("--opset", metavar="N", help="Only of this opset.", min=1)
    ] = None,
    min_opset: Annotated[
        int,
        typer.Option(
            "--min-opset",
            metavar="N",
            help="Only of this opset or a later one, or of an unknown one.",
            min=0,
        ),
    ] = 0,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """List models by source, tag, name and opset."""
    wanted = range(min_opset, _NEWEST) if opset is None else range(max(opset, min_opset), opset + 1)
    _list(context.ensure_object(Terminal), source, tags or [], name, wanted, json_to)


@add(app, "show")
def _show(
    context: typer.Context,
    model: Reference,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Fetch a model, and show its inputs, outputs, opsets and declarations."""
    from optvet.engine.models.sources import resolve_model

    terminal, plugins = context.ensure_object(Terminal), Plugins()
    with terminal.progress() as progress:
        progress(f"fetching {model}", 0, None)
        found = resolve_model(model, plugins, cache_folder(cache_dir))
    card = _card_of(model, plugins)
    if json_to is not None:
        descriptions = [ModelDescription(**_describe(m, card)) for m in found]
        document = ModelDescriptions(schema="optvet.model/1", models=descriptions)
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    terminal.show(*(part for m in found for part in _screen(m, card)))


@add(app, "pull")
def _pull(
    context: typer.Context,
    model: Reference,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Put a self-contained copy into this folder.",
            show_default="the cache",
        ),
    ] = None,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Fetch a model, check that it is complete, and print its path."""
    from optvet.engine.models.sources import resolve_model

    terminal = context.ensure_object(Terminal)
    with terminal.progress() as progress:
        progress(f"fetching {model}", 0, None)
        found = resolve_model(model, Plugins(), cache_folder(cache_dir))
    files = [m.path if to is None else _copy_to(m, to.expanduser()) for m in found]
    if json_to is not None:
        pulled = [
            PulledModel(
                model=m.source, file=str(f), sha256=file_sha256(f), size_bytes=f.stat().st_size
            )
            for m, f in zip(found, files, strict=True)
        ]
        document = PulledModels(schema="optvet.pull/1", models=pulled)
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    # One path per line and nothing else, so that a script can take it.
    terminal.show(*(text(str(file)) for file in files), soft_wrap=True)


# --- list ----------------------------------------------------------------------------------------


def _list(
    terminal: Terminal,
    source: str | None,
    tags: Sequence[str],
    name: str | None,
    opsets: range,
    json_to: str | None,
) -> None:
    plugins = Plugins()
    sources = plugins.names("model source") if source is None else [source]
    online = [s for s in sources if source is None and _needs_network(plugins, s)]
    cards = [
        (f"{s}:{card.name}", card)
        for s in sources
        if s not in online
        for card in source_returns.cards(plugins.model_source(s))
        if _matches(card, tags, name, opsets)
    ]
    # What is here already has a size; what must be fetched first comes below it.
    cards.sort(key=lambda listed: listed[1].size_bytes is None)
    if json_to is not None:
        entries = [
            ModelEntry(model=reference, **{**asdict(card), "tags": list(card.tags)})
            for reference, card in cards
        ]
        document = ModelList(schema="optvet.models/1", models=entries)
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    filtered = bool(tags or name or opsets != range(_NEWEST))
    terminal.show(*_table(cards, filtered, online))


def _table(
    cards: Sequence[tuple[str, ModelCard]], filtered: bool, online: Sequence[str]
) -> Iterator[RenderableType]:
    table = table_of(("model", "bold"), ("size", ""), ("", "dim"))
    table.columns[1].justify = "right"
    table.columns[1].no_wrap = True
    for reference, card in cards:
        bytes_ = "–" if card.size_bytes is None else size(card.size_bytes)
        table.add_row(text(reference), text(bytes_), text(card.description or ", ".join(card.tags)))
    yield table if cards else text(f"no model{' is like that' if filtered else ''}")
    if online:
        # What is not listed is said, and how to list it.
        named = " and ".join(f"--source {name}" for name in online)
        more = f"more, from the network, with: optvet models list {named}"
        yield Padding(text(more.replace(" and ", ", or "), "dim"), (1, 0, 0, 0))


def _needs_network(plugins: Plugins, source: str) -> bool:
    return extras(plugins.model_source(source), ModelSourceExtras).needs_network


def _matches(card: ModelCard, tags: Sequence[str], name: str | None, opsets: range) -> bool:
    has = {tag.lower() for tag in (*card.tags, *([card.task] if card.task else []))}
    if not {tag.lower() for tag in tags} <= has:
        return False
    if name is not None:
        pattern = name.lower() if any(c in name for c in "*?[") else f"*{name.lower()}*"
        if not fnmatch.fnmatchcase(card.name.lower(), pattern):
            return False
    opset = _opset_of(card)
    return opset in opsets if opset is not None else opsets.stop == _NEWEST


def _opset_of(card: ModelCard) -> int | None:
    """The opset that a card tells; None where it tells none."""
    opset = str(card.extra.get("opset", ""))
    match = _OPSET.search(card.description)
    return int(opset) if opset.isdigit() else int(match[1]) if match else None


# --- show ----------------------------------------------------------------------------------------


def notes_on(model: Model) -> list[str]:
    """Warn if the model's age makes its verdict hard to read."""
    from optvet.engine.models.opening import OPSET_FLOOR
    from optvet.graph.walk import ONNX_DOMAIN

    notes = []
    opset = model.opsets.get(ONNX_DOMAIN)
    if opset is not None and opset < OPSET_FLOOR:
        notes.append(
            f"opset {opset}: runtimes and optimizers promise opset {OPSET_FLOOR} and later only; "
            "convert it with onnx.version_converter if it does not run"
        )
    if model.ir_version < IR_FLOOR:
        notes.append(
            f"IR {model.ir_version}: weights are listed among the inputs, where a caller could "
            "replace them; less is folded and fused, and an optimizer may raise the IR version"
        )
    return notes


def _card_of(reference: str, plugins: Plugins) -> ModelCard | None:
    """The card of what was named, if its source can tell without a network."""
    scheme, colon, rest = reference.partition(":")
    if not colon or scheme not in plugins.names("model source") or _needs_network(plugins, scheme):
        return None
    return next(
        (c for c in source_returns.cards(plugins.model_source(scheme)) if c.name == rest), None
    )


def _describe(model: Model, card: ModelCard | None) -> dict[str, Any]:
    return {
        "model": model.source,
        "file": str(model.path),
        "sha256": model.digest,
        "size_bytes": model.size_bytes,
        "nodes": model.nodes,
        "ir_version": model.ir_version,
        "opsets": dict(model.opsets),
        "inputs": [asdict(value) for value in model.inputs],
        "outputs": [asdict(value) for value in model.outputs],
        "config": asdict(model.config),
        "card": asdict(card) if card is not None else None,
        "notes": notes_on(model),
    }


def _screen(model: Model, card: ModelCard | None) -> Iterator[RenderableType]:
    yield text(model.source, "bold")
    table = table_of(("", "dim"), ("", ""))
    table.show_header = False
    if card is not None and card.description:
        table.add_row("what", text(card.description))
    if card is not None and card.tags:
        table.add_row("tags", text(", ".join(card.tags)))
    opsets = ", ".join(f"{domain} {version}" for domain, version in model.opsets.items())
    nodes = count(model.nodes, "node")
    table.add_row("graph", text(f"{nodes}, {size(model.size_bytes)}, IR {model.ir_version}"))
    table.add_row("opsets", text(opsets or "none"))
    table.add_row("inputs", text(_values(model.inputs)))
    table.add_row("outputs", text(_values(model.outputs)))
    for key, value in _list_declarations(model):
        table.add_row(key, text(value))
    table.add_row("file", text(str(model.path)))
    whole = "" if model.blob == model.path else "\n(of the model with its external data in it)"
    table.add_row("sha256", text(f"{model.digest}{whole}"))
    for note in notes_on(model):
        table.add_row("note", text(note, "yellow"))
    yield Padding(table, (0, 0, 1, 0))


def _values(values: Sequence[ValueInfo]) -> str:
    lines = []
    for value in values[:_LISTED_INPUTS]:
        shape = "any rank" if value.shape is None else str([d or "?" for d in value.shape])
        lines.append(f"{value.name}: {value.dtype} {shape.replace(chr(39), '')}")
    more = len(values) - _LISTED_INPUTS
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])]) or "none"


def _list_declarations(model: Model) -> Iterator[tuple[str, str]]:
    config = model.config
    if config.task:
        yield "task", config.task
    if config.comparator:
        options = "".join(f", {k} {v}" for k, v in config.comparator_options.items())
        yield "comparator", f"{config.comparator}{options}"
    if config.preprocessing:
        yield "images", ", ".join(f"{k} {_short(v)}" for k, v in config.preprocessing.items())
    for name, recipe in config.inputs.items():
        yield f"input {name}", ", ".join(f"{k} {_short(v)}" for k, v in recipe.items())
    if config.origin:
        yield "declared in", config.origin


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_short(v) for v in value)})"
    return str(value)


# --- pull ----------------------------------------------------------------------------------------


def _copy_to(model: Model, folder: Path) -> Path:
    """A copy of ``model`` in ``folder``, without external data, and of what is declared beside it.

    Raises:
        UsageError: Another file has that name.
        InfrastructureError: It cannot be written.
    """
    target = folder / model.path.name
    declared = model.path.with_suffix(".toml")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _copy(model.blob, target)
        if declared.is_file() and declared != model.path:
            _copy(declared, target.with_suffix(".toml"))
        intact = file_sha256(target) == model.digest
    except OSError as error:
        raise InfrastructureError(
            f"cannot copy {model.source} to {target}: {error.strerror or error}; make room, or "
            "choose another folder"
        ) from error
    if not intact:
        target.unlink(missing_ok=True)
        raise InfrastructureError(
            f"the copy of {model.source} in {folder} differs from the original; check that disk"
        )
    return target


def _copy(file: Path, target: Path) -> None:
    """All of ``file`` as ``target``; nothing where that is there already."""
    if target.exists():
        if target.is_file() and file_sha256(target) == file_sha256(file):
            return
        raise UsageError(f"{target} exists and is another file; remove it, or choose another --to")
    with replacing(target) as copy, open_file(file) as original:
        shutil.copyfileobj(original, copy)
