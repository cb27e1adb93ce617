"""The folder of a bundle: its name, its files, and reading them back.

A folder is written under a temporary name and then renamed, so that it is never incomplete.
"""

from __future__ import annotations

import errno
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from optvet.engine.bundle.issue import issue
from optvet.engine.bundle.layout import (
    EXPECTED,
    INPUTS,
    ISSUE,
    MODEL,
    OPTIMIZED_TEXT,
    RECORD,
    SCRIPT,
    TEXT,
)
from optvet.engine.bundle.observe import Evidence
from optvet.engine.judge.sample import telling_tolerance
from optvet.engine.models.opening import open_model
from optvet.engine.scripts.confined_run import Ended, try_script
from optvet.engine.scripts.context import ReproContext
from optvet.engine.scripts.inline import standalone
from optvet.engine.scripts.with_files import modules_beside, script
from optvet.engine.vet.explain.locate import divergence_text
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.errors import InfrastructureError, InputError, UsageError
from optvet.spec.extras import given
from optvet.spec.files import refuse_link
from optvet.spec.foreign import open_file
from optvet.spec.memory import announced_bytes, check_size
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.records import Reproduction
from optvet.spec.records.reading import read_document_in
from optvet.spec.removal import remove_folder
from optvet.spec.requirement import read_requirement
from optvet.spec.scratch import folder_beside
from optvet.spec.symptoms import ScriptCheck
from optvet.spec.types import Artifact, Model
from optvet.spec.words import printable, quote

_REPRO_S = 300.0
_ERROR_CHARS = 200
_SHORT_WORD = 3


@dataclass(frozen=True)
class Bundle:
    """A written finding; ``note`` says what did not work, if anything.

    ``index`` is the finding's index in the result. ``known``: a bundle with the same fingerprint
    existed before, and was not changed. ``before`` and ``after`` are the graphs as text. ``shows``:
    the bundle's model was judged once more, and showed the finding.
    """

    index: int
    path: Path
    record: Reproduction
    before: str
    after: str
    note: str = ""
    known: bool = False
    shows: bool = True


def write_folder(
    out: Path,
    index: int,
    record: Reproduction,
    proto: ModelProto,
    feeds: Mapping[str, np.ndarray],
    evidence: Evidence,
    case: Case,
    note: str = "",
    more: Mapping[str, bytes] | None = None,
    more_feeds: Sequence[Mapping[str, np.ndarray]] = (),
) -> Bundle:
    """Write the folder atomically; an existing one with the same fingerprint is not changed.

    ``more`` are further files by name, ``more_feeds`` the inputs of further samples.
    """
    place = out / _folder_name(record)
    refuse_link(place)
    if (place / RECORD).exists():
        return _known(index, place, evidence, note)
    out.mkdir(parents=True, exist_ok=True)
    folder = folder_beside(out / "optvet")
    try:
        (folder / MODEL).write_bytes(proto.SerializeToString(deterministic=True))
        write_arrays(folder / INPUTS, _in_a_row((feeds, *more_feeds)))
        write_arrays(folder / EXPECTED, _in_a_row((evidence.expected, *evidence.more)))
        files = _documents(record, proto, feeds, evidence, case) | dict(more or {})
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (folder / RECORD).write_text(f"{record.to_json()}\n", "utf-8")
        ended = try_script(folder / SCRIPT, _REPRO_S)
        record = record.model_copy(update={"script_exit": ended.code})
        (folder / RECORD).write_text(f"{record.to_json()}\n", "utf-8")
        folder.chmod(0o755)
        os.replace(folder, place)
    except OSError as error:
        remove_folder(folder)
        if (place / RECORD).exists():  # Another command has written it meanwhile.
            return _known(index, place, evidence, note)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        words = f"cannot write {place}: something that is no bundle is there"
        raise InfrastructureError(f"{words}; remove it, or choose another --out") from error
    except BaseException:
        remove_folder(folder)
        raise
    return Bundle(
        index, place, record, evidence.before, evidence.after, note or _doubt(record, ended)
    )


def _known(index: int, place: Path, evidence: Evidence, note: str) -> Bundle:
    """The bundle that was written before."""
    record = read_record(place)
    return Bundle(index, place, record, evidence.before, evidence.after, note, known=True)


def _doubt(record: Reproduction, ended: Ended) -> str:
    """Why the script may not show the finding; empty if it does."""
    if ended.code != 1:
        return f"repro.py ended with {ended.code}, not 1, when it was tried"
    finding, output = record.finding, ended.printed + ended.errors
    raised = finding.symptom.info.check is ScriptCheck.ERROR and ": signal " not in ended.printed
    if not raised or says_alike(finding.message, output):
        return ""
    last = (ended.errors.strip() or ended.printed.strip()).rpartition("\n")[2]
    return f"repro.py failed by another error when it was tried: {printable(last)[:_ERROR_CHARS]}"


def says_alike(message: str, output: str) -> bool:
    """Whether a text has most of the words by which an error's message is known."""
    # The class of the error may be the plugin's own, which the script does without.
    text = message.partition(": ")[2] or message
    words = {w for w in normalized_message(text).split() if len(w) > _SHORT_WORD}
    return 2 * sum(word in output for word in words) >= len(words)


def _folder_name(record: Reproduction) -> str:
    blame = "-".join(record.finding.culprit) or "round-trip"
    words = f"{record.optimizer}-{blame}-{record.finding.symptom}"
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', words)[:80]}-{record.fingerprint[:8]}"


