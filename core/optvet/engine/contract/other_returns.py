"""What executors, converters, pools and mutators return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pydantic import BaseModel

from optvet.engine.contract.checked_calls import ask, blame, kind_of, list_items, mismatch
from optvet.spec.converters import Converter
from optvet.spec.executor import Executor, Workers
from optvet.spec.generators import Candidate, Fragment, Mutator, Pattern, Pool


def check_workers(executor: Executor, options: BaseModel, jobs: int | None) -> Workers:
    """The workers that ``executor`` starts; ContractError if jobs cannot be submitted to them."""
    call = partial(executor.start, options, jobs=jobs)
    workers: Any = ask("executor", executor, "start", call, object, "")
    lacking = [name for name in ("submit", "close") if not callable(getattr(workers, name, None))]
    if lacking:
        words = f"start() gave {kind_of(workers)}, expected workers, with submit() and close()"
        raise blame("executor", executor, words)
    return workers  # type: ignore[no-any-return]  # checked above


def check_artifacts(converter: Converter, value: Any) -> Iterable[Any]:
    """``value``, which ``convert`` gave; ContractError if it holds no artifacts."""
    if wrong := mismatch("convert()", value, Iterable, "an iterable of Artifact, one per stage"):
        raise blame("converter", converter, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def check_fragments(pool: Pool, call: Callable[[], Any]) -> list[Fragment | Pattern]:
    """What ``call``, a call of ``fragments``, gives; ContractError if that is something else."""
    fragments = list_items("pool", pool, "fragments", call, object)
    for item in fragments:
        if wrong := mismatch("fragments()", item, (Fragment, Pattern), "Fragment or Pattern"):
            raise blame("pool", pool, wrong)
    return fragments  # type: ignore[return-value]  # checked above


def check_mutated(mutator: Mutator, call: Callable[[], Any]) -> Candidate | None:
    """What ``call``, a call of ``mutate``, gives; ContractError if it is no candidate."""
    expected = (Candidate, type(None))
    changed: Candidate | None = ask(
        "mutator", mutator, "mutate", call, expected, "a Candidate or None"
    )
    if changed is not None:
        from onnx import ModelProto  # what loads no model imports this module too

        if wrong := mismatch("mutate()", changed.model, ModelProto, "a ModelProto as model"):
            raise blame("mutator", mutator, wrong)
    return changed
