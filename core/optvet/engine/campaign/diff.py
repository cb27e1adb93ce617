"""Compares two campaigns, such as of two releases of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optvet.engine.bundle.layout import ISSUE
from optvet.engine.campaign.artifacts import artifacts, content_of
from optvet.engine.campaign.display_names import short_model
from optvet.engine.campaign.documents import groups_of, summary_of_trial
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
from optvet.spec.campaign import ReleaseRequest
from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.records.campaign import Baseline, CampaignDiff, ChangedVerdict, FindingGroup


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
    a: tuple[CampaignStore, StoredCampaign],
    b: tuple[CampaignStore, StoredCampaign],
    releases: tuple[str, str] = ("", ""),
    known: Baseline | None = None,
) -> CampaignDiff:
    """The differences of the second campaign from the first.

    Jobs correspond if their requests are equal, except for the folder of the model and the limits
    of time and memory; and, where ``releases`` names one for each side, for the release.

    Args:
        a: A store and a campaign of it.
        b: The other one, which may be the same.
        releases: The release that is looked at of either side, as the file or the index spells it;
            empty for all.
        known: Findings that are not new, though only the second campaign has them.

    Raises:
        UsageError: A campaign has no job about that release.
    """
    before, after = _side(*a, releases[0]), _side(*b, releases[1])
    shared = [cell for cell in before.trials if cell in after.trials]
    was = _groups(before, {before.trials[cell].key for cell in shared})
    now = _groups(after, {after.trials[cell].key for cell in shared})
    old, new = before.versions, after.versions
    accepted = was.keys() | {entry.fingerprint for entry in (known.findings if known else ())}
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
        new=[group for fingerprint, group in now.items() if fingerprint not in accepted],
        fixed=[group for fingerprint, group in was.items() if fingerprint not in now],
        same=len(was.keys() & now.keys()),
        verdicts=[
            changed
            for cell in shared
            if (changed := _compare_verdicts(before.trials[cell], after.trials[cell])) is not None
        ],
    )


def issue_texts(
    b: tuple[CampaignStore, StoredCampaign], found: CampaignDiff
) -> Mapping[str, bytes]:
    """The text of an issue for each new finding, by its fingerprint, out of its bundle.

    It ends with the version that does not have the finding, where the two campaigns differ in it.

    Raises:
        UsageError: A bundle is not in the store.
    """
    store, campaign = b
    wanted = {group.fingerprint for group in found.new}
    texts: dict[str, bytes] = {}
    for row in findings(store, campaign):
        if row.fingerprint not in wanted or row.fingerprint in texts:
            continue
        for file in artifacts(store, row.trial, row.number):
            if file.name == ISSUE:
                since = _since(row.optimizer, found.versions)
                texts[row.fingerprint] = content_of(file) + since.encode()
    if missing := sorted(wanted - texts.keys()):
        raise UsageError(
            f"store {store.path}: there is no bundle of finding {missing[0][:8]}, whose text would "
            "be the issue; say bundles = true in the campaign file, then run again"
        )
    return texts


def _since(optimizer: str, versions: Mapping[str, Sequence[str]]) -> str:
    before, after = versions.get(optimizer, ("", ""))
    if not before or not after:
        return ""
    return (
        f"\n## Since when\n\n{optimizer} {before} does not show it; {optimizer} {after} does. Both "
        "were asked about the same models.\n"
    )


def _side(store: CampaignStore, campaign: StoredCampaign, release: str) -> _CampaignSide:
    judged: dict[str, JobResult] = {}
    known: dict[str, None] = {}
    for trial in trials(store, campaign):
        names = _names_of(trial)
        known |= dict.fromkeys(names)
        judged_here = trial.verdict is not None and trial.error is None
        if (not release or release in names) and judged_here:
            judged[_question_of(trial, release)] = trial
    if release and release not in known:
        raise UnknownName("release", release, known, f"(of campaign {campaign.name!r})")
    counted = frozenset(campaign.settings.get("fail_on", ()))
    name = f"{campaign.name}@{release}" if release else campaign.name
    return _CampaignSide(name, judged, list(findings(store, campaign)), counted)


def _names_of(trial: JobResult) -> tuple[str, ...]:
    """How the release of a trial can be named; nothing for the installed one."""
    request = trial.request
    if not isinstance(request, ReleaseRequest):
        return ()
    return request.wanted, request.release, f"{request.package}=={request.release}"


def _question_of(trial: JobResult, release: str) -> str:
    """The question of a trial, without the folder of its model.

    What "latest" and a folder of wheels stand for changes from night to night, so the release is
    what the file says, unless the user names one.
    """
    request = trial.request
    named = request.model_copy(update={"model": short_model(request.model)})
    return key(question(named, LIMITS | {"release", "wheels"} | ({"wanted"} if release else set())))


def _groups(side: _CampaignSide, keys: set[str]) -> dict[str, FindingGroup]:
    found = (row for row in side.found if row.trial in keys)
    groups = groups_of(found, set(side.counted))
    return {group.fingerprint: group for group in groups if group.counts}


def _compare_verdicts(before: JobResult, after: JobResult) -> ChangedVerdict | None:
    was, now = str(before.verdict), str(after.verdict)
    if after.kind == "precision":
        # How long the list is, is the answer.
        was, now = summary_of_trial(before).outcome, summary_of_trial(after).outcome
    if was == now:
        return None
    return ChangedVerdict(
        model=after.model,
        optimizer=after.optimizer,
        pipeline=after.pipeline,
        before=was,
        after=now,
    )
