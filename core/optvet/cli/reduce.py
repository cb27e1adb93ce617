"""``optvet reduce``: the smallest model for which a command of the user's still exits 0.

Here too: what ``optvet vet --reduce --out`` does with its findings.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optvet.cli.errors import CLEAN, UNDECIDED, Interrupted
from optvet.cli.options import CacheDir, Debug, cache_folder, parse_seconds
from optvet.cli.output import check_file
from optvet.cli.render import count, text
from optvet.cli.terminal import Terminal
from optvet.spec.errors import UsageError
from optvet.spec.files import write_file
from optvet.spec.records.vet import VetResult
from optvet.spec.request import VetRequest

if TYPE_CHECKING:
    from optvet.engine.bundle import Bundle
    from optvet.engine.vet.session import VetSession
    from optvet.spec.records import Finding

BUNDLES = Path("optvet-bundles")


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="An ONNX file, or `zoo:NAME`.", show_default=False),
    ],
    check: Annotated[
        str,
        typer.Option(
            metavar="'COMMAND {model}'",
            help="Exits 0 while a model is still interesting; `{model}` is its path.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the reduced model.", show_default=False)
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Commands at a time.")] = 1,
    timeout: Annotated[
        Any,
        typer.Option(
            parser=parse_seconds,
            metavar="SECONDS",
            help="Limit of one command; a command that exceeds it counts as failed.",
        ),
    ] = "60",
    max_checks: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many commands.")
    ] = None,
    cache_dir: CacheDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: Debug = False,
) -> None:
    """Reduce a model to the smallest one for which a command still exits 0.

    Ctrl-C ends it and keeps the smallest model so far.
    """
    from optvet.engine.discovery import Plugins
    from optvet.engine.models.sources import resolve_model
    from optvet.engine.reduce.check_command import parse_command, reduce_by_command
    from optvet.engine.reduce.reduction_order import Budget
    from optvet.engine.work.written import refuse_to_lose, remember

    terminal = context.ensure_object(Terminal)
    words = parse_command(check)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: expected a file in a folder that exists")
    check_file("--out", str(out), "model")
    root = cache_folder(cache_dir)
    refuse_to_lose("--out", out, cache_dir=root)
    models = resolve_model(model, Plugins(), root)
    if len(models) != 1:
        raise UsageError(f"{model}: {len(models)} models; reduce them one at a time")
    with terminal.progress(quiet) as progress:
        reduction = reduce_by_command(
            models[0].load(),
            words,
            timeout_s=timeout,
            jobs=jobs,
            budget=Budget(checks=max_checks),
            progress=progress,
        )
    data = reduction.model.SerializeToString(deterministic=True)
    write_file(out, data, advice="choose another file")
    remember([out], root)
    before, after = reduction.nodes
    end = "" if reduction.complete else "; stopped early"
    line = f"{count(before, 'node')} → {after:,} after {count(reduction.checks, 'check')}{end}"
    terminal.show(text(f"{out}  {line}"), soft_wrap=True)
    if reduction.end == "interrupted":
        raise Interrupted(f"{out} is the smallest model so far")
    raise typer.Exit(CLEAN if reduction.complete else UNDECIDED)


# --- for optvet vet -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bundler:
    """Writes the bundles that ``optvet vet`` was asked for, and shows them."""

    terminal: Terminal
    quiet: bool
    silent: bool

    def write(
        self,
        request: VetRequest,
        result: VetResult,
        session: VetSession | None,
        *,
        brief: bool = False,
    ) -> VetResult:
        """A bundle per finding of ``result``; the result with their fingerprints."""
        from optvet.engine import bundle as bundling
        from optvet.engine.discovery import Plugins
        from optvet.engine.models.large import PROTOBUF_LIMIT
        from optvet.report.graph_svg import draw

        if result.model.size_bytes > PROTOBUF_LIMIT:
            words = "no bundle is written: it would hold the model in one message of 2 GiB or less"
            if not self.silent:
                self.terminal.show(text(words))
            return result
        interrupted = False
        refused: list[tuple[Finding, str]] = []
        started = time.monotonic()
        with self.terminal.progress(self.quiet) as progress:
            try:
                bundles: Sequence[Bundle] = bundling.write_bundles(
                    result,
                    request,
                    request.out or BUNDLES,
                    Plugins() if session is None else session.plugins,
                    session=session,
                    draw=draw,
                    progress=progress,
                    refused=lambda finding, reason: refused.append((finding, reason)),
                )
            except bundling.BundlesInterrupted as end:
                bundles, interrupted = end.bundles, True
        if not self.silent:
            for written in bundles:
                _show(self.terminal, written, self.quiet or brief)
            for finding, reason in refused:
                words = f"no bundle for {finding.requirement or finding.symptom}: {reason}"
                self.terminal.show(text(words, "yellow"), soft_wrap=True)
            if bundles:
                took = f"{count(len(bundles), 'bundle')} in {time.monotonic() - started:.1f} s"
                self.terminal.show(text(f"reduced   {took}", "dim"))
        if interrupted:
            raise Interrupted(f"{bundles[-1].path} holds the smallest model so far")
        return bundling.with_fingerprints(result, bundles)


def _show(terminal: Terminal, bundle: Bundle, quiet: bool) -> None:
    before, after = bundle.record.nodes
    sizes = f"{count(before, 'node')} → {after:,}" if before != after else count(after, "node")
    known = ", known already" if bundle.known else ""
    terminal.show(text(f"bundle    {bundle.path} ({sizes}{known})"), soft_wrap=True)
    if bundle.note:
        terminal.show(text(f"          {bundle.note}", "yellow"), soft_wrap=True)
    if quiet or after > 12:
        return
    for label, graph in (("before", bundle.before), ("after", bundle.after)):
        if graph:
            # Padded as a block, long lines would be cut off at the edge of the screen.
            lines = textwrap.indent(graph.rstrip(), "    ")
            terminal.show(text(f"  {label}", "dim"), text(lines), soft_wrap=True)
