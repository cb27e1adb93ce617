"""The user's requirements on the optimized model, and the comparators that measure them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.vet.impact.comparator_options import has_metric, metrics_of, options_for
from optvet.engine.vet.impact.impact import Assessment
from optvet.spec.errors import UnknownName, UsageError, near_names
from optvet.spec.protocols import Comparator
from optvet.spec.request import VetRequest
from optvet.spec.requirement import (
    Required,
    Requirement,
    parse_requirement,
    split_part,
    tolerances_of,
)
from optvet.spec.types import Model

FEW = 2
"""Messages list all metrics only if at most this many comparators have any."""
COUNTS = ("samples_changed", "samples_undecided")
"""Metrics of every comparator: numbers of samples that changed, and that are undecided."""
LAYER_ERROR = "layer_error"
"""The metric of values inside of the model; what stands before it names values or operators."""


def is_of_layers(required: Required) -> bool:
    """Whether it is about values inside of the model, which no comparator measures."""
    return isinstance(required, Requirement) and required.metric == LAYER_ERROR


def required_of(request: VetRequest, model: Model) -> tuple[Required, ...]:
    """The requirements of the request, and those of the model's record that it does not replace.

    Raises:
        UsageError: A requirement names an output that the model does not have.
    """
    parsed = [parse_requirement(text) for text in request.require]
    config = model.config
    known = {(r.metric, r.output) for r in parsed}
    parsed += [
        r
        for text in config.require
        if ((r := parse_requirement(text, config.origin)).metric, r.output) not in known
    ]
    typed = bool(request.rtol or request.atol)
    source = request if typed else config
    words = "--rtol, --atol" if typed else config.origin
    found: tuple[Required, ...] = (*parsed, *tolerances_of(source.rtol, source.atol, words))
    for required in found:
        names = [o.name for o in model.outputs]
        if is_of_layers(required):
            continue
        named = required.tensor
        if named is not None and not belongs_to(named, names):
            raise UnknownName("output", named, names, f"(in {required.origin})")
        _check_part(required, model)
    return found


def _check_part(required: Required, model: Model) -> None:
    """Refuse a part of an output that has not so many axes.

    Raises:
        UsageError: It has fewer.
    """
    name, index = split_part(required.output or "")
    shape = next((o.shape for o in model.outputs if o.name == name), None)
    if index is None or shape is None:
        return
    axes = sum(item is not ... for item in index)
    if axes > len(shape) or len(index) - axes > 1:
        raise UsageError(
            f"{required.origin} {str(required)!r}: output {name!r} has {len(shape)} axes, and no "
            f"part {required.output}"
        )


def belongs_to(name: str, outputs: Collection[str]) -> bool:
    """Whether ``name`` is one of ``outputs``, or an item of an output of type sequence or map."""
    return name in outputs or any(name.startswith((f"{o}[", f"{o}.")) for o in outputs)


def check_metrics(
    required: Iterable[Required], model: Model, request: VetRequest, plugins: Plugins
) -> None:
    """Check, before any trial, that a comparator has each required metric.

    Raises:
        UsageError: No comparator that may be chosen has it; the message lists the known metrics.
    """
    wanted = request.comparator or model.config.comparator
    every = plugins.names("comparator")
    names = {wanted, plugins.default("comparator")} if wanted in every else set(every)
    comparators = [plugins.comparator(str(name)) for name in sorted(map(str, names))]
    known = [(c, metrics_of(c, options_for(c, model, request))) for c in comparators]
    for requirement in required:
        if is_of_layers(requirement):
            continue
        if isinstance(requirement, Requirement) and requirement.metric not in COUNTS:
            if any(names is None or has_metric(requirement.metric, names) for _, names in known):
                continue
            raise unknown_metric(requirement, known)


Candidate = tuple[Comparator, BaseModel]
"""A comparator with its options."""


def candidates(
    begun: Assessment, request: VetRequest, plugins: Plugins, model: Model
) -> list[Candidate]:
    """The comparators that may measure a requirement: the chosen one, then the default."""
    chosen, default = begun.choice.comparator, plugins.default("comparator")
    if default == chosen.name or default not in plugins.names("comparator"):
        return [(chosen, begun.options)]
    other = plugins.comparator(default)
    return [(chosen, begun.options), (other, options_for(other, model, request))]


def fitting(requirement: Requirement, among: Sequence[Candidate]) -> list[Candidate]:
    """The comparators that may have the metric, in the given order.

    Raises:
        UsageError: None of them has it.
    """
    known = [metrics_of(c, options) for c, options in among]
    found = [
        candidate
        for candidate, names in zip(among, known, strict=True)
        if names is None or requirement.metric in COUNTS or has_metric(requirement.metric, names)
    ]
    if not found:
        pairs = ((c, names) for (c, _), names in zip(among, known, strict=True))
        raise unknown_metric(requirement, pairs)
    return found


def unknown_metric(
    requirement: Requirement, among: Iterable[tuple[Comparator, Sequence[str] | None]]
) -> UsageError:
    """An error that names the metrics with the most similar names, or lists all known ones."""
    known = {c.name: sorted(names) for c, names in among if names is not None}
    every = {LAYER_ERROR}.union(*known.values())
    near = near_names(requirement.metric, every, cutoff=0.6)
    if near:
        advice = f"did you mean {' or '.join(map(repr, near))}?"
    elif len(known) > FEW:
        advice = "'optvet plugins show COMPARATOR' lists those of a comparator"
    else:
        listed = [f"{name} has {', '.join(metrics)}" for name, metrics in known.items()]
        advice = "; ".join([*listed, f"all have {', '.join([*COUNTS, LAYER_ERROR])}"])
    where = f"{requirement.origin} {str(requirement)!r}"
    return UsageError(f"{where}: there is no metric {requirement.metric!r}; {advice}")
