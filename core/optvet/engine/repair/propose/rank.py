"""All edits for the first fault of a model, those first that explain most. Called in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import onnx

from optvet.engine.convert.inside import shows_inside
from optvet.engine.repair.candidates import Candidate
from optvet.engine.repair.propose.attributes import attributes, constants, other_attributes
from optvet.engine.repair.propose.operators import affine, operators
from optvet.engine.repair.propose.parameters import parameters
from optvet.engine.repair.propose.structure import inputs, insertions, removals
from optvet.engine.repair.scene import Scene, scenes_of
from optvet.engine.repair.window import Window, window_of
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trial import RuntimeConfig
from optvet.spec.types import Artifact, Sample

_NODES = 8
"""Nodes of the window that are edited, from the first one of the broken region on."""
_TIME_S = 60.0

_PROPOSE: tuple[Callable[[Scene, tuple[int, ...]], Iterator[Candidate]], ...] = (
    parameters,
    attributes,
    removals,
    other_attributes,
    constants,
    insertions,
    inputs,
    operators,
    affine,
)
"""In order of cost: what changes least, and what most surely is the source's own, first."""


def proposals(
    source_config: RuntimeConfig,
    source: Artifact,
    config: RuntimeConfig,
    data: bytes,
    samples: Sequence[Sample],
) -> list[Candidate]:
    """Candidates that explain a missing value on all ``samples``, and those that need not.

    Empty where the source does not show what it computes inside.
    """
    if not shows_inside(source_config, source):
        return []
    enter("run")
    model = onnx.load_from_string(data)
    scenes = scenes_of(source_config, source, config, model, samples)
    if not scenes:
        return []
    windows = [window_of(scene, config) for scene in scenes]
    return list(_ranked(windows))


def _ranked(windows: Sequence[Window]) -> Iterator[Candidate]:
    first = windows[0]
    region = first.scene.region.nodes[:_NODES]
    # A node before the region may be wrong too: its value is known, but in another layout.
    before = tuple(i for i in first.nodes[::-1] if i not in first.scene.region.nodes)
    started = time.monotonic()
    seen: set[str] = set()
    for propose in _PROPOSE:
        nodes = region
        if propose in (removals, inputs, other_attributes):
            nodes = (*region, *before)
        elif propose is insertions:
            nodes = (*region[:2], *before)
        found = []
        for candidate in propose(first.scene, nodes):
            key = repr([e.operations for e in candidate.edits])
            if key in seen:
                continue
            seen.add(key)
            if not candidate.explains:
                yield candidate
                continue
            if time.monotonic() - started > _TIME_S:
                break
            depth = _depth(windows, candidate)
            if depth >= 0:
                found.append(replace(candidate, depth=depth))
        yield from sorted(found, key=lambda c: -c.depth)


def _depth(windows: Sequence[Window], candidate: Candidate) -> int:
    """The last place that a candidate explains on all samples; -1 for none."""
    common: frozenset[int] | None = None
    for window in windows:
        explained = window.depth(candidate.edits)
        common = explained if common is None else common & explained
        if not common:
            return -1
    return max(common) if common else -1
