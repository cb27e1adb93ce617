"""``optvet vet``: the main job."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import optvet
from optvet import (
    InfrastructureError,
    InputError,
    NothingTested,
    OptvetError,
    UnknownName,
    UsageError,
    VetResult,
)
from optvet.cli import reduce, render
from optvet.cli.errors import exit_code, report, worst
from optvet.cli.options import (
    CacheDir,
    Debug,
    Note,
    bytes_of,
    cache_folder,
    mapping_of,
    names_of,
    seconds_of,
)
from optvet.cli.render import Asked
from optvet.cli.terminal import Report, Terminal
from optvet.spec.files import write_file
from optvet.spec.records import ErrorRecord
from optvet.spec.records.error import ErrorSource

_INPUTS, _HOW, _LIMITS, _ANSWER = "Inputs", "How to vet", "Limits and cache", "The answer"


STRATEGIES = ("auto", "walk", "subset", "each")


def _strategy(text: str) -> str:
    if text not in STRATEGIES:
        raise UnknownName("strategy", text, STRATEGIES)
    return text


ON_BAD = ("refuse", "skip")


def _on_bad(text: str) -> str:
    if text not in ON_BAD:
        raise UnknownName("choice for --on-bad", text, ON_BAD)
    return text


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, a folder of them, or `zoo:NAME`.",
            show_default=False,
        ),
    ],
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Optimizer to vet.", rich_help_panel=_HOW, show_default=False
        ),
    ] = None,
    pipeline: Annotated[
        str,
        typer.Option(
            metavar="NAME|P1,P2,…",
            help="A pipeline of the optimizer (default, all, a level), or passes in order.",
            rich_help_panel=_HOW,
        ),
    ] = "default",
    strategy: Annotated[
        Any,
        typer.Option(
            parser=_strategy,
            metavar="|".join(STRATEGIES),
            help="How culprits are searched; `each` tries every pass alone.",
            rich_help_panel=_HOW,
        ),
    ] = "auto",
    pairs: Annotated[
        bool | None,
        typer.Option(
            "--pairs/--no-pairs",
            help="Whether `each` tries ordered pairs too.",
            show_default="if the model is small",
            rich_help_panel=_HOW,
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What runs the models.",
            show_default="one that runs what the optimizer makes",
            rich_help_panel=_HOW,
        ),
    ] = None,
    cross_check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="R1,R2,…",
            help="Runtimes that every finding is judged on once more.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    as_deployed: Annotated[
        bool,
        typer.Option(
            "--as-deployed",
            help="Judge a second time under the runtime's own defaults.",
            rich_help_panel=_HOW,
        ),
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the optimizer.", rich_help_panel=_HOW),
    ] = None,
    runtime_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the runtime.", rich_help_panel=_HOW),
    ] = None,
    comparator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What says what a difference means.",
            show_default="the one that fits the model best",
            rich_help_panel=_HOW,
        ),
    ] = None,
    comparator_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the comparator.", rich_help_panel=_HOW),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PATH]",
            help="Where inputs come from; may be given several times. `auto:FOLDER` makes of a "
            "folder what suits the model.",
            show_default="what the model's record says, else random",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    dataset_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of the datasets that have it.",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    start: Annotated[
        int,
        typer.Option(min=0, help="Samples to leave out at the beginning.", rich_help_panel=_INPUTS),
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Samples per dataset at most.", rich_help_panel=_INPUTS),
    ] = None,
    shuffle: Annotated[
        bool,
        typer.Option(
            "--shuffle",
            help="Take samples in random order; with --limit, a random subset.",
            rich_help_panel=_INPUTS,
        ),
    ] = False,
    on_bad: Annotated[
        Any,
        typer.Option(
            parser=_on_bad,
            metavar="|".join(ON_BAD),
            help="What becomes of data that cannot be read: an error, or left out and counted.",
            rich_help_panel=_INPUTS,
        ),
    ] = "refuse",
    seed: Annotated[
        int, typer.Option(min=0, help="Seeds everything random.", rich_help_panel=_INPUTS)
    ] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Worker processes at a time.",
            show_default="one per processor, at most 8",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    timeout: Annotated[
        Any,
        typer.Option(
            parser=seconds_of,
            metavar="SECONDS",
            help="Wall-clock limit of one step.",
            rich_help_panel=_LIMITS,
        ),
    ] = "120",
    memory: Annotated[
        Any,
        typer.Option(
            parser=bytes_of,
            metavar="SIZE",
            help="Memory that one step may add, such as 512M.",
            rich_help_panel=_LIMITS,
        ),
    ] = "8G",
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Let the model's record name code, and data outside of its folder.",
            rich_help_panel=_INPUTS,
        ),
    ] = False,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache",
            help="Neither use nor keep results of earlier runs.",
            rich_help_panel=_LIMITS,
        ),
    ] = False,
    cache_dir: CacheDir = None,
    json_to: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="Write the answer as JSON; `-` is stdout, instead of the screen.",
            rich_help_panel=_ANSWER,
        ),
    ] = None,
    fail_on: Annotated[
        list[Note] | None,
        typer.Option(
            metavar="NOTE",
            help="Count a note as a finding: bloat, metadata-change, sensitivity, slowdown.",
            rich_help_panel=_ANSWER,
        ),
    ] = None,
    reduce_findings: Annotated[
        bool,
        typer.Option(
            "--reduce",
            help="Reduce each finding to a minimal model, and write a bundle.",
            rich_help_panel=_ANSWER,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a bundle per finding below this folder: model, inputs, script, issue.",
            show_default="optvet-bundles with --reduce",
            rich_help_panel=_ANSWER,
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print the verdict alone, no progress.", rich_help_panel=_ANSWER
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Say whether an optimizer keeps a model intact, and which pass is to blame if not."""
    terminal = context.ensure_object(Terminal)
    terminal.keeps = not no_cache
    if json_to not in (None, "-"):
        _check_writable(Path(json_to))
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; give a folder")
    datasets = dataset or []
    others = names_of("--cross-check", cross_check or [])
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "pipeline": pipeline,
        "strategy": strategy,
        "dataset": datasets,
        "start": start,
        "limit": limit,
        "shuffle": shuffle,
        "on_bad": on_bad,
        "seed": seed,
        "jobs": jobs,
        "optimizer_options": mapping_of("--option", option or []),
        "dataset_options": mapping_of("--dataset-option", dataset_option or []),
        "runtime": runtime,
        "runtime_options": mapping_of("--runtime-option", runtime_option or []),
        "cross_check": others,
        "comparator": comparator,
        "comparator_options": mapping_of("--comparator-option", comparator_option or []),
        "as_deployed": as_deployed,
        "pairs": pairs,
        "timeout_s": timeout,
        "memory_bytes": memory,
        "use_cache": not no_cache,
        "cache_dir": cache_folder(cache_dir),
        "trust": trust,
    }
    asked = Asked(
        model,
        pipeline,
        strategy,
        as_deployed,
        datasets,
        _repeat("--optimizer", [optimizer] if optimizer else [])
        + _repeat("--runtime", [runtime] if runtime else [])
        + _repeat("--option", option or [])
        + _repeat("--runtime-option", runtime_option or [])
        + _repeat("--cross-check", [",".join(others)] if others else [])
        + _repeat("--comparator", [comparator] if comparator else [])
        + _repeat("--comparator-option", comparator_option or [])
        + _repeat("--dataset-option", dataset_option or [])
        + _repeat("--start", [str(start)] if start else [])
        + (("--shuffle",) if shuffle else ())
        + (("--trust",) if trust else ())
        + _repeat("--on-bad", [on_bad] if on_bad != "refuse" else [])
        + _repeat("--limit", [str(limit)] if limit else [])
        + _repeat("--seed", [str(seed)] if seed else [])
        + _repeat("--cache-dir", [str(cache_dir)] if _was_typed(context, "cache_dir") else []),
    )
    screen = _Screen(terminal, asked, quiet=quiet, silent=json_to == "-")
    bundler = None
    if reduce_findings or out is not None:
        bundler = reduce.Bundler(
            terminal,
            settings,
            out or reduce.BUNDLES,
            reduce=reduce_findings,
            quiet=quiet,
            silent=screen.silent,
        )
    models = _models_in(model)
    if models is None:
        with terminal.progress(quiet) as progress:
            result = optvet.vet(model, progress=progress, **settings)
        screen.show(result)
        if bundler is not None:
            result = bundler.write(model, result)
        text, code = result.to_json(), exit_code(result, fail_on or ())
    else:
        entries = _vet_all(models, settings, terminal, screen, bundler)
        screen.show_table(entries)
        text = "[\n" + ",\n".join(e.to_json() for e in entries) + "\n]"
        code = worst(e.code(fail_on or ()) for e in entries)
    if json_to == "-":
        terminal.write(f"{text}\n")
    elif json_to is not None:
        advice = "make room or choose another file, then run again"
        write_file(Path(json_to), f"{text}\n", advice=advice)
    raise typer.Exit(code)


