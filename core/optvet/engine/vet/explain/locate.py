"""Locating a finding in the graph: the first wrong value, the rewrite, and the wrong sites.

::

    original, optimized → values of both on the witness → the earliest beyond its noise
                        → sites that were rewritten → each alone in the original → the wrong ones

Everything happens in one task of a worker, so that the values never leave it.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto
from pydantic import TypeAdapter

from optvet.engine.vet.explain.divergence import (
    JITTERS,
    RecordedValues,
    compare_values,
    judge_value,
    recorded,
)
from optvet.engine.work.cache import disk as caching
from optvet.engine.work.cache.environment_fingerprint import basis
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.checking import check
from optvet.engine.work.trials.trial import (
    BuildSubject,
    RuntimeConfig,
    build,
    load,
    speaks_dialect,
    visible,
)
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph import structure
from optvet.graph.identity import structure_of
from optvet.graph.interface import align
from optvet.graph.sites import (
    Site,
    distinction,
    features_of,
    kind_of,
    rewritten,
    spliced,
)
from optvet.graph.text import node_text
from optvet.graph.types import inferred_types
from optvet.graph.walk import reads
from optvet.graph.weights import clear_large_weights, constants_of
from optvet.spec.memory import in_units
from optvet.spec.protocols import Saves
from optvet.spec.records import Divergence, ModelComparison, RewriteSite
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, InterfaceChange, Model, Sample

VERSION = 5
_DIVERGENCE: TypeAdapter[Divergence] = TypeAdapter(Divergence)
"""Increased when the meaning of a cached divergence changes."""
MAX_SITES = 128
SITES_S = 30.0
"""Time limit for trying sites one at a time, seconds."""
_LINES = 40

AT_LEAST = 5
"""Inferences that finding one wrong value took before: both models, the original once more in
another process, and the confirmation of both. So many may be spent on explaining it."""


def explain(
    runner: TrialRunner,
    symptom: Symptom,
    outputs: Sequence[str],
    passes: Sequence[str],
    sample: Sample,
    inferences: int | None = None,
) -> Divergence | None:
    """Where in the graph a fault is; None if there is no optimized graph to look at.

    Args:
        runner: The trial runner that found the fault.
        symptom: Its symptom.
        outputs: The wrong outputs, if outputs are compared.
        passes: The culprit and the required passes.
        sample: The witness.
        inferences: How many it may take, ``AT_LEAST`` or more; None for as many as sites need.
    """
    if not symptom.info.located:
        return None
    made = runner.case.optimizer.traits.produces
    if made != "onnx" and not isinstance(runner.case.optimizer, Saves):
        return Divergence(
            differs=_outer_values(runner, symptom, outputs, passes, sample),
            note=f"{runner.case.optimizer.name} makes {made}, whose inner values are hidden",
        )
    if runner.subject(None).scratch is not None:
        size = in_units(runner.model.size_bytes)
        return Divergence(note=f"the values inside of a model of {size} are not looked at")
    compares = not symptom.info.failed
    jitters = JITTERS if inferences is None else min(JITTERS, inferences - 2)
    fixed = 2 + jitters if compares else 1
    task = ExplainTask(
        runner.subject(None),
        runner.subject(passes),
        runner.case.candidate,
        runner.model,
        runner.order(runner.subject(passes), [sample]).interface,
        sample.feeds,
        symptom,
        tuple(outputs),
        runner.case.checks.full,
        runner.case.checks.plain,
        jitters if compares else 0,
        2 * MAX_SITES if inferences is None else inferences - fixed,
    )
    about = (list(passes), symptom, list(outputs), task.full_check, task.plain_check)
    key = caching.key(
        "divergence", VERSION, basis(), runner.identity, about, runner.sample_digest(sample)
    )
    kept = runner.cache.read(key, _DIVERGENCE.validate_json, _DIVERGENCE.dump_json)
    if kept is not None:
        return kept
    outcome = runner.submit(task.optimized, locate, task).result()
    runner.ledger.add("explain", applications=1, inferences=fixed)
    if outcome.value is None:
        if outcome.failure is not None and outcome.failure.stage == "build":
            return None
        words = describe(outcome.failure) if outcome.failure else "no answer"
        return Divergence(note=f"could not be looked at: {' '.join(words.split())[:300]}")
    found, tried = outcome.value
    runner.ledger.add("explain", inferences=tried)
    runner.cache.put(key, "divergence", _DIVERGENCE.dump_json(found))
    return found


def _outer_values(
    runner: TrialRunner,
    symptom: Symptom,
    outputs: Sequence[str],
    passes: Sequence[str],
    sample: Sample,
) -> list[str]:
    """The outputs where they differ most, on both sides: all that is known of a hidden graph."""
    if symptom.info.failed:
        return []
    original = runner.reference([sample]).runs.get(sample.id)
    optimized = runner.trial(passes, [sample], "confirm").runs.get(sample.id)
    lines = []
    for name in outputs[:_LINES]:
        if not isinstance(original, dict) or not isinstance(optimized, dict):
            continue
        x, y = original.get(name), optimized.get(name)
        if x is None or y is None or x.shape != y.shape or x.dtype.kind not in "fiub":
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(x.astype(np.float64) - y.astype(np.float64))
        at = np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), x.shape)
        place = [int(i) for i in at]
        lines.append(f"output {name} at {place}: {x[at]} in the original, {y[at]} in the optimized")
    return lines


def divergence_text(found: Divergence) -> str:
    """A divergence as text."""
    lines = []
    if found.value is not None:
        size = f" (error {found.error:.2g})" if found.error is not None else ""
        lines.append(f"First value beyond its noise: {found.value}{size}")
    if found.agreeing:
        lines.append(f"Made from: {', '.join(found.agreeing)}")
    lines += ["Before:", *(f"    {n}" for n in found.before or ["nothing"])]
    lines += ["After:", *(f"    {n}" for n in found.after or ["nothing"])]
    lines += found.differs
    for site in found.wrong if found.tried > 1 else []:
        lines.append(f"Wrong by itself: {site.kind} {site.number} of {site.of}, {site.node}")
    lines += [f"    {words}" for words in found.distinction]
    return "\n".join([*lines, *([found.note] if found.note else [])])


# --- for pictures ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphView:
    """One graph without its weights: what was rewritten in it, and where it goes wrong.

    ``graph`` is a serialized model whose ``value_info`` has the types that inference knows; large
    weights have lost their content. ``changed`` and ``region`` are indices of nodes: all that were
    rewritten, and those of the place that makes ``wrong``.
    """

    graph: bytes
    changed: tuple[int, ...] = ()
    region: tuple[int, ...] = ()
    wrong: str | None = None


def graph_views(
    runner: TrialRunner, passes: Sequence[str], found: Divergence | None
) -> tuple[GraphView, ...]:
    """The original and, if it can be made and is ONNX, the optimized model."""
    optimized = runner.subject(passes)
    value = None if found is None else found.value
    outcome = runner.sandbox.call(_graph_view, runner.subject(None), optimized, value, fresh=True)
    if outcome.value is None:  # what killed the worker was the optimizer
        outcome = runner.sandbox.call(_graph_view, runner.subject(None), None, value, fresh=True)
    return outcome.value or ()


def _graph_view(
    original: BuildSubject, optimized: BuildSubject | None, wrong: str | None
) -> tuple[GraphView, ...]:
    """Called in a worker."""
    enter("build")
    before = onnx.load_from_string(build(original).data)
    after = None
    if optimized is not None:
        try:
            after = visible(optimized)
        except Exception as error:  # it is what the finding tells of
            if isinstance(error, MemoryError):
                raise
    if after is None:
        return (GraphView(_bare(before)),)
    sites = rewritten(before, after)
    there = _twin(before, after, wrong)
    guilty = [s for s in sites if _makes(before, s.before, wrong) or _makes(after, s.after, there)]
    old = _indices([s.before for s in sites], [s.before for s in guilty])
    new = _indices([s.after for s in sites], [s.after for s in guilty])
    return GraphView(_bare(before), *old, wrong), GraphView(_bare(after), *new, there)


def _twin(before: ModelProto, after: ModelProto, name: str | None) -> str | None:
    """What an output of ``before`` is called in ``after``; inner values keep their names."""
    outputs = [o.name for o in before.graph.output]
    if name in outputs and outputs.index(name) < len(after.graph.output):
        return str(after.graph.output[outputs.index(name)].name)
    return name


def _makes(model: ModelProto, nodes: Sequence[int], name: str | None) -> bool:
    return any(name in model.graph.node[i].output for i in nodes)


def _indices(
    every: Sequence[tuple[int, ...]], some: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    flat, few = (tuple(sorted(i for s in sites for i in s)) for sites in (every, some))
    return flat, few or next((s for s in every if s), ())  # one site shows what all are like


_SHOWN_IN_PICTURE = 16
"""Weights of up to this many elements keep their values in pictures."""


def _bare(model: ModelProto) -> bytes:
    """``model`` without the content of large weights, with the types of its values."""
    types = inferred_types(model) or inferred_types(model, strict=False) or {}
    clear_large_weights(model, _SHOWN_IN_PICTURE)
    del model.graph.value_info[:]
    for name, kind in types.items():
        model.graph.value_info.add(name=name).type.CopyFrom(kind)
    return bytes(model.SerializeToString())


# --- in the worker --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExplainTask:
    """What a worker needs to explain one finding; ``max_runs`` limits its inferences."""

    original: BuildSubject
    optimized: BuildSubject
    config: RuntimeConfig
    model: Model
    interface: frozenset[InterfaceChange]
    feeds: Mapping[str, np.ndarray]
    symptom: Symptom
    outputs: tuple[str, ...]
    full_check: bool
    plain_check: bool
    jitters: int
    max_runs: int


def locate(artifact: Artifact, task: ExplainTask) -> tuple[Divergence, int]:
    """Where the optimized model diverges, and how many models were run to try rewrite sites.

    Called in a worker.
    """
    tried: Counter[str] = Counter()
    return _located(artifact, task, tried), tried.total()


def _located(artifact: Artifact, task: ExplainTask, tried: Counter[str]) -> Divergence:
    enter("build")
    before = onnx.load_from_string(build(task.original).data)
    onnx_bytes = artifact.data if artifact.format == "onnx" else None
    # An artifact of another format stays in the optimizer's process, so it is made again here.
    after = onnx.load_from_string(onnx_bytes) if onnx_bytes else visible(task.optimized)
    if after is None:
        return Divergence(note="the optimizer makes a format whose inner values are hidden")
    data = after.SerializeToString()
    facts = structure.facts(after, len(data))
    alignment = align(task.model, facts, task.interface)
    if alignment.problem:
        return Divergence(note=f"inputs or outputs are others: {alignment.problem}")
    feeds = {
        alignment.inputs.get(name, name): value.astype(alignment.casts[name])
        if name in alignment.casts
        else value
        for name, value in task.feeds.items()
    }
    try:
        first = recorded(before.SerializeToString(), task.feeds, task.config, task.jitters)
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        note = f"the original does not run with all values as outputs: {_line(error)}"
        return _with_note(_sites(task, before, after, None, tried), note)
    if task.symptom.info.failed:
        return _sites(task, before, after, first, tried)
    try:
        second = recorded(data, feeds, task.config, 0)
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        note = f"the optimized model does not run with all values as outputs: {_line(error)}"
        return _with_note(_sites(task, before, after, first, tried), note)
    enter("compare")
    found = compare_values(before, after, first, second, outputs=task.outputs)
    sites = _sites(task, before, after, first, tried, found.diverges_at)
    return _first_difference(before, after, found, sites)


def _with_note(divergence: Divergence, note: str) -> Divergence:
    """The same with the reason why it is incomplete."""
    return divergence.model_copy(update={"note": note})


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _first_difference(
    before: ModelProto, after: ModelProto, found: ModelComparison, sites: Divergence
) -> Divergence:
    if found.diverges_at is None:
        note = "no value is beyond its noise once all values are outputs"
        return _with_note(sites, note)
    layer = found.layers[-1]
    differences = [f"attribute {k}: {v}" for k, v in layer.attributes.items()]
    differences += [
        f"weight {p.name}: "
        + ("another shape" if p.max_difference is None else f"differs by {p.max_difference:.2g}")
        for p in layer.parameters
        if p.differs
    ]
    return sites.model_copy(
        update={
            "value": found.diverges_at,
            "error": layer.error,
            "noise": layer.noise,
            "agreeing": found.agreeing,
            "before": _cut(found.before),
            "after": _cut(found.after),
            "whole": len(found.before) == len(before.graph.node),
            "differs": [layer.detail, *differences] if layer.detail else differences,
        }
    )


def _cut(lines: Sequence[str]) -> list[str]:
    if len(lines) <= _LINES:
        return list(lines)
    return [*lines[: _LINES - 1], f"… {len(lines) - _LINES + 1} more nodes"]


def _lines(model: ModelProto, nodes: Sequence[int]) -> list[str]:
    constants = constants_of(model)
    return _cut([node_text(model.graph.node[i], constants) for i in nodes])


# --- sites ----------------------------------------------------------------------------------------


@dataclass
class _TriedSites:
    """The tried sites: ``wrong`` ones show the fault alone, ``right`` ones do not."""

    wrong: list[Site]
    right: list[Site]


def _sites(
    task: ExplainTask,
    before: ModelProto,
    after: ModelProto,
    first: RecordedValues | None,
    tried: Counter[str],
    wrong: str | None = None,
) -> Divergence:
    """The rewrite sites, and which are wrong; those that make value ``wrong`` are tried first."""
    sites = rewritten(before, after)
    if len(sites) < 2:
        region = sites[0] if sites else Site((), ())
        return Divergence(
            form=_form(before, after, sites),
            sites=len(sites),
            before=_lines(before, region.before),
            after=_lines(after, region.after),
            whole=len(region.before) == len(before.graph.node),
        )
    fails = _test(task, first, tried)
    few = _affordable(before, after, sites, wrong, task.max_runs)
    trials = _tried(before, after, few, fails) if fails else _TriedSites([], [])
    count = len(trials.wrong) + len(trials.right)
    kinds = {site: kind_of(before, after, site) for site in sites}
    if not _come_apart(trials, kinds):
        trials, count = _TriedSites([], []), 0
    values = first.values if first is not None else {}
    wrong_sites = [_wrong_site(before, after, site, sites, kinds) for site in trials.wrong]
    blamed = {kinds[site] for site in trials.wrong}
    apart: list[str] = []
    if len(blamed) == 1:
        same_kind = [s for s in trials.right if kinds[s] in blamed]
        apart = distinction(
            [features_of(before, s, values) for s in trials.wrong],
            [features_of(before, s, values) for s in same_kind],
        )
    guilty = [s for s in sites if _makes(before, s.before, wrong)] or trials.wrong or sites
    everywhere = [i for s in sites for i in s.before], [i for s in sites for i in s.after]
    return Divergence(
        form=_form(before, after, guilty),
        sites=len(sites),
        tried=count,
        wrong=wrong_sites,
        distinction=apart,
        before=wrong_sites[0].before if wrong_sites else _lines(before, everywhere[0]),
        after=wrong_sites[0].after if wrong_sites else _lines(after, everywhere[1]),
    )


def _form(before: ModelProto, after: ModelProto, sites: Sequence[Site]) -> str:
    """A digest of the distinct node structures that ``sites`` rewrite; empty if there are none."""
    forms = set()
    for site in sites:
        model, nodes = (before, site.before) if site.before else (after, site.after)
        part = ModelProto()
        part.graph.node.extend(model.graph.node[i] for i in nodes)
        forms.add("".join(structure_of(part)))
    digest = hashlib.sha256("|".join(sorted(forms)).encode()).hexdigest()
    return digest[:16] if any(forms) else ""


def _come_apart(trials: _TriedSites, kinds: Mapping[Site, str]) -> bool:
    """Whether sites that are wrong alone may be reported as wrong.

    Part of a rewrite is wrong by itself, even if the whole rewrite is correct. If wrong sites are
    of several kinds, each kind needs a right site too, which shows that it is a complete rewrite.
    """
    wrong, right = ({kinds[s] for s in sites} for sites in (trials.wrong, trials.right))
    return len(wrong) < 2 or wrong <= right


def _wrong_site(
    before: ModelProto,
    after: ModelProto,
    site: Site,
    sites: Sequence[Site],
    kinds: Mapping[Site, str],
) -> RewriteSite:
    same_kind = [s for s in sites if kinds[s] == kinds[site]]
    nodes = [before.graph.node[i] for i in site.before]
    named = [n for n in nodes if n.op_type in kinds[site].split()] or nodes
    name = next((n.name or next(iter(n.output), "") for n in named), "")
    return RewriteSite(
        number=same_kind.index(site) + 1,
        of=len(same_kind),
        kind=kinds[site],
        node=name,
        before=_lines(before, site.before),
        after=_lines(after, site.after),
    )


Fails = Callable[[ModelProto], bool | None]


def _test(task: ExplainTask, first: RecordedValues | None, tried: Counter[str]) -> Fails | None:
    """A test whether a model shows the symptom on the witness, which answers None if undecided.

    None in place of the test if there are no values to compare with. The test adds the models that
    it runs to ``tried``.
    """
    stage = task.symptom.info.stages[-1]
    if stage == "compare" and first is None:
        return None
    outputs = [o.name for o in task.model.outputs if not task.outputs or o.name in task.outputs]

    def fails(model: ModelProto) -> bool | None:
        tried["models"] += 1
        data = model.SerializeToString()
        at = "check"
        try:
            if task.plain_check:
                check(data, full=task.full_check, dialect=speaks_dialect(task.optimized))
            at = "load"
            session = load(task.config, Artifact("onnx", data))
            at = "run"
            values = session.run(task.feeds)
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            return True if at == stage else None
        if stage != "compare" or first is None:
            return False
        calls = {judge_value(n, values[n], first).call for n in outputs if n in first.values}
        return "fault" in calls if calls else None

    return fails


def _affordable(
    before: ModelProto, after: ModelProto, sites: Sequence[Site], wrong: str | None, runs: int
) -> list[Site]:
    """The sites that can be tried with ``runs`` inferences, in their order.

    Of connected sites all are tried or none, since one of them alone may be part of a rewrite.
    """
    groups = list(_adjacent(before, after, sites[:MAX_SITES]))
    groups.sort(key=lambda group: not any(_makes(before, s.before, wrong) for s in group))
    chosen: set[Site] = set()
    for group in groups:
        runs -= len(group) + len(group) // 2  # the wrong ones are tried together, too
        if runs >= 0:
            chosen.update(group)
    return [site for site in sites if site in chosen]


def _tried(
    before: ModelProto, after: ModelProto, sites: Sequence[Site], fails: Fails
) -> _TriedSites:
    """Try each site alone; connected wrong sites that are correct together count as right."""
    end = time.monotonic() + SITES_S
    wrong: list[Site] = []
    right: list[Site] = []
    for site in sites:
        if time.monotonic() > end:
            break
        answer = _alone(before, after, site, fails)
        if answer is not None:
            (wrong if answer else right).append(site)
    if len(wrong) < 2:
        return _TriedSites(wrong, right)
    kept = []
    for group in _adjacent(before, after, wrong):
        whole = Site(
            tuple(sorted(i for s in group for i in s.before)),
            tuple(sorted(i for s in group for i in s.after)),
        )
        harmless = len(group) > 1 and _alone(before, after, whole, fails) is False
        kept += [] if harmless else group
        right += group if harmless else []
    return _TriedSites([s for s in sites if s in kept], right)


def _alone(before: ModelProto, after: ModelProto, site: Site, fails: Fails) -> bool | None:
    model = spliced(before, after, site)
    return None if model is None else fails(model)


def _adjacent(before: ModelProto, after: ModelProto, sites: Sequence[Site]) -> Iterator[list[Site]]:
    """Groups of connected sites: each site of a group reads a value that another one computes."""
    groups: list[tuple[list[Site], set[str], set[str]]] = []
    for site in sites:
        nodes = [before.graph.node[i] for i in site.before]
        nodes += [after.graph.node[i] for i in site.after]
        made = {o for n in nodes for o in n.output if o}
        read = {i for n in nodes for i in reads(n)} - made
        members = [site]
        for group in [g for g in groups if g[1] & read or g[2] & made]:
            members = group[0] + members
            made, read = made | group[1], read | group[2]
            groups.remove(group)
        groups.append((members, made, read))
    yield from (group[0] for group in groups)
