"""Writing bundles: make the witness again, reduce the model, test it once more, write a folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
from onnx import ModelProto

from optvet.engine.bundle.folder import Bundle, write_folder
from optvet.engine.bundle.observe import Evidence, note_of, observe, on_disk, versions
from optvet.engine.discovery import Plugins
from optvet.engine.models.large import PROTOBUF_LIMIT
from optvet.engine.models.sources import resolve_model
from optvet.engine.reduce.observed_fault import Sought
from optvet.engine.reduce.oracle import reduce_finding
from optvet.engine.reduce.reduction_order import Budget, End, Reduction
from optvet.engine.vet.explain.fingerprints import fingerprint
from optvet.engine.vet.find.blame import search_timeout
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.require.portable import PortableRequirement, fewest_samples, portable_of
from optvet.engine.vet.session import VetSession, default_jobs, open_session
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.cost import total_nodes
from optvet.graph.identity import structure_of
from optvet.spec.errors import UsageError
from optvet.spec.foreign import read_file
from optvet.spec.records import Finding, Reproduction, RequirementRecord, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.sensitive import data_files
from optvet.spec.types import Sample

REDUCTION_S = 300.0
"""Limit of a reduction."""


class BundlesInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; ``bundles`` are those written so far, the last as far as it got."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        super().__init__()
        self.bundles = tuple(bundles)


class Draw(Protocol):
    """Makes an SVG document of a graph; see ``optvet.report.graph_svg.draw``."""

    def __call__(
        self,
        model: ModelProto,
        *,
        title: str,
        changed: Collection[int] = (),
        wrong: str | None = None,
        about: Collection[int] | None = None,
    ) -> str:
        """Draw ``model``; ``about`` are the nodes to draw with their neighbours, or None."""
        ...


def is_written(finding: Finding) -> bool:
    """Whether a bundle is written for it: a fault, a note that has one, an unmet requirement."""
    info = finding.symptom.info
    return info.reducible and finding.severity == info.severity


def write_bundles(
    result: VetResult,
    request: VetRequest,
    out: Path,
    plugins: Plugins,
    *,
    session: VetSession | None = None,
    draw: Draw | None = None,
    progress: Progress = lambda text, done, total: None,
    refused: Callable[[Finding, str], None] = lambda finding, reason: None,
    reduction_s: float = REDUCTION_S,
) -> list[Bundle]:
    """One folder below ``out`` per finding of ``result``; those of one fingerprint share it.

    Args:
        result: The result of ``request``.
        request: The request: the witnesses are made again from it, and ``reduce`` says whether
            findings are reduced.
        out: Folder for the bundles; it is made if it does not exist.
        plugins: The installed plugins.
        session: That which gave ``result``, if it is open still; otherwise one is opened.
        draw: Makes the pictures; without it there are none.
        progress: Called with what is being done.
        refused: Called with a finding that has no bundle, and why.
        reduction_s: Limit of a reduction, seconds; it then ends with the best so far.

    Raises:
        Interrupted: Ctrl-C; the bundles so far are complete.
    """
    wanted = [(i, f) for i, f in enumerate(result.findings) if is_written(f)]
    if not wanted:
        return []
    bundles: list[Bundle] = []
    with _going_on(session, request, plugins, progress) as session:
        names = [f.witness.sample if f.witness else None for _, f in wanted]
        samples = session.find_samples(names)
        for (index, finding), witness in zip(wanted, names, strict=True):
            try:
                sought = _sought_fault(session, finding, result.requirements)
                first, *others = _samples(session, finding, sought, samples[witness])
            except UsageError as error:
                refused(finding, str(error))
                continue
            task = _BundleTask(
                index,
                finding,
                sought,
                result.model.source,
                _case(session, finding, first),
                first,
                tuple(others),
                session.runner.sandbox,
                out,
                (request.jobs or default_jobs()) if request.reduce else None,
                progress,
                draw,
                reduction_s,
            )
            bundle, interrupted = _write(task)
            bundles.append(bundle)
            if interrupted:
                raise BundlesInterrupted(bundles)
    return bundles


@contextmanager
def _going_on(
    session: VetSession | None, request: VetRequest, plugins: Plugins, progress: Progress
) -> Iterator[VetSession]:
    """The session, or a new one of the request."""
    if session is not None:
        session.runner.progress = progress
        yield session
        return
    (model,) = resolve_model(request.model, plugins, request.cache_dir or cache_root())
    with open_session(model, request, plugins, progress=progress) as opened:
        yield opened


def with_bundles(
    result: VetResult,
    request: VetRequest,
    out: Path,
    plugins: Plugins,
    *,
    session: VetSession | None = None,
    draw: Draw | None = None,
    progress: Progress = lambda text, done, total: None,
) -> VetResult:
    """``result`` after a bundle was written for each finding; see ``write_bundles``.

    There is none for a model that no single protobuf message could hold.
    """
    if result.model.size_bytes > PROTOBUF_LIMIT:
        return result
    about = (result, request, out, plugins)
    bundles = write_bundles(*about, session=session, draw=draw, progress=progress)
    return with_fingerprints(result, bundles)


def with_fingerprints(result: VetResult, bundles: Sequence[Bundle]) -> VetResult:
    """``result`` with the fingerprints and folders of bundles in its findings."""
    findings = list(result.findings)
    for bundle in bundles:
        update = {"fingerprint": bundle.record.fingerprint, "bundle": bundle.path.name}
        findings[bundle.index] = findings[bundle.index].model_copy(update=update)
    return result.model_copy(update={"findings": findings})


def _case(session: VetSession, finding: Finding, witness: Sample) -> Case:
    """The case of a finding; for a hang, with a shorter time limit, to save time."""
    runner = session.runner_of(finding)
    case = runner.case
    if finding.symptom.info.limit == "time":
        began = time.monotonic()
        runner.fresh(case.passes.base, [witness])
        waited_s = time.monotonic() - began
        case = case.under(timeout_s=search_timeout(session.request.timeout, waited_s))
    return case


def _sought_fault(
    session: VetSession, finding: Finding, requirements: Sequence[RequirementRecord]
) -> Sought:
    if finding.symptom.info.severity == "requirement":
        return portable_of(session, finding, requirements)
    return note_of(finding)


def _samples(
    session: VetSession, finding: Finding, sought: Sought, witness: Sample
) -> list[Sample]:
    """The samples that show ``finding``: the witness, but of some requirements several."""
    if isinstance(sought, PortableRequirement):
        return fewest_samples(session, sought, finding, witness)
    return [witness]


@dataclass(frozen=True)
class _BundleTask:
    """A finding to write; it is not reduced if ``jobs`` is None.

    ``others`` are further samples, of a requirement that the witness alone does not break.
    """

    index: int
    finding: Finding
    sought: Sought
    source: str
    case: Case
    witness: Sample
    others: tuple[Sample, ...]
    sandbox: Sandbox
    out: Path
    jobs: int | None
    progress: Progress
    draw: Draw | None
    reduction_s: float


@dataclass(frozen=True)
class _Small:
    """The model to write down with its inputs; ``end`` is None if it is as it was."""

    model: ModelProto
    feeds: Mapping[str, np.ndarray]
    end: End | None = None
    note: str = ""


def _write(task: _BundleTask) -> tuple[Bundle, bool]:
    """The bundle of one finding, and whether Ctrl-C was pressed meanwhile.

    A model that was reduced is written in any case, unless Ctrl-C is pressed again.
    """
    original = task.case.model.load()
    small = _small(task, original)
    try:
        return _write_bundle(task, small, total_nodes(original)), small.end == "interrupted"
    except KeyboardInterrupt:
        if small.end is None:
            raise
    return _write_bundle(task, small, total_nodes(original)), True


def _small(task: _BundleTask, original: ModelProto) -> _Small:
    """What is left of the original."""
    feeds: Mapping[str, np.ndarray] = task.witness.feeds
    if task.others:
        count = len(task.others) + 1
        note = f"it takes {count} samples, so the model was kept whole"
        return _Small(original, feeds, note=note)
    if task.jobs is None:
        return _Small(original, feeds)
    if not task.finding.localized:
        return _Small(original, feeds, note="not reduced: no culprit was searched")
    try:
        shrunk = _reduce(task, original)
    except UsageError as error:
        return _Small(original, feeds, note=f"not reduced: {error}")
    except KeyboardInterrupt:  # before there was anything smaller
        return _Small(original, feeds, "interrupted", _ENDS["interrupted"])
    return _Small(shrunk.model, shrunk.feeds or {}, shrunk.end, _ENDS[shrunk.end])


def _write_bundle(task: _BundleTask, small: _Small, nodes: int) -> Bundle:
    """The bundle of a model that was reduced from one of ``nodes`` nodes."""
    finding, proto, feeds, note = task.finding, small.model, small.feeds, small.note
    more = [sample.feeds for sample in task.others]
    task.progress("writing the bundle", 0, None)
    case = task.case.under(timeout_s=_final_timeout(task.case))
    finding, case, evidence = _observe(task, finding, case, small, more)
    observed = evidence.observed
    shows = _shows(finding, evidence)
    if not shows:
        words = "shows nothing" if observed is None else f"shows {observed.signature.symptom}"
        note = f"did not show again: judged again, the model {words}"
    else:
        finding = _update_finding(finding, evidence)
    reduced = small.end is not None
    record = _record(task, case, finding, proto, list(feeds), evidence, nodes, reduced=reduced)
    pictures, problem = _pictures(finding, evidence, task.draw)
    note = note or problem
    pictures |= {Path(f).name: read_file(Path(f)) for f in data_files(case.options).values()}
    place = (task.out, task.index)
    written = write_folder(*place, record, proto, feeds, evidence, case, note, pictures, more)
    return dataclasses.replace(written, shows=shows)


def _observe(
    task: _BundleTask,
    finding: Finding,
    case: Case,
    small: _Small,
    more: Sequence[Mapping[str, np.ndarray]],
) -> tuple[Finding, Case, Evidence]:
    """What the model shows; as the optimizer leaves it, if that shows the finding unmended."""
    with on_disk(small.model) as model:
        for plain in (True, False) if finding.mended else (False,):
            tried = case.under(mends=()) if plain else case
            about = (tried.on(model), tuple(finding.culprit), small.feeds, task.sandbox)
            evidence = observe(*about, task.sought, more=more, explained=True)
            if plain and _shows(finding, evidence):
                return finding.model_copy(update={"mended": []}), tried, evidence
    return finding, case, evidence


def _shows(finding: Finding, evidence: Evidence) -> bool:
    observed = evidence.observed
    return observed is not None and observed.signature.symptom == finding.symptom


def _update_finding(finding: Finding, evidence: Evidence) -> Finding:
    """The finding as observed on the model of the bundle."""
    assert evidence.observed is not None
    seen, reading = evidence.observed.observation, evidence.observed.reading
    return finding.model_copy(
        update={
            "message": seen.message,
            "outputs": list(seen.outputs),
            "error": finite(seen.error),
            "noise_floor": finite(seen.noise),
            "wrong_form": seen.wrong_form,
            "divergence": evidence.divergence,
            "measured": finite(reading.value) if reading is not None else finding.measured,
        }
    )


def _record(
    task: _BundleTask,
    case: Case,
    finding: Finding,
    proto: ModelProto,
    inputs: list[str],
    evidence: Evidence,
    nodes: int,
    *,
    reduced: bool,
) -> Reproduction:
    normalized_message = evidence.observed.signature.words if evidence.observed is not None else ""
    by = task.sought.by if isinstance(task.sought, PortableRequirement) else None
    return Reproduction(
        schema="optvet.finding/3",
        fingerprint=_fingerprint(case, finding, proto, reduced=reduced),
        finding=finding,
        normalized_message=normalized_message,
        # Only the name: a path would reveal details of the user's machine.
        model=task.source if task.source.startswith("zoo:") else Path(task.source).name,
        nodes=(nodes, total_nodes(proto)),
        optimizer=case.optimizer.name,
        optimizer_options=case.options.model_dump(mode="json")
        | {name: Path(file).name for name, file in data_files(case.options).items()},
        passes=list(case.passes.complete(finding.culprit)),
        runtime=case.candidate.runtime.name,
        runtime_options=case.candidate.options.model_dump(mode="json"),
        inputs=inputs,
        outputs=list(evidence.expected),
        versions=versions(case),
        timeout_s=case.checks.timeout_s or task.sandbox.limits.timeout_s,
        memory_bytes=task.sandbox.limits.memory_bytes,
        comparator=None if by is None else by[0].name,
        comparator_options={} if by is None else by[1].model_dump(mode="json"),
        noise=[{n: v for n, v in each.items() if np.isfinite(v)} for each in evidence.noise],
        samples=1 + len(task.others),
    )


def _fingerprint(case: Case, finding: Finding, proto: ModelProto, *, reduced: bool) -> str:
    if not reduced and finding.fingerprint is not None:
        return finding.fingerprint
    return fingerprint(case.optimizer.name, finding, structure_of(proto))


def _pictures(
    finding: Finding, evidence: Evidence, draw: Draw | None
) -> tuple[dict[str, bytes], str]:
    """``before.svg`` and ``after.svg``, and of each the region if it is but a part; or why not."""
    if draw is None or not evidence.graph_views:
        return {}, ""
    culprit = " → ".join(finding.culprit) or "import and export"
    files: dict[str, bytes] = {}
    try:
        for when, view in zip(("before", "after"), evidence.graph_views, strict=False):
            model = onnx.load_from_string(view.graph)
            title, wrong = f"{when} {culprit}", view.wrong
            picture = draw(model, title=title, changed=view.changed, wrong=wrong)
            files[f"{when}.svg"] = picture.encode()
            region = view.region
            if region and len(region) + _REST <= len(model.graph.node):
                picture = draw(model, title=title, changed=view.changed, wrong=wrong, about=region)
                files[f"region-{when}.svg"] = picture.encode()
    except Exception as error:  # a bundle without pictures is still useful
        return {}, f"no pictures: {type(error).__name__}: {error}"
    return files, ""


_REST = 6
"""A picture of the region alone is drawn if the graph has at least so many more nodes."""

_ENDS = {
    "done": "",
    "budget": "not fully reduced: it took too long",
    "interrupted": "the reduction was interrupted; this is the smallest model so far",
}


def _reduce(task: _BundleTask, proto: ModelProto) -> Reduction:
    with on_disk(proto) as model:
        return reduce_finding(
            task.case.on(model),
            tuple(task.finding.culprit),
            task.witness,
            sandbox=task.sandbox,
            jobs=task.jobs or 1,
            sought=task.sought,
            budget=Budget(seconds=task.reduction_s),
            progress=task.progress,
        ).reduction


def _final_timeout(case: Case) -> float | None:
    """Time limit of the last test of a hang, seconds; longer than while searching, to be sure."""
    waits = case.checks.timeout_s
    return None if waits is None else max(5.0, waits)
