"""``optvet.vet``: the main job as one function call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optvet.engine.cache import cache_root
from optvet.engine.discovery import Plugins
from optvet.engine.inputs import OnBad
from optvet.engine.lab import Progress
from optvet.engine.vet import Settings, Strategy, resolve_model, vet_model
from optvet.spec.errors import UsageError
from optvet.spec.records import VetResult


def vet(
    model: str | os.PathLike[str],
    *,
    optimizer: str | None = None,
    pipeline: str | Sequence[str] = "default",
    strategy: Strategy = "auto",
    dataset: str | Sequence[str] = (),
    start: int = 0,
    limit: int | None = None,
    shuffle: bool = False,
    on_bad: OnBad = "refuse",
    seed: int = 0,
    jobs: int | None = None,
    optimizer_options: Mapping[str, Any] | None = None,
    dataset_options: Mapping[str, Any] | None = None,
    runtime: str | None = None,
    cross_check: str | Sequence[str] = (),
    runtime_options: Mapping[str, Any] | None = None,
    comparator: str | None = None,
    comparator_options: Mapping[str, Any] | None = None,
    as_deployed: bool = False,
    pairs: bool | None = None,
    timeout_s: float = 120.0,
    memory_bytes: int = 8 << 30,
    use_cache: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    trust: bool = False,
    progress: Progress = lambda text, done, total: None,
) -> VetResult:
    """Say whether ``optimizer`` keeps ``model`` intact, and which pass is to blame if not.

    Args:
        model: A path, or ``zoo:NAME``; a folder must hold exactly one model.
        optimizer: Name of an optimizer plugin; by default that which ``optvet plugins`` calls the
            default.
        pipeline: A named pipeline ("default", "all", …), or the passes to apply.
        strategy: How to find culprits: "walk" prefixes, "subset" sets, "each" pass alone;
            "auto" chooses by what the optimizer declares.
        dataset: ``NAME`` or ``NAME:ARGUMENT``, one or several; by default what the model's record
            declares, else the preferred one.
        start: Samples at the beginning of each dataset that are left out.
        limit: Samples per dataset at most.
        shuffle: Whether samples are taken in random order, by the seed; with ``limit``, a random
            subset.
        on_bad: Whether bad data is an error, or is skipped and counted.
        seed: Seeds everything random.
        jobs: Worker processes at a time; by default one per processor, at most eight.
        optimizer_options: Options of the optimizer plugin.
        dataset_options: Options of the datasets that have them.
        runtime: Name of a runtime plugin; by default one that runs what the optimizer produces.
        cross_check: Runtimes that every finding is judged on once more.
        runtime_options: Options of the runtime plugin, in place of its clean-room ones.
        comparator: Says what a difference means; by default the one that fits the model best.
        comparator_options: Options of the comparator plugin.
        as_deployed: Judge a second time under the runtime's own defaults.
        pairs: Whether "each" also tries ordered pairs; None: if the model is small enough.
        timeout_s: Wall-clock limit of one step in a worker.
        memory_bytes: Address space that one step may add.
        use_cache: Whether to keep results beyond this call.
        cache_dir: Where to keep them; the user's cache folder by default.
        trust: Whether the model's record may name code, and data outside of its folder.
        progress: Called with what is being done, how much of it is done, and of how much.

    Raises:
        UsageError: What was given is wrong.
        NothingTested: The original runs on no sample.
        PluginError: A plugin is missing or broken.
        InfrastructureError: optvet's own machinery failed.
    """
    plugins = Plugins()
    root = Path(cache_dir) if cache_dir is not None else cache_root()
    models = resolve_model(os.fspath(model), plugins, root)
    if len(models) != 1:
        names = ", ".join(m.path.name for m in models)
        raise UsageError(f"{model}: {len(models)} models ({names}); vet them one at a time")
    settings = Settings(
        optimizer=optimizer,
        optimizer_options=optimizer_options or {},
        pipeline=pipeline if isinstance(pipeline, str) else ",".join(pipeline),
        strategy=strategy,
        datasets=(dataset,) if isinstance(dataset, str) else tuple(dataset),
        dataset_options=dataset_options or {},
        runtime=runtime,
        cross_check=(cross_check,) if isinstance(cross_check, str) else tuple(cross_check),
        runtime_options=runtime_options or {},
        start=start,
        limit=limit,
        shuffle=shuffle,
        on_bad=on_bad,
        seed=seed,
        jobs=jobs or default_jobs(),
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        comparator=comparator,
        comparator_options=comparator_options or {},
        as_deployed=as_deployed,
        pairs=pairs,
        cache_dir=root,
        use_cache=use_cache,
        trust=trust,
    )
    return vet_model(models[0], settings, plugins, progress=progress)


def default_jobs() -> int:
    """One worker per processor, at most eight."""
    return min(os.cpu_count() or 1, 8)
