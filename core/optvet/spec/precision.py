"""What can be asked of ``precision``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from optvet.spec.request import (
    Budget,
    OnBad,
    Requirements,
    Texts,
    Tolerances,
    VetRequest,
    bytes_of,
    option,
    seconds_of,
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


class PrecisionRequest(BaseModel):
    """One question: which nodes must stay as they are, for the rest to be less precise?"""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

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

    require: Requirements = option((), group=_REQUIRED, metavar="[OUTPUT:]METRIC>=N")
    """A bound on a metric over all samples, such as `top1_agreement>=0.99`; without any, that of
    the model's record, else the optimizer's own."""
    rtol: Tolerances = option((), group=_REQUIRED, metavar="[OUTPUT:]N")
    """Relative difference from the original that every element may have, beside `atol`."""
    atol: Tolerances = option((), group=_REQUIRED, metavar="[OUTPUT:]N")
    """Absolute difference from the original that every element may have, beside `rtol`."""

    dataset: Texts = option(
        (), group=_INPUTS, metavar="NAME[:PATH]", shown="that of the model's record, else random"
    )
    """Where inputs come from; may be given several times."""
    user_model: str | None = option(None, group=_INPUTS, metavar="FILE:CLASS")
    """A `UserModel`: inputs, score and comparison in one class. optvet executes its file, which
    needs `trust`; for a registered one, give its name."""
    dataset_options: dict[str, Any] = option({}, group=_INPUTS, metavar="KEY=VALUE")
    """Options of the datasets that have them."""
    start: int = option(0, group=_INPUTS, ge=0)
    """Samples to skip at the start of each dataset."""
    limit: int | None = option(None, group=_INPUTS, ge=1)
    """Maximum number of samples per dataset."""
    shuffle: bool = option(False, group=_INPUTS)
    """Take samples in random order."""
    on_bad: OnBad = option("refuse", group=_INPUTS)
    """What to do with unreadable data: report an error, or skip and count it."""
    seed: int = option(0, group=_INPUTS, ge=0)
    """Seed of all random choices."""

    jobs: int | None = option(None, group=_LIMITS, ge=1, shown="one per processor, at most 8")
    """Worker processes at a time."""
    timeout: Annotated[float, BeforeValidator(seconds_of)] = option(
        120.0, group=_LIMITS, metavar="SECONDS"
    )
    """Wall-clock limit of one step, seconds."""
    budget: Budget = option(None, group=_LIMITS, metavar="TIME", shown="none")
    """Wall-clock limit of the whole answer, such as 60, 90s or 10m; there is none after that."""
    memory: Annotated[int, BeforeValidator(bytes_of)] = option(
        8 << 30, group=_LIMITS, metavar="SIZE", shown="8G"
    )
    """Memory that one step may add, such as 512M."""
    cache: bool = option(True, group=_LIMITS)
    """Whether to use and keep results of earlier runs."""
    cache_dir: Path | None = option(
        None, group=_LIMITS, metavar="DIR", shown="the user's cache folder"
    )
    """Folder of the cache."""
    trust: bool = option(False, group=_LIMITS)
    """Allow files that came with the model to name code, commands, and data outside of its
    folder."""

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
