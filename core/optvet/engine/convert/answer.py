"""Makes the document of a conversion's result."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.guilty_stage import Blame, StageResult
from optvet.engine.convert.session import Conversion
from optvet.engine.convert.worker_steps import Observed
from optvet.engine.judge.failures import CONVERTER, symptom_of
from optvet.engine.judge.judgement import OTHER_PLACES
from optvet.engine.judge.sample import STATES, SampleVerdict
from optvet.engine.work.sandbox.messages import cut
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.converters import ConverterExtras
from optvet.spec.extras import extras
from optvet.spec.files import refuse_links_in, replacing, write_file
from optvet.spec.foreign import open_file
from optvet.spec.records.convert import (
    ConversionFinding,
    ConversionPlace,
    ConversionResult,
    ConversionVerdict,
    ConversionWitness,
    ConverterRecord,
    SourceRecord,
    StageRecord,
)
from optvet.spec.records.vet import Control, CrossCheck, Skipped
from optvet.spec.types import Artifact, Failure, StageKind

_MESSAGE_CHARS = 4000
_FURTHER = "another fault, which shows once what is wrong before it is set right"
State = Literal["same", "drift", "fault", "fails", "not-run", "not-reached"]


@dataclass(frozen=True)
class FoundFault:
    """A blame with what is known of it.

    ``message`` is what a runtime says of a further fault of the model, empty where it runs.
    ``as_shipped`` is what the model does in a default session, where it is wrong there alone.
    """

    blame: Blame
    confirmed: bool
    checks: list[CrossCheck]
    place: ConversionPlace | None
    further: bool = False
    message: str = ""
    as_shipped: SampleVerdict | None = None

    @property
    def blames_runtime(self) -> bool:
        """Whether other runtimes are right about the artifact; one is enough beside its place."""
        some = any if self.place is not None and self.place.alike else all
        return bool(self.checks) and some(c.outcome == "no-fault" for c in self.checks)


@dataclass(frozen=True)
class ConversionEvidence:
    """All that is known at the end; lists have one item per stage.

    ``example`` is what the source was given first, ``inputs`` are those that were compared.
    ``last`` is the index of the stage whose artifact is judged: the last one, or the last one of
    the converters before that which refused; -1 for none. ``refused`` is the index of the stage
    that refused, and why, ``refused_place`` an operator that it names. ``random`` are outputs of
    the source that differ from run to run; ``tolerance`` is
    what the stages together declare to lose. ``skipped`` are inputs that the source refuses,
    ``undefined`` those on which it has no defined answer, and why not. ``quantized`` is how many
    operators of the source a stage quantized; None of stages that do not quantize.
    """

    example: Mapping[str, np.ndarray]
    inputs: Sequence[ConversionInput]
    random: frozenset[str]
    stage_results: Sequence[StageResult]
    last: int
    artifacts: Sequence[Artifact | None]
    configs: Sequence[RuntimeConfig | None]
    observed: Sequence[Observed | None]
    tolerance: float | None
    refused: tuple[int, Failure | None] | None
    refused_place: ConversionPlace | None = None
    blames: Sequence[FoundFault] = ()
    skipped: dict[str, Failure] = field(default_factory=dict)
    undefined: Mapping[str, str] = field(default_factory=dict)
    quantized: Sequence[int | None] = ()

    @property
    def runnable(self) -> list[int]:
        """Indices of the stages up to the judged one whose artifacts can be run."""
        both = zip(self.artifacts, self.configs, strict=True)
        can = [a is not None and c is not None for a, c in both]
        return [i for i in range(self.last + 1) if can[i]]

    @property
    def runtimes(self) -> list[str]:
        """What ran each artifact; empty where none did."""
        return ["" if c is None else c.runtime.name for c in self.configs]

    @property
    def complaints(self) -> list[str]:
        """What the checker says of each artifact; empty where it says nothing."""
        return ["" if o is None else o.complaint for o in self.observed]

    @property
    def seen(self) -> Mapping[str, SampleVerdict]:
        """Verdicts on the judged artifact, by sample."""
        return self.stage_results[self.last].seen if self.last >= 0 else {}


def result_of(
    conversion: Conversion, answer: ConversionEvidence, wall_s: float
) -> ConversionResult:
    """The document of an answer; keeps artifacts if the request names a folder."""
    findings = [_finding(answer, found) for found in answer.blames]
    if answer.refused is not None:
        findings.append(_refusal(answer, *answer.refused))
    verdict, reason = _verdict(conversion, answer, findings)
    files = _keep_artifacts(conversion, answer)
    return ConversionResult(
        schema="optvet.convert/1",
        source=_source(conversion, answer),
        converters=[
            ConverterRecord(
                name=link.converter.name,
                version=conversion.version_of(link.converter),
                options=link.options.model_dump(mode="json"),
            )
            for link in conversion.links
        ],
        verdict=verdict,
        reason=reason,
        findings=findings,
        stages=[_stage(answer, i, files[i]) for i in range(len(answer.stage_results))],
        controls=_controls(answer),
        warnings=conversion.warnings,
        notes=[
            *sorted({n for s in answer.seen.values() for n in s.notes}),
            *_note_unused_quantizers(answer),
            *_outputs_wrong_in_source(answer),
        ],
        samples=len(answer.inputs),
        skipped=_list_skipped_samples(answer),
        seed=conversion.request.seed,
        wall_s=wall_s,
    )


def _note_unused_quantizers(answer: ConversionEvidence) -> list[str]:
    """A note for each quantizer that quantized no operator."""
    stage_results = zip(answer.stage_results, answer.quantized, strict=False)
    return [
        f"{stage_result.name} quantized no operator" for stage_result, n in stage_results if n == 0
    ]


def _outputs_wrong_in_source(answer: ConversionEvidence) -> list[str]:
    """The outputs that the source's runtime computes wrong, as the exact result shows."""
    judged = [j for s in answer.seen.values() for j in s.judgements if j.contradicted]
    return [f"output {j.output!r}: {j.detail}" for j in {j.output: j for j in judged}.values()]


