"""Tables of a stored campaign: document ``optvet.campaign-tables/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.records.report_table import ReportTable


class CampaignTables(Record):
    """What a campaign found over many models, as tables; ``study`` names whose they are, if any."""

    schema_: Literal["optvet.campaign-tables/1"] = Field("optvet.campaign-tables/1", alias="schema")
    campaign: str
    number: int
    study: str | None
    tables: list[ReportTable]
