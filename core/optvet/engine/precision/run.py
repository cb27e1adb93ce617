"""From a request to the parts of a model that must keep their precision."""

from __future__ import annotations

import time

from optvet.engine.discovery import Plugins
from optvet.engine.models.model_file import data_file, refuse_to_overwrite
from optvet.engine.models.sources import resolve_model
from optvet.engine.options import parse_options
from optvet.engine.precision.answer import find_answer
from optvet.engine.precision.document import document_of
from optvet.engine.precision.gains import time_mixed
from optvet.engine.precision.mixed_model import refuse_to_lose_config, write_answer
from optvet.engine.precision.setting import set_up
from optvet.engine.vet.impact.requirements import required_of
from optvet.engine.vet.session import open_session
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.trials.participants import configure, fit_to_model
from optvet.engine.work.trials.trial_runner import Progress
from optvet.engine.work.written import refuse_to_lose
from optvet.spec.errors import BudgetSpent, InputError, UnknownName, UsageError
from optvet.spec.extras import PluginExtras, extras
from optvet.spec.foreign import read_file
from optvet.spec.optimizer_protocols import LowersPrecision, Optimizer
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.precision import (
    PrecisionResult,
)
from optvet.spec.request import VetRequest
from optvet.spec.requirement import Requirement, parse_requirement
from optvet.spec.types import Artifact, Model


def find_precision(
    request: PrecisionRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
) -> PrecisionResult:
    """The smallest list found of parts to keep, for the requirements to be met.

    Raises:
        UsageError: A name, an option or a requirement is wrong.
        InputError: No part of the model can be converted.
        NothingTested: The original runs on no sample.
    """
    started = time.perf_counter()
    optimizer = choose_optimizer(plugins, request.to, request.optimizer)
    model = _open(request, plugins)
    if request.out is not None:
        refuse_to_overwrite(request.out, "--out", model.path, model.blob)
        files = (request.out, data_file(request.out))
        refuse_to_lose("--out", *files, cache_dir=request.cache_dir)
        refuse_to_lose_config(request.out)
    sum_block = check_accumulation(optimizer, request)
    _refuse_unconvertible(optimizer, request, model)
    asked, by_default = _with_requirements(request.as_vet(optimizer.name), optimizer, model)
    about = (model, asked, plugins)
    with (
        open_session(*about, progress=progress) as session,
        session.runner.sandbox.budget(request.budget),
    ):
        setting = set_up(session, asked, sum_block, progress)
        answer = find_answer(setting, request, progress)
        result = document_of(setting, request, answer, by_default=by_default)
        result = write_answer(setting.plain, setting.plain_meter, request, result)
        if request.measure and setting.samples:
            result = time_mixed(setting.plain, setting.samples[0], result)
        if session.runner.sandbox.budget_spent:
            raise BudgetSpent  # what rests on a step that was stopped is no answer
        cost = session.runner.ledger.cost(time.perf_counter() - started)
        return result.model_copy(update={"inferences": cost.inferences, "wall_s": cost.wall_s})


def check_accumulation(optimizer: Optimizer, request: PrecisionRequest) -> int | None:
    """The block of products after which a sum is rounded; None if sums are not rounded.

    Raises:
        UsageError: Sums cannot be accumulated in the type that is asked for.
    """
    assert isinstance(optimizer, LowersPrecision)
    if request.accumulate == "fp32":
        return None
    options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
    half = optimizer.emulated(options, request.sum_block) is not None
    if not half or request.accumulate != optimizer.precision:
        to = optimizer.precision
        cure = f"give fp32 or {to}" if half else "leave it out: its sums are not of a half type"
        raise UsageError(f"--accumulate {request.accumulate}, where --to is {to}: {cure}")
    return request.sum_block


def _with_requirements(
    asked: VetRequest, optimizer: Optimizer, model: Model
) -> tuple[VetRequest, bool]:
    """``asked`` with the optimizer's own requirements, and whether it had none."""
    assert isinstance(optimizer, LowersPrecision)
    known = required_of(asked, model)
    more = [] if known else [optimizer.requirement]
    metrics = {r.metric for r in known if isinstance(r, Requirement)}
    always = [r for r in optimizer.always if parse_requirement(r).metric not in metrics]
    update = {"require": (*asked.require, *more, *always)}
    return asked.model_copy(update=update), not known


def choose_optimizer(plugins: Plugins, precision: str, name: str | None) -> Optimizer:
    """The optimizer of that name, else the first by name that converts to ``precision``.

    Raises:
        UnknownName: None converts to it.
        UsageError: The named one does not.
    """
    if name is not None:
        chosen = plugins.optimizer_without_passes(name)
        if not isinstance(chosen, LowersPrecision) or chosen.precision != precision:
            what = chosen.precision if isinstance(chosen, LowersPrecision) else "no other precision"
            raise UsageError(
                f"optimizer {name!r} converts to {what}; choose another --optimizer, or leave it "
                f"out to use the one for --to {precision}"
            )
        return chosen
    known: dict[str, list[Optimizer]] = {}
    for each in plugins.names("optimizer"):
        able = plugins.optimizer_without_passes(each)
        if isinstance(able, LowersPrecision):
            known.setdefault(able.precision, []).append(able)
    if precision not in known:
        raise UnknownName("precision for --to", precision, known)
    return min(known[precision], key=lambda each: (-_preference(each), each.name))


def _preference(optimizer: Optimizer) -> float:
    return extras(optimizer, PluginExtras).preference


def _open(request: PrecisionRequest, plugins: Plugins) -> Model:
    models = resolve_model(request.model, plugins, request.cache_dir or cache_root())
    if len(models) != 1:
        raise UsageError(f"{request.model}: {len(models)} models; give one at a time")
    return models[0]


def _refuse_unconvertible(optimizer: Optimizer, request: PrecisionRequest, model: Model) -> None:
    """Refuse a model without parts to convert, and names in ``keep`` that are no parts."""
    options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
    fitted = fit_to_model(configure(optimizer, options), options, model)
    parts = [p.name for p in fitted.passes()]
    if not parts:
        raise InputError(
            f"{model.source}: {optimizer.name} can convert no node of it to {request.to}; give a "
            "model that computes in float32"
        )
    for name in request.keep:
        if name not in parts:
            raise UnknownName(f"part for --keep of {optimizer.name}", name, parts)
    if request.recipe is not None:
        assert isinstance(fitted, LowersPrecision)
        recipes = fitted.recipes(Artifact("onnx", read_file(model.blob)), (), options)
        if request.recipe not in recipes:
            raise UnknownName(f"form for --recipe of {optimizer.name}", request.recipe, recipes)
