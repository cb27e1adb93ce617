"""Testing a culprit once, on one model and one set of inputs."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from optvet.engine.bundle.lines_of_pass import suspected_lines
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.options import parse_options
from optvet.engine.reduce.observed_fault import (
    ChangedMetadata,
    ObservedFault,
    Sought,
    find_first_fault,
    is_structural,
)
from optvet.engine.reduce.oracle import examiner_for
from optvet.engine.trust import options_from
from optvet.engine.vet.explain.graph_views import GraphView, graph_views
from optvet.engine.vet.explain.locate import explain
from optvet.engine.vet.require.metrics import runs_of
from optvet.engine.vet.require.portable import PortableRequirement
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.sandbox import Sandbox, enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.building import BuildSpec, visible
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.text import graph_text
from optvet.spec.errors import InputError
from optvet.spec.foreign import load_model
from optvet.spec.records import Divergence, Finding, Reproduction
from optvet.spec.requirement import Tolerance, read_requirement
from optvet.spec.scratch import temporary_folder
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Failure, Model, Sample


@dataclass(frozen=True)
class Evidence:
    """What one model shows: the fault if any, expected outputs, and the two graphs as text.

    ``expected`` are outputs on the first sample, ``more`` those on further ones; ``noise`` is the
    absolute noise of outputs on each, where it was measured. ``lines`` are suspected lines of the
    passes' code.
    """

    observed: ObservedFault | None
    expected: Outputs
    before: str
    after: str
    full_check: bool
    more: tuple[Outputs, ...] = ()
    noise: tuple[Mapping[str, float], ...] = ()
    divergence: Divergence | None = None
    graph_views: tuple[GraphView, ...] = ()
    lines: str = ""


def observe(
    case: Case,
    culprit: tuple[str, ...],
    feeds: Mapping[str, np.ndarray],
    sandbox: Sandbox,
    sought: Sought = None,
    *,
    more: Sequence[Mapping[str, np.ndarray]] = (),
    explained: bool = False,
) -> Evidence:
    """Test ``culprit`` on the model and these inputs; ``sought`` as in ``find_first_fault``.

    ``more`` are inputs of further samples, of a requirement that one sample does not break. The
    place in the graph, and the graphs for pictures, are determined only if ``explained``.

    Raises:
        InputError: The original does not run.
    """
    samples = [Sample(f"witness {i}", dict(each)) for i, each in enumerate((feeds, *more))]
    sample = samples[0]
    cache = Cache(None)
    try:
        runner, evidence = _observe(TrialRunner(case, sandbox, cache), culprit, samples, sought)
        return _explain(runner, culprit, sample, evidence) if explained else evidence
    finally:
        cache.close()


def _observe(
    runner: TrialRunner, culprit: tuple[str, ...], samples: Sequence[Sample], sought: Sought
) -> tuple[TrialRunner, Evidence]:
    """The evidence, and a trial runner with checks that the original passes."""
    reference = runner.reference(samples)
    for fewer in ({"full": False}, {"plain": False}):
        if reference.build.failure is not None and reference.build.failure.kind == "error":
            # The optimized model need not pass what the original fails.
            runner = runner.under(**fewer)
            reference = runner.reference(samples)
    if is_structural(sought):
        # Structures are compared whether or not the checker refuses one, which is another finding.
        runner = runner.under(plain=False)
    case = runner.case
    runs = [reference.runs.get(sample.id) for sample in samples]
    failed = [run for run in runs if run is None or isinstance(run, Failure)]
    for run in failed:
        failure = run or reference.build.failure
        words = describe(failure) if failure else "no answer"
        raise InputError(f"the original does not run under {case.reference.runtime.name}: {words}")
    examiner = examiner_for(runner, culprit, samples, reference, sought)
    passes = case.passes.complete(culprit)
    if case.checks.timeout_s is None:
        trial = runner.fresh(passes, samples)
    else:
        trial = runner.trial(passes, samples, "confirm")
    observed = find_first_fault(examiner, reference, trial, samples, sought)
    if observed is None and is_structural(sought) and trial.build.facts is None:
        # No structure to compare: the failure is told, since nothing says that the note is gone.
        observed = find_first_fault(examiner, reference, trial, samples)
    built = trial.build.failure is None or trial.build.failure.stage != "build"
    after = (
        runner.sandbox.call(_text_after, runner.build_spec(passes), fresh=True).value
        if built
        else ""
    )
    before = runner.sandbox.call(_text_of, runner.model.blob, fresh=True).value or ""
    first, *more = (examiner.reference[sample.id] for sample in samples)
    metric = isinstance(sought, PortableRequirement)
    levels = examiner.levels(runs_of(trial), case.passes.pipeline) if metric else {}
    noise = tuple(levels.get(sample.id, {}) for sample in samples)
    full = case.checks.full
    return runner, Evidence(observed, first, before, after or "", full, tuple(more), noise)


def _explain(
    runner: TrialRunner, culprit: tuple[str, ...], sample: Sample, evidence: Evidence
) -> Evidence:
    passes, found = runner.case.passes.complete(culprit), None
    if evidence.observed is not None:
        seen = evidence.observed.observation
        found = explain(runner, seen.symptom, seen.outputs, passes, sample)
    views = graph_views(runner, passes, found)
    lines = _lines(runner, passes, evidence)
    return replace(evidence, divergence=found, graph_views=views, lines=lines)


def _lines(runner: TrialRunner, passes: tuple[str, ...], evidence: Evidence) -> str:
    """Lines of the passes' code; none of a hang, which would have to be waited for."""
    if evidence.observed is not None and evidence.observed.signature.symptom.info.limit == "time":
        return ""
    build_spec = runner.build_spec(passes)
    return runner.sandbox.call(suspected_lines, build_spec, fresh=True).value or ""


