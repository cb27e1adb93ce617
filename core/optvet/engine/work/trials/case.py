"""A case: one optimizer on one model, with runtimes and checks; used by vet, reduce and replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.models import large
from optvet.engine.options import parse_options
from optvet.engine.pipelines import complete, parse_pipeline
from optvet.engine.trust import options_from
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.participants import (
    choose_runtime,
    configure,
    fit_to_model,
    level_of,
    pinned_options,
    reference_for,
    require_format,
    shipped_config,
)
from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.mends import Mend
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.records import Reproduction
from optvet.spec.request import VetRequest
from optvet.spec.runtime_protocols import Runtime
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
        """Passes without which the optimizer cannot build its result."""
        return frozenset(n for n, p in self.passes.items() if p.required)

    @property
    def base(self) -> tuple[str, ...]:
        """The empty pipeline: the required passes only."""
        return self.complete(())

    def complete(self, culprit: Sequence[str]) -> tuple[str, ...]:
        """``culprit`` and the required passes, in the order of the pipeline."""
        inside = set(culprit) <= set(self.pipeline)
        order = self.pipeline if inside else tuple(self.passes)
        return complete(culprit, order, self.required)

    def required_of(self, pipeline: Iterable[str]) -> tuple[str, ...]:
        """The required passes of ``pipeline``."""
        return tuple(n for n in pipeline if n in self.required)

    def interface(self, passes: Iterable[str]) -> frozenset[InterfaceChange]:
        """The changes of the interface that ``passes`` declare."""
        changes: frozenset[InterfaceChange] = frozenset()
        return changes.union(*(self.passes[p].interface for p in passes))

    def tolerance(self, passes: Iterable[str]) -> float | None:
        """Relative error that lossy passes among ``passes`` declare; None if none is lossy."""
        declared = [t for p in passes if (t := self.passes[p].tolerance) is not None]
        return max(declared, default=None)

    def limits(self, name: str) -> tuple[KnownLimit, ...]:
        """Documented deviations of a pass that are not faults."""
        return self.passes[name].known_limits


@dataclass(frozen=True)
class Checks:
    """How strictly trials are checked, and how long one may take.

    Attributes:
        full: Whether onnx.checker infers shapes strictly. False if the original fails that.
        plain: Whether onnx.checker is asked at all. False if it refuses the original.
        ignored_complaint: Normalized message of an error of the checker that is no finding, because
            import and export alone cause it; empty if there is none.
        complaint: What onnx.checker says of the original, if that fails one of the two.
        mends: What every model that the optimizer makes gets back before it is checked, since
            import and export alone lose it.
        timeout_s: Limit of one trial; None for the sandbox's own.
    """

    full: bool = True
    plain: bool = True
    ignored_complaint: str = ""
    complaint: str = ""
    mends: tuple[Mend, ...] = ()
    timeout_s: float | None = None


@dataclass(frozen=True)
class Case:
    """One optimizer on one model, with everything that a verdict depends on.

    Attributes:
        model: The original model.
        optimizer: The optimizer.
        options: Options of the optimizer.
        candidate: Runtime and options for the optimized model.
        reference: Runtime and options for the original.
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
        """Whether the optimizer converts the model to another format, with other kernels.

        Then the empty pipeline is compared with the original first, and all passes with the empty
        pipeline, so that the same kernels are compared.
        """
        return self.optimizer.traits.reference == "empty pipeline"

    def on(self, model: Model) -> Case:
        """The same case for another model."""
        return replace(self, model=model)

    def under(self, **checks: Any) -> Case:
        """The same case with the given fields of ``checks`` replaced."""
        return replace(self, checks=replace(self.checks, **checks))

    def run_by(self, candidate: RuntimeConfig) -> Case:
        """The same with original and optimized model run by one ``candidate``."""
        return replace(self, candidate=candidate, reference=candidate)

    def shipped(self, given: Mapping[str, Any]) -> Case:
        """The same with the optimized model under the runtime's own defaults, but for ``given``.

        Raises:
            UsageError: The runtime does not take an option.
        """
        shipped = shipped_config(self.candidate.runtime, self.optimizer.traits, given)
        return replace(self, candidate=shipped)

    def both_shipped(self, given: Mapping[str, Any]) -> Case:
        """The same with both models under the runtime's own defaults; see ``shipped``."""
        return self.run_by(self.shipped(given).candidate)


