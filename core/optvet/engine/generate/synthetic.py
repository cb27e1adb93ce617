"""Synthetic models: a hunt without a target under test, which keeps the models that run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from onnx import ModelProto, numpy_helper

from optvet.engine.generate.coverage import Covered, operators_at, opsets_for
from optvet.engine.generate.grow import Grown
from optvet.engine.generate.growth_batch import Growth, GrowthBatch
from optvet.engine.hunt.loop import Part
from optvet.engine.hunt.progress_log import LoggedStep
from optvet.engine.hunt.state import HuntState
from optvet.engine.hunt.workers import results_of
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.walk import node_count
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.files import replacing
from optvet.spec.generate import GenerateRequest, sizes_of
from optvet.spec.records import GeneratedModels, SyntheticModel

OLDEST_OPSET = 7
_REFUSALS = 3
"""Candidates of one operator-set version that an operator is wanted in while it cannot be used."""
_DEATHS = 2
_UNPRODUCTIVE_ROUNDS = 3
_NODES_PER_WANTED = 6
"""Wanted operators mostly need others to join them: more of them would leave no room for those that
read each other as they are."""
_FEWEST_WANTED = 4


@dataclass
class SyntheticModels:
    """Makes models, the operators first that were used least, and writes those that run.

    Attributes:
        request: The request.
        folder: Where the models are written.
        config: The runtime that has to run them.
        opset: Version of ONNX's own operators.
        operators: Those that may be used; None for all.
        excluded: Those that may not.
        files: Of the vocabulary.
        known: Operators that it has fragments of.
        sandbox: The workers.
        scratch: For their files.
        models: What was written.
        covered: What these models cover.
        refusals: How often each operator could not be used, by operator-set version.
        reasons: Why, by operator.
        sizes: How many models there are of each size.
        why: Why the last model could not be made that could not.
        unproductive: Rounds in a row that gave no model.
    """

    request: GenerateRequest
    folder: Path
    config: RuntimeConfig
    opset: int
    operators: frozenset[str] | None
    excluded: frozenset[str]
    files: tuple[Path, ...]
    known: tuple[str, ...]
    sandbox: Sandbox
    scratch: Path
    models: list[SyntheticModel] = field(default_factory=list)
    covered: Covered = field(default_factory=Covered)
    refusals: Counter[tuple[str, int]] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    why: str = ""
    unproductive: int = 0

    def plan(self, state: HuntState, size: int) -> list[Part[Growth | LoggedStep]]:
        """The next candidates, those operators first that were used least."""
        return [partial(results_of, self.sandbox, batch) for batch in self._batches(state, size)]

    def _batches(self, state: HuntState, count: int) -> list[GrowthBatch]:
        # The size that lacks most comes next, so that all sizes grow side by side.
        missing = Counter({size: self.request.count - self.sizes[size] for size in self._ranges()})
        used = Counter({n: self.covered.operators[n] for n in self.known})
        # An operator of which a fragment kills now and then is in models all the same.
        deaths = state.deaths.items()
        avoided = frozenset(n for n, killed in deaths if killed >= _DEATHS and killed > used[n])
        left = [n for n in self.known if n not in avoided]
        opsets = {n: self._opset_for(n) for n in left}
        hopeless = {n for n in left if not opsets[n]}
        drawn = {n: 1 / (1 + used[n]) for n in left}
        random = Random(f"{self.request.seed}/plan/{state.number}")
        batches = []
        for number in range(state.number, state.number + count):
            ((size, _),) = missing.most_common(1)
            missing[size] -= 1
            few = max(_FEWEST_WANTED, size[1] // _NODES_PER_WANTED)
            # What can be used nowhere comes last; equals are drawn, or one would always win.
            order = sorted(left, key=lambda n: (n in hopeless, used[n], random.random()))
            opset = opsets[order[0]] or self.opset if order else self.opset
            # A model has one operator set: those that need another one wait for its turn.
            wanted = tuple(n for n in order if opsets[n] == opset)[:few]
            # As if they were in it: the next candidate of the round is to have others.
            used.update(wanted)
            batches.append(
                GrowthBatch(
                    self.request.seed,
                    number,
                    self.files,
                    self.config,
                    opset,
                    self.operators,
                    avoided,
                    wanted,
                    {n: weight if opsets[n] >= opset else 0.0 for n, weight in drawn.items()},
                    size,
                    self.excluded,
                    frozenset(self.request.exclude_types),
                    self.scratch / str(number),
                )
            )
        return batches

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        """The fewest and the most nodes of each size."""
        return sizes_of(self.request.nodes)

    def _opset_for(self, operator: str) -> int:
        """The operator-set version to use an operator in; 0 if it could be used in none.

        It is the newest one until the operator was refused there; then, unless the user has asked
        for one version, it is the next older one in which the operator has another form.
        """
        # Where it was used once, it can be used again.
        if found := self.covered.opsets.get(operator):
            return found
        oldest = self.opset if self.request.opset else OLDEST_OPSET
        opsets = opsets_for(operator, self.opset, oldest)
        return next((v for v in opsets if self.refusals[operator, v] < _REFUSALS), 0)

    def learn(self, state: HuntState, records: Sequence[Growth | LoggedStep]) -> None:
        """Write the models of a round, in order; of what is none, note why.

        Raises:
            UsageError: No more can be made.
            InfrastructureError: A file cannot be written.
        """
        before = len(self.models)
        for record in records:
            state.number += 1
            # The log of a worker names the operator that it was trying.
            if isinstance(record, LoggedStep):
                operator = ",".join(record.passes)
                state.deaths[operator] += 1
                self.reasons[operator] = f"its worker ended: {record.signal}"
            else:
                self._take(state, record)
        self.unproductive = 0 if len(self.models) > before else self.unproductive + 1
        # One such round is bad luck: operators that were refused are not wanted in the next.
        if self.unproductive == _UNPRODUCTIVE_ROUNDS:
            raise UsageError(self._no_model())

    def _take(self, state: HuntState, growth: Growth) -> None:
        self.refusals.update((name, growth.opset) for name in growth.refused)
        self.reasons |= growth.refused
        if growth.grown is None:
            self.why = growth.why
            return
        model = ModelProto.FromString(growth.grown.model)
        self.covered.take(model)
        self.sizes[growth.nodes] += 1
        state.valid += 1
        self.models.append(self._write_model(growth.grown, model, len(self.models)))

    def _no_model(self) -> str:
        words = f": {self.why}" if self.why else ""
        return (
            f"no more models could be made at opset {self.opset} after {len(self.models)}{words}; "
            "choose other --operators, --pools or another --opset"
        )

    def close(self) -> None:
        """End all workers."""
        self.sandbox.close()

    def _write_model(self, grown: Grown, model: ModelProto, index: int) -> SyntheticModel:
        digits = max(4, len(str(self.count)))
        name = f"synthetic-{index + 1:0{digits}d}.onnx"
        inputs = self.folder / "inputs" / Path(name).stem / "test_data_set_0"
        try:
            # Before the model: a file that is there has inputs on which it runs.
            inputs.mkdir(parents=True, exist_ok=True)
            for number, info in enumerate(model.graph.input):
                tensor = numpy_helper.from_array(grown.feeds[info.name], info.name)
                with replacing(inputs / f"input_{number}.pb") as file:
                    file.write(tensor.SerializeToString())
            with replacing(self.folder / name) as file:
                file.write(grown.model)
        except OSError as error:
            raise InfrastructureError(
                f"cannot write {self.folder / name}: {error.strerror}; make room, or choose "
                "another --out"
            ) from error
        return SyntheticModel(
            file=name,
            inputs=str(inputs.relative_to(self.folder)),
            sha256=hashlib.sha256(grown.model).hexdigest(),
            size_bytes=len(grown.model),
            nodes=node_count(model),
        )

    @property
    def count(self) -> int:
        """Models of all sizes."""
        return self.request.count * len(self._ranges())

    def record(self, state: HuntState) -> GeneratedModels:
        """What was written, and what it covers of the operator set."""
        # What the user excluded is the better reason, whatever workers said.
        reasons = dict(self.reasons)
        for name in operators_at(self.opset):
            if self.operators is not None and name not in self.operators:
                reasons[name] = "not among --operators"
            elif name in self.request.exclude_operators:
                reasons[name] = "excluded"
            elif name not in self.known:
                reasons[name] = "no pool has a fragment of it with tensors alone"
        return GeneratedModels(
            schema="optvet.generated/1",
            folder=str(self.folder),
            seed=self.request.seed,
            runtime=self.config.runtime.name,
            version=self.config.runtime.version(),
            dropped=state.number - len(self.models),
            killed=state.deaths.total(),
            deaths=dict(sorted(state.deaths.items())),
            seconds=round(state.seconds, 3),
            models=self.models,
            coverage=self.covered.record(self.opset, reasons),
        )
