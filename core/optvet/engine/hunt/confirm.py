"""Suspects become findings: vetted in processes of their own, reduced, written as bundles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from optvet.engine import bundle
from optvet.engine.bundle import Bundle
from optvet.engine.bundle.folder import read_arrays
from optvet.engine.bundle.layout import INPUTS, MODEL, RECORD
from optvet.engine.bundle.write import Draw
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.cross_check import Applied, is_disputed
from optvet.engine.hunt.expected import several_inputs
from optvet.engine.hunt.keep_findings import FINDINGS, keep_bundle, refuse_shortage
from optvet.engine.hunt.probable_causes import contrived_parts, needs, operators_that_matter
from optvet.engine.hunt.state import HuntState, Suspect
from optvet.engine.hunt.suspects import is_needless
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.hunt.triggers import needed_features
from optvet.engine.runtime_target import RuntimeTarget
from optvet.engine.vetting import GivenInputs, vetted
from optvet.spec.errors import OptvetError, PluginError
from optvet.spec.foreign import load_model, read_file
from optvet.spec.records import Finding, HuntFinding
from optvet.spec.request import VetRequest
from optvet.spec.scratch import made_beside

MEMORY_BYTES = 4 << 30
TIMEOUT_S = 30.0
"""Limit of one step; candidates take milliseconds."""
MOST_FINDINGS = 3
"""Of one suspect: a fault of what all passes share is found once for each of dozens of passes."""
_REDUCTION_S = 60.0
"""Models of hunts are small; those of an optimizer that compiles take a second for each probe."""


@dataclass(frozen=True)
class Confirmer:
    """Vets suspects of one optimizer.

    Attributes:
        tested: The optimizer.
        seed: The hunt's seed.
        plugins: The installed plugins.
        out: The folder of the hunt.
        jobs: Worker processes at a time.
        known: Fingerprints of faults whose bundles are not kept.
        draw: Makes pictures of graphs; see ``write_bundles``.
    """

    tested: TestedOptimizer
    seed: int
    plugins: Plugins
    out: Path
    jobs: int
    known: frozenset[str]
    draw: Draw | None = None

    def is_needless(self, state: HuntState, suspect: Suspect) -> bool:
        """Whether a suspect need not be vetted."""
        return is_needless(state, suspect)

    def confirm(self, suspect: Suspect) -> list[HuntFinding] | None:
        """What ``vet`` confirms of a suspect, reduced; None if it can judge nothing.

        Raises:
            PluginError: A plugin gave what its contract does not allow.
        """
        # As it was suspected: where the runtime gives something else each time, another one judges.
        usual = self.tested.by_arbiter() if suspect.by_arbiter else self.tested
        found = self._vet(suspect, usual)
        tested = usual.for_candidate(self.seed, suspect.number)
        # Rare options second: a finding that the usual ones show too is reported without them.
        if found or tested is usual:
            return found
        return self._vet(suspect, tested)

    def _vet(self, suspect: Suspect, tested: TestedOptimizer) -> list[HuntFinding] | None:
        tests_runtime = isinstance(tested.optimizer, RuntimeTarget)
        with made_beside(self.out / "confirm") as folder:
            (folder / "hunted.onnx").write_bytes(suspect.model)
            feeds = several_inputs(ModelProto.FromString(suspect.model), suspect.feeds)
            inputs = GivenInputs(feeds if suspect.feeds else ({},))
            plugins = self.plugins.extend("dataset", inputs)
            request = VetRequest(
                model=str(folder / "hunted.onnx"),
                optimizer=tested.optimizer.name,
                pipeline=self._pipeline(suspect),
                optimizer_options=dict(tested.given),
                runtime=tested.candidate.runtime.name if suspect.by_arbiter else None,
                runtime_options={} if suspect.by_arbiter else dict(tested.given_to_runtime),
                dataset=(inputs.name,),
                jobs=self.jobs,
                timeout=TIMEOUT_S,
                memory=MEMORY_BYTES,
                reduce=True,
                cache_dir=folder / "cache",
            )
            try:
                with vetted(request, plugins) as answer:
                    # Where two runtimes differ and the standard or a third one leaves open who is
                    # wrong, there is no finding.
                    reported = [
                        f for f in answer.result.findings if not (tests_runtime and f.known_limit)
                    ]
                    order = sorted(reported, key=lambda f: _rank(f, suspect))
                    written = bundle.write_bundles(
                        answer.result.model_copy(update={"findings": order[:MOST_FINDINGS]}),
                        request,
                        self._with_known(folder / "bundles"),
                        plugins,
                        session=answer.session,
                        draw=self.draw,
                        reduction_s=_REDUCTION_S,
                    )
                    refuse_shortage(*(f.message for f in answer.result.findings))
            except PluginError:
                raise
            except OptvetError as error:
                refuse_shortage(error)
                return None  # such as: the original fails after all
            shown = [b for b in written if b.shows]
            # One that this hunt has already passed these tests when it was written.
            lasting = [
                b
                for b in shown
                if b.known or not (_is_gone(b.record.script_exit) or self._is_disputed(b, tested))
            ]
            return [self._keep_finding(suspect, b) for b in lasting]

    def _with_known(self, folder: Path) -> Path:
        """The folder, with the records of this hunt's bundles: known ones are not made again."""
        folder.mkdir()
        kept = self.out / FINDINGS
        for found in kept.iterdir() if kept.is_dir() else ():
            # No links: bundles are written through none, so the whole suspect would be lost.
            (folder / found.name).mkdir()
            (folder / found.name / RECORD).write_bytes(read_file(found / RECORD))
        return folder

    def _pipeline(self, suspect: Suspect) -> str:
        default = tuple(self.tested.optimizer.pipelines()["default"])
        if suspect.passes in ((), default):
            return "default"
        return ",".join(suspect.passes)

    def _is_disputed(self, written: Bundle, tested: TestedOptimizer) -> bool:
        finding = written.record.finding
        applied = Applied(tested.optimizer, tested.options, tuple(written.record.passes))
        return is_disputed(
            finding.symptom,
            written.path,
            applied,
            error=finding.error,
            noise=finding.noise_floor,
            by_import=not finding.culprit,
        )

    def _keep_finding(self, suspect: Suspect, written: Bundle) -> HuntFinding:
        """The finding, with its bundle moved to where findings are kept."""
        record = written.record
        target = self.out / FINDINGS / written.path.name
        if record.fingerprint not in self.known:
            keep_bundle(self.out, written.path)
        # Of a known one the bundle is where it was: its folder may not be this hunt's.
        place = target if target.exists() else written.path
        model = load_model(place / MODEL)
        weights = {t.name for t in model.graph.initializer}
        names = [v.name for v in model.graph.input if v.name not in weights]
        feeds = read_arrays(place / INPUTS, names)
        required = needs(model, feeds, record.finding.message)
        return HuntFinding(
            fingerprint=record.fingerprint,
            symptom=record.finding.symptom,
            severity=record.finding.severity,
            culprit=record.finding.culprit,
            message=record.finding.message,
            nodes=record.nodes[1],
            bundle=f"{FINDINGS}/{target.name}",
            candidate=suspect.number,
            mutators=list(suspect.mutators),
            keys=[str(suspect.key)],
            operators=operators_that_matter(model),
            features=needed_features(model),
            needs=required,
            contrived=contrived_parts(model, feeds, required),
        )


def _rank(finding: Finding, suspect: Suspect) -> tuple[bool, bool]:
    """Faults first, and what was suspected before what was not."""
    return finding.severity != "fault", finding.symptom != suspect.key.symptom


def _is_gone(script_exit: int | None) -> bool:
    """Whether the bundle's own script, which knows nothing of optvet, said that all is well.

    What it cannot judge is not gone.
    """
    return script_exit == 0
