"""Baselines: findings accepted by fingerprint, and reported as fixed when they disappear."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from optvet.engine.campaign.display_names import short_model
from optvet.spec.errors import InputError
from optvet.spec.parsing import read_json
from optvet.spec.records.campaign import Baseline, CampaignSummary, FindingGroup, KnownFinding
from optvet.spec.records.reading import read_document
from optvet.spec.validation_words import words_of


def read_baseline(path: Path) -> Baseline:
    """The baseline in the file ``path``.

    Raises:
        InputError: The file cannot be read or is not a baseline.
    """
    document = read_json(path, "listing")
    try:
        if not isinstance(document, dict):
            raise InputError(f"{path} is no baseline: expected an object")
        return read_document(Baseline, document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path} is no baseline: {place}: {words_of(first)}; write one with: "
            "optvet campaign export STORE --format baseline --out FILE"
        ) from error


def baseline_of(found: CampaignSummary) -> Baseline:
    """The baseline of all findings of a campaign."""
    wanted = [group for group in found.findings if group.counts or group.known]
    return Baseline(
        schema="optvet.baseline/1",
        campaign=found.name,
        findings=[
            KnownFinding(
                fingerprint=group.fingerprint,
                optimizer=group.optimizer,
                symptom=group.symptom,
                culprit=group.culprit,
                models=sorted({short_model(model) for model in group.models}),
            )
            for group in wanted
        ],
    )


def against(found: CampaignSummary, baseline: Baseline) -> CampaignSummary:
    """The summary with the findings of ``baseline`` marked as known.

    A known finding is fixed if no job finds it, and all jobs that found it before have a result.
    """
    known = {entry.fingerprint for entry in baseline.findings}
    present = {group.fingerprint for group in found.findings}
    gone = [entry for entry in baseline.findings if entry.fingerprint not in present]
    fixed = [entry for entry in gone if _is_judged(entry, found)]
    return found.model_copy(
        update={
            "findings": [_mark(group, known) for group in found.findings],
            "fixed": fixed,
            "unseen": [entry for entry in gone if entry not in fixed],
        }
    )


def _mark(group: FindingGroup, known: set[str]) -> FindingGroup:
    if group.fingerprint not in known:
        return group
    return group.model_copy(update={"known": True, "counts": False})


def _is_judged(entry: KnownFinding, found: CampaignSummary) -> bool:
    """Whether every job that could find it has a result."""
    jobs = [
        trial
        for trial in found.trials
        if trial.optimizer == entry.optimizer and short_model(trial.model) in entry.models
    ]
    judged = ("clean", "drift", "faulty", "right")
    return bool(jobs) and all(trial.verdict in judged for trial in jobs)
