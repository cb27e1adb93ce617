"""Resolves what a hunt tests: the optimizer, its passes, and the runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.options import parse_options
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.participants import (
    choose_runtime,
    configure,
    reference_for,
    shipped_config,
)
from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.extras import extras, given
from optvet.spec.hunt import HuntRequest
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Pass


def resolve_optimizer(request: HuntRequest, plugins: Plugins) -> TestedOptimizer:
    """Resolve the optimizer, passes, options and runtimes of a hunt.

    Passes are tried one at a time if the optimizer is ordered and composable, and applies single
    passes. Lossy passes are left out.

    Raises:
        UsageError: A name or an option is wrong, or the optimizer takes no ONNX models.
    """
    optimizer = plugins.optimizer(request.optimizer)
    options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
    optimizer = configure(optimizer, options)
    if optimizer.traits.consumes != "onnx":
        raise UsageError(
            f"optimizer {optimizer.name!r} takes {optimizer.traits.consumes}; models are made in "
            "ONNX alone"
        )
    runtime = choose_runtime(plugins, optimizer, None)
    candidate = RuntimeConfig(
        runtime, parse_options(runtime.name, runtime.options, request.runtime_options)
    )
    reference = reference_for(plugins, optimizer, candidate)
    known = {p.name: p for p in optimizer.passes()}
    for name in request.passes:
        if name not in known:
            hint = f"(see: optvet plugins show {optimizer.name})"
            raise UnknownName(f"pass of {optimizer.name}", name, known, hint)
    base = tuple(n for n, p in known.items() if p.required)
    wanted = [known[n] for n in request.passes] or list(known.values())
    traits = optimizer.traits
    alone = traits.ordered and traits.composable and traits.single
    each = _standard(wanted) if alone else ()
    whole = request.passes or tuple(optimizer.pipelines()["default"])
    if alone and len(whole) == 1:
        whole = ()
    excused = _allowed_symptoms(list(known.values()))
    tested = TestedOptimizer(
        optimizer,
        options,
        base,
        each,
        whole,
        candidate,
        reference,
        excused,
        given=request.optimizer_options,
        given_to_runtime=request.runtime_options,
        arbiter=_find_arbiter(plugins, optimizer, candidate),
        shipped=_shipped(optimizer, candidate, request) if request.as_shipped else None,
    )
    return _quickened(replace(tested, rare=_under_rare_options(tested)))


def _shipped(
    optimizer: Optimizer, clean: RuntimeConfig, request: HuntRequest
) -> RuntimeConfig | None:
    """The runtime as its users have it; None if that is ``clean`` itself."""
    if optimizer.traits.one_session:
        raise UsageError(
            f"--as-shipped: {optimizer.name} writes no model that a session could optimize again; "
            "leave it out"
        )
    shipped = shipped_config(clean.runtime, optimizer.traits, request.runtime_options)
    return None if shipped.options == clean.options else shipped


def _find_arbiter(
    plugins: Plugins, optimizer: Optimizer, judge: RuntimeConfig
) -> RuntimeConfig | None:
    """An evaluator of the standard, where another runtime judges models of its operators alone."""
    traits = optimizer.traits
    if traits.reference != "original" or traits.produces != "onnx" or traits.dialect:
        return None
    others = (e for e in plugins.evaluators() if e.name != judge.runtime.name)
    return next((RuntimeConfig(e, e.options) for e in others), None)


def _under_rare_options(tested: TestedOptimizer) -> TestedOptimizer | None:
    """The optimizer under its rare options; None if it has none, or the user set one of them."""
    rare = extras(tested.optimizer, OptimizerExtras).rare_options
    if not rare or rare.keys() & tested.given.keys():
        return None
    return replace(_with_options(tested, rare), given={**tested.given, **rare})


def _quickened(tested: TestedOptimizer) -> TestedOptimizer:
    """The optimizer under its quick options, which no suspicion is vetted with."""
    quick = extras(tested.optimizer, OptimizerExtras).quick_options
    if not quick or quick.keys() & tested.given.keys():
        return tested
    rare = None if tested.rare is None else _quickened(tested.rare)
    return replace(_with_options(tested, quick), rare=rare)


def _with_options(tested: TestedOptimizer, further: Mapping[str, Any]) -> TestedOptimizer:
    """The optimizer under further options, beside those that are given."""
    optimizer = tested.optimizer
    options = parse_options(optimizer.name, optimizer.options, {**tested.given, **further})
    return replace(tested, optimizer=configure(optimizer, options), options=options)


def _standard(passes: Sequence[Pass]) -> tuple[str, ...]:
    """Names of the passes that are meant to keep values, up to rounding."""
    return tuple(p.name for p in passes if not (p.required or p.lossy))


_OF_INTERFACE = frozenset({Symptom.INTERFACE_CHANGE, Symptom.METADATA_CHANGE})


def _allowed_symptoms(passes: Sequence[Pass]) -> dict[str, frozenset[Symptom]]:
    """What passes may do on purpose, as they declare it."""
    limits = {p.name: {s for k in p.known_limits for s in k.symptoms} for p in passes}
    known = {p.name: _OF_INTERFACE if p.interface else frozenset[Symptom]() for p in passes}
    return {name: known[name] | limits[name] for name in known if known[name] | limits[name]}


def hunted_passes(tested: TestedOptimizer) -> list[str]:
    """Names of all passes that are tried, each once."""
    return list(dict.fromkeys((*tested.each, *tested.whole)))


def seen_passes(tested: TestedOptimizer) -> list[str]:
    """Passes whose changes of a model are visible; only these may count as never changing."""
    if not given(tested.optimizer, OptimizerExtras.changing_passes):
        return list(tested.each)
    return hunted_passes(tested)
