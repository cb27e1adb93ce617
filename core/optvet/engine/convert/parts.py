"""Reduction of a source: its smallest part that a conversion still breaks, as a bundle.

Each part is written as a source of its own, with the inputs that it got on the witness, and judged
by a conversion like any other source. So what is kept does show the fault, outside of the whole.
"""

from __future__ import annotations

import functools
import math
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType

from optvet.engine.contract import checked_calls
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.run import convert_model, prepare_inputs
from optvet.engine.convert.session import Conversion
from optvet.engine.convert.split import parts_in, write_part_in
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.scripts import comparing
from optvet.engine.scripts.confined_run import try_script
from optvet.engine.scripts.parts import PART_SCRIPT, part_files
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import CutsSource, PartScript, SourcePart, SplitsSource
from optvet.spec.errors import OptvetError, UsageError
from optvet.spec.extras import given
from optvet.spec.files import refuse_links_in, write_file
from optvet.spec.records.convert import (
    ConversionFinding,
    ConversionPlace,
    ConversionResult,
    ConversionWitness,
    ReducedSource,
)
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.scratch import temporary_folder
from optvet.spec.types import Sample

_WAYS = 2
"""How many runtimes a script may run a model by, where libraries are missing."""
_MOST = 12
"""Parts that are tried, from the smallest."""
_LEAST = 1e-9


def first_fault(
    request: ConvertRequest, result: ConversionResult
) -> tuple[ConversionFinding, ConversionWitness]:
    """The first fault that an input of the source shows, and that input.

    Raises:
        UsageError: There is none.
    """
    for found in result.findings:
        if found.severity == "fault" and found.witness is not None:
            return found, found.witness
    raise UsageError(f"{request.model}: there is no fault on an input, so nothing to reduce")


def reduce_source(
    request: ConvertRequest,
    result: ConversionResult,
    plugins: Plugins,
    folder: Path,
    *,
    progress: Progress,
) -> ReducedSource:
    """Write the smallest part of a source that still shows the first fault of ``result``.

    Args:
        request: What was asked.
        result: The answer, which has a fault.
        plugins: What is installed.
        folder: Where the bundle is written.
        progress: Called with a text about the progress.

    Raises:
        UsageError: There is no fault on an input of the source, or the source has no parts.
    """
    fault, witness = first_fault(request, result)
    with (
        open_conversion(request, plugins) as conversion,
        temporary_folder("optvet-parts-") as scratch,
    ):
        inputs, _, _ = prepare_inputs(conversion)
        sample = input_named(conversion, inputs, most_telling(fault, witness), witness).sample
        parts = _parts(conversion, sample)
        whole = max(part.size for part in parts)
        ordered = _sort_by_size(parts, fault)[:_MOST]
        notes: list[str] = []
        for tried, part in enumerate(ordered, 1):
            words = f"converting {part.name or 'the whole'}"
            progress(words, tried, len(ordered))
            place = Path(scratch) / str(tried)
            place.mkdir()
            try:
                file = _write_part(conversion, sample, part, place)
                found = find_in_part(conversion, plugins, f"{place / file}:part", fault)
            except OptvetError as error:
                notes.append(f"{part.name or 'the whole'}: {error}")
                continue
            if found is None:
                continue
            names = write_part_bundle(conversion, result, found, place, folder)
            return ReducedSource(
                part=part.name,
                tried=tried,
                size=part.size,
                size_before=whole,
                files=names,
                reproduces=script_shows(folder, request.timeout, python_of(conversion))
                if PART_SCRIPT in names
                else None,
            )
    left = f"; {notes[-1]}" if notes else ""
    return ReducedSource(tried=len(ordered), size=whole, size_before=whole, note=_NONE + left)


_NONE = "no part shows the fault when it is written as a source of its own"


def most_telling(fault: ConversionFinding, witness: ConversionWitness) -> str:
    """The input that shows the fault on another runtime too, if there is one.

    On that input alone the same stage is to blame; on another one it may be the runtime.
    """
    shown = (check.sample for check in fault.cross_check if check.sample)
    return next(shown, witness.sample)


def input_named(
    conversion: Conversion,
    inputs: Sequence[ConversionInput],
    name: str,
    witness: ConversionWitness,
) -> ConversionInput:
    """The input ``name`` of a finding; a later sample of a dataset is read again.

    Raises:
        UsageError: The dataset no longer has it.
    """
    found = next((d for d in inputs if d.sample.id == name), None)
    if found is not None:
        return found
    for sample in conversion.samples(conversion.model(conversion.facts(), {})):
        if sample.id == witness.about:
            return ConversionInput(replace(sample, id=name), "given", sample.id)
    raise UsageError(f"{conversion.request.model}: its dataset no longer has {witness.about!r}")


def _parts(conversion: Conversion, sample: Sample) -> Sequence[SourcePart]:
    sandbox = conversion.sandbox_of(conversion.source.runtime)
    if not isinstance(conversion.source.runtime, SplitsSource):
        name = conversion.source.runtime.name
        raise UsageError(
            f"{conversion.request.model}: runtime {name!r} cannot split its sources; "
            "leave out --reduce"
        )
    outcome = sandbox.call(parts_in, conversion.reference, conversion.source.artifact, sample)
    if not outcome.value:
        why = describe(outcome.failure) if outcome.failure else "it has none"
        raise UsageError(f"{conversion.request.model}: its parts are not known: {why}")
    return outcome.value


