"""Comparing a source with the ONNX model that was made of it, value by value.

::

    first sample → values of both → pairs: equal up to their layout, the outputs, then look-alikes
    all samples  → how far each pair differs → which pairs differ where the answers do
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import onnx
from onnx import ModelProto

from optvet.engine.compare_as_shipped import ShippedSide, check_shipped, compare_as_shipped
from optvet.engine.convert.align import Tolerances, equal_up_to_layout, iter_layouts
from optvet.engine.convert.conversion_inputs import inputs_of
from optvet.engine.convert.default_chain import formats_of
from optvet.engine.convert.inside import inside_of, shows_inside
from optvet.engine.convert.locate import source_inside
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.session import Conversion
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.explain.answer_contrast import SampleRun, contrast, difference_of
from optvet.engine.vet.impact.assess import assessment_of
from optvet.engine.vet.observe.divergence import comparison_of
from optvet.engine.vet.observe.recorded_values import RecordedValues, Values, as_graph
from optvet.engine.vet.observe.value_pairs import ValuePair, judge_value, node_outputs
from optvet.engine.vetting import GivenInputs
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import Outcome, describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.walk import reads
from optvet.spec.convert import ConvertRequest, parts_of
from optvet.spec.converters import SourceInside
from optvet.spec.errors import InputError, UsageError
from optvet.spec.foreign import load_model
from optvet.spec.records import ModelComparison
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Failure, Inner, Sample

_ALIKE = 0.5
"""Cosine of the angle between two values from which one may be a wrong form of the other."""
_NUMBERS = "fiub"


class SourceOptions(TypedDict):
    """How a source is compared: options of ``optvet compare``."""

    runtime: str | None
    comparator: str | None
    limit: int
    seed: int
    cache_dir: Path
    timeout_s: float
    memory_bytes: int
    trust: bool
    progress: Progress
    runtime_options: Mapping[str, Any]
    clean: bool


@dataclass(frozen=True)
class SourcePair:
    """A value of the source and one of the model; ``layout`` is its place in ``iter_layouts``."""

    a: str
    b: str
    layout: int


def is_source(reference: str, plugins: Plugins) -> bool:
    """Whether a model is no ONNX but what a framework makes of a file."""
    _, function = parts_of(reference)
    known = Pythons({}, environments_root()).among(plugins)
    return bool(function or formats_of(reference, known) - {"onnx"})


def compare_source(
    a: str, b: Path, plugins: Plugins, **options: Unpack[SourceOptions]
) -> ModelComparison:
    """Compare a source with an ONNX file, on its example and what it gives beside that.

    Further samples up to ``limit`` are drawn like the example. A model that agrees with the source
    is compared with itself in a session with its runtime's defaults and ``runtime_options``, unless
    ``clean`` is asked for.

    Raises:
        UsageError: One of both cannot be used, or the source's framework shows no inner values.
        InputError: One of both does not run on the example.
        NothingTested: No sample ran on both.
    """
    request = ConvertRequest(
        model=a,
        converted=b,
        runtime=options["runtime"],
        seed=options["seed"],
        timeout=options["timeout_s"],
        memory=options["memory_bytes"],
        trust=options["trust"],
    )
    with open_conversion(request, plugins, more=(__name__,)) as conversion:
        source = conversion.source.artifact
        if not shows_inside(conversion.reference, source):
            raise UsageError(
                f"{a}: {conversion.source.runtime.name} shows no values inside of its models; "
                "compare two ONNX models"
            )
        limit, seed, progress = options["limit"], options["seed"], options["progress"]
        progress("running the source", 0, None)
        facts = conversion.facts()
        drawn = max(0, limit - 1 - len(facts.others))
        inputs = inputs_of(facts, seed=seed, random=drawn, edges=False, sizes=False)
        samples = [each.sample for each in inputs][:limit]
        config = conversion.runtime_for("onnx", last=True)
        assert config is not None
        model = Artifact("onnx", load_model(b).SerializeToString())
        (described,) = resolve_model(str(b), plugins, options["cache_dir"])
        side = ShippedSide(described, options["runtime_options"])
        vet = _asked(b, options)
        feeds = tuple(fed_to(model, each.feeds) for each in samples)
        known = plugins.extend("dataset", GivenInputs(feeds))
        if not options["clean"]:
            check_shipped(vet, known, described, side)
        found, pairs = _compared(conversion, config, model, samples[0])
        if limit > 1:
            progress("comparing", 0, None)
            runs = _run_all(conversion, config, model, pairs, samples)
            assess = partial(assessment_of, vet, plugins, described)
            contrasted = contrast(lambda s: runs[s.id], found.layers, samples, assess)
            found = found.model_copy(update={"contrast": contrasted})
    if options["clean"] or found.diverges_at is not None:
        return found
    shipped = compare_as_shipped(described, side, vet, known, progress=progress)
    return found.model_copy(update={"as_shipped": shipped})


def _asked(b: Path, options: SourceOptions) -> VetRequest:
    """What is asked of the model, on the source's samples."""
    return VetRequest(
        model=str(b),
        runtime=options["runtime"],
        comparator=options["comparator"],
        dataset=(GivenInputs.name,),
        seed=options["seed"],
        timeout=options["timeout_s"],
        memory=options["memory_bytes"],
        cache_dir=options["cache_dir"],
        trust=options["trust"],
    )


