"""What can be asked of ``repair``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optvet.spec.convert import ConversionRequest, ConvertRequest
from optvet.spec.request import option

_HOW, _ANSWER = "How to repair", "The answer"


class RepairRequest(ConversionRequest):
    """One question: which edits make this conversion right?"""

    optimizer: str | None = option(None, group=_HOW, metavar="NAME")
    """Repair the result of this optimizer on an ONNX model, instead of using `--via`."""
    pipeline: str = option("default", group=_HOW, metavar="PASSES")
    """Its passes, or the name of one of its pipelines."""
    optimizer_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the optimizer."""
    apply: Path | None = option(None, group=_HOW, metavar="PATCH.json")
    """Only apply this patch of an earlier repair; the source must be an ONNX model."""
    tries: int = option(300, group=_HOW, ge=1, le=100000)
    """Maximum number of models to try."""
    out: Path = option(Path("repaired"), group=_ANSWER, metavar="DIR")
    """Folder for `repaired.onnx` and `patch.json`."""

    def conversion(self) -> ConvertRequest:
        """The conversion that is repaired."""
        return ConvertRequest(**{n: getattr(self, n) for n in ConversionRequest.model_fields})
