"""Parsing of commands: the name of an option is never taken as the value of another one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from optvet.spec.errors import UsageError


class Command(TyperCommand):
    """A command that refuses ``--json --quiet``: the name of an option in place of a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does, after looking at each value."""
        refuse_options_as_values(ctx, args)
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """The same for a command that has others below it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does, after looking at each value."""
        refuse_options_as_values(ctx, args)
        return super().parse_args(ctx, args)


def refuse_options_as_values(context: Any, arguments: list[str]) -> None:
    """Refuse an option that is followed by another option in place of its value.

    Raises:
        UsageError: There is one.
    """
    options = [p for p in context.command.get_params(context) if isinstance(p, TyperOption)]
    known = {name for p in options for name in (*p.opts, *p.secondary_opts)}
    taking = {name for p in options if not p.is_flag and not p.count for name in p.opts}
    for name, value in itertools.pairwise(arguments):
        if name == "--":
            return
        if name in taking and (value in known or value.startswith("--")):
            raise UsageError(
                f"{name} needs a value; {value!r} is an option (or write {name}={value})"
            )


def add(app: typer.Typer, name: str, **settings: Any) -> Callable[..., Any]:
    """``app.command(name)`` for a command that is read so."""
    return app.command(name, cls=Command, **settings)