def case_of(request: VetRequest, plugins: Plugins, model: Model) -> Case:
    """The case of ``request``.

    Raises:
        UsageError: A name, an option or a pipeline is wrong.
        InputError: The model is larger than the optimizer takes.
    """
    optimizer = plugins.optimizer(request.optimizer or plugins.default("optimizer"))
    options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
    optimizer = configure(optimizer, options)
    require_format(optimizer, model)
    large.check_size(model.source, model.size_bytes, optimizer, ())
    optimizer = fit_to_model(optimizer, options, model)
    runtime = choose_runtime(plugins, optimizer, request.runtime)
    candidate = _clean_config(request, optimizer, runtime)
    pipeline = parse_pipeline(request.pipeline, optimizer, request.exclude)
    reference = reference_for(plugins, optimizer, candidate)
    # A wrong name is refused before the work, not when a finding needs the runtime.
    others = tuple(plugins.runtime(other) for other in request.cross_check)
    runtimes = (runtime, reference.runtime, *others)
    large.check_size(model.source, model.size_bytes, optimizer, runtimes)
    large.check_room(model.source, model.size_bytes, optimizer, request.memory)
    return Case(model, optimizer, options, candidate, reference, PassTable.of(optimizer, pipeline))


def _clean_config(request: VetRequest, optimizer: Optimizer, runtime: Runtime) -> RuntimeConfig:
    """The runtime in the clean room, with the options of the user that belong there.

    An option that the clean room sets otherwise than the runtime's default (optimizations,
    threads) tells in which session the model is used. In both rooms it would make original and
    optimized model wrong alike, which no comparison shows. Others, such as a device, hold in both;
    so do all where the clean room alone is judged, or where the session is what is vetted.

    Raises:
        UsageError: The runtime does not take an option.
    """
    own, given = dict(optimizer.traits.runtime_options), request.runtime_options
    options = parse_options(runtime.name, runtime.options, {**own, **given})
    pinned = pinned_options(runtime, given)
    if optimizer.traits.optimizes_on_load:
        _refuse_level(optimizer, {n: given[n] for n in pinned})
    if request.clean or optimizer.traits.one_session:
        return RuntimeConfig(runtime, options)
    kept = {n: own.get(n, getattr(runtime.options, n)) for n in pinned}
    return RuntimeConfig(runtime, options.model_copy(update=kept))


def _refuse_level(optimizer: Optimizer, given: Mapping[str, Any]) -> None:
    """Refuse to have the original optimized by the passes that are vetted.

    Raises:
        UsageError: An option names a pipeline of the optimizer.
    """
    level = level_of(optimizer, given)
    if level is not None:
        name = next(n for n, value in given.items() if value == level)
        raise UsageError(
            f"--runtime-option {name}={level}: the session of {optimizer.name!r} is what is "
            f"vetted, and the original is not to be optimized; write --pipeline {level}"
        )


def case_from(
    record: Reproduction,
    plugins: Plugins,
    model: Model,
    *,
    file: str = "",
    folder: Path | None = None,
    trust: bool = False,
) -> Case:
    """The case of a finding in a bundle.

    Args:
        record: The record in the bundle.
        plugins: The installed plugins.
        model: The model of the bundle.
        file: The file of ``record``, for error messages.
        folder: Folder of the bundle, which options that only read data may name files of.
        trust: Whether options in ``record`` may name code, commands and files.

    Raises:
        UsageError: A plugin in ``record`` is not installed.
        InputError: An option names code, a command or a file, and ``trust`` is false.
    """

    def options_of(plugin: Optimizer | Runtime, key: str) -> BaseModel:
        chosen = getattr(record, key)
        chosen = options_from(file, key, plugin.options, chosen, folder=folder, trust=trust)
        return parse_options(plugin.name, plugin.options, chosen)

    optimizer = plugins.optimizer(record.optimizer)
    options = options_of(optimizer, "optimizer_options")
    optimizer = fit_to_model(configure(optimizer, options), options, model)
    passes = PassTable.of(optimizer, record.passes)
    for name in record.passes:
        if name not in passes.passes:
            hint = f"(of {optimizer.name} {optimizer.version()})"
            raise UnknownName("pass", name, passes.passes, hint)
    runtime = plugins.runtime(record.runtime)
    candidate = RuntimeConfig(runtime, options_of(runtime, "runtime_options"))
    clean = RuntimeConfig(runtime, runtime.options) if record.finding.as_deployed else candidate
    reference = reference_for(plugins, optimizer, clean)
    checks = Checks(mends=tuple(record.finding.mended))
    return Case(model, optimizer, options, candidate, reference, passes, checks)
