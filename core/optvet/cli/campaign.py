"""``optvet campaign``: vets many models with many optimizers, and keeps the answers in a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optvet.cli.commands import Group, add
from optvet.cli.errors import CLEAN, FINDINGS, Interrupted
from optvet.cli.options import CacheDir, Debug, Trust, cache_folder, mapping_of
from optvet.cli.output import Json, check_folder, write_document
from optvet.cli.render import size
from optvet.cli.terminal import Terminal
from optvet.spec.campaign import STORE_BYTES, JobRequest
from optvet.spec.errors import UsageError
from optvet.spec.files import write_file
from optvet.spec.request import bytes_of

if TYPE_CHECKING:
    from optvet.engine.campaign import CampaignStore, StoredCampaign
    from optvet.engine.discovery import Plugins
    from optvet.spec.records.campaign import Baseline

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
ExecutorName = Annotated[
    str, typer.Option("--executor", metavar="NAME", help="Executor that runs the jobs.")
]
ExecutorOptions = Annotated[
    list[str] | None,
    typer.Option("--executor-option", metavar="KEY=VALUE", help="Options of the executor."),
]
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
Retry = Annotated[bool, typer.Option("--retry", help="Run jobs again that failed.")]
KnownFile = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="Known findings, which do not make the campaign fail; from `export`.",
        show_default="those of the campaign's file",
    ),
]
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
    from optvet.engine.campaign.template import template

    terminal = context.ensure_object(Terminal)
    if file.exists():
        raise UsageError(f"{file} exists already; choose another file")
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
            help="Folder of the store.",
            show_default="a folder beside the file, with its name",
        ),
    ] = None,
    models: Models = None,
    dry_run: DryRun = False,
    jobs: Jobs = None,
    executor: ExecutorName = "local",
    executor_options: ExecutorOptions = None,
    baseline: KnownFile = None,
    retry: Retry = False,
    trust: Trust = False,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a campaign; skip jobs whose answers are in its store."""
    from optvet.engine.campaign import (
        Digests,
        add_campaign,
        open_store,
        plan_campaign,
        read_campaign,
        requests_of,
    )
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    plugins = Plugins()
    source = read_campaign(file, plugins, trust=trust)
    if models:
        source = source.about(models, plugins)
    known = _read_baseline(baseline)
    if dry_run:
        from optvet.cli.campaign_screen import show_plan

        if json_to is not None:
            raise UsageError("--dry-run writes no document; leave out --json")
        terminal.show(*show_plan(source.name, list(requests_of(source, plugins))))
        return
    folder = store or file.with_suffix(".store")
    check_folder("--store", folder)
    with open_store(folder, create=True) as opened:
        with terminal.progress(quiet) as progress:
            digests = Digests(opened.database)
            root = cache_folder(cache_dir)
            plan = plan_campaign(
                source,
                plugins,
                digests,
                cache_dir=root,
                trust=trust,
                baseline=known,
                progress=progress,
            )
        campaign = add_campaign(opened, plan)
        chosen = _Chosen(executor, executor_options or (), jobs, plan.requests, cache_dir)
        _go_on(terminal, opened, campaign, chosen, plugins, retry=retry, quiet=quiet)
        raise typer.Exit(_show(terminal, opened, campaign, json_to, quiet=quiet))


