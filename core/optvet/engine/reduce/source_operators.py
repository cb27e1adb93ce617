"""Reduction of a source whose runtime lists its operators: the fewest that still show a fault.

Any operators of a graph make a source, since what they read of others can be an input. So the
search begins with single operators around the place of the fault and grows until the fault shows;
what is not needed of that is left out again.

Source: Zeller and Hildebrandt 2002 (ddmin).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.parts import (
    find_in_part,
    first_fault,
    input_named,
    most_telling,
    python_of,
    script_shows,
    write_part_bundle,
)
from optvet.engine.convert.run import prepare_inputs
from optvet.engine.convert.session import Conversion
from optvet.engine.convert.split import operators_in, write_operators_in
from optvet.engine.discovery import Plugins
from optvet.engine.reduce.fault_check import FaultCheck
from optvet.engine.scripts.parts import PART_SCRIPT
from optvet.engine.vet.find.localize import minimal_set
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import CutsSource, Factory, SourceOperator
from optvet.spec.errors import OptvetError, UsageError
from optvet.spec.records.convert import (
    ConversionFinding,
    ConversionPlace,
    ConversionResult,
    ReducedSource,
)
from optvet.spec.types import Artifact, Sample

_CHECKS, _SECONDS = 300, 300.0
"""Budget of a reduction; each check converts a source and runs it."""
_SINGLE = 6
"""Operators around the place of a fault that are tried alone."""
_SHOWN = 6
"""Operators of a part that are named."""
_WHOLE = "the operators, written as a source of their own, do not show the fault"


def reduce_operators(
    request: ConvertRequest,
    result: ConversionResult,
    plugins: Plugins,
    folder: Path,
    *,
    progress: Progress,
) -> ReducedSource | None:
    """Write the fewest operators that show the first fault of ``result``.

    Returns:
        What was written to ``folder``; None if the runtime lists no operators of this source.

    Raises:
        UsageError: There is no fault on an input of the source.
    """
    fault, witness = first_fault(request, result)
    with open_conversion(request, plugins) as conversion:
        if not isinstance(conversion.source.runtime, CutsSource):
            return None
        inputs, _, _ = prepare_inputs(conversion)
        each = input_named(conversion, inputs, most_telling(fault, witness), witness)
        about = (conversion.reference, conversion.source.artifact, each.sample)
        listed = conversion.sandbox_of(conversion.source.runtime).call(operators_in, *about)
        if listed.failure is not None:
            why = describe(listed.failure)
            raise UsageError(f"{request.model}: its operators cannot be listed: {why}")
        operators = listed.value
        if not operators:
            return None
        check = FaultCheck(conversion, fault, each, frozenset(), fresh=False)
        search = _OperatorSearch(check, each.sample, len(operators), progress)
        kept = search.smallest(sets_around(operators, fault))
        tried, count = len(search.answers), len(operators)
        none = ReducedSource(tried=tried, size=count, size_before=count, note=_WHOLE)
        if kept is None:
            words = f"{_WHOLE}; {search.refused}" if search.refused else _WHOLE
            return none.model_copy(update={"note": words})
        place = check.folder()
        file = write_operators(conversion, each.sample, kept, place)
        found = find_in_part(conversion, plugins, f"{place / file}:part", fault)
        if found is None:
            return none
        names = write_part_bundle(conversion, result, found, place, folder, operators=True)
        python = python_of(conversion)
    return ReducedSource(
        part=", ".join(operators[i].name for i in kept[:_SHOWN]),
        tried=tried,
        size=len(kept),
        size_before=count,
        files=names,
        reproduces=script_shows(folder, request.timeout, python) if PART_SCRIPT in names else None,
    )


def write_operators(
    conversion: Conversion, sample: Sample, kept: Sequence[int], folder: Path
) -> str:
    """Write some operators of the source as a source; the name of its file.

    Raises:
        UsageError: They cannot be written.
    """
    about = (conversion.reference, conversion.source.artifact, sample, list(kept), folder)
    outcome = conversion.sandbox_of(conversion.source.runtime).call(write_operators_in, *about)
    if outcome.value is None:
        words = describe(outcome.failure) if outcome.failure else "nothing was written"
        raise UsageError(f"they cannot be written: {words}")
    return outcome.value


def sets_around(
    operators: Sequence[SourceOperator], fault: ConversionFinding
) -> Iterator[list[int]]:
    """Sets of operators to begin with: around the place of the fault, the smallest first; then all.

    Last, stretches of them, from the longest: what cannot be written spoils the whole alone.
    """
    place = ConversionPlace() if fault.place is None else fault.place
    near = [i for i, each in enumerate(operators) if place.line and each.line == place.line]
    near = near or [i for i, each in enumerate(operators) if each.name == place.operator]
    yield from ([i] for i in near[:_SINGLE])
    size, count = 2, len(operators)
    while near and len(near) < count:
        if len(near) >= size:
            yield near
            size = 2 * len(near)
        grown = _with_neighbours(operators, near)
        if grown == near:
            break
        near = grown
    yield list(range(count))
    length = count
    while length > 1:
        length = -(-length // 2)
        step = max(1, length // 2)
        yield from (list(range(i, i + length)) for i in range(0, count - length + 1, step))


def _with_neighbours(operators: Sequence[SourceOperator], kept: Sequence[int]) -> list[int]:
    inside = set(kept)
    grown = set(kept)
    for i, each in enumerate(operators):
        if i in inside:
            grown.update(each.reads)
        elif inside.intersection(each.reads):
            grown.add(i)
    return sorted(grown)


@dataclass
class _OperatorSearch:
    """Tests sets of operators, within a budget; ``answers`` by set."""

    check: FaultCheck
    sample: Sample
    count: int
    progress: Progress
    refused: str = ""
    answers: dict[tuple[int, ...], bool] = field(default_factory=dict)
    _ends: float = field(default_factory=lambda: time.monotonic() + _SECONDS)

    def smallest(self, candidates: Iterator[list[int]]) -> list[int] | None:
        """The fewest operators that show the fault; None if no candidate does."""
        first = next((each for each in candidates if self._shows(each)), None)
        if first is None:
            return None
        if len(first) == 1:
            return first
        return [int(name) for name in minimal_set([str(i) for i in first], self._test)]

    def _test(self, names: Sequence[str]) -> Literal["fails", "passes"]:
        return "fails" if self._shows([int(name) for name in names]) else "passes"

    def _shows(self, kept: Sequence[int]) -> bool:
        key = tuple(kept)
        if key not in self.answers:
            if len(self.answers) >= _CHECKS or time.monotonic() > self._ends or not kept:
                return False
            words = f"converting {len(kept)} of {self.count} operators"
            self.progress(words, len(self.answers), None)
            self.answers[key] = self._converts_wrong(key)
        return self.answers[key]

    def _converts_wrong(self, kept: Sequence[int]) -> bool:
        conversion, folder = self.check.conversion, self.check.folder()
        try:
            file = write_operators(conversion, self.sample, kept, folder)
            old = conversion.source.artifact
            handle = Factory("part", getattr(old.handle, "seed", 0))
            artifact = Artifact(old.format, path=folder / file, handle=handle)
            source = replace(conversion.source, artifact=artifact)
            feeds = replace(conversion, source=source).facts().inputs
            return self.check.shows(artifact, feeds)
        except OptvetError as error:
            self.refused = str(error)
            return False
