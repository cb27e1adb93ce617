"""Which known faults a model may trigger, without running an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

from onnx import ModelProto, NodeProto, TypeProto
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from optvet.engine.bisect.overlay import Overlay, Overlays
from optvet.engine.bisect.predicate import vet_there
from optvet.engine.bisect.run import released_packages
from optvet.engine.discovery import Plugins
from optvet.engine.environment.package_index import NotInstallable, PackageIndex
from optvet.engine.environment.releases import ReleaseStore, releases_root
from optvet.engine.known.documents import faults_of, with_declared
from optvet.engine.models.sources import resolve_model
from optvet.engine.vetting import error_of, vet_request
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inner_values import infer
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.pattern import PatternMatch, find_matches, parse_pattern
from optvet.spec.errors import OptvetError, UnknownName, UsageError
from optvet.spec.records import ErrorRecord, VetResult
from optvet.spec.records.known import AdviceResult, Advised, KnownFault
from optvet.spec.request import VetRequest

_MOST_PLACES = 20


def advise_on(
    model: str,
    plugins: Plugins,
    *,
    versions: Sequence[str] = (),
    confirm: bool = False,
    index: Path | None = None,
    known: Sequence[Path] = (),
    trust: bool = False,
    cache_dir: Path,
    progress: Progress,
) -> AdviceResult:
    """Which known faults a model may trigger: what ``optvet advise`` answers.

    Args:
        model: An ONNX file, or ``zoo:NAME``.
        plugins: What is installed.
        versions: ``PACKAGE==VERSION``, several; by default what is installed.
        confirm: Whether to run the passes of each fault on the model.
        index: Folder of wheels to install a version from; by default that of pip.
        known: Documents, or folders of them, beside those that come with optvet.
        trust: Whether records beside the model may name code.
        cache_dir: Where models of model sources are kept.
        progress: Called with what is being done.

    Raises:
        UsageError: The model, a version or a document cannot be used.
    """
    faults = faults_of(known)
    found = versions_asked(versions, faults)
    models = resolve_model(model, plugins, cache_dir)
    if len(models) != 1:
        raise UsageError(f"{model}: {len(models)} models; advise on one at a time")
    progress("looking for triggers", 0, None)
    result = advise(model, models[0].load(), found, faults)
    if not confirm:
        return result
    request = VetRequest(model=model, cache_dir=cache_dir, trust=trust)
    by_id = {fault.id: fault for fault in faults}
    return confirm_advice(
        result, by_id, request, plugins, index=PackageIndex(index), progress=progress
    )


def versions_asked(wanted: Sequence[str], faults: Iterable[KnownFault]) -> dict[str, str]:
    """Version by package: what ``--with`` names, by default what is installed.

    Raises:
        UsageError: It is no ``PACKAGE==VERSION``, or no fault of such a package is known.
    """
    packages = sorted({fault.package for fault in faults})
    found = {}
    for text in wanted:
        try:
            requirement = Requirement(text)
            ((relation, version),) = ((s.operator, s.version) for s in requirement.specifier)
        except (InvalidRequirement, ValueError):
            relation, version = "", ""
        if relation != "==" or version.endswith("*"):
            raise UsageError(
                f"--with {text!r}: expected PACKAGE==VERSION, such as {packages[0]}==1.0"
            )
        if requirement.name not in packages:
            raise UnknownName("package", requirement.name, packages, "(known faults are of these)")
        found[requirement.name] = version
    return found or {name: v for name in packages if (v := _installed(name)) is not None}


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def types_in_worker(model: ModelProto) -> dict[str, TypeProto]:
    """Types of inner values; shape inference may crash, so a worker does it."""
    with Sandbox(jobs=1, preload=("onnx", infer.__module__)) as sandbox:
        known = sandbox.call(infer, model.SerializeToString(), True).value or {}
    types = {name: TypeProto.FromString(data) for name, data in known.items()}
    return with_declared(types, model)


def advise(
    source: str, model: ModelProto, versions: Mapping[str, str], faults: Sequence[KnownFault]
) -> AdviceResult:
    """The known faults of these versions whose trigger fits somewhere in the model."""
    affected = [
        fault
        for fault in faults
        if fault.package in versions and fault.affects(versions[fault.package])
    ]
    types = types_in_worker(model) if affected else {}
    advice = []
    for fault in affected:
        places = find_matches(parse_pattern(fault.trigger), model, types)
        if places:
            advice.append(_advised(fault, versions[fault.package], places))
    return AdviceResult(
        schema="optvet.advice/1",
        model=source,
        versions=dict(versions),
        looked_for=len(affected),
        advice=advice,
    )


def _advised(fault: KnownFault, version: str, places: Sequence[PatternMatch]) -> Advised:
    return Advised(
        fault=fault.id,
        title=fault.title,
        package=fault.package,
        version=version,
        passes=fault.pipeline or fault.passes,
        symptom=fault.symptom,
        places=[[_name(node) for node in place.nodes] for place in places[:_MOST_PLACES]],
        certain=any(place.certain for place in places),
        avoid=_ways_round(fault, version),
    )


def _name(node: NodeProto) -> str:
    """A node by its name, else by its first result."""
    return node.name or next(filter(None, node.output), node.op_type)


def _ways_round(fault: KnownFault, version: str) -> list[str]:
    """What avoids a fault: a later or an earlier version, fewer passes, another model."""
    ranges = fault.affected
    number = next(i for i, one in enumerate(ranges) if one.covers(Version(version)))
    ways = []
    if (fixed := ranges[number].fixed) is not None:
        again = ranges[number + 1].introduced if number + 1 < len(ranges) else None
        ways.append(f"{fault.package}>={fixed}{f',<{again}' if again else ''}")
    if (introduced := ranges[number].introduced) is not None:
        good = ranges[number].good_before
        before = ranges[number - 1].fixed if number else None
        since = f">={before}," if before else ""
        ways.append(f"{fault.package}{since}{f'<={good}' if good else f'<{introduced}'}")
    if off := (fault.pipeline[-1:] or fault.passes):
        without = "".join(f",-{name}" for name in off)
        ways.append(f"--optimizer {fault.optimizer} --pipeline default{without}")
    return [*ways, *([fault.edit] if fault.edit else [])]


# --- confirming ----------------------------------------------------------------------------------


def confirm_advice(
    result: AdviceResult,
    faults: Mapping[str, KnownFault],
    request: VetRequest,
    plugins: Plugins,
    *,
    index: PackageIndex,
    progress: Progress,
) -> AdviceResult:
    """The same advice after running the passes of each fault on the model, and these alone.

    A version that is not installed is run as ``bisect`` does.
    """
    advice = []
    for number, one in enumerate(result.advice):
        progress(f"confirming {one.fault}", number, len(result.advice))
        fault = faults[one.fault]
        asked = request.model_copy(
            update={
                "optimizer": fault.optimizer,
                "pipeline": ",".join(fault.applied) or "none",
                "strategy": "auto" if fault.applied else "none",
            }
        )
        answer = _vet_under(fault.package, one.version, asked, plugins, index, progress)
        if isinstance(answer, ErrorRecord):
            advice.append(one.model_copy(update={"note": answer.message}))
            continue
        shows = any(f.symptom in fault.symptoms for f in answer.findings)
        advice.append(one.model_copy(update={"confirmed": shows}))
    return result.model_copy(update={"advice": advice})


def _vet_under(
    package: str,
    version: str,
    request: VetRequest,
    plugins: Plugins,
    index: PackageIndex,
    progress: Progress,
) -> VetResult | ErrorRecord:
    try:
        if _installed(package) == version:
            return vet_request(request, plugins)
        released = released_packages(plugins).get(package)
        if released is None:
            raise UsageError(f"{package} {version} is not installed, and no plugin declares it")
        store = ReleaseStore(releases_root())
        with ExitStack() as stack:
            overlays = Overlays(
                released[0][1], store, index, lambda words: progress(words, 0, None)
            )
            overlay: Overlay = stack.enter_context(overlays.using(version))
            return vet_there(overlay, request)
    except NotInstallable as error:
        return error_of(request.model, UsageError(f"{package} {version}: {error}"))
    except OptvetError as error:
        return error_of(request.model, error)