def _compared(
    conversion: Conversion, config: RuntimeConfig, model: Artifact, sample: Sample
) -> tuple[ModelComparison, list[SourcePair]]:
    about = (conversion.reference, conversion.source.artifact, sample)
    recorded = conversion.sandbox_of(conversion.source.runtime).call(
        source_inside, *about, role="judging"
    )
    if recorded.value is None:
        raise InputError(f"the source does not run on its example: {_words(recorded.failure)}")
    found = conversion.sandbox.call(_compare, recorded.value, config, model, sample, role="judging")
    if found.value is None:
        raise InputError(f"the model does not run on the source's example: {_words(found.failure)}")
    return found.value


def _words(failure: Failure | None) -> str:
    return describe(failure) if failure else "no answer"


def _run_all(
    conversion: Conversion,
    config: RuntimeConfig,
    model: Artifact,
    pairs: Sequence[SourcePair],
    samples: Sequence[Sample],
) -> dict[str, Outcome[SampleRun]]:
    """How far each pair differs on each sample; in one worker where the source runs here."""
    source = (conversion.reference, conversion.source.artifact)
    about = (config, model, list(pairs))
    if conversion.source_is_here:
        beside = conversion.sandbox.call(
            _differences_beside, *source, *about, list(samples), role="judging"
        )
        if beside.value is not None:
            return beside.value
    found: dict[str, Outcome[SampleRun]] = {}
    for sample in samples:
        inside = conversion.sandbox_of(conversion.source.runtime).call(
            inside_of, *source, sample.feeds, None, role="judging"
        )
        if inside.value is None:
            found[sample.id] = Outcome(None, inside.failure)
        else:
            here = (inside.value, *about, sample)
            found[sample.id] = conversion.sandbox.call(_differences, *here, role="judging")
    return found


# --- in the worker --------------------------------------------------------------------------------


def _compare(
    recorded: Sequence[SourceInside], config: RuntimeConfig, model: Artifact, sample: Sample
) -> tuple[ModelComparison, list[SourcePair]]:
    """The comparison on one sample, and the pairs of values that it is of."""
    inside, *moved = recorded
    a, values = _graph_of(inside)
    jitters = tuple(_graph_of(each)[1] for each in moved)
    first = RecordedValues(values, jitters, thresholds=OTHER_KERNELS)
    b, second = _values_of(config, model, sample)
    enter("compare")
    places = {name: place for place, name in _names(inside)}
    allowed = Tolerances.of(inside, moved)
    tolerances = {name: allowed.values[place] for name, place in places.items()}
    pairs = list(_pairs(a, b, values, second, tolerances))
    turned = {p.b: _turned(second[p.b], values[p.a], p.layout) for p, _ in pairs}
    judged = [
        ValuePair(p.a, p.b, "value" if equal else "likeness", judge_value(p.a, turned[p.b], first))
        for p, equal in pairs
    ]
    ends = {o.name for o in b.graph.output}
    judged = [replace(v, found_by="position") if v.b in ends else v for v in judged]
    found = comparison_of(a, b, first, RecordedValues(turned), judged)
    return found, [p for p, _ in pairs]


def _differences_beside(
    source_config: RuntimeConfig,
    source: Artifact,
    config: RuntimeConfig,
    model: Artifact,
    pairs: Sequence[SourcePair],
    samples: Sequence[Sample],
) -> dict[str, Outcome[SampleRun]]:
    """Like ``_differences`` of each sample, with source and model in one worker."""
    found: dict[str, Outcome[SampleRun]] = {}
    for sample in samples:
        enter("run")
        try:
            inside = inside_of(source_config, source, sample.feeds, None)
            run = _differences(inside, config, model, pairs, sample)
        except Exception as error:  # whatever a sample raises leaves out that sample alone
            words = f"{type(error).__name__}: {error}"
            found[sample.id] = Outcome(None, Failure("error", "run", words))
        else:
            found[sample.id] = Outcome(run, None)
    return found


def _differences(
    inside: SourceInside,
    config: RuntimeConfig,
    model: Artifact,
    pairs: Sequence[SourcePair],
    sample: Sample,
) -> SampleRun:
    """How far each pair differs on a sample, and the outputs."""
    a, values = _graph_of(inside)
    b, second = _values_of(config, model, sample)
    found: list[float | None] = []
    turned: dict[str, np.ndarray] = {}
    for p in pairs:
        one, other = values.get(p.a), second.get(p.b)
        fits = one is not None and other is not None and one.size == other.size
        if one is None or other is None or not fits:
            found.append(None)
            continue
        turned[p.b] = _turned(other, one, p.layout)
        found.append(difference_of(one, turned[p.b]))
    # Under the model's own names, by which a comparator knows what its outputs are.
    ends = list(zip(a.graph.output, b.graph.output, strict=False))
    outputs = (
        {y.name: values[x.name] for x, y in ends},
        {y.name: turned.get(y.name, second[y.name]) for _, y in ends},
    )
    return SampleRun(outputs, tuple(found))