def _list_skipped_samples(answer: ConversionEvidence) -> list[Skipped]:
    refused = [Skipped(sample=n, reason=describe(f)) for n, f in answer.skipped.items()]
    return refused + [Skipped(sample=n, reason=words) for n, words in answer.undefined.items()]


def _source(conversion: Conversion, answer: ConversionEvidence) -> SourceRecord:
    source = conversion.source
    return SourceRecord(
        source=conversion.request.model,
        format=source.artifact.format,
        digest=source.digest,
        runtime=source.runtime.name,
        version=conversion.version_of(source.runtime),
        inputs={n: f"{v.dtype}{list(v.shape)}" for n, v in answer.example.items()},
    )


def _finding(answer: ConversionEvidence, found: FoundFault) -> ConversionFinding:
    blame, checks, place = found.blame, found.checks, found.place
    witness = blame.inputs[0]
    seen = answer.stage_results[blame.last].seen[witness.sample.id]
    if seen.symptom == answer.seen[witness.sample.id].symptom:
        # What the model that one gets does, if it is that.
        seen = answer.seen[witness.sample.id]
    if found.as_shipped is not None:
        seen = found.as_shipped
    guilty = answer.stage_results[blame.first : blame.last + 1]
    names = [stage_result.name for stage_result in guilty]
    kind: StageKind | Literal["target-runtime"] = guilty[0].stage.kind
    culprit = " or ".join(names)
    if found.blames_runtime:
        kind, culprit = "target-runtime", answer.runtimes[blame.last]
    return ConversionFinding(
        symptom=blame.symptom,
        severity="note" if blame.outside_domain else "fault",
        stages=names,
        kind=kind,
        culprit=culprit,
        confirmed=found.confirmed,
        outputs=list(seen.outputs),
        error=None if found.further or _in_other_places(seen) else seen.error,
        noise=None if found.further or _in_other_places(seen) else seen.noise,
        message=cut(_message(found, seen), _MESSAGE_CHARS),
        witness=ConversionWitness(
            sample=witness.sample.id, origin=witness.origin, about=witness.about
        ),
        samples=len(blame.inputs),
        cross_check=checks,
        place=place,
    )


