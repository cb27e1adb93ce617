"""The report as JSON, for programs: document ``optvet.report/1``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from optvet.plugin import Reporter, hookimpl

if TYPE_CHECKING:
    from optvet.plugin import CampaignReport, FindingFiles


class JsonReporter:
    """The whole report as JSON."""

    name = "json"
    suffix = ".json"

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """The document; ``optvet schema report`` prints its schema."""
        return f"{report.to_json()}\n"


@hookimpl
def optvet_reporters() -> Iterable[Reporter]:
    """The reporter of this module."""
    return [JsonReporter()]
