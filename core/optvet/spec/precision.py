"""What can be asked of ``precision``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optvet.spec.request import (
    Budget,
    InputOptions,
    LimitOptions,
    Request,
    Required,
    Requirements,
    Texts,
    VetRequest,
    option,
)

_HOW, _INPUTS, _LIMITS, _ANSWER = "How to search", "Inputs", "Limits and cache", "The answer"
_REQUIRED = "Requirements"
_OWN = frozenset(
    (
        "to",
        "keep",
        "rank",
        "max_trials",
        "out",
        "optimizer",
        "accumulate",
        "sum_block",
        "recipe",
        "measure",
    )
)
"""Fields that ``VetRequest`` lacks, or has in another sense."""


class _HowToSearch(Request):
    """How the nodes to keep are searched."""

    model: str
    """An ONNX file of float32, or `SOURCE:NAME` such as `zoo:resnet50`."""

    to: str = option("fp16", group=_HOW, metavar="PRECISION")
    """What to convert to: `fp16`, `int8`, or what else an installed optimizer converts to."""
    optimizer: str | None = option(
        None, group=_HOW, metavar="NAME", shown="the first that converts to it"
    )
    """Optimizer that converts: its passes are parts of the model."""
    optimizer_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the optimizer; `by=operator`, `by=layer` or `by=block` keeps whole groups."""
    keep: Texts = option((), group=_HOW, metavar="NODE")
    """Judge this list instead of searching for one; may be given several times."""
    rank: bool = option(False, group=_HOW)
    """Convert every node alone too, and rank all by the loss."""
    max_trials: int = option(1000, group=_HOW, ge=4, le=1_000_000)
    """Maximum number of lists to try; the answer then says that it may not be minimal."""
    measure: bool = option(False, group=_HOW)
    """Time the mixed model beside the original, under the runtime's own defaults."""
    accumulate: str = option("fp32", group=_HOW, metavar="TYPE")
    """Type in which sums inside of a node are accumulated: `fp32`, or the one that `--to` names,
    such as `fp16`; then they are emulated, as far as the answer says."""
    sum_block: int = option(8, group=_HOW, ge=1, le=1 << 20)
    """Products that are added in float32 before the running sum is rounded, where `accumulate` is
    a half type: 8 as tensor cores do, 1 for one after the other."""
    runtime: str | None = option(
        None, group=_HOW, metavar="NAME", shown="one that runs the optimizer's format"
    )
    """What runs the models."""
    runtime_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the runtime."""
    comparator: str | None = option(
        None, group=_HOW, metavar="NAME", shown="the one that fits the model best"
    )
    """Comparator that has the metrics of the requirements."""
    comparator_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the comparator."""


class PrecisionRequest(LimitOptions, InputOptions, Required, _HowToSearch):
    """One question: which nodes must stay as they are, for the rest to be less precise?"""

    require: Requirements = option((), group=_REQUIRED, metavar="[OUTPUT:]METRIC>=N")
    """A bound on a metric over all samples, such as `top1_agreement>=0.99`; without any, that of
    the model's record, else the optimizer's own."""
    budget: Budget = option(None, group=_LIMITS, metavar="TIME", shown="none")
    """Wall-clock limit of the whole answer, such as 60, 90s or 10m; there is none after that."""

    recipe: str | None = option(None, group=_ANSWER, metavar="NAME")
    """The form of the list that the command prints alone, such as `polygraphy` or `autocast`."""
    out: Path | None = option(None, group=_ANSWER, metavar="FILE.onnx", also="--save")
    """Write the mixed model to this file, if it meets the requirements as it lies there, and
    `precision.toml` beside it, which `--config` reads to judge the same list again."""

    @classmethod
    def like(cls, request: VetRequest, precision: str) -> PrecisionRequest:
        """The question that a vet of an optimizer which converts to ``precision`` leads to."""
        shared = set(cls.model_fields) & set(VetRequest.model_fields) - {"out"}
        return cls(to=precision, **{name: getattr(request, name) for name in sorted(shared)})

    def as_vet(self, optimizer: str) -> VetRequest:
        """The request of a vet with the same model, inputs and requirements."""
        shared = {name: getattr(self, name) for name in type(self).model_fields if name not in _OWN}
        return VetRequest(**shared, optimizer=optimizer, strategy="none")
