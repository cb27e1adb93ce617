"""Parsing of commands: the name of an option is never taken as the value of another one."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from optvet.spec.errors import UsageError, near_names


class Command(TyperCommand):
    """A command that refuses ``--json --quiet``: the name of an option in place of a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does, after looking at each value."""
        if ctx.resilient_parsing:  # A shell completes what is not yet complete.
            return super().parse_args(ctx, args)
        refuse_options_as_values(ctx, args)
        refuse_empty_values(ctx, args)
        refuse_unknown_options(ctx, args)
        try:
            left = super().parse_args(ctx, args)
            refuse_writing_over(ctx)
            return left
        except typer.BadParameter as error:
            if type(error).__name__ == "MissingParameter":  # typer does not export it
                raise _say_missing(ctx, error.param) from error
            cause = error.__cause__
            # By its name: pydantic is imported only where typer has needed it.
            if type(cause).__name__ != "ValidationError" or error.param is None:
                raise
            raise _say_expected(error.param, cause) from error


def _say_missing(context: Any, param: Any) -> UsageError:
    """One line for an argument or a required option that is not there."""
    words = f"{context.command_path} needs "
    if isinstance(param, TyperOption):
        words += " or ".join(param.opts)
    else:
        words += (param.metavar or param.name.upper()).strip("[].…")
    return UsageError(f"{words}; {context.command_path} --help lists what else it takes")


def _say_expected(param: Any, cause: Any) -> UsageError:
    """An error in our words for a value of the wrong kind, for which typer has pydantic's."""
    from optvet.spec.validation_words import words_of

    first = cause.errors()[0]
    name = param.opts[0] if isinstance(param, TyperOption) else param.name.upper()
    return UsageError(f"{name} {str(first['input'])[:100]}: {words_of(first)}")


