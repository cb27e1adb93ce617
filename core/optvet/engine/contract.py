"""Checking what plugins return against their protocols.

Otherwise a plugin that breaks its contract would fail somewhere inside optvet, or look like a fault
of the model. The error names the plugin and the method, what was expected and what it returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from optvet.spec.converters import Converter, SourceFacts
from optvet.spec.errors import ContractError, OptvetError
from optvet.spec.executor import Executor, Workers
from optvet.spec.generators import Candidate, Fragment, Mutator, Pattern, Pool
from optvet.spec.protocols import (
    Calibrates,
    Comparator,
    Dataset,
    Decodes,
    ModelSource,
    Optimizer,
    Pins,
    ReportsChanges,
    Runtime,
    Saves,
    Session,
)
from optvet.spec.types import (
    Artifact,
    Comparison,
    Deferred,
    ModelCard,
    NodeTime,
    Pass,
    Profile,
    Sample,
    Summary,
)

_T = TypeVar("_T")


def kind_of(value: Any) -> str:
    """The type of ``value`` in words, for messages."""
    return "None" if value is None else type(value).__qualname__


def mismatch(what: str, value: Any, expected: type | tuple[type, ...], words: str) -> str | None:
    """What is wrong with ``value``, returned by ``what``; None if it has an expected type."""
    if isinstance(value, expected):
        return None
    return f"{what} gave {kind_of(value)}, expected {words}"


def blame(family: str, plugin: Any, words: str, origin: str | None = None) -> ContractError:
    """An error that says that ``plugin`` broke its contract, and how."""
    name = getattr(plugin, "name", type(plugin).__qualname__)
    return ContractError(f"{family} {name!r} ({origin or type(plugin).__module__}): {words}")


def ask(
    family: str,
    plugin: Any,
    method: str,
    call: Callable[[], _T],
    expected: type | tuple[type, ...],
    words: str,
    origin: str | None = None,
) -> _T:
    """The result of ``call``, a call of ``method`` of ``plugin``, if it has an expected type.

    Raises:
        ContractError: It has another type, or the method raised an unexpected exception.
        OptvetError: The method raised it on purpose.
    """
    try:
        value = call()
    except OptvetError:
        raise
    except Exception as error:
        raised = f"{method}() raised {type(error).__name__}: {error}"
        raise blame(family, plugin, raised, origin) from error
    wrong = mismatch(f"{method}()", value, expected, words)
    if wrong is not None:
        raise blame(family, plugin, wrong, origin)
    return value


def list_items(
    family: str,
    plugin: Any,
    method: str,
    call: Callable[[], Any],
    item: type[_T],
    origin: str | None = None,
) -> list[_T]:
    """The items of ``call``, a call of ``method`` of ``plugin``, if all are of type ``item``.

    Raises:
        ContractError: An item has another type, or the method raised an unexpected exception.
    """

    def gather() -> Any:
        items = call()
        return list(items) if isinstance(items, Iterable) else items

    expected = f"an iterable of {item.__name__}"
    items: list[Any] = ask(family, plugin, method, gather, list, expected, origin)
    for each in items:
        wrong = mismatch(f"{method}()", each, item, item.__name__)
        if wrong is not None:
            raise blame(family, plugin, wrong, origin)
    return items


# --- optimizers ----------------------------------------------------------------------------------


def check_passes(optimizer: Optimizer, origin: str | None = None) -> None:
    """Refuse an optimizer whose passes and pipelines do not fit together.

    Raises:
        ContractError: ``passes`` or ``pipelines`` raised, or gave what they must not.
    """

    def refuse(method: str, got: str, expected: str) -> ContractError:
        words = f"{method}() gave {got}, expected {expected}"
        return blame("optimizer", optimizer, words, origin)

    expected = "a list of Pass"
    passes = ask(
        "optimizer", optimizer, "passes", optimizer.passes, (list, tuple), expected, origin
    )
    for item in passes:
        if not isinstance(item, Pass):
            raise refuse("passes", f"an item that is {kind_of(item)}", expected)
    names = [p.name for p in passes]
    expected = "a mapping of names to lists of passes"
    pipelines = ask(
        "optimizer", optimizer, "pipelines", optimizer.pipelines, Mapping, expected, origin
    )
    if "default" not in pipelines:
        raise refuse("pipelines", f"{sorted(map(str, pipelines))}", "'default' among them")
    for name, members in pipelines.items():
        if isinstance(members, str) or not isinstance(members, Sequence):
            raise refuse("pipelines", f"{kind_of(members)} for {name!r}", expected)
        unknown = [m for m in members if m not in names]
        if unknown:
            raise refuse("pipelines", f"{name!r} with {unknown[0]!r}", "names that passes() has")


def artifact(optimizer: Optimizer, value: Any) -> Artifact:
    """``value``, which ``apply`` gave; ContractError if it is no Artifact of the right parts."""
    wrong = mismatch("apply()", value, Artifact, "an Artifact")
    wrong = wrong or mismatch("apply()", value.format, str, "a text as the Artifact's format")
    if wrong is None and _plain(value.format) != optimizer.traits.produces:
        got, promised = value.format, optimizer.traits.produces
        wrong = (
            f"apply() gave an Artifact of format {got!r}, expected {promised!r}, as its traits say"
        )
    wrong = wrong or mismatch("apply()", value.data, bytes, "bytes as the Artifact's data")
    wrong = wrong or mismatch(
        "apply()", value.fingerprint, (str, _NONE), "a text or None as the Artifact's fingerprint"
    )
    wrong = wrong or mismatch(
        "apply()", value.path, (Path, _NONE), "a Path or None as the Artifact's path"
    )
    wrong = wrong or _names("apply()", value.changing_passes, " as the Artifact's changing_passes")
    if wrong is not None:
        raise blame("optimizer", optimizer, wrong)
    # Plain str, bytes and Path: subclasses may be unknown in the receiving process, and may have
    # methods of their own for length and equality.
    names = (
        None if value.changing_passes is None else tuple(_plain(n) for n in value.changing_passes)
    )
    fingerprint = None if value.fingerprint is None else _plain(value.fingerprint)
    data = value.data if type(value.data) is bytes else memoryview(value.data).tobytes()
    path = None if value.path is None else Path(value.path)
    return Artifact(_plain(value.format), data, value.handle, fingerprint, names, path)


def _plain(text: str) -> str:
    return str.__str__(text)


def changing_passes(optimizer: ReportsChanges, value: Any) -> tuple[str, ...]:
    """``value``, which ``changing_passes`` gave; ContractError if these are no names."""
    wrong = _names("changing_passes()", value, "")
    if wrong is not None:
        raise blame("optimizer", optimizer, wrong)
    return tuple(value)


def check_saved(optimizer: Saves, value: Any) -> Artifact:
    """``value``, which ``saved`` gave; ContractError if it is no model in ONNX."""
    wrong = mismatch("saved()", value, Artifact, "an Artifact")
    wrong = wrong or mismatch("saved()", value.data, bytes, "bytes as the Artifact's data")
    if wrong is None and value.format != "onnx":
        wrong = f"saved() gave an Artifact of format {value.format!r}, expected 'onnx'"
    if wrong is not None:
        raise blame("optimizer", optimizer, wrong)
    return value  # type: ignore[no-any-return]  # checked above


_NONE = type(None)


def _names(method: str, value: Any, suffix: str) -> str | None:
    words = f"names of passes, or None{suffix}"
    wrong = mismatch(method, value, (list, tuple, _NONE), words)
    if wrong is not None or value is None:
        return wrong
    return next((w for n in value if (w := mismatch(method, n, str, words))), None)


# --- runtimes ------------------------------------------------------------------------------------


def session(runtime: Runtime, value: Any) -> Session:
    """``value``, which ``load`` gave; ContractError if it cannot be run."""
    wrong = mismatch("load()", value, Session, "a session, which has a method run")
    if wrong is not None:
        raise blame("runtime", runtime, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def outputs(runtime: Runtime, value: Any) -> Mapping[str, Any]:
    """``value``, which the ``run`` of a session gave; ContractError if it is no outputs by name."""
    wrong = mismatch("run() of a session", value, Mapping, "outputs by name")
    names = value if wrong is None else ()
    wrong = wrong or next(
        (w for n in names if (w := mismatch("run() of a session", n, str, "names as texts"))), None
    )
    if wrong is not None:
        raise blame("runtime", runtime, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def arrays(runtime: Runtime, flat: Mapping[str, Any]) -> None:
    """Check outputs as arrays; ContractError if one holds neither numbers nor texts."""
    for name, array in flat.items():
        items = array.flat if array.dtype == object else ()
        for item in items:
            if wrong := mismatch(f"output {name!r}", item, (str, bytes), "numbers or texts"):
                raise blame("runtime", runtime, wrong)


def profile(runtime: Any, value: Any) -> Profile:
    """``value``, which ``profile`` gave; ContractError if it is no Profile of whole parts."""
    wrong = mismatch("profile()", value, Profile, "a Profile")
    wrong = wrong or mismatch("profile()", value.wanted, str, "a text as what was wanted")
    wrong = wrong or mismatch("profile()", value.runs, int, "a whole number of runs")
    nodes: list[Any] = []
    if wrong is None:
        wrong = mismatch("profile()", value.nodes, (list, tuple), "a list of NodeTime")
        nodes = list(value.nodes) if wrong is None else []
    for node in nodes:
        wrong = wrong or mismatch("profile()", node, NodeTime, "NodeTime as nodes")
        for name, kind, words in _NODE_TIME:
            wrong = wrong or mismatch(
                f"profile(), {name} of a node,", getattr(node, name), kind, words
            )
    if wrong is not None:
        raise blame("runtime", runtime, wrong)
    plain = tuple(
        NodeTime(
            _plain(n.name),
            _plain(n.operator),
            _plain(n.provider),
            float(n.calls),
            float(n.seconds),
        )
        for n in nodes
    )
    return Profile(_plain(value.wanted), value.runs, plain)


_NODE_TIME: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("name", str, "a text"),
    ("operator", str, "a text"),
    ("provider", str, "a text"),
    ("calls", (int, float), "a number"),
    ("seconds", (int, float), "a number"),
)


# --- datasets ------------------------------------------------------------------------------------


def samples(
    dataset: Dataset, ask_samples: Callable[[], Iterable[Sample | Deferred]]
) -> Iterator[Sample | Deferred]:
    """What ``samples`` of ``dataset`` gives, one at a time and checked.

    Raises:
        ContractError: It gives something else, or raised what plugins do not raise.
    """
    expected = "Sample or Deferred"
    items = iter(
        ask("dataset", dataset, "samples", ask_samples, Iterable, f"an iterable of {expected}")
    )
    end = object()
    while True:
        item: Any = ask("dataset", dataset, "samples", lambda: next(items, end), object, "")
        if item is end:
            return
        wrong = mismatch("samples()", item, (Sample, Deferred), expected)
        if wrong is not None:
            raise blame("dataset", dataset, wrong)
        yield item


def make_sample(dataset: Dataset, item: Deferred) -> Sample:
    """The sample that ``item`` of ``dataset`` stands for.

    Raises:
        InputError: The data is bad, as the dataset says.
        ContractError: It gives something else, or raised what plugins do not raise.
    """
    return ask("dataset", dataset, "Deferred.make", item.make, Sample, "Sample")


# --- comparators ---------------------------------------------------------------------------------


def score(comparator: Comparator, call: Callable[[], float]) -> float:
    """What ``matches`` says, a number from 0 to 1; ContractError if it is none."""
    value = ask("comparator", comparator, "matches", call, (int, float), "a number from 0 to 1")
    if not 0.0 <= value <= 1.0:
        raise blame(
            "comparator", comparator, f"matches() gave {value}, expected a number from 0 to 1"
        )
    return float(value)


def comparison(comparator: Comparator, value: Any) -> Comparison:
    """``value``, which ``compare`` gave; ContractError if it is no Comparison of numbers."""
    wrong = mismatch("compare()", value, Comparison, "Comparison")
    wrong = wrong or _metrics("compare()", value.metrics)
    if wrong is not None:
        raise blame("comparator", comparator, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def check_calibrated(
    comparator: Calibrates, call: Callable[[], Any], options: BaseModel
) -> BaseModel:
    """What ``call``, a call of ``calibrated``, gives; ContractError if it is no such options."""
    kind: type[BaseModel] = type(options)
    words = f"options of type {kind.__name__}"
    calibrated: BaseModel = ask("comparator", comparator, "calibrated", call, kind, words)
    return calibrated


def check_decoded(comparator: Decodes, value: Any) -> Mapping[str, Any]:
    """``value``, which ``decode`` gave; ContractError if it is no mapping of names to arrays."""
    wrong = mismatch("decode()", value, Mapping, "a mapping of names to arrays")
    if wrong is not None:
        raise blame("comparator", comparator, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def summary(comparator: Comparator, value: Any) -> Summary:
    """``value``, which ``summarise`` gave; ContractError if it is no Summary of numbers."""
    wrong = mismatch("summarise()", value, Summary, "Summary")
    wrong = wrong or _metrics("summarise()", value.metrics)
    wrong = wrong or mismatch("summarise()", value.headline, str, "a text as headline")
    if wrong is not None:
        raise blame("comparator", comparator, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def _metrics(method: str, metrics: Any) -> str | None:
    wrong = mismatch(method, metrics, Mapping, "metrics as a mapping of names to numbers")
    if wrong is not None:
        return wrong
    for name, value in metrics.items():
        try:
            float(value)
        except (TypeError, ValueError):
            return f"{method} gave metric {name!r} = {value!r}, expected a number"
    return None


# --- model sources -------------------------------------------------------------------------------


def cards(source: ModelSource) -> list[ModelCard]:
    """What ``models`` of ``source`` lists; ContractError if that is something else."""
    return list_items("model source", source, "models", source.models, ModelCard)


def files(source: ModelSource, reference: str, cache: Path) -> list[Path]:
    """What ``fetch`` of ``source`` gives for ``reference``; ContractError if these are no files."""
    expected = "a list of paths"
    fetched: Sequence[Any] = ask(
        "model source",
        source,
        "fetch",
        lambda: source.fetch(reference, cache),
        (list, tuple),
        expected,
    )
    if not fetched:
        raise blame("model source", source, f"fetch() gave an empty list, expected {expected}")
    for path in fetched:
        wrong = mismatch("fetch()", path, Path, expected)
        if wrong is not None:
            raise blame("model source", source, wrong)
        if not path.is_file() and not path.is_symlink():  # a dead link is told by who opens it
            raise blame("model source", source, f"fetch() gave {path}, expected a file that exists")
    return list(fetched)


def check_pinned(source: ModelSource, reference: str, cache: Path) -> str:
    """What ``pinned`` of ``source`` gives for ``reference``; ContractError if it is no text."""
    assert isinstance(source, Pins)
    return ask(
        "model source", source, "pinned", lambda: source.pinned(reference, cache), str, "a text"
    )


# --- executors, runtimes of sources, converters, generators ---------------------------------------


def check_workers(executor: Executor, options: BaseModel, jobs: int | None) -> Workers:
    """The workers that ``executor`` starts; ContractError if jobs cannot be submitted to them."""
    call = partial(executor.start, options, jobs=jobs)
    workers: Any = ask("executor", executor, "start", call, object, "")
    lacking = [name for name in ("submit", "close") if not callable(getattr(workers, name, None))]
    if lacking:
        words = f"start() gave {kind_of(workers)}, expected workers, with submit() and close()"
        raise blame("executor", executor, words)
    return workers  # type: ignore[no-any-return]  # checked above


def check_facts(runtime: Any, value: Any) -> SourceFacts:
    """``value``, which ``source_facts`` gave; ContractError if it is none."""
    if wrong := mismatch("source_facts()", value, SourceFacts, "SourceFacts"):
        raise blame("runtime", runtime, wrong)
    return value  # type: ignore[no-any-return]  # checked above


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
    expected = (Candidate, _NONE)
    changed: Candidate | None = ask(
        "mutator", mutator, "mutate", call, expected, "a Candidate or None"
    )
    if changed is not None:
        from onnx import ModelProto  # what loads no model imports this module too

        if wrong := mismatch("mutate()", changed.model, ModelProto, "a ModelProto as model"):
            raise blame("mutator", mutator, wrong)
    return changed
