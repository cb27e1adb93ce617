"""Tables of stored campaigns: findings over many models; studies add tables of their own.

Each table is a function of trials, as ``results`` reads them from a store. The terminal and all
reports show the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from onnx import ModelProto

from optvet.engine.campaign.graphs import graph_of
from optvet.engine.campaign.results import JobResult, StoredCampaign, campaigns, trials
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.campaign.tables.answer_files import KeptAnswers, read_answers
from optvet.engine.campaign.tables.conversion_tables import (
    ConversionRow,
    Reach,
    blame,
    conversion_for_studies,
    converted_from,
    converted_of,
    funnel,
    tables_of_conversions,
)
from optvet.engine.campaign.tables.conversion_tables import kinds as kinds_of_conversions
from optvet.engine.campaign.tables.failing import only_failing, sequences_in
from optvet.engine.campaign.tables.level_charts import charts
from optvet.engine.campaign.tables.over_many import (
    against_each_other,
    each_model,
    each_pass,
    issues,
    kinds,
    operator_sets,
    releases,
)
from optvet.engine.campaign.tables.precision_table import precision_table
from optvet.engine.campaign.tables.rows import row_of
from optvet.engine.campaign.tracker import KnownEntry, read_tracked
from optvet.engine.contract import checked_calls
from optvet.spec.records.charts import Chart
from optvet.spec.records.report_table import ReportTable
from optvet.spec.studies import Study, StudyData, TrialRow

__all__ = [
    "TrialRow",
    "charts_of",
    "read_answers",
    "read_tracked",
    "row_of",
    "tables_of",
    "tables_of_answers",
    "tables_of_findings",
]


def tables_of(
    store: CampaignStore,
    campaign: StoredCampaign,
    *,
    study: Study | None = None,
    known: Sequence[KnownEntry] | None = None,
    theirs: Sequence[str] = (),
    reach: Callable[[], Reach] | None = None,
    kept: KeptAnswers | None = None,
) -> list[ReportTable]:
    """Tables of a campaign; tables that compare releases cover all campaigns of its store.

    Args:
        store: An open store.
        campaign: One of its campaigns.
        study: The study whose tables to make; None for the tables of findings.
        known: Known findings; see ``tracker``.
        theirs: References of the models that the study ran.
        reach: Gives formats that installed converters lead to; see ``reachable_formats``.
        kept: Answers of other commands, for a study.
    """
    rows = [row_of(trial) for trial in _judgements(store, campaign)]
    vets = [row for row in rows if row.kind == "vet"]
    if study is not None:
        conversions = [
            (row, graph_of(store, row.reference, row.digest))
            for row in converted_of(trials(store, campaign))
        ]
        return _make_tables(study, StudyData(vets, theirs), conversions, reach, kept)
    others = {row.key: row for row in rows}
    for other in campaigns(store):
        if other.id != campaign.id:
            for trial in _judgements(store, other):
                if trial.key not in others:
                    others[trial.key] = row_of(trial)
    searches = [t for t in trials(store, campaign) if t.kind == "precision"]
    tables = tables_of_findings(rows, list(others.values()), known) if rows or not searches else []
    found = only_failing(vets, _sequences(store, vets))
    tables += [found] if found is not None else []
    answers = [search.precision for search in searches if search.precision is not None]
    answers += kept.precisions if kept is not None else []
    without = [search for search in searches if search.precision is None]
    if answers or without:
        tables.append(precision_table(answers, without))
    if len(vets) < len(rows):
        converted = converted_of(trials(store, campaign))
        tables += [funnel(converted), kinds_of_conversions(converted), blame(converted)]
    return tables


def _judgements(store: CampaignStore, campaign: StoredCampaign) -> Iterator[JobResult]:
    """The jobs that judge an optimizer or converter; a search for precision judges none."""
    return (trial for trial in trials(store, campaign) if trial.kind != "precision")


def tables_of_answers(
    study: Study | None,
    kept: KeptAnswers,
    *,
    theirs: Sequence[str] = (),
    reach: Callable[[], Reach] | None = None,
) -> list[ReportTable]:
    """The tables of a study, of answers in files alone; without one, models × precisions."""
    if study is None:
        return [precision_table(kept.precisions)]
    return _make_tables(study, StudyData((), theirs), [], reach, kept)


def _make_tables(
    study: Study,
    data: StudyData,
    stored: Sequence[tuple[ConversionRow, ModelProto | None]],
    reach: Callable[[], Reach] | None,
    kept: KeptAnswers | None,
) -> list[ReportTable]:
    kept = kept or KeptAnswers()
    found = [*stored, *((row, None) for row in converted_from(kept.conversions))]
    rows = [row for row, _ in found]
    general: list[ReportTable] = []
    if rows or kept.repairs:
        general = tables_of_conversions(rows, reach() if reach else None, [*kept.repairs.values()])
    whole = replace(
        data,
        conversions=[conversion_for_studies(row, graph) for row, graph in found],
        repairs=kept.repairs,
        comparisons=kept.comparisons,
        benches=kept.benches,
        general=general,
    )
    call = partial(study.tables, whole)
    return checked_calls.list_items("study", study, "tables", call, ReportTable)


def _sequences(
    store: CampaignStore, rows: Sequence[TrialRow]
) -> dict[str, frozenset[tuple[str, ...]]]:
    """Operator sequences by digest, of the models whose files are as they were."""
    if not any(row.faulty for row in rows):
        return {}
    models = {row.digest: row.source for row in rows if row.judged}
    graphs = ((digest, graph_of(store, source, digest)) for digest, source in models.items())
    return {digest: sequences_in(graph) for digest, graph in graphs if graph is not None}


def charts_of(store: CampaignStore, campaign: StoredCampaign) -> list[Chart]:
    """Charts of a campaign's variants: what models are made of, and where they are executed."""
    return charts([row_of(trial) for trial in _judgements(store, campaign)])


def tables_of_findings(
    rows: Sequence[TrialRow],
    all_rows: Sequence[TrialRow],
    known: Sequence[KnownEntry] | None = None,
) -> list[ReportTable]:
    """Findings over many models; ``all_rows`` includes the rows of earlier campaigns."""
    models = {row.digest for row in rows}
    comparable = [row for row in all_rows if row.digest in models]
    tables = [
        kinds(rows),
        issues(rows, known),
        releases(all_rows),
        operator_sets(rows) if any(row.kind == "vet" for row in rows) else None,
        each_model(rows),
        *each_pass(rows),
        against_each_other(comparable),
    ]
    return [table for table in tables if table is not None]
