"""Replaying a bundle: is its finding fixed, still there, or changed?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from optvet.engine.bundle.folder import open_bundled, read_record, read_samples
from optvet.engine.bundle.layout import INPUTS, RECORD
from optvet.engine.bundle.observe import observe, sought_by, versions
from optvet.engine.discovery import Plugins
from optvet.engine.reduce.observed_fault import ObservedFault
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.case import case_from
from optvet.engine.work.trials.participants import check_options
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.errors import InputError, OptvetError
from optvet.spec.foreign import files_in
from optvet.spec.records import ErrorRecord, Replayed, ReplayOutcome, Reproduction
from optvet.spec.records.error import ErrorSource
from optvet.spec.scratch import temporary_folder

_MOST_SAMPLES = 100_000
_LONGEST_S = 7 * 24 * 3600.0


def replay_bundle(bundle: Path, plugins: Plugins, *, trust: bool = False) -> Replayed:
    """Test a bundle again under the installed versions; no file of the bundle is executed.

    Args:
        bundle: The folder.
        plugins: The installed plugins.
        trust: Whether options of the bundle may name code, commands and files.

    Raises:
        UsageError: It is not a bundle, or a plugin that it needs is not installed.
        InputError: Its original model does not run any more; or an option names code, a command or
            a file, and ``trust`` is false.
    """
    record = read_record(bundle)
    # NaN is refused too: every comparison with it is false.
    if not 0 < record.samples <= _MOST_SAMPLES:
        raise InputError(
            f"{bundle / RECORD}: there are {record.samples} samples; make the bundle anew"
        )
    if not (0 < record.timeout_s <= _LONGEST_S and 0 < record.memory_bytes < 1 << 62):
        raise InputError(
            f"{bundle / RECORD}: timeout_s is {record.timeout_s} and memory_bytes "
            f"{record.memory_bytes}, which can be no limits; make the bundle anew"
        )
    with temporary_folder("optvet-bundle-") as store:
        model = open_bundled(bundle, Path(store))
        file = str(bundle / RECORD)
        case = case_from(record, plugins, model, file=file, folder=bundle, trust=trust)
        if record.finding.symptom.info.limit == "time":
            case = case.under(timeout_s=record.timeout_s)
        feeds, *more = read_samples(bundle / INPUTS, record.inputs, record.samples)
        preload = preload_for(case.optimizer, case.candidate.runtime)
        limits = Limits(record.timeout_s, record.memory_bytes)
        culprit = tuple(record.finding.culprit)
        with Sandbox(jobs=1, limits=limits, preload=preload) as sandbox:
            check_options(sandbox, case.optimizer, case.options)
            check_options(sandbox, case.candidate.runtime, case.candidate.options)
            sought = sought_by(record, plugins, trust=trust, file=file)
            observed = observe(case, culprit, feeds, sandbox, sought, more=more).observed
    return Replayed(
        schema="optvet.replay/2",
        bundle=bundle.name,
        outcome=_outcome(record, observed),
        was=record.finding,
        now=None if observed is None else observed.signature.symptom,
        message="" if observed is None else observed.observation.message,
        versions_then=record.versions,
        versions_now=versions(case),
    )


def bundles_in(folder: Path) -> list[Path]:
    """``folder`` if it is a bundle, else all bundles below it, else ``folder``.

    Replaying a folder that is not a bundle gives an error.
    """
    if os.path.isfile(folder / RECORD) or not os.path.isdir(folder):
        return [folder]
    inside = sorted(file.parent for file in files_in(folder, lambda path: path.name == RECORD))
    return inside or [folder]


def replay_each(
    bundles: Sequence[Path], plugins: Plugins, *, trust: bool = False
) -> Iterator[Replayed | ErrorRecord]:
    """Each bundle judged again; one that cannot be does not spare the others."""
    for bundle in bundles:
        try:
            yield replay_bundle(bundle, plugins, trust=trust)
        except OptvetError as error:
            yield ErrorRecord(
                schema="optvet.error/1",
                model=ErrorSource(source=str(bundle)),
                error=type(error).__name__,
                message=str(error),
                exit_code=error.exit_code,
            )


def _outcome(record: Reproduction, observed: ObservedFault | None) -> ReplayOutcome:
    if observed is None:
        return "fixed"
    seen = observed.signature
    same = (seen.symptom, seen.stage, seen.words)
    was = (record.finding.symptom, record.finding.stage, record.normalized_message)
    return "still there" if same == was else "changed"
