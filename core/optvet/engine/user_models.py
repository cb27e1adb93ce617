"""User models: one class of the user's as a dataset and a comparator."""

from __future__ import annotations

import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.options import NoOptions
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.factory import execute_file
from optvet.spec.files import file_sha256
from optvet.spec.foreign import check_file
from optvet.spec.protocols import Probe
from optvet.spec.request import VetRequest
from optvet.spec.types import Comparison, Deferred, Model, Sample, Summary
from optvet.spec.user_model import UserModel

T = TypeVar("T")

_NAME = re.compile(r"[\w-]{1,60}")


def with_user_model(request: VetRequest, plugins: Plugins) -> tuple[VetRequest, Plugins]:
    """The request with the user model's dataset and comparator, and plugins that have both.

    A dataset or a comparator that the request names is used in place of the user model's.

    Raises:
        UsageError: The reference is neither a registered name nor ``FILE:CLASS``.
        InputError: The file is not trusted, or has no such class.
    """
    reference = request.user_model
    if reference is None:
        return request, plugins
    model, file = _find(reference, plugins, trust=request.trust)
    name = model.name
    for family in ("dataset", "comparator"):
        if name in plugins.names(family):
            raise UsageError(
                f"--user-model {reference}: there is a {family} {name!r} already; set another "
                "`name` in the class"
            )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--user-model {reference}: its name {name!r:.60} must be of letters, digits, - and _"
        )
    data, judge = _Items(model, file), _Scores(model)
    named = request.model_copy(
        update={
            "user_model": None,
            "dataset": request.dataset or (name,),
            "comparator": request.comparator or name,
        }
    )
    return named, plugins.extend("dataset", data).extend("comparator", judge)


def _find(reference: str, plugins: Plugins, *, trust: bool) -> tuple[UserModel, Path | None]:
    file, colon, wanted = reference.rpartition(":")
    if not colon and (reference.endswith(".py") or os.sep in reference):
        raise UsageError(f"--user-model {reference}: which class of it? Write FILE:CLASS")
    if not colon:
        return plugins.user_model(reference), None
    if not (file and wanted):
        raise UsageError(f"--user-model {reference}: expected FILE:CLASS, or a registered name")
    path = Path(file).expanduser()
    if not path.exists():
        raise InputError(f"--user-model {reference}: there is no file {file}")
    check_file(path)
    if not trust:
        raise InputError(f"--user-model {reference}: the file is executed; say --trust to allow it")
    module = execute_file(path)
    kind = getattr(module, wanted, None)
    if not (inspect.isclass(kind) and issubclass(kind, UserModel)):
        kinds = [
            n
            for n, v in vars(module).items()
            if inspect.isclass(v) and issubclass(v, UserModel) and v is not UserModel
        ]
        if kind is not None:
            words = "is no class that is derived from optvet.plugin.UserModel; derive it from that"
            raise UsageError(f"--user-model {reference}: {wanted} {words}")
        raise UnknownName("user model", wanted, kinds, f"(in {path.name})")
    model = _call(f"{wanted}()", kind)
    return model, path


@dataclass(frozen=True)
class _Items:
    """The items of a user model as a dataset."""

    user: UserModel
    file: Path | None
    options: BaseModel = field(default_factory=NoOptions)

    @property
    def name(self) -> str:
        return self.user.name

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: BaseModel,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterator[Deferred]:
        where, end = f"{self.name}.dataset()", object()
        items = _call(where, lambda: iter(self.user.dataset()))
        for number in itertools.count() if limit is None else range(limit):
            if (item := _call(where, partial(next, items, end))) is end:
                return
            id = f"item-{number}"
            yield Deferred(id, partial(self._sample, model, id, item))

    def _sample(self, model: Model, id: str, item: Any) -> Sample:
        feeds = _call(f"{self.name}.feed(), {id}", partial(self.user.feed, item))
        if not isinstance(feeds, Mapping):
            kind = type(feeds).__name__
            raise InputError(
                f"{self.name}.feed(), {id}: gave {kind}, expected arrays by input name"
            )
        arrays = {str(n): np.asarray(v) for n, v in feeds.items()}
        if missing := [i.name for i in model.inputs if i.name not in arrays]:
            given = ", ".join(map(repr, arrays)) or "nothing"
            raise InputError(
                f"{self.name}.feed(), {id}: gave {given}; the model also takes "
                f"{', '.join(map(repr, missing))}"
            )
        return Sample(id, arrays, label=item)

    def provenance(
        self, model: Model, argument: str | None, options: BaseModel
    ) -> Mapping[str, str]:
        if self.file is None:
            return {}
        return {"file": self.file.name, "sha256": file_sha256(self.file)[:12]}


