"""Which known faults a model may trigger, and what avoids each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto
from packaging.requirements import InvalidRequirement, Requirement

from optvet.engine.discovery import Plugins
from optvet.engine.environment.package_index import PackageIndex
from optvet.engine.known.confirm import Tries, installed_version, ways_round
from optvet.engine.known.documents import faults_of, ranges_of, shows_in_form, types_in_worker
from optvet.engine.models.sources import resolve_model
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.pattern import PatternMatch, parse_pattern, search
from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.records.known import AdviceResult, Advised, KnownFault
from optvet.spec.request import VetRequest

_MOST_PLACES = 20


def advise_on(
    model: str,
    plugins: Plugins,
    *,
    versions: Sequence[str] = (),
    confirm: bool | None = None,
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
        confirm: Whether to run the passes of each fault on the model, and what avoids it; by
            default where that takes seconds.
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
    if confirm is False or not result.advice:
        return result
    tries = Tries(
        VetRequest(model=model, cache_dir=cache_dir, trust=trust),
        plugins,
        PackageIndex(index),
        progress,
        models[0].size_bytes,
        is_quick=confirm is None,
    )
    return tries.confirm(result, {fault.id: fault for fault in faults})


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
    return found or {name: v for name in packages if (v := installed_version(name)) is not None}


def advise(
    source: str, model: ModelProto, versions: Mapping[str, str], faults: Sequence[KnownFault]
) -> AdviceResult:
    """The known faults of these versions whose trigger fits somewhere in the model.

    A place counts if these releases show the fault in its form; where that form was not dated, if
    they show it in another one.
    """
    affected = [
        fault
        for fault in faults
        if fault.package in versions and fault.affects(versions[fault.package])
    ]
    types = types_in_worker(model) if affected else {}
    advice, unfinished = [], []
    for fault in affected:
        version = versions[fault.package]
        found = search(parse_pattern(fault.trigger), model, types)
        unfinished += [] if found.complete else [fault.id]
        if places := [p for p in found.places if shows_in_form(fault, version, p.form)]:
            advice.append(_advised(fault, version, places))
    return AdviceResult(
        schema="optvet.advice/1",
        model=source,
        versions=dict(versions),
        looked_for=len(affected),
        unfinished=unfinished,
        advice=advice,
    )


def _advised(fault: KnownFault, version: str, places: Sequence[PatternMatch]) -> Advised:
    dated = [ranges for p in places if (ranges := ranges_of(fault, p.form)) is not None]
    ways = ways_round(fault, version, dated[0] if dated else None)
    return Advised(
        fault=fault.id,
        title=fault.title,
        package=fault.package,
        version=version,
        passes=fault.pipeline or fault.passes,
        symptom=fault.symptom,
        places=[[_name(node) for node in place.nodes] for place in places[:_MOST_PLACES]],
        certain=any(place.certain for place in places),
        avoid=[way.words for way in ways],
        tried=dict.fromkeys((way.words for way in ways), "not tried on this model"),
        dated=len(dated) == len(places),
    )


def _name(node: NodeProto) -> str:
    """A node by its name, else by its first result."""
    return node.name or next(filter(None, node.output), node.op_type)
