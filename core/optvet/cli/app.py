"""The tree of commands."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from optvet import UnknownName, __version__
from optvet.cli.bench import command as bench
from optvet.cli.cache import app as cache
from optvet.cli.campaign import app as campaign
from optvet.cli.campaign_tables import command as campaign_tables
from optvet.cli.commands import add
from optvet.cli.compare import command as compare
from optvet.cli.doctor import command as doctor
from optvet.cli.errors import Interrupted
from optvet.cli.models import app as models
from optvet.cli.options import Debug
from optvet.cli.plugins import app as plugins
from optvet.cli.reduce import command as reduce
from optvet.cli.render import table_of
from optvet.cli.replay import command as replay
from optvet.cli.report import command as report
from optvet.cli.terminal import Terminal
from optvet.cli.vet import command as vet
from optvet.spec.records import DOCUMENTS


class _Commands(TyperGroup):
    """Lets Ctrl-C through: typer gives it a meaning of its own, which varies with its version."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # click's own type
        """Run the command of ``ctx``."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


app = typer.Typer(
    name="optvet",
    cls=_Commands,
    help="Vets the optimizers that rewrite machine-learning models.",
    epilog="Exit codes: 0 clean or drift, 1 findings, 2 usage or input error, 3 error of optvet "
    "or its environment, 4 undecided or flaky, 5 nothing was tested, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.ensure_object(Terminal).write(f"optvet {__version__}\n")
        raise typer.Exit


@app.callback()
def _optvet(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Vets the optimizers that rewrite machine-learning models."""


def _schema(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A document; without one, all are listed."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of a document that optvet writes, or list the documents."""
    import json

    terminal = context.ensure_object(Terminal)
    if name is None:
        table = table_of(("document", ""), ("schema", ""), ("what it is", "dim"))
        for key, kind in DOCUMENTS.items():
            version = kind.model_fields["schema_"].default
            table.add_row(key, str(version), (kind.__doc__ or "").partition("\n")[0])
        terminal.show(table)
        return
    if name not in DOCUMENTS:
        raise UnknownName("document", name, DOCUMENTS, "(see: optvet schema)")
    text = json.dumps(DOCUMENTS[name].model_json_schema(by_alias=True), indent=2)
    terminal.write(f"{text}\n")


add(app, "vet", no_args_is_help=True)(vet)
add(app, "reduce", no_args_is_help=True)(reduce)
add(app, "compare", no_args_is_help=True)(compare)
add(app, "bench", no_args_is_help=True)(bench)
add(app, "replay", no_args_is_help=True)(replay)
add(campaign, "tables")(campaign_tables)
app.add_typer(campaign, name="campaign")
add(app, "report", no_args_is_help=True)(report)
app.add_typer(plugins, name="plugins")
app.add_typer(models, name="models")
app.add_typer(cache, name="cache")
add(app, "doctor")(doctor)
add(app, "schema")(_schema)
