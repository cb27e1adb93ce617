"""``optvet campaign status``, ``show``, ``diff``, ``export``, ``gc`` and ``repair``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import optvet.cli.campaign_run  # noqa: F401  (its commands are listed first)
from optvet.cli.campaign_options import (
    KnownFile,
    StoreArgument,
    Which,
    app,
    read_known,
    show_campaign,
)
from optvet.cli.commands import add
from optvet.cli.errors import CLEAN, FINDINGS
from optvet.cli.options import Debug
from optvet.cli.output import Json, check_file, check_folder, write_document
from optvet.cli.render import size
from optvet.cli.terminal import Terminal
from optvet.spec.campaign import STORE_BYTES
from optvet.spec.files import write_file
from optvet.spec.request import bytes_of

if TYPE_CHECKING:
    from optvet.engine.campaign import CampaignStore, StoredCampaign


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
            known = read_known(baseline)
            raise typer.Exit(show_campaign(terminal, opened, campaign, json_to, known, quiet=False))
        found = find_trial(opened, trial)
    if json_to is not None and found.answer is not None:
        write_document(terminal, json_to, found.answer.to_json())
    if json_to != "-":
        terminal.show(*one_trial(found, terminal.width), soft_wrap=True)


@add(app, "diff")
def _diff(
    context: typer.Context,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="STORE, STORE#CAMPAIGN or STORE@VERSION.", show_default=False
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Likewise.", show_default=False)],
    baseline: KnownFile = None,
    issues: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the text of an issue for each new finding into this folder."
        ),
    ] = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show what changed from campaign A to B, such as after an upgrade of an optimizer.

    With @VERSION, of jobs about that release alone, such as `nightly.store@1.30`.

    The exit code is 1 if B has findings that A has not.
    """
    from optvet.cli.campaign_screen import diff as diff_screen
    from optvet.engine.campaign import diff_of
    from optvet.engine.campaign.diff import issue_texts

    terminal = context.ensure_object(Terminal)
    if issues is not None:
        check_folder("--issues", issues)
    (a, old), (b, new), known = _release_at(a), _release_at(b), read_known(baseline)
    with _campaign_at(a) as first, _campaign_at(b) as second:
        found = diff_of(first, second, (old, new), known)
        if issues is not None:
            for fingerprint, content in issue_texts(second, found).items():
                file = issues / f"{fingerprint}.md"
                write_file(file, content, advice="make room, then run again")
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
    if single:
        check_file("--out", str(out), "baseline")
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


def _release_at(text: str) -> tuple[str, str]:
    """The campaign, and the release of ``STORE@VERSION``; empty if none is named."""
    if Path(text).exists():
        return text, ""
    place, at, release = text.rpartition("@")
    return (place, release) if at else (text, "")


@contextmanager
def _campaign_at(text: str) -> Iterator[tuple[CampaignStore, StoredCampaign]]:
    """The campaign that ``STORE`` or ``STORE#CAMPAIGN`` means."""
    from optvet.engine.campaign import find_campaign, open_store

    folder, _, which = text.partition("#") if not Path(text).exists() else (text, "", "")
    with open_store(Path(folder), to_read=True) as store:
        yield store, find_campaign(store, which)
