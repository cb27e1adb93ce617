"""Which of the places that a pass rewrote are wrong: each is tried alone. Called in workers."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from optvet.engine.vet.explain.graph_views import makes
from optvet.engine.vet.observe.recorded_values import RecordedValues
from optvet.engine.vet.observe.value_pairs import judge_value
from optvet.engine.work.trials.building import BuildSpec, speaks_dialect
from optvet.engine.work.trials.checking import check
from optvet.engine.work.trials.inference import RuntimeConfig, load
from optvet.graph.identity import structure_of
from optvet.graph.site_features import distinction, features_of
from optvet.graph.sites import Site, find_rewrites, kind_of, splice
from optvet.graph.text import node_text
from optvet.graph.walk import reads
from optvet.graph.weights import constants_of
from optvet.spec.records import Divergence, RewriteSite
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, InterfaceChange, Model

MAX_SITES = 128
SITES_S = 30.0
"""Time limit for trying sites one at a time, seconds."""
_LINES = 40


@dataclass(frozen=True)
class ExplainTask:
    """What a worker needs to explain one finding; ``max_runs`` limits its inferences.

    ``config`` runs the optimized model, ``reference`` the original.
    """

    original: BuildSpec
    optimized: BuildSpec
    config: RuntimeConfig
    reference: RuntimeConfig
    model: Model
    interface: frozenset[InterfaceChange]
    feeds: Mapping[str, np.ndarray]
    symptom: Symptom
    outputs: tuple[str, ...]
    full_check: bool
    plain_check: bool
    jitters: int
    max_runs: int


def shorten(lines: Sequence[str]) -> list[str]:
    """At most as many lines as a record keeps; the last one tells how many are left out."""
    if len(lines) <= _LINES:
        return list(lines)
    return [*lines[: _LINES - 1], f"… {len(lines) - _LINES + 1} more nodes"]


def node_lines(model: ModelProto, nodes: Sequence[int]) -> list[str]:
    """Nodes as text, with constants; as many as a record keeps."""
    constants = constants_of(model)
    return shorten([node_text(model.graph.node[i], constants) for i in nodes])


# --- sites ----------------------------------------------------------------------------------------


@dataclass
class _TriedSites:
    """The tried sites: ``wrong`` ones show the fault alone, ``right`` ones do not."""

    wrong: list[Site]
    right: list[Site]


def tried_sites(
    task: ExplainTask,
    before: ModelProto,
    after: ModelProto,
    first: RecordedValues | None,
    tried: Counter[str],
    wrong: str | None = None,
) -> Divergence:
    """The rewrite sites, and which are wrong; those that make value ``wrong`` are tried first."""
    sites = find_rewrites(before, after)
    if len(sites) < 2:
        region = sites[0] if sites else Site((), ())
        return Divergence(
            form=_form(before, after, sites),
            sites=len(sites),
            before=node_lines(before, region.before),
            after=node_lines(after, region.after),
            whole=len(region.before) == len(before.graph.node),
        )
    fails = _test(task, first, tried)
    few = _affordable(before, after, sites, wrong, task.max_runs)
    trials = _try_sites(before, after, few, fails) if fails else _TriedSites([], [])
    count = len(trials.wrong) + len(trials.right)
    kinds = {site: kind_of(before, after, site) for site in sites}
    if not _come_apart(trials, kinds):
        trials, count = _TriedSites([], []), 0
    values = first.values if first is not None else {}
    wrong_sites = [_wrong_site(before, after, site, sites, kinds) for site in trials.wrong]
    blamed = {kinds[site] for site in trials.wrong}
    distinctions: list[str] = []
    if len(blamed) == 1:
        same_kind = [s for s in trials.right if kinds[s] in blamed]
        distinctions = distinction(
            [features_of(before, s, values) for s in trials.wrong],
            [features_of(before, s, values) for s in same_kind],
        )
    guilty = [s for s in sites if makes(before, s.before, wrong)] or trials.wrong or sites
    everywhere = [i for s in sites for i in s.before], [i for s in sites for i in s.after]
    return Divergence(
        form=_form(before, after, guilty),
        sites=len(sites),
        tried=count,
        wrong=wrong_sites,
        distinction=distinctions,
        before=wrong_sites[0].before if wrong_sites else node_lines(before, everywhere[0]),
        after=wrong_sites[0].after if wrong_sites else node_lines(after, everywhere[1]),
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
        before=node_lines(before, site.before),
        after=node_lines(after, site.after),
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
    groups.sort(key=lambda group: not any(makes(before, s.before, wrong) for s in group))
    chosen: set[Site] = set()
    for group in groups:
        runs -= len(group) + len(group) // 2  # the wrong ones are tried together, too
        if runs >= 0:
            chosen.update(group)
    return [site for site in sites if site in chosen]


def _try_sites(
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
    model = splice(before, after, site)
    return None if model is None else fails(model)


def _adjacent(before: ModelProto, after: ModelProto, sites: Sequence[Site]) -> Iterator[list[Site]]:
    """Groups of connected sites: each site of a group reads a value that another one computes."""
    groups: list[tuple[list[Site], set[str], set[str]]] = []
    for site in sites:
        nodes = [before.graph.node[i] for i in site.before]
        nodes += [after.graph.node[i] for i in site.after]
        outputs = {o for n in nodes for o in n.output if o}
        read = {i for n in nodes for i in reads(n)} - outputs
        members = [site]
        for group in [g for g in groups if g[1] & read or g[2] & outputs]:
            members = group[0] + members
            outputs, read = outputs | group[1], read | group[2]
            groups.remove(group)
        groups.append((members, outputs, read))
    yield from (group[0] for group in groups)
