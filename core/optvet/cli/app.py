"""The tree of commands."""

from __future__ import annotations

from importlib import import_module
from itertools import takewhile
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from optvet import __version__
from optvet.cli.commands import add, refuse_unknown_options
from optvet.cli.errors import Interrupted
from optvet.cli.terminal import Terminal
from optvet.spec.errors import InfrastructureError, UsageError, near_names
from optvet_start import leaving_at_once

COMMANDS = {
    "vet": "Say whether an optimizer keeps a model intact, and which pass is to blame if not.",
    "reduce": "Reduce a model to the smallest one for which a command still exits 0.",
    "convert": "Say whether converters keep a model intact, and which of their stages is to blame.",
    "repair": "Repair a wrong conversion, and say what was wrong with it.",
    "precision": "Find the fewest nodes to keep as they are while the rest becomes less precise.",
    "record": "Write a kit that runs a model where optvet does not, to judge it here.",
    "compare": "Compare two models value by value, and show where they first differ.",
    "bench": "Time optimized models beside the original.",
    "replay": "Judge findings again under the installed versions: fixed, still there, or changed.",
    "bisect": "Find the release of a package that broke a model, and the pass that is to blame.",
    "advise": "Say which known faults a model may trigger, where, and what avoids each.",
    "report": "Write a report of a campaign, for people or for machines.",
    "doctor": "Check the environment: packages, providers, plugins, sandbox, cache; "
    "say what to do.",
    "explain": "Explain a word that optvet uses, such as drift or control.",
    "schema": "Print the JSON Schema of a document that optvet writes, or list the documents.",
}
"""Single commands, each the function ``command`` of the module of its name."""
GROUPS = {
    "campaign": "Vet many models with many optimizers.",
    "hunt": "Look for faults of an optimizer on models aimed at its passes.",
    "plugins": "List and describe installed plugins.",
    "models": "List, fetch and make models to vet by name.",
    "known": "List known faults of optimizers, and add one.",
    "cache": "Show or clear the cache.",
    "env": "Make and list environments of plugins, and the releases that bisect installs.",
}
"""Commands with others below them, each the ``app`` of the module of its name."""
PANELS = {
    "Is this model right?": "vet convert compare record precision bench repair",
    "Show a fault, and follow it": "reduce replay bisect advise known",
    "Many models": "campaign report hunt models",
    "optvet itself": "doctor plugins env cache explain schema",
}
"""Commands as the help lists them."""
_LAST = {"campaign": "campaign_tables", "models": "models_generate"}
"""For groups in several modules: the last module, which imports the others."""


def load_command(name: str) -> Any:
    """A command with its options."""
    tree = typer.Typer()
    tree.callback()(_optvet)  # With it, one command alone is a tree too.
    home = _LAST.get(name, name)
    with leaving_at_once():
        module = import_module(f"optvet.cli.{home}")
    if name in GROUPS:
        tree.add_typer(module.app, name=name)
    else:
        add(tree, name)(module.command)
    return typer.main.get_group(tree).commands[name]


_TYPED = "optvet.typed"
"""Key of what was typed after the program's name, in the context of the whole command."""


class _Commands(TyperGroup):
    """Imports the module of a command when that is called.

    It lets Ctrl-C through: typer gives it a meaning of its own, which varies with its version.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        about = {**COMMANDS, **GROUPS}
        self.commands = {
            name: TyperCommand(name, help=about[name], rich_help_panel=panel)
            for panel, names in PANELS.items()
            for name in names.split()
        }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does; ``--json`` at the end is ``--json -``.

        What was typed is kept, for options that are asked before the others are read.
        """
        ctx.meta[_TYPED] = list(args)
        refuse_unknown_options(ctx, takewhile(lambda a: a not in self.commands, args))
        return super().parse_args(ctx, [*args, "-"] if args[-1:] == ["--json"] else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` call.

        Raises:
            UsageError: There is none of that name.
        """
        if not args[0].startswith("-") and args[0] not in self.commands:
            near = near_names(args[0], self.commands)
            meant = " or ".join(f"optvet {n}" for n in near)
            advice = f"did you mean {meant}?" if near else "optvet --help lists them"
            raise UsageError(f"no such command: optvet {args[0]}; {advice}")
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and load_command(str(name)), rest

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # click's own type
        """Run the command of ``ctx``."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except EOFError as error:  # typer would say "Aborted", with the exit code of findings
            words = f"something that is read ended too early: {error}"
            raise InfrastructureError(f"{words}; run again with --debug and report it") from error


app = typer.Typer(
    name="optvet",
    cls=_Commands,
    help="Vets the optimizers that rewrite machine-learning models.",
    epilog="Exit codes: 0 clean or drift, 1 findings, 2 usage or input error, 3 error of optvet "
    "or its environment, 4 undecided or flaky, 5 nothing was tested, 130 interrupted.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(context: typer.Context, wanted: bool) -> bool:
    """Print the version alone before other options are read, which imports pydantic."""
    if wanted and not any(a.partition("=")[0] == "--json" for a in context.meta[_TYPED]):
        context.ensure_object(Terminal).write(f"optvet {__version__}\n")
        raise typer.Exit
    return wanted


@app.callback(invoke_without_command=True)
def _optvet(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    json_to: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="With --version: write what a bug report needs, as JSON; `-` is stdout.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Vets the optimizers that rewrite machine-learning models."""
    terminal = context.ensure_object(Terminal)
    if json_to is not None:
        if not version:
            raise UsageError("--json stands after the command, or with --version")
        _write_versions(terminal, json_to)
    elif context.invoked_subcommand is not None:
        return
    else:
        raise UsageError("a command is missing; optvet --help lists them")
    raise typer.Exit


def _write_versions(terminal: Terminal, target: str) -> None:
    from optvet.cli.output import check_file, write_document
    from optvet.engine.discovery import Plugins
    from optvet.engine.environment.version import version_report

    check_file("--json", target, "answer")
    write_document(terminal, target, version_report(Plugins().all()).to_json())
