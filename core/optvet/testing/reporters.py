"""The conformance suite of reporters, and a report to try one with."""

from __future__ import annotations

from typing import Literal

from optvet.spec.protocols import Reporter
from optvet.spec.records import (
    Bar,
    BarChart,
    CampaignReport,
    Chart,
    Divergence,
    Finding,
    Impact,
    Interval,
    IntervalChart,
    KnownFinding,
    OutputRecord,
    Point,
    PointChart,
    ReportedFinding,
    ReportedTrial,
    ReportTable,
    Sighting,
    WarningRecord,
    Witness,
)
from optvet.spec.symptoms import Symptom
from optvet.testing.conformance import check_form, require

State = Literal["queued", "running", "done", "failed"]

_OUTCOMES: dict[str, State] = {
    "clean": "done",
    "drift": "done",
    "faulty": "done",
    "undecided": "done",
    "error": "done",
    "failed": "failed",
    "queued": "queued",
    "running": "running",
}
_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="90" height="60" viewBox="0 0 90 60"></svg>'


def pretend_report(text: str = "model") -> CampaignReport:
    """A report with everything in it that there may be.

    It has a job of every outcome; findings that are new, known and notes; infinite, very small and
    missing numbers; a table.

    Args:
        text: Stands wherever the author of a model can write.
    """
    trials = [_trial(text, outcome, state) for outcome, state in _OUTCOMES.items()]
    findings = [
        _finding(text, "1" * 64, Symptom.WRONG_OUTPUT, error=0.5, noise=1e-7),
        _finding(text, "2" * 64, Symptom.WRONG_OUTPUT, error=float("inf"), noise=0.0),
        _finding(text, "3" * 64, Symptom.OPTIMIZER_ABORT, known=True),
        _finding(text, "4" * 64, Symptom.BLOAT, severity="note"),
    ]
    table = ReportTable(title=text, note=text, columns=["", text], rows=[[text, 1], [1.5, None]])
    gone = KnownFinding(
        fingerprint="5" * 64,
        optimizer="pretended",
        symptom=Symptom.TIMEOUT,
        culprit=["fold"],
        models=[f"{text}.onnx"],
    )
    return CampaignReport(
        schema="optvet.report/1",
        optvet="0.1",
        name=text,
        number=1,
        created=0.0,
        finished=None,
        versions={"pretended": "1.0"},
        trials=trials,
        findings=findings,
        fixed=[gone],
        tables=[table],
        charts=_charts(text),
    )


def _charts(text: str) -> list[Chart]:
    """A chart of each kind, whose names are all ``text``."""
    return [
        IntervalChart(
            title=text,
            note=text,
            axis=text,
            origin=1.0,
            intervals=[
                Interval(label=text, value=1.2, low=1.1, high=1.4, tone="bad"),
                Interval(label=f"{text} 2", value=1.0),
            ],
        ),
        BarChart(
            title=text,
            axis=text,
            names=[text, "other"],
            bars=[Bar(label=text, parts={text: 3.0, "other": 1.0})],
        ),
        PointChart(
            title=text,
            axis=text,
            up=text,
            points=[Point(label=text, x=0.0, y=1.0), Point(label=text, x=1e-6, y=2.0)],
        ),
    ]


def pretend_files(finding: ReportedFinding) -> dict[str, bytes]:
    """Files of a bundle, for half of the findings of ``pretend_report``."""
    kept = finding.severity == "fault" and not finding.known
    return {"before.svg": _SVG, "after.svg": _SVG, "repro.py": b"pass\n"} if kept else {}


def check_reporter(reporter: Reporter) -> None:
    """Check that ``reporter`` keeps the contract; raises AssertionError where it does not."""
    check_form(reporter, Reporter, "a reporter")
    suffix = reporter.suffix
    require(
        reporter,
        isinstance(suffix, str) and (suffix == "" or suffix.startswith(".")),
        f"suffix must be empty or begin with a dot, not {suffix!r}",
    )
    full = pretend_report("a <b> & \"c\" 'd' | ]]> --> `e` ::f\n# g %0A \N{SNOWMAN} \x1b[2J")
    empty = full.model_copy(update={"trials": [], "findings": [], "fixed": [], "tables": []})
    for title, report in (("a report with everything", full), ("an empty report", empty)):
        kept = report.to_json()
        first = reporter.render(report, pretend_files)
        require(
            reporter,
            isinstance(first, str),
            f"render({title}) must return a text, not {type(first).__name__}",
        )
        require(
            reporter,
            first == reporter.render(report, pretend_files),
            f"render({title}) gave two documents in two calls; only its arguments may matter",
        )
        require(reporter, report.to_json() == kept, f"render({title}) changed the report")


def _trial(text: str, outcome: str, state: State) -> ReportedTrial:
    answered = outcome in ("clean", "drift", "faulty", "undecided")
    reported = ReportedTrial(
        key=f"{outcome:0<64}",
        model=f"{text}.onnx",
        short_name=text,
        question=f"pretended, {outcome}",
        optimizer="pretended",
        pipeline=outcome,
        state=state,
        verdict=outcome if state == "done" else None,
        reason=text if outcome == "undecided" else "",
        error=text if outcome in ("error", "failed") else "",
        command="optvet vet m.onnx",
    )
    if not answered:
        return reported
    impact = Impact(
        comparator="pretended",
        chosen_by="task",
        headline=text,
        metrics={"top1_agreement": 0.75, "kendall_tau": None},
        changed=1,
        sensitive=0,
        samples=4,
    )
    numbers = {"nodes": 3, "size_bytes": 100, "samples": 4, "wall_s": 0.5, "impact": impact}
    outputs = [OutputRecord(name=text, verdict="same", error=0.0, noise_floor=1e-7)]
    more = {"outputs": outputs, "new_warnings": _warnings(text), "judged_by": "pretended 1.0"}
    return reported.model_copy(update={**numbers, **more})


def _warnings(text: str) -> list[WarningRecord]:
    """Two kinds of warnings, of which three came after optimization and not before."""
    return [
        WarningRecord(stage="build", by=text, message=text, reference=0, candidate=1),
        WarningRecord(stage="run", by="pretended", message=f"{text} 2", reference=1, candidate=3),
    ]


def _finding(
    text: str,
    fingerprint: str,
    symptom: Symptom,
    *,
    severity: Literal["fault", "note"] = "fault",
    error: float | None = None,
    noise: float | None = None,
    known: bool = False,
) -> ReportedFinding:
    finding = Finding(
        symptom=symptom,
        severity=severity,
        stage="compare",
        culprit=["fold", text],
        confirmed=True,
        outputs=[text],
        error=error,
        noise_floor=noise,
        witness=Witness(dataset="random", sample=text, seed=0),
        message=text,
        divergence=Divergence(value=text, before=[text], after=[text]),
        fingerprint=fingerprint,
    )
    seen = Sighting(
        trial=f"{'faulty':0<64}",
        number=0,
        model=f"{text}.onnx",
        short_name=text,
        question="pretended, faulty",
        error=error,
        noise_floor=noise,
        message=text,
        command="optvet vet m.onnx --pipeline fold",
    )
    return ReportedFinding(
        fingerprint=fingerprint,
        optimizer="pretended",
        symptom=symptom,
        severity=severity,
        stage="compare",
        culprit=finding.culprit,
        message=text,
        models=[seen.model],
        trials=[seen.trial],
        known=known,
        counts=severity == "fault" and not known,
        finding=finding,
        sightings=[seen],
    )
