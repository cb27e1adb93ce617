"""From a request to a folder of synthetic models."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from optvet import __version__
from optvet.engine.discovery import Plugins
from optvet.engine.generate.coverage import Covered, operators_at, opsets_for
from optvet.engine.generate.grow import Grown
from optvet.engine.generate.grow_in_workers import (
    GenerationResult,
    Order,
    fragments_of,
    make,
    newest_opset,
)
from optvet.engine.hunt.vocabulary import PoolChoice, fragments_folder, gather
from optvet.engine.vet.session import default_jobs
from optvet.engine.work.sandbox import Limits, Outcome, Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.types import dtype_name
from optvet.graph.walk import node_count, qualified_name
from optvet.spec.errors import InfrastructureError, UnknownName, UsageError
from optvet.spec.files import replacing
from optvet.spec.generate import GenerateRequest, sizes_of
from optvet.spec.records import GeneratedModels, SyntheticModel
from optvet.spec.scratch import temporary_folder

ROUND = 16
"""Candidates that are planned at once: whatever the number of workers, so that the models of a
seed do not depend on it."""
_OLDEST_OPSET = 7
_REFUSALS = 3
"""Candidates of one operator-set version that an operator is wanted in while it cannot be used."""
_DEATHS = 2
_UNPRODUCTIVE_ROUNDS = 3
_SECONDS = 120.0
_MEMORY_BYTES = 4 << 30
_NODES_PER_WANTED = 6
"""Wanted operators mostly need others to join them: more of them would leave no room for those that
read each other as they are."""
_FEWEST_WANTED = 4

OnProgress = Callable[[str, int, int | None], None]


@dataclass
class _Tally:
    """What became of the candidates so far."""

    models: list[SyntheticModel] = field(default_factory=list)
    covered: Covered = field(default_factory=Covered)
    refusals: Counter[tuple[str, int]] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    number: int = 0
    dropped: int = 0
    killed: int = 0
    seconds: float = 0.0
    why: str = ""


def generate(
    request: GenerateRequest,
    plugins: Plugins,
    *,
    progress: OnProgress = lambda text, done, total: None,
) -> GeneratedModels:
    """Write the models of the request, each file whole, in order of their numbers.

    Raises:
        UsageError: The request cannot be answered, or the folder is not empty.
        InfrastructureError: A file cannot be written, or the sandbox failed.
    """
    folder = request.out.expanduser()
    _check_empty(folder)
    runtime = plugins.runtime(request.runtime) if request.runtime else plugins.reference_runtime()
    if "onnx" not in runtime.accepts:
        raise UsageError(f"--runtime {runtime.name}: it does not run ONNX models")
    config = RuntimeConfig(runtime, runtime.options)
    choices = _choices(request, plugins)
    jobs = request.jobs or default_jobs()
    preload = ("numpy.random", "onnx", "onnx.checker", make.__module__, *runtime.preload)
    fragments = fragments_folder(request.cache_dir)
    limits = Limits(_SECONDS, _MEMORY_BYTES, writable=(str(fragments),))
    # Workers end before the folder goes in which they leave words.
    with (
        temporary_folder("optvet-generate-") as temporary,
        Sandbox(jobs=jobs, limits=limits, preload=preload) as sandbox,
    ):
        opset = _opset(request, config, sandbox)
        operators = _operators(request, opset)
        excluded = _find_excluded(request, opset)
        progress("gathering fragments", 0, None)
        files = gather(
            choices,
            (),
            runtime,
            runtime.options,
            seed=request.seed,
            sandbox=sandbox,
            folder=fragments,
            version=__version__,
        )
        known = fragments_of(tuple(files), operators, excluded)
        scratch = Path(temporary)
        names = tuple(known)
        maker = _RoundRunner(
            request,
            folder,
            config,
            opset,
            operators,
            excluded,
            tuple(files),
            names,
            sandbox,
            scratch,
        )
        tally = maker.all_rounds(progress)
    return _record(request, folder, config, opset, known, operators, tally)


def _no_model(tally: _Tally, opset: int) -> str:
    words = f": {tally.why}" if tally.why else ""
    return (
        f"no more models could be made at opset {opset} after {len(tally.models)}{words}; choose "
        "other --operators, --pools or another --opset"
    )


def _record(
    request: GenerateRequest,
    folder: Path,
    config: RuntimeConfig,
    opset: int,
    known: Mapping[str, object],
    operators: frozenset[str] | None,
    tally: _Tally,
) -> GeneratedModels:
    reasons = dict(tally.reasons)
    for name in operators_at(opset):
        if operators is not None and name not in operators:
            reasons[name] = "not among --operators"
        elif name in request.exclude_operators:
            reasons[name] = "excluded"
        elif name not in known:
            reasons[name] = "no pool has a fragment of it with tensors alone"
    return GeneratedModels(
        schema="optvet.generated/1",
        folder=str(folder),
        seed=request.seed,
        runtime=config.runtime.name,
        version=config.runtime.version(),
        dropped=tally.dropped,
        killed=tally.killed,
        deaths=dict(sorted(tally.deaths.items())),
        seconds=round(tally.seconds, 3),
        models=tally.models,
        coverage=tally.covered.record(opset, reasons),
    )


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "holds files already" if folder.is_dir() else "is a file"
        raise UsageError(f"--out {folder} {what}; give a new or an empty folder")


def _choices(request: GenerateRequest, plugins: Plugins) -> list[PoolChoice]:
    """The pools of the request; by default all that need no argument."""
    named = request.pools or tuple(n for n in plugins.pools() if not plugins.pool(n).needs_argument)
    if not named:
        raise UsageError("there is no pool of fragments; see: optvet plugins")
    parts = (text.partition(":") for text in named)
    return [PoolChoice(plugins.pool(n), argument if c else None) for n, c, argument in parts]


def _opset(request: GenerateRequest, config: RuntimeConfig, sandbox: Sandbox) -> int:
    """The operator-set version of the models.

    Raises:
        UsageError: onnx or the runtime does not have it.
    """
    newest = onnx.defs.onnx_opset_version()
    if request.opset is not None and request.opset > newest:
        raise UsageError(f"--opset {request.opset}: the installed onnx knows {newest} at most")
    first, last = (newest, _OLDEST_OPSET) if request.opset is None else (request.opset,) * 2
    found = sandbox.call(newest_opset, config, first, last)
    if found.failure is not None:
        raise InfrastructureError(f"runtime {config.runtime.name!r}: {found.failure.message}")
    if found.value is None:
        option = f"--opset {request.opset}: " if request.opset else ""
        raise UsageError(f"{option}runtime {config.runtime.name!r} runs no model of it")
    return found.value


def _operators(request: GenerateRequest, opset: int) -> frozenset[str] | None:
    return _known(request.operators, opset) if request.operators else None


def _find_excluded(request: GenerateRequest, opset: int) -> frozenset[str]:
    """The operators that are excluded; the types are checked too.

    Raises:
        UnknownName: There is no such operator, or no such type.
    """
    types = [dtype_name(number) for number in TensorProto.DataType.values() if number]
    for name in request.exclude_types:
        if name not in types:
            raise UnknownName("element type", name, types)
    return _known(request.exclude_operators, opset)


def _known(names: Sequence[str], opset: int) -> frozenset[str]:
    others = (s for s in onnx.defs.get_all_schemas() if s.domain)
    known = [*operators_at(opset), *(qualified_name(s.domain, s.name) for s in others)]
    for name in names:
        if name not in known:
            raise UnknownName(f"operator of opset {opset}", name, known, "")
    return frozenset(names)


@dataclass(frozen=True)
class _RoundRunner:
    """Does rounds, and writes their models."""

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

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """The fewest and the most nodes of each size."""
        return sizes_of(self.request.nodes)

    @property
    def count(self) -> int:
        """Models of all sizes."""
        return self.request.count * len(self.sizes)

    def all_rounds(self, progress: OnProgress) -> _Tally:
        """Do rounds until all models are written.

        Raises:
            UsageError: No more can be made.
        """
        tally, unproductive = _Tally(), 0
        while len(tally.models) < self.count:
            before = len(tally.models)
            self.do_round(tally)
            progress("models", len(tally.models), self.count)
            unproductive = 0 if len(tally.models) > before else unproductive + 1
            if unproductive == _UNPRODUCTIVE_ROUNDS:
                raise UsageError(_no_model(tally, self.opset))
        return tally

    def do_round(self, tally: _Tally) -> None:
        """Make candidates, at most as many as models are missing, and write those that run."""
        orders = self._plan_orders(tally)
        tally.number += len(orders)
        futures = [self.sandbox.submit(make, order) for order in orders]
        for order, future in zip(orders, futures, strict=True):
            self._take(tally, order, future.result())

    def _plan_orders(self, tally: _Tally) -> list[Order]:
        """Orders of the next candidates, those operators first that were used least."""
        missing = Counter({size: self.request.count - tally.sizes[size] for size in self.sizes})
        used = Counter({n: tally.covered.operators[n] for n in self.known})
        # An operator of which a fragment kills now and then is in models all the same.
        deaths = tally.deaths.items()
        avoided = frozenset(n for n, count in deaths if count >= _DEATHS and count > used[n])
        left = [n for n in self.known if n not in avoided]
        opsets = {n: self._opset_for(n, tally) for n in left}
        hopeless = {n for n in left if not opsets[n]}
        drawn = {n: 1 / (1 + used[n]) for n in left}
        random = Random(f"{self.request.seed}/plan/{tally.number}")
        orders = []
        for number in range(tally.number, tally.number + min(ROUND, missing.total())):
            ((size, _),) = missing.most_common(1)
            missing[size] -= 1
            few = max(_FEWEST_WANTED, size[1] // _NODES_PER_WANTED)
            order = sorted(left, key=lambda n: (n in hopeless, used[n], random.random()))
            opset = opsets[order[0]] or self.opset if order else self.opset
            wanted = tuple(n for n in order if opsets[n] == opset)[:few]
            used.update(wanted)
            orders.append(
                Order(
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
        return orders

    def _opset_for(self, operator: str, tally: _Tally) -> int:
        """The operator-set version to use an operator in; 0 if it could be used in none.

        It is the newest one until the operator was refused there; then, unless the user has asked
        for one version, it is the next older one in which the operator has another form.
        """
        if found := tally.covered.opsets.get(operator):
            return found
        oldest = self.opset if self.request.opset else _OLDEST_OPSET
        opsets = opsets_for(operator, self.opset, oldest)
        return next((v for v in opsets if tally.refusals[operator, v] < _REFUSALS), 0)

    def _take(self, tally: _Tally, order: Order, outcome: Outcome[GenerationResult]) -> None:
        """Write the model of a candidate; of one that is none, note why.

        Raises:
            InfrastructureError: A file cannot be written, or it was no model that ended a worker.
        """
        failure, answer = outcome.failure, outcome.value
        if failure is not None or answer is None:
            if failure is not None and failure.kind == "killed":
                raise InfrastructureError(f"a worker was ended from outside: {failure.message}")
            tried = order.logged.read_text() if order.logged.exists() else ""
            how = failure.signal or failure.kind if failure else "no answer"
            tally.deaths[tried] += 1
            tally.reasons[tried] = f"its worker ended: {how}"
            tally.killed += 1
            tally.dropped += 1
            return
        order.logged.unlink(missing_ok=True)
        tally.seconds += answer.seconds
        if answer.grown is None:
            tally.dropped += 1
            tally.why = answer.why
            return
        tally.refusals.update((name, order.opset) for name in answer.grown.refused)
        tally.reasons |= answer.grown.refused
        model = ModelProto.FromString(answer.grown.model)
        tally.covered.take(model)
        tally.sizes[order.nodes] += 1
        tally.models.append(self._write_model(answer.grown, model, len(tally.models)))

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
