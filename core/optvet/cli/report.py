"""``optvet report``: a stored campaign as a document."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from optvet.cli.campaign_options import StoreArgument, Which
from optvet.cli.campaign_tables import Known, StudyOption, study_of
from optvet.cli.options import Debug
from optvet.cli.output import check_file, fitting_reporter, write_document
from optvet.cli.terminal import Terminal

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Format: the name of a reporter.",
        show_default="by the suffix of FILE, else markdown",
    ),
]
Out = Annotated[
    str,
    typer.Option("--out", metavar="FILE|-", help="Where to write it; `-` is stdout."),
]


def command(
    context: typer.Context,
    store: StoreArgument,
    which: Which = "",
    format: Format = None,
    out: Out = "-",
    study: StudyOption = None,
    known: Known = None,
    debug: Debug = False,
) -> None:
    """Write a report of a campaign, for people or for machines."""
    from optvet.engine.campaign import find_campaign, open_store
    from optvet.engine.campaign.report import files_of, render_report, report_of
    from optvet.engine.campaign.tables import charts_of, read_tracked, tables_of
    from optvet.engine.convert.chain import reachable_formats
    from optvet.engine.discovery import Plugins
    from optvet.engine.models.selectors import models_with_tag

    terminal, plugins = context.ensure_object(Terminal), Plugins()
    reporter = plugins.reporter(format or fitting_reporter(plugins, out))
    check_file("--out", out, "text")
    entries = None if known is None else read_tracked(known)
    with open_store(store, to_read=True) as opened:
        campaign = find_campaign(opened, which)
        tables = tables_of(opened, campaign, known=entries)
        if study is not None:
            theirs = models_with_tag(plugins, study)
            reach = partial(reachable_formats, plugins)
            chosen_study = study_of(study, plugins)
            tables += tables_of(opened, campaign, study=chosen_study, theirs=theirs, reach=reach)
        report = report_of(opened, campaign, tables, charts_of(opened, campaign))
        document = render_report(reporter, report, lambda finding: files_of(opened, finding))
    write_document(terminal, out, document.removesuffix("\n"))
    if out != "-":
        terminal.show(f"wrote {out}", soft_wrap=True)
