"""The tables of DiTOX (Louloudakis and Rajan, arXiv:2505.01892) for a stored campaign.

The study ran models of the ONNX Model Hub before and after ONNX Optimizer, with all passes and with
each alone. Its figures (``published.toml``) stand beside ours: of the same model and operator set
where the name in the catalogue is the study's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optvet.plugin import ReportTable, Study, StudyData, hookimpl
from optvet_ditox.answers import detection, labels, text
from optvet_ditox.counts import (
    blamed,
    by_pass,
    by_symptom,
    by_task,
    different_models,
    outcomes,
    shares,
)
from optvet_ditox.issues import findings, published_findings
from optvet_ditox.passes import each_pass


class Ditox:
    """The study's tables."""

    name = "ditox"
    description = "DiTOX (arXiv:2505.01892): ONNX Optimizer on the models of the ONNX Model Hub"

    def tables(self, data: StudyData) -> Sequence[ReportTable]:
        """The study's tables, of the trials of one campaign."""
        rows = data.rows
        return [
            shares(rows),
            findings(rows),
            published_findings(rows),
            labels(rows),
            detection(rows),
            text(rows),
            outcomes(rows, data.models),
            by_symptom(rows),
            by_task(rows),
            different_models(rows),
            by_pass(rows),
            each_pass(rows),
            blamed(rows),
        ]


@hookimpl
def optvet_studies() -> Iterable[Study]:
    """The study."""
    return [Ditox()]