def _repeat(option: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in (option, value))


def _was_typed(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, not taken from the environment or left to its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


# --- folders -------------------------------------------------------------------------------------


def _models_in(model: str) -> list[Path] | None:
    """The models of a folder of several; None where ``model`` is anything else.

    Each is then vetted for itself, so that one that cannot be read does not spare the others.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return None
    files = sorted(f for f in folder.glob("*.onnx") if f.is_file())
    return files if len(files) > 1 else None


@dataclass(frozen=True)
class Entry:
    """One model of a folder: its result, or why there is none."""

    model: Path
    result: VetResult | None
    error: OptvetError | None = None

    def code(self, fail_on: Iterable[str]) -> int:
        """Its exit code if it had been vetted alone."""
        if self.result is not None:
            return exit_code(self.result, fail_on)
        return self.error.exit_code if self.error is not None else 0

    def to_json(self) -> str:
        """As an element of the list that --json writes."""
        if self.result is not None:
            return self.result.to_json()
        assert self.error is not None
        return ErrorRecord(
            schema="optvet.error/1",
            model=ErrorSource(source=str(self.model)),
            error=type(self.error).__name__,
            message=str(self.error),
            exit_code=self.error.exit_code,
        ).to_json()


def _vet_all(
    models: list[Path],
    settings: dict[str, Any],
    terminal: Terminal,
    screen: _Screen,
    bundler: reduce.Bundler | None,
) -> list[Entry]:
    entries = []
    for number, model in enumerate(models, 1):
        try:
            with terminal.progress(screen.quiet) as progress:
                where = f"{number}/{len(models)} {model.name}: "
                result = optvet.vet(model, progress=_within(where, progress), **settings)
            screen.show_line(result)
            if bundler is not None:
                result = bundler.write(str(model), result, brief=True)
        except (InputError, NothingTested, InfrastructureError) as error:
            # Of this model alone; a wrong option would fail for all, and ends the run.
            entries.append(Entry(model, None, error))
            report(error, terminal)
        else:
            entries.append(Entry(model, result))
    return entries


def _within(prefix: str, progress: Report) -> Report:
    return lambda text, done, total: progress(prefix + text, done, total)


# --- the answer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Screen:
    """What a person sees of the answer."""

    terminal: Terminal
    asked: Asked
    quiet: bool
    silent: bool

    def show(self, result: VetResult) -> None:
        """One model's screen."""
        self.show_line(result)
        if self.silent or self.quiet:
            return
        self.terminal.show(*render.screen(result, self.asked))
        self.terminal.show(render.next_command(result, self.asked), soft_wrap=True)

    def show_line(self, result: VetResult) -> None:
        """One model's verdict on a line."""
        if not self.silent:
            self.terminal.show(render.headline(result), soft_wrap=True)

    def show_table(self, entries: list[Entry]) -> None:
        """What was found in a folder."""
        if not (self.silent or self.quiet):
            rows = [(str(e.model), e.result or str(e.error)) for e in entries]
            self.terminal.show(render.folder_table(rows))
            results = [(e.model.name, e.result) for e in entries if e.result is not None]
            self.terminal.show(*render.distinct(results))


def _check_writable(path: Path) -> None:
    """Refuse before the work what could not be written after it."""
    if path.is_dir():
        raise UsageError(f"--json {path} is a folder; give a file, or - for stdout")
    if not path.parent.is_dir():
        raise UsageError(f"--json {path}: folder {path.parent} does not exist; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--json {path} cannot be written; choose another file")
