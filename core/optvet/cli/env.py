"""``optvet env``: environments of their own for plugins, and kept releases of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optvet.cli.commands import Group, add
from optvet.cli.options import Debug, Environments, mapping_of
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, size, table_of, text
from optvet.cli.terminal import Terminal
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import (
    Pythons,
    environment_of,
    environments_root,
    list_environments,
    make,
)
from optvet.engine.environment.releases import KeptRelease, ReleaseStore, releases_root
from optvet.spec.errors import UnknownName
from optvet.spec.records import EnvironmentList, ReleaseEntry, ReleasesCleared

app = typer.Typer(
    cls=Group,
    help="Make and list environments of plugins, and the releases that bisect installs.",
    no_args_is_help=True,
)


def pythons_of(values: list[str] | None) -> Pythons:
    """Where environments are, as the options say."""
    chosen = mapping_of("environment", values or [])
    return Pythons({name: Path(str(place)) for name, place in chosen.items()}, environments_root())


@add(app, "make")
def _make(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", help="Folder to make.", show_default="the user's data folder"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the one that exists.")] = False,
    debug: Debug = False,
) -> None:
    """Make an environment: a virtual environment with what its plugins require, by pip."""
    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    environment = environment_of(name, Plugins())
    target = environments_root() / name if into is None else into.expanduser()
    with terminal.progress() as progress:
        python = make(environment, target, force=force, say=lambda words: progress(words, 0, None))
    terminal.show(text(str(python)), soft_wrap=True)
    if into is not None:
        terminal.show(text(f"use it with: --environment {name}={target}"), soft_wrap=True)


@add(app, "list")
def _list(
    context: typer.Context,
    environments: Environments = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """List the environments that plugins declare, whether they are made, and kept releases."""
    terminal = context.ensure_object(Terminal)
    entries = list_environments(Plugins().all(), pythons_of(environments))
    releases = ReleaseStore(releases_root()).kept()
    if json_to is not None:
        document = EnvironmentList(
            schema="optvet.environments/2",
            root=str(environments_root()),
            environments=entries,
            releases=[_entry(release) for release in releases],
        )
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    table = table_of(("environment", ""), ("plugins", ""), ("python", "dim"), ("", ""))
    for e in entries:
        state = (
            text("ready", "green") if not e.problem else text(f"{e.problem}; {e.cure}", "yellow")
        )
        table.add_row(text(e.name), text(", ".join(e.plugins)), text(e.python or ""), state)
    terminal.show(table)
    terminal.show(text(f"{count(len(entries), 'environment')}, in {environments_root()}", "dim"))
    if releases:
        kept = table_of(("release", ""), ("size", ""), ("folder", "dim"))
        for r in releases:
            row = (f"{r.package} {r.version}", size(r.size_bytes), str(r.folder))
            kept.add_row(*map(text, row))
        total = size(sum(r.size_bytes for r in releases))
        terminal.show(text(""), kept)
        terminal.show(text(f"{count(len(releases), 'release')} of bisect, {total}", "dim"))


@add(app, "clear")
def _clear(
    context: typer.Context,
    packages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PACKAGE|PACKAGE==VERSION]…",
            help="What to remove; all without one.",
            show_default=False,
        ),
    ] = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Remove releases that bisect has installed; the next bisect installs them again."""
    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    store = ReleaseStore(releases_root())
    kept = store.kept()
    names = {r.package for r in kept} | {_spelled(r) for r in kept}
    for wanted in packages or ():
        if wanted not in names:
            raise UnknownName("release", wanted, names, "(see: optvet env list)")
    chosen = [r for r in kept if not packages or {r.package, _spelled(r)} & set(packages)]
    removed = [r for r in chosen if store.remove(r)]
    store.clear_left()
    busy = [r for r in chosen if r not in removed]
    if json_to is not None:
        document = ReleasesCleared(
            schema="optvet.env-clear/1",
            removed=[_entry(r) for r in removed],
            in_use=[_entry(r) for r in busy],
        )
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    total = size(sum(r.size_bytes for r in removed))
    words = f"removed {count(len(removed), 'release')} ({total}) from {store.root}"
    in_use = f"; in use: {', '.join(map(_spelled, busy))}" if busy else ""
    terminal.show(text(words + in_use), soft_wrap=True)


def _spelled(release: KeptRelease) -> str:
    return f"{release.package}=={release.version}"


def _entry(release: KeptRelease) -> ReleaseEntry:
    return ReleaseEntry(
        package=release.package,
        version=release.version,
        folder=str(release.folder),
        size_bytes=release.size_bytes,
    )