def _values_of(config: RuntimeConfig, model: Artifact, sample: Sample) -> tuple[ModelProto, Values]:
    b = onnx.load_from_string(model.data)
    return b, record_values(model.data, fed_to(model, sample.feeds), config)


def _names(inside: SourceInside) -> Iterator[tuple[int, str]]:
    """Names of the values of a source that depend on its inputs: module and operator."""
    for place, each in enumerate(inside.values):
        if each.value.dtype.kind in _NUMBERS and (not each.constant or place in inside.outputs):
            about = f"{each.module}/{each.operator}" if each.module else each.operator
            yield place, f"{about}#{place}"


def _graph_of(inside: SourceInside) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The values of a source as a graph that cannot run, and their contents."""
    name_of = dict(_names(inside))
    values = [
        Inner(
            (name,),
            inside.values[place].operator,
            tuple(name_of[i] for i in inside.values[place].reads if i in name_of),
            inside.values[place].value,
            inside.outputs.index(place) if place in inside.outputs else None,
        )
        for place, name in name_of.items()
    ]
    return as_graph(values, ())


def _pairs(
    a: ModelProto,
    b: ModelProto,
    first: Mapping[str, np.ndarray],
    second: Values,
    allowed: Mapping[str, float],
) -> Iterator[tuple[SourcePair, bool]]:
    """Values that correspond, in the order of ``b``, and whether they are equal.

    Outputs correspond by their place. Of the others, those come first that are equal up to their
    layout; what is left is paired with the value of the source that points the same way, among
    those between the neighbours' partners.
    """
    order = {name: i for i, name in enumerate(first)}
    ends = {y.name: x.name for x, y in zip(a.graph.output, b.graph.output, strict=False)}
    partner = {name: ends[name] for name in ends if _fits(first[ends[name]], second.get(name))}
    names = [n for n in node_outputs(b) if n in second and second[n].dtype.kind in _NUMBERS]
    depends = _dependent(b)
    inner = [n for n in names if n not in ends and n in depends and second[n].size > 1]
    free = [n for n in first if n not in partner.values()]
    equal: set[str] = set()
    for name in inner:
        for other in free:
            if equal_up_to_layout(first[other], second[name], allowed[other]):
                partner[name] = other
                equal.add(name)
                free.remove(other)
                break
    for i, name in enumerate(inner):
        if name in partner:
            continue
        low = max((order[partner[n]] for n in inner[:i] if n in partner), default=-1)
        high = min((order[partner[n]] for n in inner[i:] if n in equal), default=len(order))
        value = second[name]
        between = [n for n in free if low < order[n] < high]
        scored = [
            (round(_likeness(first[n], value), 9), first[n].shape == value.shape, -order[n], n)
            for n in between
        ]
        score, *_, other = max(scored, default=(0.0, False, 0, ""))
        if score >= _ALIKE:
            partner[name] = other
            free.remove(other)
    for name in names:
        if name in partner:
            wanted = first[partner[name]]
            layouts = iter_layouts(second[name], wanted.shape)
            scores = [_likeness_of_layout(wanted, value) for value, _ in layouts]
            yield SourcePair(partner[name], name, int(np.argmax(scores))), name in equal


def _dependent(model: ModelProto) -> set[str]:
    """Values that depend on an input."""
    weights = {t.name for t in model.graph.initializer}
    found = {i.name for i in model.graph.input} - weights
    for node in model.graph.node:
        if found & set(reads(node)):
            found.update(node.output)
    return found


def _fits(one: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and next(iter_layouts(other, one.shape), None) is not None


def _likeness(one: np.ndarray, other: np.ndarray) -> float:
    """The largest cosine over all layouts; 0 where a value is constant or of another kind."""
    if one.size != other.size or (one.dtype.kind == "f") != (other.dtype.kind == "f"):
        return 0.0
    layouts = iter_layouts(other, one.shape)
    return max((_likeness_of_layout(one, value) for value, _ in layouts), default=0.0)


def _likeness_of_layout(one: np.ndarray, other: np.ndarray) -> float:
    x, y = (v.astype(np.float64).ravel() for v in (one, other))
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if np.array_equal(x, y):
        return 1.0
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norms if norms else 0.0


def _turned(value: np.ndarray, like: np.ndarray, layout: int) -> np.ndarray:
    """``value`` in a layout that has the shape of ``like``."""
    found = next(itertools.islice(iter_layouts(value, like.shape), layout, None), None)
    turned = value.reshape(like.shape) if found is None else found[0]
    return turned.astype(like.dtype) if turned.dtype.kind == like.dtype.kind else turned