@add(app, "resume")
def _resume(
    context: typer.Context,
    store: StoreArgument,
    which: Which = "",
    jobs: Jobs = None,
    executor: ExecutorName = "local",
    executor_options: ExecutorOptions = None,
    baseline: KnownFile = None,
    retry: Retry = False,
    trust: Trust = False,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue an interrupted campaign, without reading its file again."""
    from optvet.engine.campaign import find_campaign, open_store, stored_requests
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    known = _read_baseline(baseline)
    with open_store(store) as opened:
        campaign = find_campaign(opened, which)
        plugins = Plugins()
        # A store that is trusted may say where its models and results are cached.
        cached = None if trust and cache_dir is None else cache_folder(cache_dir)
        requests = stored_requests(opened, campaign, plugins, cache_dir=cached, trust=trust)
        chosen = _Chosen(executor, executor_options or (), jobs, requests, cache_dir)
        _go_on(terminal, opened, campaign, chosen, plugins, retry=retry, quiet=quiet)
        raise typer.Exit(_show(terminal, opened, campaign, json_to, known, quiet=quiet))


@add(app, "status")
def _status(
    context: typer.Context,
    store: StoreArgument,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show the progress of the campaigns of a store, and who works on them."""
    from optvet.cli.campaign_screen import status as status_screen
    from optvet.engine.campaign import open_store
    from optvet.engine.campaign.documents import status_of

    terminal = context.ensure_object(Terminal)
    with open_store(store, to_read=True) as opened:
        found = status_of(opened)
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*status_screen(found))


@add(app, "show")
def _show_command(
    context: typer.Context,
    store: StoreArgument,
    trial: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRIAL]",
            help="One trial, given by the first characters of its key or of a finding's "
            "fingerprint; without it, a table of all.",
        ),
    ] = None,
    which: Which = "",
    baseline: KnownFile = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show what a campaign found, or one trial of it as `optvet vet` does."""
    from optvet.cli.campaign_screen import one_trial
    from optvet.engine.campaign import find_campaign, open_store
    from optvet.engine.campaign.results import trial as find_trial

    terminal = context.ensure_object(Terminal)
    with open_store(store, to_read=True) as opened:
        if trial is None:
            campaign = find_campaign(opened, which)
            known = _read_baseline(baseline)
            raise typer.Exit(_show(terminal, opened, campaign, json_to, known, quiet=False))
        found = find_trial(opened, trial)
    if json_to is not None and found.answer is not None:
        write_document(terminal, json_to, found.answer.to_json())
    if json_to != "-":
        terminal.show(*one_trial(found), soft_wrap=True)


@add(app, "diff")
def _diff(
    context: typer.Context,
    a: Annotated[
        str, typer.Argument(metavar="A", help="STORE or STORE#CAMPAIGN.", show_default=False)
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Likewise.", show_default=False)],
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show what changed from campaign A to B, such as after an upgrade of an optimizer.

    The exit code is 1 if B has findings that A has not.
    """
    from optvet.cli.campaign_screen import diff as diff_screen
    from optvet.engine.campaign import diff_of

    terminal = context.ensure_object(Terminal)
    with _campaign_at(a) as first, _campaign_at(b) as second:
        found = diff_of(first, second)
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*diff_screen(found))
    raise typer.Exit(FINDINGS if found.new else CLEAN)


class ExportFormat(StrEnum):
    """What a campaign can be written as."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    BASELINE = "baseline"
    BUNDLES = "bundles"


@add(app, "export")
def _export(
    context: typer.Context,
    store: StoreArgument,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            help="A file for json and baseline, else a folder.",
            show_default=False,
        ),
    ],
    format: Annotated[
        ExportFormat,
        typer.Option(
            help="Everything, tables, known findings for --baseline, or the bundles of findings."
        ),
    ] = ExportFormat.JSON,
    which: Which = "",
    debug: Debug = False,
) -> None:
    """Write a campaign for other programs."""
    from optvet import UsageError
    from optvet.engine.campaign import export, find_campaign, open_store

    terminal = context.ensure_object(Terminal)
    single = format in (ExportFormat.JSON, ExportFormat.BASELINE)
    if single and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise UsageError(f"--out {out}: expected a file in a folder that exists")
    if not single:
        check_folder("--out", out)
    with open_store(store, to_read=True) as opened:
        written = export(opened, find_campaign(opened, which), format.value, out)
    for path in written:
        terminal.show(str(path), soft_wrap=True)
    if not written:
        terminal.show("nothing was written: no finding has a bundle; say bundles = true")


@add(app, "gc")
def _gc(
    context: typer.Context,
    store: StoreArgument,
    limit: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="What bundles may take, such as 5G.",
            show_default="that of the last campaign",
        ),
    ] = "",
    debug: Debug = False,
) -> None:
    """Remove the oldest bundles until the others fit, and what killed jobs left behind."""
    from optvet import UsageError
    from optvet.engine.campaign import collect_garbage, find_campaign, open_store

    terminal = context.ensure_object(Terminal)
    try:
        most = bytes_of(limit) if limit else None
    except ValueError as error:
        raise UsageError(f"--size: {error}") from error
    with open_store(store) as opened:
        if most is None:
            most = int(find_campaign(opened).settings.get("store_size", STORE_BYTES))
        removed = collect_garbage(opened, most)
    terminal.show(f"removed {size(removed)} of bundles")


@add(app, "repair")
def _repair(
    context: typer.Context,
    store: StoreArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The new store.", show_default="STORE.repaired, beside it"
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Make a new store from the readable part of a damaged one, which stays unchanged."""
    from optvet.engine.campaign import rescue_store

    terminal = context.ensure_object(Terminal)
    rescued = rescue_store(
        store, out or store.absolute().with_name(f"{store.absolute().name}.repaired")
    )
    terminal.show(
        f"wrote {rescued.path}: {rescued.campaigns} campaigns, {rescued.jobs} jobs, "
        f"{rescued.answers} of them answered, {rescued.files} files of findings",
        soft_wrap=True,
    )
    for words in rescued.lost or ["nothing was lost"]:
        terminal.show(words, soft_wrap=True)


