"""What the commands of ``optvet campaign`` share: their group, options, and summary."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from optvet.cli.commands import Group
from optvet.cli.options import CacheDir, Debug, Trust
from optvet.cli.output import Json, write_document
from optvet.cli.terminal import Terminal

if TYPE_CHECKING:
    from optvet.engine.campaign import CampaignStore, StoredCampaign
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


@dataclass(frozen=True)
class RunOptions:
    """Options of the commands that run jobs: who runs them, and how the answer is shown."""

    jobs: Jobs = None
    executor: ExecutorName = "local"
    executor_options: ExecutorOptions = None
    baseline: KnownFile = None
    retry: Retry = False
    trust: Trust = False
    cache_dir: CacheDir = None
    json_to: Json = None
    quiet: Quiet = False
    debug: Debug = False


def takes_run_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command ``function(…, options)`` whose last options are the fields of ``RunOptions``."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[:-1]
    kinds = get_type_hints(RunOptions, include_extras=True)
    names = [field.name for field in fields(RunOptions)]
    more = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=kinds[field.name],
        )
        for field in fields(RunOptions)
    ]
    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *more]

    def command(**arguments: Any) -> None:
        options = RunOptions(**{name: arguments.pop(name) for name in names})
        function(**arguments, options=options)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = function.__doc__
    return command


def read_known(file: Path | None) -> Baseline | None:
    """The known findings in ``file``, if one is given."""
    from optvet.engine.campaign.baseline import read_baseline

    return None if file is None else read_baseline(file)


def show_campaign(
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
