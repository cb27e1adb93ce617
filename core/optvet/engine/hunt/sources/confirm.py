"""Suspicions about a converter become findings: judged by ``convert``, reduced, as bundles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optvet.engine.bundle.layout import ISSUE
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.parts import python_of, script_shows, write_part_bundle
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.keep_findings import FINDINGS, keep_bundle, refuse_shortage
from optvet.engine.hunt.sources.issue import issue_of
from optvet.engine.hunt.sources.look import Looker
from optvet.engine.hunt.sources.plan import SourceRecipe
from optvet.engine.hunt.sources.steps import FUNCTION, SourceOutcome, write_source
from optvet.engine.hunt.sources.target import TestedConverter
from optvet.engine.hunt.state import HuntState, Sign, Suspect
from optvet.engine.hunt.suspicions import SuspicionKey
from optvet.engine.hunt.versions import environment_of
from optvet.engine.scripts.parts import VERSIONS
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import CutsSource, SplitsSource
from optvet.spec.errors import OptvetError, PluginError
from optvet.spec.files import write_file
from optvet.spec.records import HuntFinding
from optvet.spec.records.convert import ConversionFinding, ConversionResult
from optvet.spec.scratch import temporary_folder
from optvet.spec.symptoms import Symptom

ANSWER = "conversion.json"
_TRIES = 2
"""Sources of one key that are vetted, unless the first one is a finding."""
_TIMEOUT_S = 300.0
"""Of one step: a framework takes seconds to import, and many more on a busy machine."""
_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class SourceConfirmer:
    """Vets suspicions about one converter.

    Attributes:
        looker: Looks at sources.
        options: Options of the converter, as the user gave them.
        plugins: The installed plugins.
        out: The folder of the hunt.
        jobs: Worker processes at a time.
        seed: Seed of the inputs.
    """

    looker: Looker
    options: Mapping[str, Any]
    plugins: Plugins
    out: Path
    jobs: int
    seed: int

    def is_needless(self, state: HuntState, suspect: Suspect) -> bool:
        """Whether enough sources like it were vetted, or one of its operators alone explains it."""
        key, source = suspect.key, suspect.source
        sign = state.signs.get(key, Sign())
        if sign.fingerprints or sign.vetted >= _TRIES:
            return True
        names = source.recipe.names if source is not None else ()
        alone = (key._replace(passes=(name,)) for name in names if len(names) > 1)
        return any(state.signs.get(each, Sign()).fingerprints for each in alone)

    def confirm(self, suspect: Suspect) -> list[HuntFinding] | None:
        """The finding, with its bundle; none if ``convert`` does not confirm it.

        Raises:
            PluginError: A plugin gave what its contract does not allow.
        """
        assert suspect.source is not None
        key, recipe = suspect.key, suspect.source.recipe
        outcome = SourceOutcome("suspect", key.symptom, key.words, suspect.source.sample)
        # Workers may write in temporary folders alone.
        with temporary_folder("optvet-confirm-") as name:
            scratch = Path(name)
            recipe, outcome = self._reduce(recipe, outcome, scratch)
            place = scratch / "part"
            place.mkdir()
            about = (self.looker.make, recipe, self.seed, outcome.sample, place)
            written = self.looker.maker.call(write_source, *about).value
            if written is None:
                return []
            request = self._request(f"{place / written[0]}:{FUNCTION}")
            try:
                result = convert_model(request, self.plugins)
                refuse_shortage(*(f.message for f in result.findings))
                fault = _first_fault(result, outcome)
                if fault is None:
                    return []
                bundle = scratch / "bundle"
                python = self._write_bundle(request, result, fault, place, bundle)
            except PluginError:
                raise
            except OptvetError as error:
                refuse_shortage(error)
                return None  # such as: the source does not run on this input
            # The script knows nothing of optvet: what it does not show is none of a converter's.
            if not script_shows(bundle, _TIMEOUT_S, python):
                return []
            versions = _versions(self.looker.tested, Path(python))
            return [self._keep(suspect.number, recipe, fault, bundle, versions, written[1])]

    def without_needless(
        self, recipe: SourceRecipe, outcome: SourceOutcome
    ) -> tuple[SourceRecipe, SourceOutcome]:
        """The fewest steps and settings that look wrong in the same way.

        Where steps have settings, since these tell causes apart; else the recipe as it is.
        """
        if not self.looker.tells_settings:
            return recipe, outcome
        with temporary_folder("optvet-settings-") as name:
            scratch = Path(name)
            recipe, outcome = self._reduce(recipe, outcome, scratch)
            # One after the other: what is left out stays out while the next one is tried.
            for place, settings in enumerate(self.looker.settings(recipe)):
                for setting in settings:
                    plainer = recipe.leaving_out(place, setting)
                    (seen,) = self.looker.look([plainer], self.seed, scratch / "plainer")
                    if (seen.symptom, seen.words) == (outcome.symptom, outcome.words):
                        recipe, outcome = plainer, seen
        needed = tuple(tuple(each.values()) for each in self.looker.settings(recipe))
        return replace(recipe, settings=needed), outcome

    def _reduce(
        self, recipe: SourceRecipe, outcome: SourceOutcome, scratch: Path
    ) -> tuple[SourceRecipe, SourceOutcome]:
        """The smallest part of a recipe that looks wrong in the same way."""
        smaller = list(recipe.smaller())
        looked = self.looker.look(smaller, self.seed, scratch / "smaller") if smaller else []
        # In order of size, so the first that shows it is the smallest; all in one look, since
        # workers import a framework once.
        for each, seen in zip(smaller, looked, strict=True):
            if (seen.symptom, seen.words) == (outcome.symptom, outcome.words):
                return each, seen
        return recipe, outcome

    def _request(self, model: str) -> ConvertRequest:
        return ConvertRequest(
            model=model,
            via=(self.looker.tested.converter.name,),
            converter_options=dict(self.options),
            random=0,
            edges=False,
            sizes=False,
            seed=self.seed,
            jobs=self.jobs,
            timeout=_TIMEOUT_S,
            memory=_MEMORY_BYTES,
        )

    def _write_bundle(
        self,
        request: ConvertRequest,
        result: ConversionResult,
        fault: ConversionFinding,
        part: Path,
        bundle: Path,
    ) -> str:
        """Write the bundle; returns the interpreter that its script runs under."""
        bundle.mkdir()
        with open_conversion(request, self.plugins) as conversion:
            # Its script converts by the library itself, whichever runtime is to blame.
            converts = fault.model_copy(update={"kind": "convert"})
            operators = not isinstance(conversion.source.runtime, SplitsSource)
            write_part_bundle(conversion, result, converts, part, bundle, operators=operators)
            python = python_of(conversion)
        write_file(bundle / ANSWER, result.to_json(), advice="make room")
        return python

    def _keep(
        self,
        number: int,
        recipe: SourceRecipe,
        fault: ConversionFinding,
        bundle: Path,
        versions: Mapping[str, str],
        contrived: list[str],
    ) -> HuntFinding:
        """The finding, with its bundle moved to where findings are kept."""
        place = fault.place
        runtime_is_wrong = fault.kind == "target-runtime"
        culprit = [fault.culprit] if runtime_is_wrong else list(fault.stages)
        operator = place.operator if place is not None else ""
        operators = [operator] if operator else [s.partition(":")[0] for s in recipe.operators]
        if any(recipe.settings):
            operators = list(recipe.names)
        # Numbers of wrong values differ from model to model, and say nothing of the cause.
        words = normalized_message(fault.message) if fault.symptom.info.failed else ""
        told = [str(fault.symptom), *culprit, "", *operators, words]
        fingerprint = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
        name = f"{fault.symptom}-{fingerprint[:8]}"
        write_file(bundle / VERSIONS, json.dumps(versions, indent=2) + "\n", advice="make room")
        title = f"{self.looker.tested.converter.name}: {fault.symptom} of {', '.join(recipe.names)}"
        write_file(bundle / ISSUE, issue_of(title, fault, bundle, versions), advice="make room")
        # Under its final name, by which the findings of a hunt are known.
        bundle = bundle.rename(bundle.with_name(name))
        keep_bundle(self.out, bundle)
        return HuntFinding(
            fingerprint=fingerprint,
            symptom=fault.symptom,
            severity="fault",
            culprit=culprit,
            message=fault.message,
            nodes=len(recipe.steps),
            bundle=f"{FINDINGS}/{name}",
            candidate=number,
            keys=[],
            operators=operators,
            contrived=contrived,
            parts=list(recipe.parts) if self.looker.tells_settings else [],
        )


def key_of(names: tuple[str, ...], outcome: SourceOutcome) -> SuspicionKey:
    """Equal for suspicions that are probably of one cause; ``names`` are those of a recipe."""
    return SuspicionKey((" ".join(names),), Symptom(outcome.symptom), outcome.words)


def _first_fault(result: ConversionResult, outcome: SourceOutcome) -> ConversionFinding | None:
    """The fault that was suspected, else the first one."""
    faults = [f for f in result.findings if f.severity == "fault" and f.witness is not None]
    return min(faults, key=lambda f: str(f.symptom) != outcome.symptom, default=None)


def _versions(tested: TestedConverter, python: Path) -> Mapping[str, str]:
    """Versions of the distributions that the script needs."""
    maker, options = tested.maker.runtime, tested.options.model_dump(mode="json")
    ask = None
    if isinstance(maker, SplitsSource):
        ask = maker.script
    elif isinstance(maker, CutsSource):
        ask = maker.operators_script
    script = None if ask is None else ask(tested.converter.name, options)
    return environment_of(python, ("numpy", *(script.needs if script else ("onnx",)))).versions