def _for_model(
    case: Case, proto: ModelProto, passes: Sequence[str]
) -> tuple[Optimizer, tuple[str, ...]]:
    """The optimizer as it is for ``proto``, and those of ``passes`` that it has there.

    Passes that are nodes of the original have no effect where their nodes are gone; code that names
    them would say more than the model shows.
    """
    optimizer = case.optimizer
    for_model = given(optimizer, OptimizerExtras.for_model)
    if for_model is None:
        return optimizer, tuple(passes)
    fitted = for_model(Artifact("onnx", proto.SerializeToString()), case.options)
    known = {p.name for p in fitted.passes()}
    left = tuple(name for name in passes if name in known)
    return (fitted, left) if left else (optimizer, tuple(passes))


def _documents(
    record: Reproduction,
    proto: ModelProto,
    feeds: Mapping[str, np.ndarray],
    evidence: Evidence,
    case: Case,
) -> dict[str, bytes]:
    """The files of a bundle that people read, by name."""
    finding = record.finding
    optimizer, passes = _for_model(case, proto, record.passes)
    context = ReproContext(
        optimizer=optimizer,
        options=case.options,
        passes=passes,
        culprit=tuple(finding.culprit),
        runtime=case.candidate.runtime,
        runtime_options=case.candidate.options,
        symptom=finding.symptom,
        stage=finding.stage,
        message=finding.message,
        inputs=tuple(record.inputs),
        outputs=tuple(record.outputs),
        judged=tuple(n for n in finding.outputs if n in record.outputs),
        about=tuple(finding.changed),
        tolerance=telling_tolerance(finding.error, finding.noise_floor),
        full_check=evidence.full_check,
        timeout_s=record.timeout_s,
        memory_bytes=record.memory_bytes,
        versions=record.versions,
        before=evidence.before,
        after=evidence.after,
        where="" if evidence.divergence is None else divergence_text(evidence.divergence),
        lines=evidence.lines,
        required=None if finding.requirement is None else read_requirement(finding.requirement),
        random=() if evidence.observed is None else evidence.observed.random,
        lost=() if evidence.observed is None else evidence.observed.observation.lost,
    )
    short = standalone(context, proto, feeds, evidence.expected)
    texts = {
        TEXT: evidence.before,
        OPTIMIZED_TEXT: evidence.after,
        SCRIPT: script(context),
        ISSUE: issue(context, short),
    }
    # Names in a model are untrusted; in the script they are escaped literals.
    texts |= modules_beside(context)
    files = {name: printable(text).encode() for name, text in texts.items() if text}
    return {**context.carried, **files}


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an ``npz`` whose keys are safe file names; arrays are identified by their order."""
    used: set[str] = set()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for index, (name, array) in enumerate(arrays.items()):
            key = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60].strip(".")
            key = key if key and key not in used else f"{key}_{index}"
            used.add(key)
            plain = array.astype(str) if array.dtype == object else array
            # A fixed date, so that equal bundles have equal bytes.
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(plain), allow_pickle=False)


def _in_a_row(samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of all samples, one sample after the other; the first has the plain names."""
    every = enumerate(samples)
    return {f"{i} {n}" if i else n: value for i, each in every for n, value in each.items()}


def read_samples(path: Path, names: Sequence[str], count: int) -> list[dict[str, np.ndarray]]:
    """The arrays of ``count`` samples by name; see ``read_arrays``."""
    rows = [[f"{i} {name}" for name in names] for i in range(count)]
    found = read_arrays(path, [key for row in rows for key in row])
    return [{n: found[key] for n, key in zip(names, row, strict=True)} for row in rows]


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of ``path`` by name; ``names`` are in the order of the arrays.

    Raises:
        InputError: They cannot be read, are too large, or their number differs.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) != len(names):
                raise InputError(f"{path}: {len(members)} arrays, expected {len(names)}")
            check_size(str(path), sum(_size_in(archive, member) for member in members))
            values = [_array_in(archive, member) for member in members]
    except InputError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds of errors for damaged files
        reason = (str(error) or type(error).__name__)[:300]  # zipfile quotes what the file holds
        raise InputError(f"{path}: cannot be read ({reason}); make the bundle anew") from error
    plain = (v.astype(object) if v.dtype.kind == "U" else v for v in values)
    return dict(zip(names, plain, strict=True))


def _size_in(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    with archive.open(member) as file:
        return announced_bytes(file)


def _array_in(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return array


def open_bundled(bundle: Path, store: Path) -> Model:
    """The model of a bundle; ``store`` is where a copy with its external data is kept.

    Raises:
        InputError: It is missing, or no complete model.
    """
    path = bundle / MODEL
    if not os.path.isfile(path):
        raise InputError(f"{path} is missing; make the bundle anew")
    return open_model(path, str(path), store)


def read_record(bundle: Path) -> Reproduction:
    """``finding.json`` of a bundle.

    Raises:
        UsageError: There is none.
        InputError: It is none that optvet wrote.
    """
    path = bundle / RECORD
    if not os.path.isfile(path):
        raise UsageError(
            f"{bundle}: no bundle, it has no {path.name}; give a folder that optvet vet --out wrote"
        )
    record = read_document_in(Reproduction, path, advice="make the bundle anew")
    for name in record.finding.culprit:
        if name not in record.passes:
            raise InputError(
                f"{path}: culprit {quote(name)} is not among its passes; make the bundle anew"
            )
    return record
