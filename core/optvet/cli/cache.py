"""``optvet cache``: what is kept between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optvet.cli.commands import Group, add
from optvet.cli.options import CacheDir, Debug, cache_folder
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, size, table_of, text
from optvet.cli.terminal import Terminal
from optvet.engine.work.cache.disk import Cache, CacheInfo
from optvet.spec.records import CacheCleared, CacheContents, CacheKind
from optvet.spec.removal import remove_folder

app = typer.Typer(cls=Group, help="Show or clear the cache.", no_args_is_help=True)


@add(app, "info")
def _info(
    context: typer.Context,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Say what the cache holds, and where."""
    terminal, root = context.ensure_object(Terminal), cache_folder(cache_dir)
    info, models = _cache_info(root), _size_of(_models(root))
    if json_to is not None:
        kinds = {
            k: CacheKind(entries=v.entries, size_bytes=v.size_bytes) for k, v in info.kinds.items()
        }
        found = CacheContents(
            schema="optvet.cache/1",
            path=str(root),
            entries=info.entries,
            size_bytes=info.size_bytes,
            kinds=kinds,
            models_size_bytes=models,
        )
        write_document(terminal, json_to, found.to_json())
    if json_to == "-":
        return
    table = table_of(("kept", ""), ("entries", ""), ("size", ""))
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, numbers in info.kinds.items():
        table.add_row(text(kind), f"{numbers.entries:,}", size(numbers.size_bytes))
    table.add_row("all results", f"{info.entries:,}", size(info.size_bytes), style="bold")
    if models:
        table.add_row("zoo models", "", size(models))
    terminal.show(text(str(root)), table)


@add(app, "clear")
def _clear(
    context: typer.Context,
    models: Annotated[
        bool, typer.Option("--models", help="Remove models made or downloaded, too.")
    ] = False,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Remove all results; the next run computes them again."""
    terminal, root = context.ensure_object(Terminal), cache_folder(cache_dir)
    entries = _cache_info(root).entries
    removed = _clear_root(root)
    if models:
        removed += _size_of(_models(root))
        remove_folder(_models(root))
    if json_to is not None:
        found = CacheCleared(
            schema="optvet.cache-clear/1", path=str(root), entries=entries, removed_bytes=removed
        )
        write_document(terminal, json_to, found.to_json())
    if json_to == "-":
        return
    words = f"removed {count(entries, 'result')} ({size(removed)}) from {root}"
    terminal.show(text(words), soft_wrap=True)


def _cache_info(root: Path) -> CacheInfo:
    # Opening a cache makes its folder; looking should not.
    if not root.is_dir():
        return CacheInfo(root, {})
    with Cache(root) as cache:
        return cache.info()


def _clear_root(root: Path) -> int:
    if not root.is_dir():
        return 0
    with Cache(root) as cache:
        return cache.clear()


def _models(root: Path) -> Path:
    return root / "models"


def _size_of(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