def _sort_by_size(parts: Sequence[SourcePart], fault: ConversionFinding) -> list[SourcePart]:
    """From the smallest: those around the place of the fault, if it is known."""
    place = ConversionPlace() if fault.place is None else fault.place
    around = [part for part in parts if place.module and place.module in part.modules]
    if not around:
        # Frameworks with graphs name nodes after the layers that these are of: a/conv2d/BiasAdd.
        named = set(re.split(r"[\s/:(),]+", " ".join((place.module, *place.nodes))))
        around = [part for part in parts if (named - {""}) & part.modules] or list(parts)
    return sorted(around, key=lambda part: part.size)


def _write_part(conversion: Conversion, sample: Sample, part: SourcePart, folder: Path) -> str:
    sandbox = conversion.sandbox_of(conversion.source.runtime)
    about = (conversion.reference, conversion.source.artifact, sample, part.name, folder)
    outcome = sandbox.call(write_part_in, *about)
    if outcome.value is None:
        words = describe(outcome.failure) if outcome.failure else "nothing was written"
        raise UsageError(f"it cannot be written: {words}")
    return outcome.value


def find_in_part(
    whole: Conversion, plugins: Plugins, model: str, fault: ConversionFinding
) -> ConversionFinding | None:
    """The fault of the same symptom and stage that the part shows on what it was given."""
    alone = {"model": model, "dataset": (), "random": 0, "edges": False, "sizes": False}
    request = whole.request.model_copy(update={**alone, "out": None})
    answer = convert_model(request, plugins, within=whole)
    same = (fault.symptom, fault.kind, fault.stages)
    faults = (f for f in answer.findings if f.severity == "fault")
    return next((f for f in faults if (f.symptom, f.kind, f.stages) == same), None)


def write_part_bundle(
    conversion: Conversion,
    result: ConversionResult,
    found: ConversionFinding,
    part: Path,
    folder: Path,
    *,
    operators: bool = False,
) -> list[str]:
    """Copy a part to ``folder``, with a script that needs no optvet where there is one.

    ``operators``: whether the part is operators of a graph.
    """
    refuse_links_in(folder)
    shutil.copytree(part, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    runtime = conversion.source.runtime
    if len(result.converters) == 1 and found.kind != "target-runtime":
        converter = result.converters[0]
        if operators:
            assert isinstance(runtime, CutsSource)
            method = runtime.operators_script
        else:
            assert isinstance(runtime, SplitsSource)
            method = runtime.script
        ask = functools.partial(method, converter.name, converter.options)
        kinds, words = (PartScript, NoneType), "a PartScript or None"
        script = checked_calls.ask("runtime", runtime, method.__name__, ask, kinds, words)
        if script:
            write_script(conversion, script, found, folder)
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def write_script(
    conversion: Conversion,
    script: PartScript,
    found: ConversionFinding,
    folder: Path,
    declared: float | None = None,
) -> None:
    """Write the script of a part, and the files that it needs, to ``folder``.

    ``declared`` is the largest error that the stages declare to cause; the part's own error may be
    little larger.
    """
    tolerance = tolerance_of(found) if declared is None else declared
    for name, text in part_files(script, _snippets(conversion), tolerance).items():
        write_file(folder / name, text, advice="choose another folder with --reduce")


def _snippets(conversion: Conversion) -> list[str]:
    """How models in ONNX are run here, the best way first, each by its library."""
    best = conversion.runtime_for("onnx", last=True)
    configs = [] if best is None else [best, *conversion.others(best, "onnx")]
    explained = [
        (c.runtime, functools.partial(snippet, c.options))
        for c in configs
        if (snippet := given(c.runtime, RuntimeExtras.snippet))
    ]
    return [
        checked_calls.ask("runtime", runtime, "snippet", call, str, "a text")
        for runtime, call in explained[:_WAYS]
    ]


def tolerance_of(fault: ConversionFinding) -> float:
    """A relative error between the noise and the error; a default where either has no size."""
    if not fault.error or not math.isfinite(fault.error):
        return 1e-4
    return math.sqrt(max(fault.noise or 0.0, _LEAST) * fault.error)


def python_of(conversion: Conversion) -> str:
    """The interpreter that has the converter, and the framework of the source."""
    plugins = conversion.plugins
    needed = (conversion.links[0].converter, conversion.source.runtime)
    home = next(filter(None, map(plugins.home_of, needed)), "")
    pythons = Pythons(conversion.request.environments, environments_root())
    return str(pythons.python_of(home)) if home else sys.executable


def script_shows(folder: Path, timeout_s: float, python: str = sys.executable) -> bool:
    """Whether the script of a bundle, confined as workers are, ends as one that shows the fault."""
    ended = try_script(folder / PART_SCRIPT, timeout_s, python, writable=True)
    # Python ends with code 1 too if it cannot execute the script.
    return ended.code == comparing.SHOWN and ended.printed.rstrip().endswith(comparing.SAID)
