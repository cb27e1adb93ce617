"""The document of an answer: reasons, ranking and curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from optvet.engine.precision.answer import FoundPrecision
from optvet.engine.precision.measure import Measure, TrialsSpent
from optvet.engine.precision.search import FoundList
from optvet.engine.precision.setting import PrecisionSetting
from optvet.engine.vet.assemble import model_record, optimizer_record, runtime_record
from optvet.engine.vet.require.gauges import RequirementReading
from optvet.graph.walk import name_nodes
from optvet.spec.extras import given
from optvet.spec.foreign import load_model, read_file
from optvet.spec.optimizer_protocols import LowersPrecision, OptimizerExtras
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.precision import (
    CurvePoint,
    KeptPart,
    PrecisionReading,
    PrecisionResult,
    PrecisionRisk,
    RankedPart,
)
from optvet.spec.types import Artifact

_REASON_CHARS = 160
_CURVE = 12
"""Points of the curve, at most."""


def document_of(
    setting: PrecisionSetting,
    request: PrecisionRequest,
    answer: FoundPrecision,
    *,
    by_default: bool,
) -> PrecisionResult:
    """The document; without what is written beside it, and the cost."""
    case, measure = setting.case, setting.measure
    optimizer = case.optimizer
    assert isinstance(optimizer, LowersPrecision)
    graph = load_model(case.model.path, weights=False)
    unnamed = len(name_nodes(graph))
    operators = {node.name: node.op_type for node in graph.graph.node}
    kept = _kept_parts(setting, answer, operators)
    source = Artifact("onnx", read_file(case.model.blob))
    names = [part.name for part in kept]
    plain = setting.plain.case
    return PrecisionResult(
        schema="optvet.precision/1",
        verdict=answer.verdict,
        model=model_record(case.model),
        precision=optimizer.precision,
        optimizer=optimizer_record(replace(plain, passes=replace(plain.passes, pipeline=()))),
        runtime=runtime_record(case.candidate),
        emulated=setting.emulated,
        accumulate=optimizer.precision if setting.sum_block is not None else "fp32",
        sum_block=setting.sum_block,
        short_sums=setting.sums[0] if setting.sums is not None else {},
        float32_sums=setting.sums[1] if setting.sums is not None else {},
        requirements=[str(required) for required in measure.meter.required],
        default_requirement=by_default,
        samples=setting.judged,
        datasets=list(setting.datasets),
        parts=len(measure.parts),
        kept=kept,
        chosen=measure.records(answer.chosen) if answer.chosen else [],
        minimal=answer.minimal,
        ranking=_ranking(setting, answer.found, operators),
        curve=_curve(setting, answer, names),
        recipes=dict(optimizer.recipes(source, names, plain.options))
        if answer.verdict == "found"
        else {},
        code=_code(setting, answer, names),
        unnamed=unnamed,
        trials=len(measure.tried),
        reason=answer.reason,
        whole=_read(measure, ()),
        none=_read(measure, measure.parts),
    )


def _code(setting: PrecisionSetting, answer: FoundPrecision, kept: Sequence[str]) -> str:
    """The library's call that keeps ``kept``, where the optimizer can write it down."""
    case = setting.plain.case
    snippet = given(case.optimizer, OptimizerExtras.snippet)
    if answer.verdict not in ("found", "nothing-to-keep") or snippet is None:
        return ""
    passes = [name for name in case.passes.pipeline if name not in kept]
    return snippet(passes, case.options)


def _read(measure: Measure, kept: Sequence[str]) -> list[PrecisionReading]:
    """Readings with ``kept`` kept; none if no further list may be tried."""
    with suppress(TrialsSpent):
        return measure.records(measure.read(kept))
    return []


def _operators(part: str, setting: PrecisionSetting, operators: Mapping[str, str]) -> list[str]:
    optimizer = setting.case.optimizer
    assert isinstance(optimizer, LowersPrecision)
    nodes = optimizer.parts[part]
    return list(dict.fromkeys(operators[node] for node in nodes if node in operators))


def _kept_parts(
    setting: PrecisionSetting, answer: FoundPrecision, operators: Mapping[str, str]
) -> list[KeptPart]:
    """The parts that are kept, those first without which the requirement is missed by most."""
    if answer.verdict not in ("found", "unmet"):
        return []
    optimizer = setting.case.optimizer
    assert isinstance(optimizer, LowersPrecision)
    measure, without = setting.measure, answer.without or {}
    found = []
    for name in answer.found.kept:
        readings = without.get(name, ())
        suspicions = list(answer.suspicions.get(name, []))
        found.append(
            KeptPart(
                name=name,
                operators=_operators(name, setting, operators),
                nodes=len(optimizer.parts[name]),
                reason=_reason(suspicions, readings),
                suspicions=suspicions[:4],
                without=measure.records(readings) if readings else [],
            )
        )
    return sorted(found, key=lambda part: -measure.shortfall(without.get(part.name, ())))


def _reason(suspicions: Sequence[PrecisionRisk], without: Sequence[RequirementReading]) -> str:
    """The gravest suspicion that values bear out, else what is measured without the part."""
    strong = [s for s in suspicions if s.kind not in ("operator", "long-sum")]
    if strong:
        return strong[0].words
    missed = next((r for r in without if r.met is not True), None)
    if missed is None:
        return "as asked for"
    return f"converted too: {' '.join(missed.words.split())[:_REASON_CHARS]}"


def _ranking(
    setting: PrecisionSetting, found: FoundList, operators: Mapping[str, str]
) -> list[RankedPart]:
    def key(name: str) -> float:
        loss = found.losses[name]
        return -(float("inf") if loss is None else loss)

    return [
        RankedPart(
            name=name,
            operators=_operators(name, setting, operators),
            loss=found.losses[name],
            met=found.alone.get(name),
        )
        for name in sorted(found.losses, key=key)
    ]


def _curve(
    setting: PrecisionSetting, answer: FoundPrecision, kept: Sequence[str]
) -> list[CurvePoint]:
    """Readings with more and more of the list kept, and with everything kept."""
    measure = setting.measure
    if answer.verdict != "found":
        return []
    step = max(1, -(-len(kept) // (_CURVE - 2)))
    lengths = sorted({*range(0, len(kept), step), len(kept)})
    lists = [tuple(kept[:length]) for length in lengths]
    points = []
    for each in [*lists, *([measure.parts] if len(kept) < len(measure.parts) else [])]:
        if readings := _read(measure, each):
            points.append(CurvePoint(kept=len(each), readings=readings))
    return points
