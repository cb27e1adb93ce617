"""All edits for the first fault of a model, those first that explain most. Called in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import onnx

from optvet.engine.convert.locate import source_inside
from optvet.engine.repair.aligned_run import AlignedRun, aligned_run_of
from optvet.engine.repair.candidates import RepairCandidate, declare_output, in_original_names
from optvet.engine.repair.propose.attributes import attributes, constants, other_attributes
from optvet.engine.repair.propose.branches import branches
from optvet.engine.repair.propose.fitted import fitted, links
from optvet.engine.repair.propose.kernels import kernels
from optvet.engine.repair.propose.layouts import inputs, insertions, removals
from optvet.engine.repair.propose.lost_constants import lost_constants
from optvet.engine.repair.propose.parameters import parameters
from optvet.engine.repair.propose.put_back import put_back
from optvet.engine.repair.propose.regions import regions
from optvet.engine.repair.propose.retranslate import affine, operators
from optvet.engine.repair.propose.templates import templates
from optvet.engine.repair.propose.tried_candidates import TriedCandidates
from optvet.engine.repair.window import Window, window_of
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.converters import SourceInside
from optvet.spec.types import Artifact, Sample

_NODES = 8
"""Nodes of the window that are edited, from the first one of the broken region on."""
_TIME_S = 60.0
_SHORT_S = 5.0
"""Wall clock of the search for other edits, from the one on that explains the wrong output."""


class RankedCandidates(NamedTuple):
    """Candidates in order; whether they are all, or end with the first that explains the output."""

    candidates: list[RepairCandidate]
    is_all: bool


_PROPOSE: tuple[Callable[[AlignedRun, tuple[int, ...]], Iterator[RepairCandidate]], ...] = (
    branches,
    put_back,
    parameters,
    attributes,
    fitted,
    removals,
    other_attributes,
    constants,
    links,
    insertions,
    inputs,
    operators,
    affine,
)
"""In order of cost: what changes least, and what most surely is the source's own, first."""


@dataclass(frozen=True)
class FailingModel:
    """A converted model, and inputs on which it is wrong.

    Attributes:
        config: What runs the model.
        data: The model.
        samples: The inputs.
        tried: Where it is kept what candidates explain, for a worker that goes on after this one.
        references: Other models of the source in ONNX, by the name of their converter.
    """

    config: RuntimeConfig
    data: bytes
    samples: Sequence[Sample]
    tried: Path
    references: Mapping[str, bytes]


def proposals_beside(
    config: RuntimeConfig, source: Artifact, failing: FailingModel, others: bool
) -> RankedCandidates:
    """As ``proposals``, where ``config`` runs the source in the same worker."""
    recorded = [source_inside(config, source, sample) for sample in failing.samples]
    return proposals(recorded, failing, others)


def proposals(
    recorded: Sequence[Sequence[SourceInside]], failing: FailingModel, others: bool
) -> RankedCandidates:
    """Candidates that explain a missing value on all samples, and those that need not.

    Args:
        recorded: What the source computes inside on each of the samples.
        failing: The converted model.
        others: Whether the search goes on behind a candidate that explains the output.
    """
    enter("run")
    model, samples = onnx.load_from_string(failing.data), failing.samples
    if recorded and recorded[0]:
        # A model that cannot be called shows nothing else.
        given = list(lost_constants(model, recorded[0][0], samples[0].feeds))
        if given:
            return RankedCandidates(given, is_all=True)
    aligned_runs: list[AlignedRun] = []
    for inside, sample in zip(recorded, samples, strict=True):
        # Regions are read off the first sample, and tried on all.
        lent = {} if aligned_runs else failing.references
        aligned = aligned_run_of(inside, failing.config, model, sample, lent)
        # An input that takes other branches has other values, which no window compares.
        if aligned and (not aligned_runs or _runs_alike(aligned, aligned_runs[0])):
            aligned_runs.append(aligned)
    if not aligned_runs:
        return RankedCandidates([], is_all=True)
    windows = [window_of(aligned, failing.config) for aligned in aligned_runs]
    ranked = _rank(windows, TriedCandidates(failing.tried), others=others)
    first = aligned_runs[0]
    declared = [declare_output(first, each) for each in ranked.candidates]
    named = [in_original_names(first.unfolded, each) for each in declared]
    return ranked._replace(candidates=named)


def _runs_alike(one: AlignedRun, other: AlignedRun) -> bool:
    """Whether two runs took the same branches, and iterated as often."""
    return _computed(one.model) == _computed(other.model)


def _computed(model: onnx.ModelProto) -> set[str]:
    return {name for node in model.graph.node for name in node.output}


def _rank(windows: Sequence[Window], trials: TriedCandidates, *, others: bool) -> RankedCandidates:
    first = windows[0]
    region = first.aligned.region.nodes[:_NODES]
    # A node before the region may be wrong too: its value is known, but in another layout.
    before = tuple(i for i in first.nodes[::-1] if i not in first.aligned.region.nodes)
    seen: set[str] = set()
    written = _explaining(windows, trials, region)
    ends = [_SHORT_S if written else _TIME_S]
    started = time.process_time()
    ranked: list[RepairCandidate] = []
    for propose in _PROPOSE:
        nodes = region
        if propose in (removals, inputs, other_attributes):
            nodes = (*region, *before)
        elif propose is insertions:
            nodes = (*region[:2], *before)
        found = []
        for candidate in propose(first.aligned, nodes):
            key = repr([e.operations for e in candidate.edits])
            if key in seen:
                continue
            seen.add(key)
            if not candidate.explains:
                ranked.append(candidate)
                continue
            if time.process_time() - started > min(ends):
                break
            depth = trials.depth(candidate, lambda c: _depth(windows, c))
            if depth >= 0:
                found.append(replace(candidate, depth=depth))
            if depth == first.aligned.place:
                if not others:
                    return RankedCandidates([*ranked, found[-1]], is_all=False)
                ends.append(time.process_time() - started + _SHORT_S)
        ranked += sorted(found, key=lambda c: -c.depth)
    return RankedCandidates([*ranked, *written], is_all=True)


def _explaining(
    windows: Sequence[Window], trials: TriedCandidates, nodes: tuple[int, ...]
) -> list[RepairCandidate]:
    """Templates and regions that explain a missing value: they are few, and change most."""
    found = []
    for propose in (templates, kernels, regions):
        tried = [
            replace(candidate, depth=trials.depth(candidate, lambda c: _depth(windows, c)))
            for candidate in propose(windows[0].aligned, nodes)
        ]
        found += sorted((c for c in tried if c.depth >= 0), key=lambda c: -c.depth)
        found += [c for c in tried if c.depth < 0 and not c.explains]
    return found


def _depth(windows: Sequence[Window], candidate: RepairCandidate) -> int:
    """The last place that a candidate explains; -1 for none.

    It must be explained on every sample whose run lacks it: of several faults, a sample may show
    one alone.
    """
    somewhere: set[int] = set()
    lacking: set[int] = set()
    for window in windows:
        explained = window.depth(candidate.edits)
        somewhere |= explained
        lacking |= set(window.aligned.missing) - explained
    return max(somewhere - lacking, default=-1)
