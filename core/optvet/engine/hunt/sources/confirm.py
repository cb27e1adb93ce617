"""Suspicions about a converter become findings: judged by ``convert``, reduced, as bundles."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from optvet.engine.bundle.layout import ISSUE
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.parts import script_shows, write_part_bundle
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.sources.issue import issue_of
from optvet.engine.hunt.sources.look import (
    SourceBatch,
    SourceOutcome,
    look_at_batch,
    read_outcomes,
    write_source,
)
from optvet.engine.hunt.sources.plan import SourceRecipe
from optvet.engine.hunt.sources.target import FUNCTION, TestedConverter
from optvet.engine.scripts.parts import VERSIONS
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import SplitsSource
from optvet.spec.errors import OptvetError, PluginError
from optvet.spec.files import write_file
from optvet.spec.records import HuntFinding
from optvet.spec.records.convert import ConversionFinding, ConversionResult
from optvet.spec.scratch import made_beside, temporary_folder

FINDINGS = "findings"
ANSWER = "conversion.json"
_TIMEOUT_S = 300.0
"""Of one step: a framework takes seconds to import, and many more on a busy machine."""
_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class SourceConfirmer:
    """Vets suspicions about one converter.

    Attributes:
        tested: The converter.
        options: Its options, as the user gave them.
        plugins: The installed plugins.
        sandbox: Makes sources.
        out: The folder of the hunt.
        jobs: Worker processes at a time.
        seed: Seed of the inputs.
    """

    tested: TestedConverter
    options: Mapping[str, Any]
    plugins: Plugins
    sandbox: Sandbox
    out: Path
    jobs: int
    seed: int

    def confirm(
        self, number: int, recipe: SourceRecipe, outcome: SourceOutcome
    ) -> HuntFinding | None:
        """The finding, with its bundle; None if ``convert`` does not confirm it.

        Raises:
            PluginError: A plugin gave what its contract does not allow.
        """
        # Workers may write in temporary folders alone.
        with temporary_folder("optvet-confirm-") as name:
            scratch = Path(name)
            recipe, outcome = self._reduce(recipe, outcome, scratch)
            place = scratch / "part"
            place.mkdir()
            about = (self.tested, recipe, self.seed, outcome.sample, place)
            written = self.sandbox.call(write_source, *about).value
            if written is None:
                return None
            request = self._request(f"{place / written[0]}:{FUNCTION}")
            try:
                result = convert_model(request, self.plugins)
                fault = _first_fault(result, outcome)
                if fault is None:
                    return None
                bundle = scratch / "bundle"
                self._write_bundle(request, result, fault, place, bundle)
            except PluginError:
                raise
            except OptvetError:
                return None  # such as: the source does not run on this input
            if not script_shows(bundle, _TIMEOUT_S):
                return None
            return self._keep(number, recipe, result, fault, bundle, written[1])

    def _reduce(
        self, recipe: SourceRecipe, outcome: SourceOutcome, scratch: Path
    ) -> tuple[SourceRecipe, SourceOutcome]:
        """The smallest part of a recipe that looks wrong in the same way."""
        smaller = list(recipe.smaller())
        batch = SourceBatch(self.tested, smaller, self.seed, scratch / "smaller")
        if smaller:
            self.sandbox.call(look_at_batch, batch, 0)
        for each, seen in zip(smaller, read_outcomes(batch.journal), strict=False):
            if (seen.symptom, seen.words) == (outcome.symptom, outcome.words):
                return each, seen
        return recipe, outcome

    def _request(self, model: str) -> ConvertRequest:
        return ConvertRequest(
            model=model,
            via=(self.tested.converter.name,),
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
    ) -> None:
        bundle.mkdir()
        with open_conversion(request, self.plugins) as conversion:
            # Its script converts by the library itself, whichever runtime is to blame.
            converts = fault.model_copy(update={"kind": "convert"})
            write_part_bundle(conversion, result, converts, part, bundle)
        write_file(bundle / ANSWER, result.to_json(), advice="make room")

    def _keep(
        self,
        number: int,
        recipe: SourceRecipe,
        result: ConversionResult,
        fault: ConversionFinding,
        bundle: Path,
        contrived: list[str],
    ) -> HuntFinding:
        """The finding, with its bundle moved to where findings are kept."""
        place = fault.place
        runtime_is_wrong = fault.kind == "target-runtime"
        culprit = [fault.culprit] if runtime_is_wrong else list(fault.stages)
        operator = place.operator if place is not None else ""
        operators = [operator] if operator else [s.partition(":")[0] for s in recipe.operators]
        words = normalized_message(fault.message) if fault.symptom.info.failed else ""
        told = [str(fault.symptom), *culprit, "", *operators, words]
        fingerprint = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
        name = f"{fault.symptom}-{fingerprint[:8]}"
        versions = _versions(self.tested)
        write_file(bundle / VERSIONS, json.dumps(versions, indent=2) + "\n", advice="make room")
        title = f"{self.tested.converter.name}: {fault.symptom} of {', '.join(recipe.operators)}"
        write_file(bundle / ISSUE, issue_of(title, fault, bundle, versions), advice="make room")
        target = self.out / FINDINGS / name
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            shutil.rmtree(bundle / "__pycache__", ignore_errors=True)
            with made_beside(target) as beside:
                shutil.copytree(bundle, beside, dirs_exist_ok=True)
                beside.chmod(0o755)
                os.replace(beside, target)
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
        )


def _first_fault(result: ConversionResult, outcome: SourceOutcome) -> ConversionFinding | None:
    """The fault that was suspected, else the first one."""
    faults = [f for f in result.findings if f.severity == "fault" and f.witness is not None]
    return min(faults, key=lambda f: str(f.symptom) != outcome.symptom, default=None)


def _versions(tested: TestedConverter) -> dict[str, str]:
    """Versions of the distributions that the script needs."""
    maker = tested.maker.runtime
    script = None
    if isinstance(maker, SplitsSource):
        script = maker.script(tested.converter.name, tested.options.model_dump(mode="json"))
    needed = ("onnx", "numpy") if script is None else (*script.needs, "numpy")
    return {name: metadata.version(name) for name in needed}
