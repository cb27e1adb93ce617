"""Who takes part in a vet: the optimizer under its options, and the runtimes that judge."""

from __future__ import annotations

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trial import RuntimeConfig
from optvet.spec.errors import InputError, PluginError, UsageError
from optvet.spec.protocols import (
    ChecksOptions,
    DependsOnOptions,
    Optimizer,
    Runtime,
)
from optvet.spec.types import Model


def configured(optimizer: Optimizer, options: BaseModel) -> Optimizer:
    """``optimizer`` as it is under ``options``."""
    if isinstance(optimizer, DependsOnOptions):
        return optimizer.configured(options.model_copy(deep=True))
    return optimizer


def require_format(optimizer: Optimizer, model: Model) -> None:
    """Raise InputError unless ``optimizer`` takes models of the format of ``model``."""
    if optimizer.traits.consumes != model.format:
        raise InputError(
            f"{model.source}: the model is of format {model.format}; optimizer "
            f"{optimizer.name!r} takes {optimizer.traits.consumes}"
        )


def choose_runtime(plugins: Plugins, optimizer: Optimizer, name: str | None) -> Runtime:
    """The runtime that runs what ``optimizer`` makes: the named one, or the preferred.

    Raises:
        UsageError: The named one cannot run it.
        PluginError: No runtime can, or what the optimizer says of its reference cannot be.
    """
    traits = optimizer.traits
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
    """What runs the original, where ``config`` runs what ``optimizer`` makes of it.

    What an import gets wrong shows only where another runtime read the original.
    """
    if optimizer.traits.reference == "original":
        return config
    original = plugins.reference_runtime(optimizer.traits.consumes)
    return config if original is config.runtime else RuntimeConfig(original, original.options)


def check_options(sandbox: Sandbox, plugin: Optimizer | Runtime, options: BaseModel) -> None:
    """Ask ``plugin``, in a worker, whether what ``options`` name exists; see ``ChecksOptions``.

    Raises:
        UsageError: It does not.
        PluginError: The plugin could not tell.
    """
    if not isinstance(plugin, ChecksOptions):
        return
    outcome = sandbox.call(_complaint, plugin, options)
    if (failure := outcome.failure) is not None:
        how = failure.signal or failure.error_type or failure.kind
        raise PluginError(f"{plugin.name}: check_options() failed: {how}: {failure.message}")
    if outcome.value is not None:
        raise UsageError(outcome.value)


def _complaint(plugin: ChecksOptions, options: BaseModel) -> str | None:
    try:
        plugin.check_options(options)
    except UsageError as error:
        return str(error)
    return None
