"""What can be asked of ``bench``: one value, taken by Python, the command line and TOML alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from optvet.spec.request import (
    Names,
    Request,
    Texts,
    VetRequest,
    bytes_of,
    option,
    seconds_of,
)

EACH = "each"
"""A value of ``pipeline``: every named pipeline of the optimizer."""
LEAST_REPEATS = 3

_WHAT, _HOW, _INPUTS, _LIMITS = "What to time", "How to time", "Inputs", "Limits"


class BenchRequest(Request):
    """One question: what do these optimizers cost and gain on this model?"""

    model: str
    """An ONNX file, or `SOURCE:NAME` such as `zoo:resnet50`."""

    optimizer: Names = option(
        (), group=_WHAT, metavar="NAME", shown="the one that comes with optvet"
    )
    """Optimizer to time; may be given several times."""
    pipeline: Texts = option(("default",), group=_WHAT, metavar="NAME|P1,P2,…", shown="default")
    """A pipeline of the optimizer, or passes in order; may be given several times. `each` is every
    named pipeline, such as the levels."""
    optimizer_options: dict[str, Any] = option({}, group=_WHAT, metavar="KEY=VALUE")
    """Options of the optimizers."""

    runtime: str | None = option(
        None, group=_HOW, metavar="NAME", shown="one that runs the optimizer's format"
    )
    """What runs the models."""
    provider: Names = option((), group=_HOW, metavar="NAME")
    """Execution provider of the runtime, by preference; may be given several times."""
    runtime_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the runtime, in place of its defaults in production."""
    repeats: int = option(10, group=_HOW, ge=LEAST_REPEATS, le=1000)
    """Processes in which both models are timed in turn."""
    extra_repeats: bool = option(True, group=_HOW)
    """Add repeats, for a minute and up to four times as many, where the interval is too wide to
    tell."""
    threshold: float = option(0.05, group=_HOW, gt=0, le=100, metavar="RATIO")
    """Relative difference that matters: 0.05 is 5 %."""
    comparator: str | None = option(
        None, group=_HOW, metavar="NAME", shown="one that suits the model"
    )
    """What writes text with models that do, for the time to the first token and for each further
    one."""
    comparator_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the comparator, such as vocabulary=FILE."""
    ncu: bool = option(False, group=_HOW)
    """Profile the kernels of 5 to 10 samples with Nsight Compute, if it is installed."""
    blame: bool = option(True, group=_HOW)
    """Find the passes that make a slower variant slow."""

    dataset: Texts = option(
        (),
        group=_INPUTS,
        metavar="NAME[:PATH]",
        shown="that of the model's record, else random",
    )
    """Where inputs come from; may be given several times."""
    dataset_options: dict[str, Any] = option({}, group=_INPUTS, metavar="KEY=VALUE")
    """Options of the datasets that have them."""
    limit: int = option(1, group=_INPUTS, ge=1)
    """Samples to run."""
    seed: int = option(0, group=_INPUTS, ge=0)
    """Seed of all random choices."""

    timeout: Annotated[float, BeforeValidator(seconds_of)] = option(
        120.0, group=_LIMITS, metavar="SECONDS"
    )
    """Wall-clock limit of one step in a worker, seconds."""
    memory: Annotated[int, BeforeValidator(bytes_of)] = option(
        8 << 30, group=_LIMITS, metavar="SIZE", shown="8G"
    )
    """Memory that one step may add, such as 512M."""
    cache_dir: Path | None = option(
        None, group=_LIMITS, metavar="DIR", shown="the user's cache folder"
    )
    """Folder where models are kept."""
    trust: bool = option(False, group=_LIMITS)
    """Allow files that came with the model to name code, commands, and data outside of its
    folder."""

    def of(self, optimizer: str, pipeline: str) -> VetRequest:
        """The question about one variant, as ``vet`` would be asked."""
        providers = {"providers": list(self.provider)} if self.provider else {}
        return VetRequest(
            model=self.model,
            optimizer=optimizer,
            pipeline=pipeline,
            optimizer_options=self.optimizer_options,
            runtime=self.runtime,
            runtime_options=self.runtime_options | providers,
            comparator=self.comparator,
            comparator_options=self.comparator_options,
            dataset=self.dataset,
            dataset_options=self.dataset_options,
            limit=self.limit,
            seed=self.seed,
            jobs=1,
            timeout=self.timeout,
            memory=self.memory,
            cache_dir=self.cache_dir,
            trust=self.trust,
        )
