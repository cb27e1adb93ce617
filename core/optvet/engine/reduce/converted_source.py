"""Reduction of a source in ONNX to the smallest graph that a conversion still breaks.

A smaller graph is kept if it runs, if the chain breaks it at the same stage in the same way, and if
the standard defines all of its results.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from optvet.engine.contract import checked_calls
from optvet.engine.convert.chain import Link
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.parts import (
    first_fault,
    input_named,
    python_of,
    reduce_source,
    script_shows,
    write_script,
)
from optvet.engine.convert.run import prepare_inputs
from optvet.engine.convert.session import Conversion
from optvet.engine.discovery import Plugins
from optvet.engine.reduce.fault_check import FaultCheck
from optvet.engine.reduce.oracle import recorder, types_by_inference
from optvet.engine.reduce.reduction_order import Budget, ReductionCandidate, reduce_model
from optvet.engine.reduce.source_operators import reduce_operators
from optvet.engine.scripts.parts import PART as PART_SOURCE
from optvet.engine.scripts.parts import onnx_part
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import ConverterExtras, PartScript
from optvet.spec.errors import OptvetError
from optvet.spec.extras import given
from optvet.spec.files import write_file
from optvet.spec.records.convert import ConversionFinding, ConversionResult, ReducedSource
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.types import Artifact

PART, INPUTS = "part.onnx", "inputs.npz"
EXPECTED = """\
from part import run

model = part()
given = [example_inputs[i.name] for i in model.graph.input if i.name in example_inputs]
expected = list(run(model, example_inputs).values())"""
"""Statements of a script that run the part by the runtime of the source."""
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

    A source in ONNX is reduced as a graph, and so are others whose runtime lists their operators;
    the rest by the parts that their framework knows. One that cannot be divided costs no verdict.
    """
    if request.converted is not None:
        return _no_reduction(
            f"{request.converted} was converted elsewhere; name a chain with --via"
        )
    about = (request, result, plugins, folder)
    try:
        if result.source.format == "onnx":
            return reduce_onnx_source(*about, progress=progress)
        cut = reduce_operators(*about, progress=progress)
        return cut or reduce_source(*about, progress=progress)
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
        each = input_named(conversion, inputs, witness.sample, witness)
        model = onnx.load_from_string(conversion.source.artifact.data)
        search = _Search(FaultCheck(conversion, fault, each, judge.random))
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
    part_script = given(converter, ConverterExtras.part_script)
    snippet = given(runtime, RuntimeExtras.snippet)
    if part_script is None or snippet is None:
        return False
    ask = partial(part_script, link.options)
    script = checked_calls.ask(
        "converter", converter, "part_script", ask, PartScript, "a PartScript"
    )
    run = checked_calls.ask("runtime", runtime, "snippet", partial(snippet, options), str, "a text")
    write_file(folder / PART_SOURCE, onnx_part(run), advice="choose another folder with --reduce")
    declared = max((t for t in _tolerances(fault, link) if t is not None), default=None)
    write_script(conversion, replace(script, source=EXPECTED), fault, folder, declared)
    return True


def _tolerances(fault: ConversionFinding, link: Link) -> list[float | None]:
    """What the stages up to the last one that is to blame declare to lose."""
    names = [f"{link.converter.name}/{stage.name}" for stage in link.stages]
    last = max((i for i, name in enumerate(names) if name in fault.stages), default=len(names) - 1)
    return [stage.tolerance for stage in link.stages[: last + 1]]


_SHOWN = 6
"""Operators of a part that are named."""


@dataclass
class _Search:
    """Tests whether smaller graphs keep a fault."""

    check: FaultCheck

    def test_all(self, candidates: Sequence[ReductionCandidate]) -> Iterator[bool]:
        """Answers in order, each when it is asked for."""
        for candidate in candidates:
            assert candidate.feeds is not None
            artifact = Artifact("onnx", candidate.model.SerializeToString())
            yield self.check.shows(artifact, candidate.feeds)