class Group(TyperGroup):
    """The same for a command that has others below it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does, after looking at each value."""
        if ctx.resilient_parsing:  # A shell completes what is not yet complete.
            return super().parse_args(ctx, args)
        if self.invoke_without_command and args[:1] == ["list"] and "list" not in self.commands:
            args = args[1:]  # what the group does alone
        refuse_options_as_values(ctx, args)
        refuse_empty_values(ctx, itertools.takewhile(lambda a: a not in self.commands, args))
        refuse_unknown_options(ctx, itertools.takewhile(lambda a: a not in self.commands, args))
        left = super().parse_args(ctx, args)
        refuse_writing_over(ctx)
        return left

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` call.

        Raises:
            UsageError: There is none of that name.
        """
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            # A name of something, where a command was expected.
            near = near_names(args[0], names) or [n for n in names if n == "show"]
            rest = f" {args[0]}" if near == ["show"] else ""
            meant = " or ".join(f"{ctx.command_path} {n}{rest}" for n in near)
            if not near and self.invoke_without_command and "--optimizer" in _known_options(ctx):
                meant, near = f"{ctx.command_path} --optimizer {args[0]}", [args[0]]
            advice = f"did you mean {meant}?" if near else f"there are {', '.join(names)}"
            raise UsageError(f"no such command: {ctx.command_path} {args[0]}; {advice}")
        return super().resolve_command(ctx, args)


def refuse_options_as_values(context: Any, arguments: list[str]) -> None:
    """Refuse an option that is followed by another option in place of its value.

    Raises:
        UsageError: There is one.
    """
    known, taking = _known_options(context), _taking_options(context)
    for name, value in itertools.pairwise(arguments):
        if name == "--":
            return
        if name in taking and (value in known or value.startswith("--")):
            raise UsageError(
                f"{name} needs a value; {value!r} is an option (or write {name}={value})"
            )


def refuse_empty_values(context: Any, arguments: Iterable[str]) -> None:
    """Refuse an empty text as the value of an option, or as an argument.

    Most often a variable of a shell has no value; the default would be used in silence, or the
    current folder.

    Raises:
        UsageError: There is one.
    """
    taking, before = _taking_options(context), ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if before in taking and not argument:
            raise UsageError(f"{before} is empty; give a value, or leave it out")
        if name in taking and equals and not value:
            raise UsageError(f"{name} is empty; give a value, or leave it out")
        if not argument:
            words = f"an argument of {context.command_path} is empty; give a value, or leave it out"
            raise UsageError(words)
        before = argument


_WRITTEN = ("--json", "--out", "--plot", "--report", "--save")


def refuse_writing_over(context: Any) -> None:
    """Refuse to write to a file that the command names for another purpose too.

    Also one that stands in a larger word, as in ``files:PATH`` or ``KEY=PATH``, or that a pattern
    matches.

    Raises:
        UsageError: There is one.
    """
    named = [
        (next((o for o in param.opts if o in _WRITTEN), param.opts[0]), value)
        for param in context.command.get_params(context)
        for value in _several(context.params.get(param.name))
        if isinstance(value, str | Path)
    ]
    for place, (option, value) in enumerate(named):
        # "[NAME:]FILE"; a file may have a colon in its name.
        behind = str(value).partition(":")[2] if option == "--report" else ""
        target = behind if os.path.isfile(behind) else value
        if option in _WRITTEN and os.path.isfile(target):
            for other, word in (*named[:place], *named[place + 1 :]):
                if any(_means(file, target) for file in _files_in(str(word))):
                    what = "" if other.startswith("-") else "the command's "
                    words = f"{option} {target} would overwrite {what}{other}"
                    raise UsageError(f"{words}; give another path")


def _files_in(word: str) -> Iterator[str]:
    """The paths that a word may hold, the word itself first."""
    yield word
    yield from re.split("[:=,]", word)[1:]
    for mark in ":=":
        yield word.partition(mark)[2]


def _means(file: str, target: str | Path) -> bool:
    """Whether a path or a pattern means the file ``target``."""
    if os.path.isfile(file):
        return os.path.samefile(file, target)
    return glob.has_magic(file) and fnmatch(os.path.abspath(target), os.path.abspath(file))


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


_SAID_ELSEWHERE = {
    "--pipeline": ("level", "opt-level", "optimization-level", "pass", "passes", "only"),
    "--exclude": ("skip", "disable", "without", "disabled-optimizers"),
    "--atol": ("tolerance", "tol", "threshold"),
    "--dataset": ("data", "inputs", "input-data", "samples"),
    "--budget": ("time", "duration", "max-time", "timeout"),
    "--limit": ("count", "num-samples", "n"),
    "--out": ("output", "output-dir", "bundle"),
    "--optimizer-option": ("option", "options"),
    "--runtime": ("backend", "engine"),
    "--runtime-option": ("providers", "device"),
    "--jobs": ("workers", "threads", "parallel"),
}
"""Options by what other programs call them."""


def refuse_unknown_options(context: Any, arguments: Iterable[str]) -> None:
    """Refuse an option that the command does not have, and suggest those that were meant.

    Raises:
        UsageError: There is one.
    """
    known, taking, before = _known_options(context), _taking_options(context), ""
    for argument in itertools.takewhile("--".__ne__, arguments):
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known:
            raise UsageError(f"no such option: {name}{_suggest(name, known, context)}")
        short = argument[:1] == "-" and argument[1:2].isalpha() and argument[:2] not in known
        if short and before not in taking:
            there = f"; if the file is meant, write ./{argument}"
            advice = there if Path(argument).exists() else _suggest(argument, known, context)
            raise UsageError(f"no such option: {argument}{advice}")
        before = argument


def _known_options(context: Any) -> set[str]:
    params = context.command.get_params(context)
    return {name for p in params for name in (*p.opts, *p.secondary_opts) if name[0] == "-"}


def _taking_options(context: Any) -> set[str]:
    """The options that take a value."""
    options = [p for p in context.command.get_params(context) if isinstance(p, TyperOption)]
    return {name for p in options if not p.is_flag and not p.count for name in p.opts}


def _suggest(name: str, known: Iterable[str], context: Any) -> str:
    by_plain = {option.removeprefix("--"): option for option in known if option[:2] == "--"}
    plain = name.lstrip("-")
    known_spellings = [
        o for o, words in _SAID_ELSEWHERE.items() if plain in words and o in by_plain.values()
    ]
    near = known_spellings or [by_plain[n] for n in near_names(plain, by_plain, cutoff=0.6)]
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; {context.command_path} --help lists them"


def add(app: typer.Typer, name: str, **settings: Any) -> Callable[..., Any]:
    """``app.command(name)`` for a command that is read so."""
    return app.command(name, cls=Command, **settings)
