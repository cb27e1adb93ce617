"""Reduction of a source in ONNX to the smallest graph that a conversion still breaks.

A smaller graph is kept if it runs, if the chain breaks it at the same stage in the same way, and if
the standard defines all of its results.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from optvet.engine.contract import checked_calls
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.guilty_stage import Blame, StageResult, blame_stages
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.parts import (
    first_fault,
    python_of,
    reduce_source,
    script_shows,
    write_script,
)
from optvet.engine.convert.run import (
    converted_by,
    judge_for,
    observe_stages,
    prepare_inputs,
)
from optvet.engine.convert.session import Conversion
from optvet.engine.convert.undefined_inputs import undefined_inside
from optvet.engine.discovery import Plugins
from optvet.engine.reduce.oracle import recorder, types_by_inference
from optvet.engine.reduce.reduction_order import Budget, ReductionCandidate, reduce_model
from optvet.engine.scripts.parts import PART as PART_SOURCE
from optvet.engine.scripts.parts import onnx_part
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import ExplainsConverter, PartScript
from optvet.spec.errors import OptvetError
from optvet.spec.files import write_file
from optvet.spec.records.convert import ConversionFinding, ConversionResult, ReducedSource
from optvet.spec.runtime_protocols import ExplainsRuntime
from optvet.spec.types import Artifact, Failure, Sample

PART, INPUTS = "part.onnx", "inputs.npz"
EXPECTED = """\
from part import run

model = part()
given = [example_inputs[i.name] for i in model.graph.input if i.name in example_inputs]
expected = list(run(model, example_inputs).values())"""
"""Statements of a script that run the part by the runtime of the source."""
_FIRST = 1000
"""Numbers of folders of converted candidates begin here, behind those of the chain."""
_SECONDS, _CHECKS = 300.0, 300
"""Budget of a reduction; each check converts a model and runs it."""


def reduced_or_why_not(
    request: ConvertRequest,
    result: ConversionResult,
    plugins: Plugins,
    folder: Path,
    *,
    progress: Progress,
) -> ReducedSource:
    """The smallest part of a source that shows its first fault, in ``folder``; else why not.

    A source in ONNX is reduced as a graph, others by the parts that their framework knows. One that
    cannot be divided costs no verdict.
    """
    if request.converted is not None:
        return _no_reduction(
            f"{request.converted} was converted elsewhere; name a chain with --via"
        )
    how = reduce_onnx_source if result.source.format == "onnx" else reduce_source
    try:
        return how(request, result, plugins, folder, progress=progress)
    except OptvetError as error:
        return _no_reduction(str(error))


def _no_reduction(why: str) -> ReducedSource:
    return ReducedSource(tried=0, size=0, size_before=0, note=why)


def reduce_onnx_source(
    request: ConvertRequest,
    result: ConversionResult,
    plugins: Plugins,
    folder: Path,
    *,
    progress: Progress,
) -> ReducedSource:
    """Write the smallest graph that shows the first fault of ``result``, and its inputs.

    Raises:
        UsageError: There is no fault on an input of the source, or it does not show again.
    """
    fault, witness = first_fault(request, result)
    with open_conversion(request, plugins) as conversion:
        inputs, judge, _ = prepare_inputs(conversion)
        each = next(d for d in inputs if d.sample.id == witness.sample)
        model = onnx.load_from_string(conversion.source.artifact.data)
        search = _Search(conversion, fault, each, judge.random)
        reduction = reduce_model(
            model,
            each.sample.feeds,
            search.test_all,
            record=recorder(conversion.sandbox, conversion.reference),
            types=types_by_inference(conversion.sandbox, model),
            budget=Budget(_CHECKS, _SECONDS),
            progress=progress,
        )
        assert reduction.feeds is not None
        stored = io.BytesIO()
        np.savez(stored, **reduction.feeds)  # type: ignore[arg-type]  # numpy types a keyword of it
        advice = "choose another folder with --reduce"
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / PART, reduction.model.SerializeToString(), advice=advice)
        write_file(folder / INPUTS, stored.getvalue(), advice=advice)
        scripted = _write_script(conversion, fault, folder)
        python = python_of(conversion)
    before, after = reduction.nodes
    part = ", ".join(node.op_type for node in reduction.model.graph.node[:_SHOWN])
    return ReducedSource(
        part=part,
        tried=reduction.checks,
        size=after,
        size_before=before,
        files=sorted(p.name for p in folder.iterdir() if p.is_file()),
        reproduces=script_shows(folder, request.timeout, python) if scripted else None,
    )


def _write_script(conversion: Conversion, fault: ConversionFinding, folder: Path) -> bool:
    """Whether there is a script: one converter and the source's runtime say how they are called."""
    runtime, options = conversion.reference.runtime, conversion.reference.options
    link, *more = conversion.links
    if more or fault.kind == "target-runtime":
        return False
    converter = link.converter
    if not isinstance(converter, ExplainsConverter) or not isinstance(runtime, ExplainsRuntime):
        return False
    ask = partial(converter.part_script, link.options)
    script = checked_calls.ask(
        "converter", converter, "part_script", ask, PartScript, "a PartScript"
    )
    run = checked_calls.ask(
        "runtime", runtime, "snippet", partial(runtime.snippet, options), str, "a text"
    )
    write_file(folder / PART_SOURCE, onnx_part(run), advice="choose another folder with --reduce")
    write_script(conversion, replace(script, source=EXPECTED), fault, folder)
    return True


_SHOWN = 6
"""Operators of a part that are named."""


def _quiet(text: str, done: int, total: int | None) -> None:
    """Ignore progress."""


@dataclass
class _Search:
    """Tests whether smaller sources keep a fault."""

    conversion: Conversion
    fault: ConversionFinding
    witness: ConversionInput
    random: frozenset[str]
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST))

    def test_all(self, candidates: Sequence[ReductionCandidate]) -> Iterator[bool]:
        """Answers in order, each when it is asked for."""
        for candidate in candidates:
            assert candidate.feeds is not None
            yield self._shows(candidate.model.SerializeToString(), candidate.feeds)

    def _shows(self, data: bytes, feeds: Mapping[str, np.ndarray]) -> bool:
        artifact = Artifact("onnx", data)
        folder = self.conversion.folder / str(next(self._numbers))
        folder.mkdir()
        source = replace(self.conversion.source, artifact=artifact)
        fresh = replace(self.conversion, source=source, folder=folder, warnings=[], output_names=[])
        sample = Sample(self.witness.sample.id, feeds, origin=self.witness.origin)
        each = replace(self.witness, sample=sample)
        observed = fresh.observe(fresh.reference, artifact, [sample])
        run = observed.runs.get(sample.id)
        if observed.load is not None or run is None or isinstance(run, Failure):
            return False
        if set(run) <= self.random:
            return False
        fresh.output_names.extend(run)
        judge = judge_for(fresh, [each], {sample.id: run}, self.random & set(run))
        made = converted_by(fresh, [each], _quiet)
        if any(m.refused for m in made):
            return False
        stages = observe_stages(fresh, made, [sample], judge, repeat=False)
        blames = blame_stages(stages.stage_results[: stages.last + 1], [each])
        if not any(self._is_same(stages.stage_results, blame) for blame in blames):
            return False
        about = (fresh.reference, artifact, [sample])
        return not fresh.sandbox.call(undefined_inside, *about, role="judging").value

    def _is_same(self, results: Sequence[StageResult], blame: Blame) -> bool:
        names = [r.name for r in results[blame.first : blame.last + 1]]
        return (blame.symptom, names) == (self.fault.symptom, list(self.fault.stages))
