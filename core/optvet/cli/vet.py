"""``optvet vet``: the main job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from optvet.cli.errors import exit_code, report, worst
from optvet.cli.options import Debug, cache_folder, was_typed
from optvet.cli.output import Json, check_file, check_folder, fitting_reporter, write_document
from optvet.cli.reduce import BUNDLES, Bundler
from optvet.cli.render import text
from optvet.cli.request import takes
from optvet.cli.terminal import Terminal
from optvet.cli.vet_folder import distinct, folder_table
from optvet.cli.vet_known import known_faults
from optvet.cli.vet_next import next_command
from optvet.cli.vet_screen import code_to_paste, details, first_part, headline, subject, to_use
from optvet.engine.work.cache.whole_answers import recall
from optvet.spec.errors import OptvetError, UnknownName, UsageError
from optvet.spec.records import ErrorRecord, VetResults
from optvet.spec.records.vet import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import NOTES

if TYPE_CHECKING:
    from optvet.engine.discovery import Plugins
    from optvet.engine.vet.session import VetSession
    from optvet.engine.vetting import ModelAnswer
    from optvet.spec.protocols import Reporter


@takes(VetRequest, "model", several=("model", "optimizer"))
def command(
    context: typer.Context,
    request: VetRequest,
    choices: Mapping[str, Sequence[str]],
    json_to: Json = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print the verdict alone, no progress.",
            rich_help_panel="The answer",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show also what the verdict rests on: controls, outputs, metrics, cost.",
            rich_help_panel="The answer",
        ),
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Write the answer to stdout in this format: markdown, html, junit, github, sarif "
            "or that of another reporter.",
            show_default=False,
            rich_help_panel="The answer",
        ),
    ] = None,
    report_to: Annotated[
        list[str] | None,
        typer.Option(
            "--report",
            metavar="[NAME:]FILE",
            help="Write the answer to a file as well, in the format NAME or that of its suffix; "
            "may be given several times.",
            show_default=False,
            rich_help_panel="The answer",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Say whether an optimizer keeps a model intact, and which pass is to blame if not."""
    terminal = context.ensure_object(Terminal)
    terminal.keeps = request.cache
    for note in request.fail_on:
        if note not in NOTES:
            raise UnknownName("note for --fail-on", note, NOTES)
    if request.out is not None:
        check_folder("--out", request.out)
    if request.save is not None:
        check_file("--save", str(request.save), "model")
    reports = _reports(format, report_to or (), json_to)
    shown = request
    if not was_typed(context, "cache_dir"):
        shown = request.model_copy(update={"cache_dir": None})
    root = cache_folder(request.cache_dir)
    request = request.model_copy(update={"cache_dir": root})
    silent = json_to == "-" or "-" in reports
    view = _VetScreen(terminal, shown, quiet=quiet, silent=silent, explain=explain)
    one = len(choices["model"]) <= 1 and len(choices["optimizer"]) <= 1
    if one and (known := recall(request, root)) is not None:
        bundler = _bundler(request, terminal, view)
        answered = _show_answer(known, request, terminal, view, bundler)
    else:
        answered = _vet(request, choices, terminal, view)
    if json_to is not None:
        write_document(terminal, json_to, answered.to_json())
    _write_reports(terminal, reports, answered, request, silent=silent)
    raise typer.Exit(answered.code)


@dataclass(frozen=True)
class _AllAnswers:
    """Each request with its answer, and the exit code."""

    answers: Sequence[tuple[VetRequest, VetResult | ErrorRecord]]
    code: int

    def to_json(self) -> str:
        """The document of the answer, or of all answers."""
        documents = [document for _, document in self.answers]
        if len(documents) == 1:
            return documents[0].to_json()
        return VetResults(schema="optvet.vets/1", results=documents).to_json()


def _reports(
    format: str | None, files: Sequence[str], json_to: str | None
) -> Mapping[str, Reporter]:
    """The reporter of each target, before the work; ``-`` is stdout.

    Raises:
        UsageError: There is no such reporter, or two documents would go to one place.
    """
    if format is None and not files:
        return {}
    from optvet.engine.discovery import Plugins

    plugins = Plugins()
    known = plugins.names("reporter")
    found: dict[str, Reporter] = {}
    for wanted in [*([f"{format}:-"] if format else []), *files]:
        name, colon, target = wanted.partition(":")
        if not colon or (name not in known and target != "-"):
            name, target = fitting_reporter(plugins, wanted), wanted
        reporter = plugins.reporter(name)
        if target == json_to or target in found:
            where = "stdout" if target == "-" else target
            raise UsageError(f"two documents would be written to {where}; give each its own file")
        check_file("--report", target, "text")
        found[target] = reporter
    return found


def _write_reports(
    terminal: Terminal,
    reports: Mapping[str, Reporter],
    answered: _AllAnswers,
    request: VetRequest,
    *,
    silent: bool,
) -> None:
    if not reports:
        return
    from optvet.engine.campaign.report import files_in, render_report, report_of_answers

    made = report_of_answers(answered.answers, request.fail_on)
    for target, reporter in reports.items():
        document = render_report(reporter, made, partial(files_in, request.out or BUNDLES))
        write_document(terminal, target, document.removesuffix("\n"))
        if not silent:
            terminal.show(text(f"wrote {target}"), soft_wrap=True)


