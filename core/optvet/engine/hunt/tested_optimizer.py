"""The optimizer under test, as workers call it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from onnx import ModelProto
from pydantic import BaseModel

from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.mend import mend
from optvet.spec.extras import given
from optvet.spec.mends import Mend
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact

_RARE = 1 / 20
"""Share of models that an optimizer gets under its rare options."""


@dataclass(frozen=True)
class TestedOptimizer:
    """The optimizer under test.

    Attributes:
        optimizer: Configured by ``options``.
        options: Its options.
        given: Those that the user gave, or the hunt itself.
        given_to_runtime: Options of the runtime that the user gave.
        base: Passes that are always applied.
        each: Passes that are tried one at a time; empty if single passes do little.
        whole: The pipeline that is tried if no pass alone looks wrong.
        candidate: Runtime of optimized models.
        reference: Runtime of originals.
        excused: Symptoms that a pass declares to show on purpose, by its name.
        together: Of ``each``, groups that seldom change a model: if one does not change it in a
            single call, its passes are not tried one at a time.
        rare: The same under the optimizer's rare options; None if it has none.
        shipped: Runtime of optimized models under its own defaults; None if they are not run so.
        mends: What each model gets back, since import and export alone lose it.
        arbiter: Runs models of which the runtime gives something else each time; None if no other
            runtime can, or may.
        applied: What came of applying passes to models in ONNX, by model and passes; None if that
            is not kept.
    """

    optimizer: Optimizer
    options: BaseModel
    base: tuple[str, ...]
    each: tuple[str, ...]
    whole: tuple[str, ...]
    candidate: RuntimeConfig
    reference: RuntimeConfig
    excused: Mapping[str, frozenset[Symptom]] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    given_to_runtime: Mapping[str, Any] = field(default_factory=dict)
    rare: TestedOptimizer | None = None
    arbiter: RuntimeConfig | None = None
    shipped: RuntimeConfig | None = None
    mends: tuple[Mend, ...] = ()
    applied: MutableMapping[tuple[bytes, tuple[str, ...]], Artifact] | None = field(
        default=None, compare=False, repr=False
    )

    def apply(self, source: Artifact, passes: tuple[str, ...]) -> Artifact:
        """What comes of applying ``passes``, which is the same each time.

        Raises:
            Exception: Whatever the optimizer raises.
        """
        if self.mends:
            return self._mended(source, passes)
        key = source.data, passes
        if self.applied is not None and key in self.applied:
            return self.applied[key]
        artifact = self.optimizer.apply(source, passes, self.options)
        # What is alive in the process is large.
        if self.applied is not None and _is_plain_model(artifact):
            self.applied[key] = artifact
        return artifact

    def _mended(self, source: Artifact, passes: tuple[str, ...]) -> Artifact:
        artifact = replace(self, mends=()).apply(source, passes)
        if not _is_plain_model(artifact):
            return artifact
        changed = ModelProto.FromString(artifact.data)
        mend(ModelProto.FromString(source.data), changed, self.mends)
        return replace(artifact, data=changed.SerializeToString(deterministic=True))

    def for_one_candidate(self) -> TestedOptimizer:
        """The same, but it applies no passes to a model a second time."""
        rare = None if self.rare is None else replace(self.rare, applied={})
        return replace(self, applied={}, rare=rare)

    def by_arbiter(self) -> TestedOptimizer:
        """The same, with models run by the arbiter."""
        if self.arbiter is None:
            return self
        rare = None if self.rare is None else self.rare.by_arbiter()
        return replace(
            self,
            candidate=self.arbiter,
            reference=self.arbiter,
            arbiter=None,
            shipped=None,
            rare=rare,
        )

    def for_candidate(self, seed: int, number: int) -> TestedOptimizer:
        """The optimizer under the options that candidate ``number`` of a hunt is tried with."""
        if self.rare is None or Random(f"{seed}/{number}/options").random() >= _RARE:
            return self
        return self.rare

    @property
    def takes_sets(self) -> bool:
        """Whether passes depend on each other, so that sets of passes are tried, not single ones.

        The same process then finds the passes whose removal cures a model.
        """
        traits = self.optimizer.traits
        reports = given(self.optimizer, OptimizerExtras.changing_passes) is not None
        return reports and not (traits.ordered or traits.single) and len(self.whole) > 1

    @property
    def lowers(self) -> bool:
        """Whether all passes are compared with the empty pipeline; see ``Traits.reference``."""
        return self.optimizer.traits.reference == "empty pipeline"


def _is_plain_model(artifact: Artifact) -> bool:
    """Whether its data is all there is of it."""
    return artifact.format == "onnx" and artifact.handle is None and artifact.path is None
