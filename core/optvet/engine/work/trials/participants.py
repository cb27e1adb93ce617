"""The participants of a vet: the optimizer under its options, and the runtimes."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.options import parse_options
from optvet.engine.runtime_target import RuntimeTarget
from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.cache.environment_fingerprint import about_plugin, fingerprint_environment
from optvet.engine.work.native import native_code
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.building import read_model
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.raised_errors import objection
from optvet.spec.errors import InputError, PluginError, UsageError
from optvet.spec.extras import WorkerExtras, given
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Artifact, Model, Traits


def configure(optimizer: Optimizer, options: BaseModel) -> Optimizer:
    """``optimizer`` configured by ``options``, if it depends on them."""
    configured = given(optimizer, OptimizerExtras.configured)
    return configured(options.model_copy(deep=True)) if configured else optimizer


def shipped_config(runtime: Runtime, traits: Traits, given: Mapping[str, Any]) -> RuntimeConfig:
    """``runtime`` under its own defaults, but for the options that are ``given``.

    What a runtime has optimized is run as its optimizer says (``Traits.shipped_options``).

    Raises:
        UsageError: The runtime does not take an option.
    """
    wanted = dict(traits.shipped_options)
    if not wanted.keys() <= type(runtime.deployed).model_fields.keys():
        wanted = {}  # those of another runtime
    options = parse_options(runtime.name, runtime.deployed, {**wanted, **given})
    return RuntimeConfig(runtime, options)


def pinned_options(runtime: Runtime, given: Mapping[str, Any]) -> list[str]:
    """Those of the options ``given`` that the clean room sets otherwise, and not as by default."""
    clean, usual = runtime.options, runtime.deployed
    return [n for n, v in given.items() if getattr(clean, n) not in (v, getattr(usual, n, None))]


def level_of(optimizer: Optimizer, given: Mapping[str, Any]) -> str | None:
    """The pipeline of a runtime's own optimizer that an option of a session asks for, if any."""
    names = optimizer.pipelines() if given else ()
    return next((v for v in given.values() if isinstance(v, str) and v in names), None)


_FITS_S = 120.0
_FITS_BYTES = 4 << 30
_MOST_FITS = 8
_fits: OrderedDict[tuple[object, ...], Mapping[str, Any]] = OrderedDict()
"""What was found of a model, by optimizer, state, options and digest: asked several times."""


def fit_to_model(optimizer: Optimizer, options: BaseModel, model: Model) -> Optimizer:
    """``optimizer`` with the passes that it has for ``model``, if they depend on it.

    A worker asks it, whose libraries may crash on the model; its state comes back as data.

    Raises:
        InputError: It fails on the model.
    """
    if given(optimizer, OptimizerExtras.for_model) is None:
        return optimizer
    kind, state = type(optimizer), pickle.dumps(vars(optimizer))
    key = (kind.__module__, kind.__qualname__, state, options.model_dump_json(), model.digest)
    if key not in _fits:
        # The bytes come in one piece, and inference copies the graph without its weights.
        limits = Limits(_FITS_S, _FITS_BYTES + 3 * model.size_bytes)
        what = f"{model.source}: asking {optimizer.name} for its passes"
        with native_code(limits=limits) as call:
            arguments = (optimizer, options, model.format, model.blob, model.digest)
            _fits[key] = call(what, _state_for, *arguments)
        while len(_fits) > _MOST_FITS:
            _fits.popitem(last=False)
    fitted = copy(optimizer)
    vars(fitted).clear()
    vars(fitted).update(_fits[key])
    return fitted


def _state_for(
    optimizer: Optimizer, options: BaseModel, form: str, blob: Path, digest: str
) -> dict[str, Any]:
    """The attributes of the optimizer for this model. Called in a worker."""
    for_model = given(optimizer, OptimizerExtras.for_model)
    assert for_model is not None
    fitted = for_model(Artifact(form, read_model(blob, digest)), options)
    if type(fitted) is not type(optimizer):
        words = f"for_model of {optimizer.name} returns {type(fitted).__name__}"
        raise PluginError(f"{words}; return an optimizer of the same class")
    return vars(fitted)