def _bundler(request: VetRequest, terminal: Terminal, view: _VetScreen) -> Bundler | None:
    if not (request.reduce or request.out is not None):
        return None
    return Bundler(terminal, view.quiet, view.silent)


def _vet(
    request: VetRequest,
    choices: Mapping[str, Sequence[str]],
    terminal: Terminal,
    view: _VetScreen,
) -> _AllAnswers:
    """The answers to what has to be vetted."""
    from optvet.engine.discovery import Plugins
    from optvet.engine.vetting import requests_for, vetted

    plugins = Plugins()
    requests = requests_for(
        request, plugins, models=choices["model"], optimizers=choices["optimizer"]
    )
    if len(requests) > 1:
        return _vet_several(requests, plugins, terminal, view)
    with ExitStack() as stack:
        with terminal.progress(view.quiet) as progress:
            answer = stack.enter_context(vetted(requests[0], plugins, progress=progress, keep=True))
        if (bundler := _bundler(request, terminal, view)) is None:
            stack.close()
        return _show_answer(answer.result, requests[0], terminal, view, bundler, answer.session)


def _show_answer(
    result: VetResult,
    request: VetRequest,
    terminal: Terminal,
    view: _VetScreen,
    bundler: Bundler | None,
    session: VetSession | None = None,
) -> _AllAnswers:
    """The answer about one model."""
    result = _named(result, request)
    view.show(result)
    if bundler is not None:
        result = bundler.write(request, result, session)
    return _AllAnswers([(request, result)], exit_code(result, request.fail_on))


def _named(result: VetResult, request: VetRequest) -> VetResult:
    """The result, whose findings name the known faults that they are."""
    if not result.findings:
        return result
    from optvet.engine.known.naming import with_known

    return with_known(result, request.cache_dir)


def _vet_several(
    requests: list[VetRequest], plugins: Plugins, terminal: Terminal, view: _VetScreen
) -> _AllAnswers:
    """The answers about several models, and the exit code that stands for all of theirs."""
    from optvet.engine.vetting import vet_each
    from optvet.engine.work.sandbox import keep_servers

    keep_servers()
    bundler = _bundler(requests[0], terminal, view)
    answers: list[ModelAnswer] = []
    codes = set[str]()
    with terminal.progress(view.quiet) as progress:
        for answer in vet_each(requests, plugins, progress=progress):
            if answer.result is not None:
                view.show_line(answer.result, several=view.names_optimizers(requests))
                view.show_use(answer.result, codes)
                result = _named(answer.result, answer.request)
                if bundler is not None:
                    result = bundler.write(answer.request, result, answer.session, brief=True)
                answer = type(answer)(answer.request, result)
            elif answer.error is not None:
                report(answer.error, terminal)
            answers.append(answer)
    view.show_table(answers)
    code = worst(_code(a, requests[0].fail_on) for a in answers)
    return _AllAnswers([(a.request, a.document()) for a in answers], code)


def _code(answer: ModelAnswer, fail_on: Iterable[str]) -> int:
    """The exit code of one of several models, had it been vetted alone."""
    if answer.result is not None:
        return exit_code(answer.result, fail_on)
    assert isinstance(answer.error, OptvetError)
    return answer.error.exit_code


@dataclass(frozen=True)
class _VetScreen:
    """Shows answers on a terminal."""

    terminal: Terminal
    request: VetRequest
    quiet: bool
    silent: bool
    explain: bool

    def show(self, result: VetResult) -> None:
        """One model's screen."""
        self.show_line(result)
        if self.silent or self.quiet:
            return
        self.terminal.show(subject(result, self.request))
        self.terminal.show(*to_use(result, self.request), soft_wrap=True)
        self.terminal.show(*first_part(result, self.request))
        self.terminal.show(next_command(result, self.request), soft_wrap=True)
        self.terminal.show(*known_faults(result))
        self.terminal.show(*details(result, self.request, explain=self.explain))
        self.terminal.show(*code_to_paste(result, self.request), soft_wrap=True)

    def show_line(self, result: VetResult, *, several: bool = False) -> None:
        """One model's verdict on a line; with the optimizer if there are ``several``."""
        if not self.silent:
            about = result.optimizer.name if several else ""
            line = headline(result, about=about, fail_on=self.request.fail_on)
            self.terminal.show(line, soft_wrap=True)

    def show_use(self, result: VetResult, codes: set[str]) -> None:
        """Show what to use instead of a pipeline at fault; code only if it is not in ``codes``."""
        at_fault = result.safe_pipeline != result.optimizer.pipeline or result.verdict == "faulty"
        if at_fault and not (self.silent or self.quiet):
            self.terminal.show(*to_use(result, self.request), soft_wrap=True)
            if result.safe_code not in codes:
                self.terminal.show(*code_to_paste(result, self.request), soft_wrap=True)
            codes.add(result.safe_code)

    @staticmethod
    def names_optimizers(requests: Sequence[VetRequest]) -> bool:
        """Whether lines and tables must say which optimizer they are about."""
        return len({request.optimizer for request in requests}) > 1

    def show_table(self, answers: list[ModelAnswer]) -> None:
        """Show the findings of several models."""
        if not (self.silent or self.quiet):
            several = self.names_optimizers([a.request for a in answers])
            rows = [(a.request.model, str(a.request.optimizer), a.document()) for a in answers]
            self.terminal.show(folder_table(rows, several))
            results = [(a.request.model.rpartition("/")[2], a.result) for a in answers if a.result]
            self.terminal.show(*distinct(results))
