"""``optvet campaign init``, ``run`` and ``resume``: from a campaign file to answers in a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optvet.cli.campaign_options import (
    RunOptions,
    StoreArgument,
    Which,
    app,
    read_known,
    show_campaign,
    takes_run_options,
)
from optvet.cli.commands import add
from optvet.cli.errors import Interrupted
from optvet.cli.options import Debug, cache_folder, mapping_of
from optvet.cli.output import check_folder
from optvet.cli.terminal import Terminal
from optvet.spec.campaign import JobRequest
from optvet.spec.errors import UsageError
from optvet.spec.files import write_file

if TYPE_CHECKING:
    from optvet.engine.campaign import CampaignStore, Digests, Plan, StoredCampaign
    from optvet.engine.discovery import Plugins

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        metavar="SELECTOR",
        help="Models in place of the file's, named as in the file; may be given several times.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="List what would be vetted; nothing is fetched, run or stored."),
]


@add(app, "init")
def _init(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)
    ] = Path("campaign.toml"),
    debug: Debug = False,
) -> None:
    """Write a campaign file with comments that say what can be changed."""
    from optvet.engine.campaign.template import template

    terminal = context.ensure_object(Terminal)
    if file.exists():
        raise UsageError(f"{file} exists already; choose another file")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: folder {file.parent} does not exist; make it first")
    write_file(file, template(file.stem), advice="choose another file")
    terminal.show(f"wrote {file}; next: optvet campaign run {file}", soft_wrap=True)


@add(app, "run")
@takes_run_options
def _run(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A campaign file.", show_default=False)
    ],
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the store.",
            show_default="a folder beside the file, with its name",
        ),
    ] = None,
    models: Models = None,
    dry_run: DryRun = False,
    *,
    options: RunOptions,
) -> None:
    """Run a campaign; skip jobs whose answers are in its store."""
    from optvet.engine.campaign import (
        add_campaign,
        plan_campaign,
        planned_store,
        read_campaign,
        requests_of,
    )
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    plugins = Plugins()
    source = read_campaign(file, plugins, trust=options.trust)
    if models:
        source = source.about(models, plugins)
    known = read_known(options.baseline)
    if dry_run:
        from optvet.cli.campaign_screen import show_plan

        if options.json_to is not None:
            raise UsageError("--dry-run writes no document; leave out --json")
        terminal.show(*show_plan(source.name, list(requests_of(source, plugins))))
        return
    folder = store or file.with_suffix(".store")
    check_folder("--store", folder)

    def plan_with(digests: Digests) -> Plan:
        with terminal.progress(options.quiet) as progress:
            return plan_campaign(
                source,
                plugins,
                digests,
                cache_dir=cache_folder(options.cache_dir),
                trust=options.trust,
                baseline=known,
                progress=progress,
            )

    with planned_store(folder, plan_with) as (opened, plan):
        campaign = add_campaign(opened, plan)
        _go_on(terminal, opened, campaign, plan.requests, plugins, options)
        raise typer.Exit(
            show_campaign(terminal, opened, campaign, options.json_to, quiet=options.quiet)
        )


@add(app, "resume")
@takes_run_options
def _resume(
    context: typer.Context,
    store: StoreArgument,
    which: Which = "",
    *,
    options: RunOptions,
) -> None:
    """Continue an interrupted campaign, without reading its file again."""
    from optvet.engine.campaign import find_campaign, open_store, stored_requests
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    known = read_known(options.baseline)
    with open_store(store) as opened:
        campaign = find_campaign(opened, which)
        plugins = Plugins()
        # A store that is trusted may say where its models and results are cached.
        cached = (
            None if options.trust and options.cache_dir is None else cache_folder(options.cache_dir)
        )
        requests = stored_requests(opened, campaign, plugins, cache_dir=cached, trust=options.trust)
        _go_on(terminal, opened, campaign, requests, plugins, options)
        raise typer.Exit(
            show_campaign(terminal, opened, campaign, options.json_to, known, quiet=options.quiet)
        )


def _go_on(
    terminal: Terminal,
    store: CampaignStore,
    campaign: StoredCampaign,
    requests: Mapping[str, JobRequest],
    plugins: Plugins,
    options: RunOptions,
) -> None:
    """Run what waits."""
    from optvet.cli.campaign_progress import following
    from optvet.engine.campaign import run_on_executor, states
    from optvet.report.graph_svg import draw

    executor_options = mapping_of("--executor-option", options.executor_options or ())
    try:
        with following(
            terminal, sum(states(store, campaign).values()), quiet=options.quiet
        ) as on_event:
            run_on_executor(
                store,
                campaign,
                requests,
                plugins,
                executor=options.executor,
                executor_options=executor_options,
                jobs=options.jobs,
                retry_failed=options.retry,
                draw=draw,
                on_event=on_event,
            )
    except KeyboardInterrupt:
        counts = states(store, campaign)
        left = counts["queued"] + counts["running"]
        cached = f" --cache-dir {options.cache_dir}" if options.cache_dir else ""
        raise Interrupted(
            f"{sum(counts.values()) - left} of {sum(counts.values())} jobs are answered and kept; "
            f"continue with: optvet campaign resume {store.path}{cached}"
        ) from None