def require_format(optimizer: Optimizer, model: Model) -> None:
    """Raise InputError unless ``optimizer`` takes models of the format of ``model``."""
    if optimizer.traits.consumes != model.format:
        raise InputError(
            f"{model.source}: the model is of format {model.format}; optimizer "
            f"{optimizer.name!r} takes {optimizer.traits.consumes}"
        )


def choose_runtime(plugins: Plugins, optimizer: Optimizer, name: str | None) -> Runtime:
    """The runtime for the optimizer's output: the named one, or the preferred one.

    Raises:
        UsageError: The named runtime cannot run the optimizer's format.
        PluginError: No runtime can, or the optimizer's trait ``reference`` is not possible.
    """
    traits = optimizer.traits
    if isinstance(optimizer, RuntimeTarget):
        if name not in (None, optimizer.runtime.name):
            raise UsageError(
                f"--runtime {name}: optimizer {optimizer.name!r} is itself the runtime under test"
            )
        return optimizer.runtime
    runtime = plugins.runtime(name) if name else plugins.reference_runtime(traits.produces)
    if traits.produces not in runtime.accepts:
        raise UsageError(
            f"runtime {runtime.name!r} runs {', '.join(sorted(runtime.accepts))}; optimizer "
            f"{optimizer.name!r} produces {traits.produces}"
        )
    if traits.reference == "original" and traits.consumes not in runtime.accepts:
        raise PluginError(
            f"optimizer {optimizer.name!r}: its traits say that the original is the reference, "
            f"but runtime {runtime.name!r}, which runs {traits.produces}, does not run "
            f"{traits.consumes}; say reference='empty pipeline'"
        )
    return runtime


def reference_for(plugins: Plugins, optimizer: Optimizer, config: RuntimeConfig) -> RuntimeConfig:
    """Runtime and options for the original, if ``config`` runs the optimized model.

    If the optimizer converts to another format, this is another runtime, which shows faults of the
    conversion.
    """
    if optimizer.traits.reference == "original":
        return config
    if isinstance(optimizer, RuntimeTarget):
        return RuntimeConfig(optimizer.judge, optimizer.judge.options)
    original = plugins.reference_runtime(optimizer.traits.consumes)
    return config if original is config.runtime else RuntimeConfig(original, original.options)


def check_options(
    sandbox: Sandbox,
    plugin: Optimizer | Runtime,
    options: BaseModel,
    cache: Cache | None = None,
) -> None:
    """Let ``plugin`` check ``options`` in a worker; see ``check_options``.

    If all are the defaults, an approval is kept in ``cache``, so that an answer from the cache
    needs no process. Others may name devices and files, which come and go.

    Raises:
        UsageError: The plugin refuses the options.
        PluginError: The check itself failed.
    """
    if given(plugin, WorkerExtras.check_options) is None:
        return
    key = None
    chosen = options.model_dump(mode="json")
    if cache is not None and chosen == type(options).model_construct().model_dump(mode="json"):
        key = cache_key.key("options", fingerprint_environment(), about_plugin(plugin), chosen)
        if cache.get(key) is not None:
            return
    outcome = sandbox.call(objection, plugin, options)
    if (failure := outcome.failure) is not None:
        how = failure.signal or failure.error_type or failure.kind
        raise PluginError(f"{plugin.name}: check_options() failed: {how}: {failure.message}")
    if isinstance(error := outcome.value, UsageError):
        raise error
    if error is not None:
        words = f"{plugin.name}: check_options() failed: {type(error).__name__}: {error}"
        raise PluginError(words) from error
    if cache is not None and key is not None:
        cache.put(key, "options", b"approved")