def _message(found: FoundFault, seen: SampleVerdict) -> str:
    if found.as_shipped is not None:
        return f"in a default session alone: {seen.message}"
    if not found.further:
        return seen.message
    return f"{_FURTHER}: {found.message}" if found.message else _FURTHER


def _refusal(answer: ConversionEvidence, index: int, failure: Failure | None) -> ConversionFinding:
    stage_result = answer.stage_results[index]
    # A process that was killed from outside says nothing against what it was at.
    symptom = CONVERTER.error
    if failure is not None and failure.kind != "killed":
        symptom = symptom_of(failure, CONVERTER, "build")
    return ConversionFinding(
        symptom=symptom,
        severity="refusal" if symptom.info.severity == "refusal" else "fault",
        stages=[stage_result.name],
        kind=stage_result.stage.kind,
        culprit=stage_result.name,
        confirmed=True,
        message=cut(describe(failure), _MESSAGE_CHARS) if failure else "",
        place=answer.refused_place,
    )


def _verdict(
    conversion: Conversion, answer: ConversionEvidence, findings: Sequence[ConversionFinding]
) -> tuple[ConversionVerdict, str]:
    severities = {f.severity for f in findings}
    if "fault" in severities:
        return "faulty", ""
    if "refusal" in severities:
        return "refused", _why_refused(conversion, answer)
    undecided = [s for s in answer.stage_results[-1].seen.values() if s.state == "undecided"]
    if undecided:
        return "undecided", undecided[0].message or "the noise could not be measured"
    if answer.undefined and all(each.origin == "edge" for each in answer.inputs):
        # Only edge values are left: those that were meant come last.
        return "undecided", list(answer.undefined.values())[-1]
    if not answer.stage_results[-1].seen:
        return "undecided", f"no runtime here runs {answer.stage_results[-1].stage.format}"
    return "right", ""


def _why_refused(conversion: Conversion, answer: ConversionEvidence) -> str:
    """What the refusal means, and how a source that the library does not know is converted."""
    words = "the converter does not support this source; this is not a fault"
    if conversion.request.registered or answer.refused is None:
        return words
    plugins, index = conversion.plugins, answer.refused[0]
    refusing = [link.converter for link in conversion.links for _ in link.stages][index]
    every = [refusing, *map(plugins.converter, plugins.names("converter"))]
    for converter in every:
        registers = extras(converter, ConverterExtras).registers
        if converter.consumes & refusing.consumes and registers:
            via = "" if converter is refusing else f" --via {converter.name}"
            return (
                f"{words}. Convert it with a converter of your own: a function calls "
                f"{registers}, and{via} --register FILE.py:FUNCTION --trust runs it"
            )
    return words


def _stage(answer: ConversionEvidence, index: int, file: str | None) -> StageRecord:
    stage_result, artifact = answer.stage_results[index], answer.artifacts[index]
    state, detail = _state(answer, index)
    usual, edges = _split_by_origin(answer, index)
    return StageRecord(
        converter=stage_result.converter,
        name=stage_result.stage.name,
        kind=stage_result.stage.kind,
        format=stage_result.stage.format if artifact is None else artifact.format,
        state=state,
        runtime=answer.runtimes[index],
        error=_largest(usual, "error"),
        noise=_largest(usual, "noise"),
        edge_error=_largest(edges, "error"),
        edge_noise=_largest(edges, "noise"),
        places=any(map(_in_other_places, usual)),
        edge_places=any(map(_in_other_places, edges)),
        quantized=answer.quantized[index] if answer.quantized else None,
        checker=answer.complaints[index],
        detail=cut(detail, _MESSAGE_CHARS),
        file=file,
    )


