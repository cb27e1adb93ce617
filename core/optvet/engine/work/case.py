"""Who is judged, on what, under which rules: one value for vetting, reducing and replaying."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.models import large
from optvet.engine.options import parse_options
from optvet.engine.pipelines import completed, parse_pipeline
from optvet.engine.trust import options_from
from optvet.engine.work.roles import choose_runtime, configured, reference_for, require_format
from optvet.engine.work.trial import RuntimeConfig
from optvet.spec.errors import UnknownName
from optvet.spec.protocols import Optimizer, Runtime
from optvet.spec.records import Reproduction
from optvet.spec.request import VetRequest
from optvet.spec.types import InterfaceChange, KnownLimit, Model, Pass


@dataclass(frozen=True)
class PassTable:
    """The passes of an optimizer by name, and the pipeline under vet."""

    passes: Mapping[str, Pass]
    pipeline: tuple[str, ...]

    @classmethod
    def of(cls, optimizer: Optimizer, pipeline: Sequence[str] | None = None) -> PassTable:
        """All passes of ``optimizer``, which are also the pipeline if none is given."""
        passes = {p.name: p for p in optimizer.passes()}
        return cls(passes, tuple(passes if pipeline is None else pipeline))

    @cached_property
    def required(self) -> frozenset[str]:
        """Passes that the optimizer cannot do without."""
        return frozenset(n for n, p in self.passes.items() if p.required)

    @property
    def base(self) -> tuple[str, ...]:
        """The empty pipeline: the required passes alone."""
        return self.complete(())

    def complete(self, culprit: Sequence[str]) -> tuple[str, ...]:
        """``culprit`` with the required passes in their places."""
        inside = set(culprit) <= set(self.pipeline)
        order = self.pipeline if inside else tuple(self.passes)
        return completed(culprit, order, self.required)

    def required_of(self, pipeline: Iterable[str]) -> tuple[str, ...]:
        """What remains of ``pipeline`` without its optional passes."""
        return tuple(n for n in pipeline if n in self.required)

    def interface(self, passes: Iterable[str]) -> frozenset[InterfaceChange]:
        """How ``passes`` change the interface on purpose."""
        changes: frozenset[InterfaceChange] = frozenset()
        return changes.union(*(self.passes[p].interface for p in passes))

    def tolerance(self, passes: Iterable[str]) -> float | None:
        """What lossy ones among ``passes`` may be off by, relative; None if none is lossy."""
        declared = [t for p in passes if (t := self.passes[p].tolerance) is not None]
        return max(declared, default=None)

    def limits(self, name: str) -> tuple[KnownLimit, ...]:
        """Documented deviations of a pass that are not faults."""
        return self.passes[name].known_limits


@dataclass(frozen=True)
class Checks:
    """How strictly trials are checked, and how long one may take.

    Attributes:
        full: Whether onnx.checker infers shapes strictly. That is no test for a model whose
            original fails it.
        ignored_complaint: Normalized message of an error of the checker that is no finding, because
            import and export alone cause it; empty if there is none.
        timeout_s: Limit of one trial; None for the sandbox's own.
    """

    full: bool = True
    ignored_complaint: str = ""
    timeout_s: float | None = None


@dataclass(frozen=True)
class Case:
    """One optimizer on one model, and how that is judged.

    Attributes:
        model: What is optimized.
        optimizer: What optimizes it.
        options: Options of the optimizer.
        candidate: What runs the optimized model.
        reference: What runs the original.
        passes: The passes of the optimizer, and the pipeline.
        checks: How strictly trials are checked.
    """

    model: Model
    optimizer: Optimizer
    options: BaseModel
    candidate: RuntimeConfig
    reference: RuntimeConfig
    passes: PassTable
    checks: Checks = field(default_factory=Checks)

    @property
    def lowers(self) -> bool:
        """Whether the optimizer turns a model into something that other kernels run.

        Then the empty pipeline is compared with the original first, and passes with the empty
        pipeline: the two formats have kernels of their own.
        """
        return self.optimizer.traits.reference == "empty pipeline"

    def on(self, model: Model) -> Case:
        """The same for another model."""
        return replace(self, model=model)

    def under(self, **checks: Any) -> Case:
        """The same with other ``checks``; what is not named stays."""
        return replace(self, checks=replace(self.checks, **checks))

    def run_by(self, candidate: RuntimeConfig) -> Case:
        """The same with original and optimized model run by one ``candidate``."""
        return replace(self, candidate=candidate, reference=candidate)

    def as_deployed(self) -> Case:
        """The same under the runtime's own defaults."""
        runtime = self.candidate.runtime
        return self.run_by(RuntimeConfig(runtime, runtime.deployed))


def case_of(request: VetRequest, plugins: Plugins, model: Model) -> Case:
    """The case that ``request`` asks about.

    Raises:
        UsageError: A name, an option or a pipeline does not fit.
        InputError: The model is larger than the optimizer takes.
    """
    optimizer = plugins.optimizer(request.optimizer or plugins.default("optimizer"))
    options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
    optimizer = configured(optimizer, options)
    require_format(optimizer, model)
    runtime = choose_runtime(plugins, optimizer, request.runtime)
    candidate = RuntimeConfig(
        runtime, parse_options(runtime.name, runtime.options, request.runtime_options)
    )
    pipeline = parse_pipeline(request.pipeline, optimizer, request.exclude)
    reference = reference_for(plugins, optimizer, candidate)
    # A wrong name is found out before the work, not when a fault asks for it.
    others = tuple(plugins.runtime(other) for other in request.cross_check)
    runtimes = (runtime, reference.runtime, *others)
    large.check_taken(model.source, model.size_bytes, optimizer, runtimes)
    large.check_room(model.source, model.size_bytes, optimizer, request.memory)
    return Case(model, optimizer, options, candidate, reference, PassTable.of(optimizer, pipeline))


def case_from(
    record: Reproduction, plugins: Plugins, model: Model, *, file: str = "", trust: bool = False
) -> Case:
    """The case that a finding was written down for.

    Args:
        record: What was written down.
        plugins: What is installed.
        model: The model of the finding.
        file: Where ``record`` is from, for messages.
        trust: Whether its options may name code, commands and files.

    Raises:
        UsageError: What it names is not installed.
        InputError: It names code, commands or files and is not trusted.
    """

    def options_of(plugin: Optimizer | Runtime, key: str) -> BaseModel:
        given = getattr(record, key)
        given = options_from(file, key, plugin.options, given, folder=None, trust=trust)
        return parse_options(plugin.name, plugin.options, given)

    optimizer = plugins.optimizer(record.optimizer)
    options = options_of(optimizer, "optimizer_options")
    optimizer = configured(optimizer, options)
    passes = PassTable.of(optimizer, record.passes)
    for name in record.passes:
        if name not in passes.passes:
            hint = f"(of {optimizer.name} {optimizer.version()})"
            raise UnknownName("pass", name, passes.passes, hint)
    runtime = plugins.runtime(record.runtime)
    candidate = RuntimeConfig(runtime, options_of(runtime, "runtime_options"))
    deployed = record.finding.as_deployed
    reference = candidate if deployed else reference_for(plugins, optimizer, candidate)
    return Case(model, optimizer, options, candidate, reference, passes)