@dataclass(frozen=True)
class _Scores:
    """The scores and comparisons of a user model as a comparator."""

    user: UserModel
    options: BaseModel = field(default_factory=NoOptions)

    @property
    def name(self) -> str:
        return self.user.name

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        return 0.0  # it is named where it is wanted

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: BaseModel,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        item = sample.label
        ours, theirs = (self._score(sample, outputs) for outputs in (reference, candidate))
        if ours.keys() != theirs.keys():
            words = f"{sorted(ours)} of the original, {sorted(theirs)} of the optimized model"
            raise InputError(f"{self.name}.score(), {sample.id}: gave other metrics: {words}")

        def same(outputs: Mapping[str, np.ndarray]) -> bool:
            where = f"{self.name}.compare(), {sample.id}"
            return bool(_call(where, partial(self.user.compare, item, reference, outputs)))

        changed = not same(candidate)
        # A change that shows as soon as the outputs move by their noise is no change of the model.
        tie = changed and not same(_nudge(reference, candidate, noise))
        metrics = {**theirs, **{f"original_{n}": v for n, v in ours.items()}}
        return Comparison(sample.id, metrics, changed and not tie, tie)

    def _score(self, sample: Sample, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        where = f"{self.name}.score(), {sample.id}"
        scores = _call(where, partial(self.user.score, sample.label, outputs))
        try:
            return {str(name): float(value) for name, value in scores.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{where}: expected numbers by metric, got {scores!r:.100}") from error

    def summarise(self, comparisons: Sequence[Comparison], options: BaseModel) -> Summary:
        names = list(dict.fromkeys(n for c in comparisons for n in c.metrics))
        metrics = {
            n: float(np.mean([c.metrics[n] for c in comparisons if n in c.metrics])) for n in names
        }
        changed = sum(c.changed for c in comparisons)
        words = f"{changed} of {len(comparisons)} answers changed"
        moved = [
            f"{n} {metrics[f'original_{n}']:.4g} → {metrics[n]:.4g}"
            for n in names
            if f"original_{n}" in metrics and metrics[n] != metrics[f"original_{n}"]
        ]
        return Summary(metrics, "; ".join([words, *moved[:3]]))


def _nudge(
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
) -> dict[str, np.ndarray]:
    """The reference, moved towards the candidate by at most its noise."""
    found = {}
    for name, value in reference.items():
        other = candidate.get(name)
        if other is None or value.dtype.kind != "f" or other.shape != value.shape:
            found[name] = value
            continue
        with np.errstate(invalid="ignore"):
            step = other.astype(np.float64) - value
            bound = noise.get(name, 0.0)
            moved = value + np.clip(np.nan_to_num(step), -bound, bound)
        found[name] = moved.astype(value.dtype)
    return found


def _call(where: str, function: Callable[[], T]) -> T:
    """What the user's code returns; its errors are those of an input."""
    try:
        return function()
    except InputError:
        raise
    except NotImplementedError as error:
        raise InputError(f"{where} is not defined; define it") from error
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise InputError(f"{where} fails: {type(error).__name__}: {text}; mend it") from error
