"""``optvet campaign``: many models, many optimizers, in a store that survives everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optvet.cli.commands import Group, add
from optvet.cli.errors import Interrupted
from optvet.cli.options import CacheDir, Debug, Trust, cache_folder
from optvet.cli.output import Json, check_folder, write_document
from optvet.cli.terminal import Terminal
from optvet.spec.files import write_file

if TYPE_CHECKING:
    from optvet.engine.campaign import Campaign, Store

app = typer.Typer(cls=Group, help="Vet many models with many optimizers.", no_args_is_help=True)

StoreArgument = Annotated[
    Path,
    typer.Argument(metavar="STORE", help="The folder of a store.", show_default=False),
]
Which = Annotated[
    str,
    typer.Option(
        "--campaign",
        metavar="NAME|NUMBER",
        help="Which campaign of the store.",
        show_default="the last",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Jobs at a time.", show_default="as many as processors and memory allow"
    ),
]
ExecutorName = Annotated[str, typer.Option("--executor", metavar="NAME", help="What runs jobs.")]
Retry = Annotated[bool, typer.Option("--retry", help="Run jobs again that failed.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer alone, no progress.")]


@add(app, "init")
def _init(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)
    ] = Path("campaign.toml"),
    debug: Debug = False,
) -> None:
    """Write a campaign file with comments that say what can be changed."""
    from optvet import UsageError
    from optvet.engine.campaign.template import template

    terminal = context.ensure_object(Terminal)
    if file.exists():
        raise UsageError(f"{file} is there already; choose another file")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: folder {file.parent} does not exist; make it first")
    write_file(file, template(file.stem), advice="choose another file")
    terminal.show(f"wrote {file}; next: optvet campaign run {file}", soft_wrap=True)


@add(app, "run")
def _run(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A campaign file.", show_default=False)
    ],
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where answers are kept.",
            show_default="a folder beside the file, called as it is",
        ),
    ] = None,
    jobs: Jobs = None,
    executor: ExecutorName = "local",
    retry: Retry = False,
    trust: Trust = False,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a campaign; what its store has the answer of is not run again."""
    from optvet.engine.campaign import (
        Digests,
        add_campaign,
        open_store,
        plan_campaign,
        read_campaign,
    )
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    plugins = Plugins()
    source = read_campaign(file, plugins, trust=trust)
    folder = store or file.with_suffix(".store")
    check_folder("--store", folder)
    with open_store(folder, create=True) as opened:
        with terminal.progress(quiet) as told:
            digests = Digests(opened.database)
            root = cache_folder(cache_dir)
            plan = plan_campaign(source, plugins, digests, cache_dir=root, trust=trust, told=told)
        campaign = add_campaign(opened, plan)
        _go_on(terminal, opened, campaign, jobs, executor, retry=retry, quiet=quiet)
        raise typer.Exit(_show(terminal, opened, campaign, json_to, quiet=quiet))


@add(app, "resume")
def _resume(
    context: typer.Context,
    store: StoreArgument,
    which: Which = "",
    jobs: Jobs = None,
    executor: ExecutorName = "local",
    retry: Retry = False,
    trust: Trust = False,
    json_to: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Go on with a campaign that was interrupted; its file is not read again."""
    from optvet.engine.campaign import check_stored, find_campaign, open_store
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    with open_store(store) as opened:
        campaign = find_campaign(opened, which)
        if not trust:
            check_stored(opened, campaign, Plugins())
        _go_on(terminal, opened, campaign, jobs, executor, retry=retry, quiet=quiet)
        raise typer.Exit(_show(terminal, opened, campaign, json_to, quiet=quiet))


@add(app, "status")
def _status(
    context: typer.Context,
    store: StoreArgument,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Say how far the campaigns of a store are, and who works on them."""
    from optvet.cli import campaign_screen as screen
    from optvet.engine.campaign import open_store
    from optvet.engine.campaign.documents import status_of

    terminal = context.ensure_object(Terminal)
    with open_store(store) as opened:
        found = status_of(opened)
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*screen.status(found))


@add(app, "show")
def _show_command(
    context: typer.Context,
    store: StoreArgument,
    trial: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRIAL]",
            help="One trial, by the beginning of its key; without one, all as a table.",
        ),
    ] = None,
    which: Which = "",
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show what a campaign found, or one trial of it as `optvet vet` does."""
    from optvet.cli import campaign_screen as screen
    from optvet.engine.campaign import find_campaign, open_store
    from optvet.engine.campaign.results import trial as find_trial

    terminal = context.ensure_object(Terminal)
    with open_store(store) as opened:
        if trial is None:
            campaign = find_campaign(opened, which)
            raise typer.Exit(_show(terminal, opened, campaign, json_to, quiet=False))
        found = find_trial(opened, trial)
    if json_to is not None and found.answer is not None:
        write_document(terminal, json_to, found.answer.to_json())
    if json_to != "-":
        terminal.show(*screen.one_trial(found), soft_wrap=True)


# --- parts ---------------------------------------------------------------------------------------


def _go_on(
    terminal: Terminal,
    store: Store,
    campaign: Campaign,
    jobs: int | None,
    executor: str,
    *,
    retry: bool,
    quiet: bool,
) -> None:
    """Run what waits."""
    from optvet.cli.campaign_progress import following
    from optvet.engine.campaign import retry as queue_failed
    from optvet.engine.campaign import run_campaign, states
    from optvet.engine.campaign.executors import executor_named
    from optvet.report.graph_svg import draw

    chosen = executor_named(executor)
    if retry:
        queue_failed(store, campaign)
    try:
        with following(terminal, sum(states(store, campaign).values()), quiet=quiet) as told:
            run_campaign(
                store,
                campaign,
                lambda: chosen.start(chosen.options, jobs=jobs),
                shares_disk=chosen.shares_disk,
                draw=draw,
                told=told,
            )
    except KeyboardInterrupt:
        counts = states(store, campaign)
        left = counts["queued"] + counts["running"]
        raise Interrupted(
            f"{sum(counts.values()) - left} of {sum(counts.values())} jobs are answered and kept; "
            f"go on with: optvet campaign resume {store.path}"
        ) from None


def _show(
    terminal: Terminal, store: Store, campaign: Campaign, json_to: str | None, *, quiet: bool
) -> int:
    """Show a campaign as it is; its exit code."""
    from optvet.cli import campaign_screen as screen
    from optvet.engine.campaign.documents import summary_of

    found = summary_of(store, campaign)
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*screen.summary(found, quiet=quiet))
    return screen.exit_code(found)
