"""From a request to a folder of synthetic models: the loop of hunts, with nothing to vet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto

from optvet import __version__
from optvet.engine.discovery import Plugins
from optvet.engine.generate.coverage import operators_at
from optvet.engine.generate.growth_batch import GrowthBatch, fragments_of, newest_opset
from optvet.engine.generate.synthetic import OLDEST_OPSET, SyntheticModels
from optvet.engine.hunt.loop import HuntBudget, HuntLoop, HuntSetup
from optvet.engine.hunt.state import HuntState
from optvet.engine.hunt.summary import About, HuntProgress
from optvet.engine.hunt.vocabulary import choices_of, fragments_folder, gather
from optvet.engine.hunt.workers import do_batch
from optvet.engine.vet.session import default_jobs
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.types import dtype_name
from optvet.graph.walk import qualified_name
from optvet.spec.errors import InfrastructureError, UnknownName, UsageError
from optvet.spec.generate import GenerateRequest
from optvet.spec.records import GeneratedModels
from optvet.spec.scratch import temporary_folder

ROUND = 16
"""Candidates that are planned at once: whatever the number of workers, so that the models of a
seed do not depend on it."""
_SECONDS = 120.0
_MEMORY_BYTES = 4 << 30

OnProgress = Callable[[str, int, int | None], None]


def generate(
    request: GenerateRequest,
    plugins: Plugins,
    *,
    progress: OnProgress = lambda text, done, total: None,
) -> GeneratedModels:
    """Write the models of the request, each file whole, in order of their numbers.

    Raises:
        UsageError: The request cannot be answered, or the folder is not empty.
        InfrastructureError: A file cannot be written, or the sandbox failed.
    """
    folder = request.out.expanduser()
    _check_empty(folder)
    # All that can be refused is, before a worker starts.
    runtime = plugins.runtime(request.runtime) if request.runtime else plugins.reference_runtime()
    if "onnx" not in runtime.accepts:
        raise UsageError(f"--runtime {runtime.name}: it does not run ONNX models")
    config = RuntimeConfig(runtime, runtime.options)
    choices = choices_of(request.pools, plugins)
    jobs = request.jobs or default_jobs()
    modules = (do_batch.__module__, GrowthBatch.__module__)
    preload = ("numpy.random", "onnx", "onnx.checker", *modules, *runtime.preload)
    fragments = fragments_folder(request.cache_dir)
    limits = Limits(_SECONDS, _MEMORY_BYTES, writable=(str(fragments),))
    # Workers end before the folder goes in which they leave words.
    with (
        temporary_folder("optvet-generate-") as temporary,
        Sandbox(jobs=jobs, limits=limits, preload=preload) as sandbox,
    ):
        opset = _opset(request, config, sandbox)
        # Names are checked before pools are gathered, which takes longest.
        operators = _known(request.operators, opset) if request.operators else None
        excluded = _find_excluded(request, opset)
        progress("gathering fragments", 0, None)
        files = gather(
            choices,
            (),
            runtime,
            runtime.options,
            seed=request.seed,
            sandbox=sandbox,
            folder=fragments,
            version=__version__,
        )
        known = tuple(fragments_of(tuple(files), operators, excluded))
        made = SyntheticModels(
            request,
            folder,
            config,
            opset,
            operators,
            excluded,
            tuple(files),
            known,
            sandbox,
            Path(temporary),
        )

        def follow(event: HuntProgress) -> None:
            progress("models", event.valid, made.count)

        # No state is kept: a folder that was begun is not gone on with.
        state, budget = HuntState(), HuntBudget(valid=made.count, largest=ROUND)
        HuntLoop(HuntSetup(About("", ""), made, budget), jobs, progress=follow).run(state)
    return made.record(state)


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "holds files already" if folder.is_dir() else "is a file"
        raise UsageError(f"--out {folder} {what}; give a new or an empty folder")


def _opset(request: GenerateRequest, config: RuntimeConfig, sandbox: Sandbox) -> int:
    """The operator-set version of the models.

    Raises:
        UsageError: onnx or the runtime does not have it.
    """
    newest = onnx.defs.onnx_opset_version()
    if request.opset is not None and request.opset > newest:
        raise UsageError(f"--opset {request.opset}: the installed onnx knows {newest} at most")
    # The newest of onnx is mostly newer than what runtimes have kernels for.
    first, last = (newest, OLDEST_OPSET) if request.opset is None else (request.opset,) * 2
    found = sandbox.call(newest_opset, config, first, last)
    if found.failure is not None:
        raise InfrastructureError(f"runtime {config.runtime.name!r}: {found.failure.message}")
    if found.value is None:
        option = f"--opset {request.opset}: " if request.opset else ""
        raise UsageError(f"{option}runtime {config.runtime.name!r} runs no model of it")
    return found.value


def _find_excluded(request: GenerateRequest, opset: int) -> frozenset[str]:
    """The operators that are excluded; the types are checked too.

    Raises:
        UnknownName: There is no such operator, or no such type.
    """
    types = [dtype_name(number) for number in TensorProto.DataType.values() if number]
    for name in request.exclude_types:
        if name not in types:
            raise UnknownName("element type", name, types)
    return _known(request.exclude_operators, opset)


def _known(names: Sequence[str], opset: int) -> frozenset[str]:
    others = (s for s in onnx.defs.get_all_schemas() if s.domain)
    known = [*operators_at(opset), *(qualified_name(s.domain, s.name) for s in others)]
    for name in names:
        if name not in known:
            raise UnknownName(f"operator of opset {opset}", name, known, "")
    return frozenset(names)
