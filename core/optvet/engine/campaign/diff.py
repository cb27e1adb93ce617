"""Compares two campaigns, such as of two releases of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optvet.engine.campaign.display_names import short_model
from optvet.engine.campaign.documents import groups_of
from optvet.engine.campaign.plan import LIMITS, question
from optvet.engine.campaign.results import (
    JobResult,
    StoredCampaign,
    StoredFinding,
    findings,
    trials,
)
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.work.cache.cache_key import key
from optvet.spec.records.campaign import CampaignDiff, ChangedVerdict, FindingGroup


@dataclass(frozen=True)
class _CampaignSide:
    """One of the two campaigns: its trials with results, by their question."""

    name: str
    trials: Mapping[str, JobResult]
    found: list[StoredFinding]
    counted: frozenset[str]

    @property
    def versions(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for trial in self.trials.values():
            found |= trial.versions
        return found


def diff_of(
    a: tuple[CampaignStore, StoredCampaign], b: tuple[CampaignStore, StoredCampaign]
) -> CampaignDiff:
    """The differences of the second campaign from the first.

    Jobs correspond if their requests are equal, except for the folder of the model and the limits
    of time and memory.
    """
    before, after = _side(*a), _side(*b)
    shared = [cell for cell in before.trials if cell in after.trials]
    was = _groups(before, {before.trials[cell].key for cell in shared})
    now = _groups(after, {after.trials[cell].key for cell in shared})
    old, new = before.versions, after.versions
    return CampaignDiff(
        schema="optvet.campaign-diff/1",
        a=before.name,
        b=after.name,
        shared=len(shared),
        only_a=len(before.trials) - len(shared),
        only_b=len(after.trials) - len(shared),
        versions={
            name: [old.get(name, ""), new.get(name, "")]
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        },
        new=[group for fingerprint, group in now.items() if fingerprint not in was],
        fixed=[group for fingerprint, group in was.items() if fingerprint not in now],
        same=len(was.keys() & now.keys()),
        verdicts=[
            changed
            for cell in shared
            if (changed := _compare_verdicts(before.trials[cell], after.trials[cell])) is not None
        ],
    )


def _side(store: CampaignStore, campaign: StoredCampaign) -> _CampaignSide:
    judged: dict[str, JobResult] = {}
    for trial in trials(store, campaign):
        if trial.verdict not in (None, "error"):
            judged[_question_of(trial)] = trial
    counted = frozenset(campaign.settings.get("fail_on", ()))
    return _CampaignSide(campaign.name, judged, list(findings(store, campaign)), counted)


def _question_of(trial: JobResult) -> str:
    """The question of a trial, without the folder of its model."""
    request = trial.request
    named = request.model_copy(update={"model": short_model(request.model)})
    return key(question(named, LIMITS))


def _groups(side: _CampaignSide, keys: set[str]) -> dict[str, FindingGroup]:
    found = (row for row in side.found if row.trial in keys)
    groups = groups_of(found, set(side.counted))
    return {group.fingerprint: group for group in groups if group.counts}


def _compare_verdicts(before: JobResult, after: JobResult) -> ChangedVerdict | None:
    if before.verdict == after.verdict:
        return None
    return ChangedVerdict(
        model=after.model,
        optimizer=after.optimizer,
        pipeline=after.pipeline,
        before=str(before.verdict),
        after=str(after.verdict),
    )
