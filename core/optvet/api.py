"""The Python interface: each command of the command line as one function.

Keywords are the options of the command, spelled with underscores. Modules of the engine are
imported by the function that needs them, so that a kept answer is given without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.cache.whole_answers import recall
from optvet.spec.errors import UsageError
from optvet.spec.keywords import (
    AdviseOptions,
    BenchOptions,
    BisectOptions,
    CompareOptions,
    ConvertOptions,
    HuntOptions,
    PathLike,
    PrecisionOptions,
    RepairOptions,
    Strings,
    VetOptions,
)
from optvet.spec.records.vet import VetResult
from optvet.spec.request import VetRequest, request_of

if TYPE_CHECKING:
    from onnx import ModelProto

    from optvet.engine.bundle import Bundle
    from optvet.engine.discovery import Plugins
    from optvet.engine.hunt.summary import HuntProgress
    from optvet.spec.protocols import Feeds
    from optvet.spec.records import BenchResult, HuntSummary, ModelComparison, Replayed
    from optvet.spec.records.bisect import BisectResult
    from optvet.spec.records.convert import ConversionResult
    from optvet.spec.records.known import AdviceResult, KnownFaults
    from optvet.spec.records.precision import PrecisionResult
    from optvet.spec.records.repair import RepairResult

Source: TypeAlias = "str | os.PathLike[str] | bytes | ModelProto"
"""A model: a path, ``SOURCE:NAME`` such as ``zoo:resnet50``, a serialized one, or a protobuf."""
Data: TypeAlias = "str | Sequence[str] | Feeds | Iterable[Feeds]"
"""Where inputs come from: names of datasets, the inputs of one sample, or those of several."""
Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and of how much (None: unknown)."""
BUNDLES = Path("optvet-bundles")
"""Where bundles go if ``reduce`` was asked for without ``out``."""


