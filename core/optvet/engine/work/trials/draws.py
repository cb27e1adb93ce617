"""Runs of models with random outputs: both models many times, from known seeds if possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types

from optvet.engine.judge import random_outputs
from optvet.engine.judge.dependence import Runs
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.random_outputs import FEWEST_RUNS, Side
from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.environment_fingerprint import fingerprint_environment
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.building import read_model
from optvet.engine.work.trials.inference import Outputs, infer, load
from optvet.engine.work.trials.noise_floor import pack_runs, unpack_runs
from optvet.engine.work.trials.trial import TrialSpec, alignment_of
from optvet.engine.work.trials.trial_results import is_circumstantial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.randomness import SeedBy, seed_operators
from optvet.spec.types import Artifact, Sample

_KEPT_ELEMENTS = 1 << 14
"""Elements that are kept of a larger output, evenly spaced."""
_KNOWN_BYTES = 256 << 20
"""Bytes of draws that are kept in memory; beyond, the oldest go."""
_LOADED_BYTES = 2 << 30
"""Each seed needs a new session; this limits the bytes of models that are loaded for them."""


@dataclass(frozen=True)
class ModelPair:
    """The two models that are compared: pass sequences of the trial runner, None for the original.

    ``known`` holds what was drawn for other pairs, by the key of the cache.
    """

    runner: TrialRunner
    reference: tuple[str, ...] | None
    candidate: tuple[str, ...]
    sample: Sample
    known: dict[str, Runs] = field(default_factory=dict)

    def judgements(self, names: Sequence[str]) -> dict[str, Judgement]:
        """A judgement on each of the random outputs ``names``."""
        affordable = max(FEWEST_RUNS, _LOADED_BYTES // max(1, self.runner.model.size_bytes))
        screen, proof = (
            min(n, affordable) for n in (random_outputs.SCREEN_RUNS, random_outputs.PROOF_RUNS)
        )
        return random_outputs.judge_random(self, names, screen=screen, proof=proof)

    def run_seeds(self, side: Side, numbers: range, by: SeedBy) -> Runs | None:
        """One run for each seed; None if the model takes no seeds."""
        return self._request_runs(side, _draw_with_seeds, list(numbers), by) or None

    def in_turn(self, side: Side, session: int, runs: int) -> Runs:
        """Runs of one session."""
        return self._request_runs(side, _draw_in_turn, runs, (side, session))

    def _request_runs(self, side: Side, task: Callable[..., list[Outputs]], *args: object) -> Runs:
        """Runs by a worker, empty if the model cannot be run so; cached where it is known."""
        runner, passes = self.runner, self.reference if side == "reference" else self.candidate
        build_spec = runner.build_spec(passes)
        # Pass sequences that make one and the same model share its draws.
        content = runner.content_key(passes, self.sample)
        key = content and cache_key.key(
            "draws", fingerprint_environment(), content, task.__name__, args
        )
        kept = (self.known.get(key) or runner.cache.read(key, unpack_runs)) if key else None
        if kept is None:
            outcome = runner.submit(
                build_spec, task, runner.order(build_spec, [self.sample]), *args
            ).result()
            kept = outcome.value or []
            runner.ledger.add("noise", int(passes is not None), len(kept))
            if key and not is_circumstantial(outcome.failure):
                runner.cache.put(key, "draws", pack_runs(kept))
        if key:
            self.known[key] = kept
            while sum(map(_size_of, self.known.values())) > _KNOWN_BYTES:
                self.known.pop(next(iter(self.known)))
        return kept


def _size_of(runs: Runs) -> int:
    return sum(value.nbytes for run in runs for value in run.values())


# --- in a worker ----------------------------------------------------------------------------------


def _draw_with_seeds(
    artifact: Artifact, order: TrialSpec, numbers: Sequence[int], by: SeedBy
) -> list[Outputs]:
    """One run per seed, each in a new session; empty if seeds cannot be set."""
    assert order.config is not None
    model = _model_in(artifact, order)
    if model is None:
        return []
    (sample,) = order.samples
    config, alignment = order.config, alignment_of(order, artifact)

    def run(seeded: Artifact) -> Outputs:
        enter("load")
        session = load(config, seeded)
        enter("run")
        return _thin(infer(config.runtime, session, sample.feeds, alignment))

    return seeded_runs(model, artifact, numbers, by, run) or []


def seeded_runs(
    model: onnx.ModelProto,
    artifact: Artifact,
    numbers: Iterable[int],
    by: SeedBy,
    run: Callable[[Artifact], Outputs],
) -> list[Outputs] | None:
    """One run per seed, each in a new session; None if seeds cannot be set.

    Args:
        model: The graph of ``artifact``.
        artifact: What is run.
        numbers: The seeds.
        by: What tells random nodes apart.
        run: Loads an artifact, and runs it once.
    """
    runs = []
    for number in numbers:
        copy = seed_operators(model, number, by)
        if copy is None:
            return None
        runs.append(run(replace(artifact, data=copy.SerializeToString())))
    return runs


def _model_in(artifact: Artifact, order: TrialSpec) -> onnx.ModelProto | None:
    """The graph that is run; None if it is not available, or in a file.

    An artifact of another format may hold the original beside instructions for the runtime.
    """
    if artifact.path is not None or not artifact.data:
        return None
    build_spec = order.build_spec
    if artifact.format != "onnx" and artifact.data != read_model(
        build_spec.blob, build_spec.digest
    ):
        return None
    return graph_in(artifact)


def graph_in(artifact: Artifact) -> onnx.ModelProto | None:
    """The graph that the bytes of an artifact hold; None if they hold none."""
    try:
        return onnx.load_from_string(artifact.data)
    except DecodeError:
        return None


def _draw_in_turn(
    artifact: Artifact, order: TrialSpec, runs: int, session_of: object
) -> list[Outputs]:
    """Runs of one session, in which each run continues the random sequence.

    ``session_of`` makes the cache keys of several sessions of one model differ.
    """
    assert order.config is not None
    (sample,) = order.samples
    alignment = alignment_of(order, artifact)
    enter("load")
    session = load(order.config, artifact)
    enter("run")
    runtime = order.config.runtime
    return [_thin(infer(runtime, session, sample.feeds, alignment)) for _ in range(runs)]


def _thin(outputs: Outputs) -> Outputs:
    """``outputs`` with at most ``_KEPT_ELEMENTS`` elements of each."""
    return {
        name: value
        if value.size <= _KEPT_ELEMENTS
        else value.ravel()[np.linspace(0, value.size - 1, _KEPT_ELEMENTS).astype(np.int64)]
        for name, value in outputs.items()
    }