def _state(answer: ConversionEvidence, index: int) -> tuple[State, str]:
    """The worst verdict on an artifact over all inputs.

    Inputs outside the domain (NaN or infinity that the user did not pass) count only for notes, and
    so do edge values of a lossy stage.
    """
    lossy = answer.stage_results[index].stage.tolerance is not None
    outside_domain = {
        d.sample.id for d in answer.inputs if d.outside_domain or (lossy and d.origin == "edge")
    }
    seen = [s for name, s in answer.stage_results[index].seen.items() if name not in outside_domain]
    if not seen:
        if answer.artifacts[index] is None:
            return "not-reached", ""
        return "not-run", "no runtime can run it alone"
    worst = max(seen, key=lambda s: (STATES.index(s.state), s.failed))
    return _state_of(worst), worst.message


def _split_by_origin(
    answer: ConversionEvidence, index: int
) -> tuple[list[SampleVerdict], list[SampleVerdict]]:
    """The verdicts on usual inputs and on edge values, without inputs outside the domain.

    An error of 7 with a noise of 270 near the largest floats tells nothing about usual inputs.
    """
    seen = answer.stage_results[index].seen
    usual_inputs = [d for d in answer.inputs if d.sample.id in seen and not d.outside_domain]
    usual = [seen[d.sample.id] for d in usual_inputs if d.origin != "edge"]
    return usual, [seen[d.sample.id] for d in usual_inputs if d.origin == "edge"]


def _state_of(worst: SampleVerdict) -> State:
    """The state under its name in the document."""
    if worst.unexplained:
        return "not-run"
    if worst.state == "fault":
        return "fails" if worst.failed else "fault"
    return "same" if worst.state == "same" else "drift"


def _largest(seen: Sequence[SampleVerdict], what: Literal["error", "noise"]) -> float | None:
    """The largest size; NaN where numbers should be has none, nor has its noise."""
    sized = (getattr(s, what) for s in seen if not _in_other_places(s))
    return max((v for v in sized if v is not None and math.isfinite(v)), default=None)


def _in_other_places(seen: SampleVerdict) -> bool:
    return any(j.detail == OTHER_PLACES for j in seen.faults)


def _controls(answer: ConversionEvidence) -> list[Control]:
    repeatable = Control(name="source against itself", state="passed")
    if answer.random:
        names = ", ".join(sorted(answer.random))
        repeatable = Control(
            name="source against itself",
            state="limited",
            detail=f"not compared, since two runs differ: {names}",
        )
    complaint = next((c for c in answer.complaints if c), "")
    checker = Control(
        name="checker", state="failed" if complaint else "passed", detail=complaint[:300]
    )
    return [repeatable, checker] if any(_is_onnx(answer)) else [repeatable]


def _is_onnx(answer: ConversionEvidence) -> list[bool]:
    return [a is not None and a.format == "onnx" for a in answer.artifacts]


def _keep_artifacts(conversion: Conversion, answer: ConversionEvidence) -> list[str | None]:
    """Write artifacts into the folder that the user named; None without a folder."""
    out = conversion.request.out
    files: list[str | None] = []
    for number, artifact in enumerate(answer.artifacts, 1):
        if out is None or artifact is None or not (artifact.data or artifact.path):
            files.append(None)
            continue
        stage_result = answer.stage_results[number - 1]
        suffix = artifact.path.suffix if artifact.path else f".{artifact.format}"
        name = f"{number}-{stage_result.converter}-{stage_result.stage.name}{suffix}"
        _write(artifact, out / name)
        files.append(name)
    return files


def _write(artifact: Artifact, target: Path) -> None:
    os.makedirs(target.parent, exist_ok=True)
    refuse_links_in(target)
    if artifact.path is None:
        write_file(target, artifact.data, advice="make room, or choose another folder with --out")
    elif artifact.path.is_dir():
        shutil.copytree(artifact.path, target, dirs_exist_ok=True)
    else:
        with replacing(target) as copy, open_file(artifact.path) as original:
            shutil.copyfileobj(original, copy)