def ignore_progress(text: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def vet(
    model: Source | VetRequest,
    *,
    dataset: Data = (),
    progress: Progress = ignore_progress,
    **options: Unpack[VetOptions],
) -> VetResult:
    """Test whether an optimizer keeps ``model`` intact, and find the passes that do not.

    With ``reduce`` or ``out`` a bundle is written for each finding, which then names its folder.

    Args:
        model: A path, ``zoo:NAME``, a serialized model, or a ``ModelProto``; a folder must hold
            exactly one model. Or a whole request, to which nothing is added.
        dataset: ``NAME`` or ``NAME:ARGUMENT``, one or several; or inputs: arrays by name for one
            sample, or an iterable of such. By default what the model's record declares, else
            "random".
        progress: Called with what is being done.
        options: The other fields of ``VetRequest``.

    Raises:
        UsageError: What was given is wrong.
        NothingTested: The original runs on no sample.
        PluginError: A plugin is missing or broken.
        InfrastructureError: optvet's own machinery failed.
    """
    if isinstance(model, VetRequest):
        return _answer(model, None, progress, keep=True)
    if isinstance(model, (str, os.PathLike)) and (names := _names(dataset)) is not None:
        request = _request(os.fspath(model), names, options)
        return _answer(request, None, progress, keep=True)
    from optvet.engine.vetting import resolve_inputs

    with resolve_inputs(model, dataset) as (reference, plugins, names):
        is_file = isinstance(model, (str, os.PathLike))
        return _answer(_request(reference, names, options), plugins, progress, keep=is_file)


def bisect(
    model: Source,
    *,
    dataset: Data = (),
    progress: Progress = ignore_progress,
    **options: Unpack[BisectOptions],
) -> BisectResult:
    """Find the release of a package that broke ``model``, and the pass that is to blame.

    Args:
        model: As ``vet`` takes it.
        dataset: Where the inputs come from: names of datasets. Each release is asked in a process
            of its own, so arrays cannot be given.
        progress: Called with what is being done.
        options: The other fields of ``BisectRequest``.

    Raises:
        UsageError: What was given is wrong, or there is no release.
        NothingTested: Every release was skipped.
        InfrastructureError: The disk is full, or the index is out of reach.
    """
    from optvet.engine.bisect.run import bisect as searched
    from optvet.engine.vetting import resolve_inputs
    from optvet.spec.bisect import BisectRequest

    if (data := _names(dataset)) is None:
        raise UsageError("bisect: expected names of datasets; save inputs, then name their files")
    with resolve_inputs(model, data) as (reference, plugins, names):
        request = request_of(BisectRequest, {"model": reference, "dataset": names, **options})
        return searched(request, plugins, progress=progress)


def advise(
    model: Source,
    *,
    versions: Strings = (),
    progress: Progress = ignore_progress,
    **options: Unpack[AdviseOptions],
) -> AdviceResult:
    """Tell which known faults ``model`` may trigger, where, and what avoids each.

    What takes seconds is tried on the model.

    Args:
        model: As ``vet`` takes it.
        versions: ``PACKAGE==VERSION``, one or several; by default what is installed.
        progress: Called with what is being done.
        options: ``confirm`` tries all passes and ways round on the model, with ``index`` as the
            folder of wheels, or none if False; ``known`` are documents beside those that come with
            optvet.

    Raises:
        UsageError: The model, a version or a document cannot be used.
    """
    from optvet.engine.known.advise import advise_on
    from optvet.engine.vetting import resolve_inputs

    fields: dict[str, Any] = {**options}
    index = fields.pop("index", None)
    root = fields.pop("cache_dir", None) or cache_root()
    with resolve_inputs(model, ()) as (reference, plugins, _):
        return advise_on(
            reference,
            plugins,
            versions=(versions,) if isinstance(versions, str) else versions,
            index=None if index is None else Path(index),
            known=[Path(place) for place in fields.pop("known", ())],
            cache_dir=Path(root),
            progress=progress,
            **fields,
        )


def known(*, package: str | None = None, known: Sequence[PathLike] = ()) -> KnownFaults:
    """List the known faults of optimizers.

    Args:
        package: Those of this package alone, such as "onnxslim".
        known: Documents, or folders of them, beside those that come with optvet.

    Raises:
        UsageError: A place does not exist, or a document is wrong.
    """
    from optvet.engine.known.documents import faults_of
    from optvet.spec.records.known import KnownFaults

    faults = faults_of([Path(place) for place in known])
    chosen = [fault for fault in faults if package in (None, fault.package)]
    return KnownFaults(schema="optvet.known-faults/1", faults=chosen)


def bench(
    model: Source,
    *,
    dataset: Data = (),
    progress: Progress = ignore_progress,
    **options: Unpack[BenchOptions],
) -> BenchResult:
    """Time what optimizers make of ``model``, beside the original.

    Args:
        model: As ``vet`` takes it.
        dataset: Where the inputs come from, as ``vet`` takes it.
        progress: Called with what is being done.
        options: The other fields of ``BenchRequest``.

    Raises:
        UsageError: What was given is wrong.
        NothingTested: The original cannot be run.
    """
    from optvet.engine.bench import bench as timed
    from optvet.engine.vetting import resolve_inputs
    from optvet.spec.bench import BenchRequest

    with resolve_inputs(model, dataset) as (reference, plugins, names):
        request = request_of(BenchRequest, {"model": reference, "dataset": names, **options})
        return timed(request, plugins, progress=progress)


def compare(
    a: Source,
    b: Source,
    *,
    dataset: Data = "random",
    progress: Progress = ignore_progress,
    **options: Unpack[CompareOptions],
) -> ModelComparison:
    """Compare two models value by value on the first sample; ``b`` may be of another format.

    With ``limit``, so many samples tell which layers differ where the models' answers do.

    Args:
        a: An ONNX model, as ``vet`` takes it.
        b: What was made of it: a model, or a file that a runtime reads.
        dataset: Where the inputs come from, as ``vet`` takes it.
        progress: Called with what is being done.
        options: The other options of ``optvet compare``.

    Raises:
        UsageError: A model, dataset or runtime cannot be used.
    """
    from optvet.engine.compare import compare_files
    from optvet.engine.vetting import resolve_inputs

    fields: dict[str, Any] = {**options}
    root = Path(fields.pop("cache_dir", None) or cache_root())
    with (
        resolve_inputs(a, dataset) as (first, plugins, names),
        resolve_inputs(b, ()) as (second, _, _),
    ):
        return compare_files(
            first, second, plugins, dataset=names[0], cache_dir=root, progress=progress, **fields
        )


def convert(
    model: Source,
    *,
    dataset: Data = (),
    reduce: PathLike | None = None,
    progress: Progress = ignore_progress,
    **options: Unpack[ConvertOptions],
) -> ConversionResult:
    """Test whether converters keep a model intact, and find the stage that does not.

    Args:
        model: A source: a file that the first converter takes, ``FILE.py:FUNCTION``, which makes a
            model, or an ONNX model as ``vet`` takes it.
        dataset: Where the inputs of a source in ONNX come from, as ``vet`` takes it.
        reduce: A folder for the smallest part of the source that still shows the fault, if any.
        progress: Called with what is being done.
        options: The other fields of ``ConvertRequest``.

    Raises:
        UsageError: The source, the chain or an option cannot be used.
        NothingTested: No output of the source can be compared.
        PluginError: A plugin is missing or broken.
    """
    from optvet.engine.convert.run import convert_model
    from optvet.engine.reduce.converted_source import reduced_or_why_not
    from optvet.engine.vetting import resolve_inputs
    from optvet.spec.convert import ConvertRequest

    with resolve_inputs(model, dataset) as (reference, plugins, names):
        request = request_of(ConvertRequest, {"model": reference, "dataset": names, **options})
        result = convert_model(request, plugins, progress=progress)
        if reduce is None or result.verdict != "faulty":
            return result
        reduced = reduced_or_why_not(request, result, plugins, Path(reduce), progress=progress)
        return result.model_copy(update={"reduced": reduced})


def repair(
    model: Source,
    *,
    out: PathLike,
    dataset: Data = (),
    progress: Progress = ignore_progress,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Find edits that make a converted or optimized model compute what its source computes.

    Args:
        model: The source, as ``convert`` takes it.
        out: Folder for ``repaired.onnx`` and ``patch.json``.
        dataset: Where the inputs of a source in ONNX come from, as ``vet`` takes it.
        progress: Called with what is being done.
        options: The other fields of ``RepairRequest``.

    Raises:
        UsageError: The source, the chain or an option cannot be used, or the chain makes no ONNX.
        NothingTested: No output of the source can be compared.
        PluginError: A plugin is missing or broken.
    """
    from optvet.engine.repair.run import repair_model
    from optvet.engine.vetting import resolve_inputs
    from optvet.spec.repair import RepairRequest

    with resolve_inputs(model, dataset) as (reference, plugins, names):
        fields = {"model": reference, "dataset": names, **options, "out": out}
        return repair_model(request_of(RepairRequest, fields), plugins, progress=progress)


def precision(
    model: Source,
    *,
    dataset: Data = (),
    progress: Progress = ignore_progress,
    **options: Unpack[PrecisionOptions],
) -> PrecisionResult:
    """Find the fewest nodes to keep as they are while the rest becomes less precise.

    Args:
        model: As ``vet`` takes it.
        dataset: Where the inputs come from, as ``vet`` takes it.
        progress: Called with what is being done.
        options: The other fields of ``PrecisionRequest``.

    Raises:
        UsageError: What was given is wrong, or no node can be converted.
        NothingTested: The original runs on no sample.
        PluginError: A plugin is missing or broken.
    """
    from optvet.engine.precision.run import find_precision
    from optvet.engine.vetting import resolve_inputs
    from optvet.spec.precision import PrecisionRequest

    with resolve_inputs(model, dataset) as (reference, plugins, names):
        request = request_of(PrecisionRequest, {"model": reference, "dataset": names, **options})
        return find_precision(request, plugins, progress=progress)


def hunt(
    optimizer: str, *, progress: Progress = ignore_progress, **options: Unpack[HuntOptions]
) -> HuntSummary:
    """Look for faults of an optimizer on models aimed at its passes.

    Findings and the state of the hunt are in the folder ``out``, by default ``hunts/OPTIMIZER``.

    Args:
        optimizer: Its name.
        progress: Called with what is being done, and how many hundredths of the budget are used.
        options: The other fields of ``HuntRequest``.

    Raises:
        UsageError: What was given is wrong, or the folder holds another hunt.
    """
    from optvet.engine.discovery import Plugins
    from optvet.engine.hunt.run import hunt as searched
    from optvet.report.graph_svg import draw
    from optvet.spec.hunt import HuntRequest

    def follow(event: HuntProgress) -> None:
        progress(event.doing, int(100 * min(event.share, 1.0)), 100)

    request = request_of(HuntRequest, {"optimizer": optimizer, **options})
    return searched(request, Plugins(), draw=draw, progress=follow)


def replay(bundle: PathLike, *, trust: bool = False) -> Replayed:
    """Test a bundle again under the installed versions: fixed, still there, or changed.

    Args:
        bundle: A folder that ``vet`` or ``write_bundles`` wrote.
        trust: Whether its options may name code, commands and files.

    Raises:
        UsageError: It is no bundle, or what it needs is not installed.
    """
    from optvet.engine.bundle import replay_bundle
    from optvet.engine.discovery import Plugins

    return replay_bundle(Path(bundle), Plugins(), trust=trust)


def write_bundles(
    result: VetResult, request: VetRequest, out: PathLike, *, progress: Progress = ignore_progress
) -> list[Bundle]:
    """Write a folder below ``out`` for each finding of ``result``, the result of ``request``.

    Each finding is reduced first if the request says ``reduce``.
    """
    from optvet.engine import bundle
    from optvet.engine.discovery import Plugins
    from optvet.report.graph_svg import draw

    about = (result, request, Path(out), Plugins())
    return bundle.write_bundles(*about, draw=draw, progress=progress)


def reduce(
    model: Source,
    check: str,
    *,
    timeout: float = 60.0,
    jobs: int = 1,
    max_checks: int | None = None,
    progress: Progress = ignore_progress,
) -> ModelProto:
    """The smallest model found for which the command ``check`` still exits 0.

    Args:
        model: As ``vet`` takes it.
        check: A command; ``{model}`` in it stands for the path of a model.
        timeout: Limit of one command, seconds; beyond it the answer is no.
        jobs: Commands at a time.
        max_checks: Stop after this many commands.
        progress: Called with what is being done.

    Raises:
        UsageError: The command cannot be run, or does not exit 0 for the whole model.
    """
    from optvet.engine.models.sources import resolve_model
    from optvet.engine.reduce.check_command import parse_command, reduce_by_command
    from optvet.engine.reduce.reduction_order import Budget
    from optvet.engine.vetting import resolve_inputs

    with resolve_inputs(model, ()) as (reference, plugins, _):
        (opened,) = resolve_model(reference, plugins, cache_root())
        return reduce_by_command(
            opened.load(),
            parse_command(check),
            timeout_s=timeout,
            jobs=jobs,
            budget=Budget(checks=max_checks),
            progress=progress,
        ).model


# --- answers of vet -------------------------------------------------------------------------------


def _names(dataset: Data) -> tuple[str, ...] | None:
    """Names of datasets; None if inputs are given themselves."""
    names = (dataset,) if isinstance(dataset, str) else dataset
    if not isinstance(names, (tuple, list)):
        return None
    kept = tuple(name for name in names if isinstance(name, str))
    return kept if len(kept) == len(names) else None


def _request(model: str, dataset: tuple[str, ...], options: Mapping[str, Any]) -> VetRequest:
    return request_of(VetRequest, {"model": model, "dataset": dataset, **options})


def _answer(
    request: VetRequest, plugins: Plugins | None, progress: Progress, *, keep: bool
) -> VetResult:
    """The answer, kept or found anew, with bundles if the request asks for them."""
    kept = recall(request, request.cache_dir or cache_root()) if plugins is None else None
    asks_for_bundles = request.reduce or request.out is not None
    if kept is not None and not asks_for_bundles:
        return _named(kept, request.cache_dir)
    from optvet.engine.discovery import Plugins
    from optvet.engine.vetting import vet_request, vetted

    plugins = plugins or Plugins()
    root = request.cache_dir
    if not asks_for_bundles:
        result = vet_request(request, plugins, progress=progress, keep=keep)
        return _named(result, root)
    from optvet.engine.bundle import with_bundles
    from optvet.report.graph_svg import draw

    about = (request, request.out or BUNDLES, plugins)
    if kept is not None:
        return with_bundles(_named(kept, root), *about, draw=draw, progress=progress)
    with vetted(request, plugins, progress=progress, keep=keep) as answer:
        result, session = _named(answer.result, root), answer.session
        return with_bundles(result, *about, session=session, draw=draw, progress=progress)


def _named(result: VetResult, cache_dir: Path | None) -> VetResult:
    """The result, whose findings name the known faults that they are."""
    if not result.findings:
        return result
    from optvet.engine.known.naming import with_known

    return with_known(result, cache_dir)