# --- parts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chosen:
    """The executor as typed, and which jobs it runs."""

    name: str
    options: Sequence[str]
    jobs: int | None
    requests: Mapping[str, JobRequest]
    cache_dir: Path | None


def _go_on(
    terminal: Terminal,
    store: CampaignStore,
    campaign: StoredCampaign,
    chosen: _Chosen,
    plugins: Plugins,
    *,
    retry: bool,
    quiet: bool,
) -> None:
    """Run what waits."""
    from optvet.cli.campaign_progress import following
    from optvet.engine.campaign import run_on_executor, states
    from optvet.report.graph_svg import draw

    executor_options = mapping_of("--executor-option", chosen.options)
    try:
        with following(terminal, sum(states(store, campaign).values()), quiet=quiet) as on_event:
            run_on_executor(
                store,
                campaign,
                chosen.requests,
                plugins,
                executor=chosen.name,
                executor_options=executor_options,
                jobs=chosen.jobs,
                retry_failed=retry,
                draw=draw,
                on_event=on_event,
            )
    except KeyboardInterrupt:
        counts = states(store, campaign)
        left = counts["queued"] + counts["running"]
        cached = f" --cache-dir {chosen.cache_dir}" if chosen.cache_dir else ""
        raise Interrupted(
            f"{sum(counts.values()) - left} of {sum(counts.values())} jobs are answered and kept; "
            f"continue with: optvet campaign resume {store.path}{cached}"
        ) from None


def _read_baseline(file: Path | None) -> Baseline | None:
    from optvet.engine.campaign.baseline import read_baseline

    return None if file is None else read_baseline(file)


@contextmanager
def _campaign_at(text: str) -> Iterator[tuple[CampaignStore, StoredCampaign]]:
    """The campaign that ``STORE`` or ``STORE#CAMPAIGN`` means."""
    from optvet.engine.campaign import find_campaign, open_store

    folder, _, which = text.partition("#") if not Path(text).exists() else (text, "", "")
    with open_store(Path(folder), to_read=True) as store:
        yield store, find_campaign(store, which)


def _show(
    terminal: Terminal,
    store: CampaignStore,
    campaign: StoredCampaign,
    json_to: str | None,
    known: Baseline | None = None,
    *,
    quiet: bool,
) -> int:
    """Show a campaign as it is; its exit code."""
    from optvet.cli.campaign_screen import exit_code
    from optvet.cli.campaign_screen import summary as summary_screen
    from optvet.engine.campaign.documents import summary_of

    found = summary_of(store, campaign, known)
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*summary_screen(found, quiet=quiet))
    return exit_code(found)