def _text_of(path: Path) -> str:
    enter("load")
    return graph_text(load_model(path))


def _text_after(build_spec: BuildSpec) -> str:
    """The optimized model as text, if its format has a graph. Called in a worker."""
    model = visible(build_spec)
    return "" if model is None else graph_text(model)


@contextmanager
def on_disk(proto: ModelProto) -> Iterator[Model]:
    """``proto`` as a ``Model``, in a temporary folder."""
    with temporary_folder("optvet-bundle-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        yield open_model(path, "model", Path(folder))


def note_of(finding: Finding) -> Symptom | ChangedMetadata | None:
    """The note to look for; None for faults."""
    if finding.symptom is Symptom.METADATA_CHANGE:
        return ChangedMetadata(tuple(finding.changed))
    return finding.symptom if finding.symptom.info.severity == "note" else None


def sought_by(
    record: Reproduction, plugins: Plugins, *, trust: bool = False, file: str = ""
) -> Sought:
    """What the bundle of ``record`` shows.

    Args:
        record: The record.
        plugins: The installed plugins.
        trust: Whether options in ``record`` may name code, commands and files.
        file: Where ``record`` is from, for messages.

    Raises:
        UsageError: There is no such comparator.
        InputError: The record states no requirement, or an option that is not trusted.
    """
    finding = record.finding
    if finding.symptom.info.severity != "requirement":
        return note_of(finding)
    try:
        required = read_requirement(finding.requirement or "")
    except ValueError as error:
        raise InputError(f"{file}: {error}; make the bundle anew") from error
    if isinstance(required, Tolerance):
        excluded = frozenset(record.outputs) - frozenset(finding.outputs)
        return PortableRequirement(replace(required, excluded=excluded))
    comparator = plugins.comparator(record.comparator or "")
    options, key = record.comparator_options, "comparator_options"
    options = options_from(file, key, comparator.options, options, folder=None, trust=trust)
    where = f"comparator {comparator.name}"
    return PortableRequirement(
        required, (comparator, parse_options(where, comparator.options, options))
    )


def versions(case: Case) -> dict[str, str]:
    """Versions of the optimizer, the runtimes and the libraries of the case."""
    runtime = case.candidate.runtime
    return {
        case.optimizer.name: case.optimizer.version(),
        runtime.name: runtime.version(),
        "onnx": onnx.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
