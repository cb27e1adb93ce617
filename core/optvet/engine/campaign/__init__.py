"""Campaigns: a file lists models and optimizers, and a store keeps the result of each job.

::

    campaign file ─> plan: jobs, each under a key of its content ─> store
    store ─> claim ─> worker: JobRequest → JobAnswered ─> answer, findings, metrics ─> store

Reports read a store by ``open_store``, ``find_campaign``, ``trials``, ``findings`` and ``metrics``,
and the files of a finding by ``artifacts``.
"""

from optvet.engine.campaign.artifacts import FindingFile, artifacts, collect_garbage, write_bundle
from optvet.engine.campaign.diff import diff_of
from optvet.engine.campaign.digests import Digests, planned_store
from optvet.engine.campaign.documents import status_of, summary_of
from optvet.engine.campaign.export import export
from optvet.engine.campaign.file import CampaignSource, read_campaign
from optvet.engine.campaign.plan import Plan, plan_campaign, requests_of
from optvet.engine.campaign.rescue import Rescued, rescue_store
from optvet.engine.campaign.results import (
    JobResult,
    Metric,
    StoredCampaign,
    StoredFinding,
    campaigns,
    find_campaign,
    findings,
    metrics,
    states,
    stored_requests,
    trial,
    trials,
)
from optvet.engine.campaign.run import Event, run_campaign, run_on_executor
from optvet.engine.campaign.store import CampaignStore, open_store
from optvet.engine.campaign.store_answers import add_campaign
from optvet.engine.models.selectors import expand_models

__all__ = [
    "CampaignSource",
    "CampaignStore",
    "Digests",
    "Event",
    "FindingFile",
    "JobResult",
    "Metric",
    "Plan",
    "Rescued",
    "StoredCampaign",
    "StoredFinding",
    "add_campaign",
    "artifacts",
    "campaigns",
    "collect_garbage",
    "diff_of",
    "expand_models",
    "export",
    "find_campaign",
    "findings",
    "metrics",
    "open_store",
    "plan_campaign",
    "planned_store",
    "read_campaign",
    "requests_of",
    "rescue_store",
    "run_campaign",
    "run_on_executor",
    "states",
    "status_of",
    "stored_requests",
    "summary_of",
    "trial",
    "trials",
    "write_bundle",
]
