"""Findings as folders that anyone can use: a model, its inputs, a script, an issue text.

::

    finding → sample made again → reduced → judged once more → folder
                                                                  ↓ later, under other versions
                                                       "fixed", "still there", "changed"

A folder is written beside its place and renamed into it, so that it is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import ModelProto
from pydantic import BaseModel, ValidationError

from optvet.engine import repro
from optvet.engine.cache import Cache, cache_root
from optvet.engine.discovery import Plugins
from optvet.engine.examine import Examiner, describe, finite
from optvet.engine.explain import Sketch, explain, sketches, told
from optvet.engine.lab import Lab, Progress
from optvet.engine.models import open_model
from optvet.engine.options import parse_options
from optvet.engine.reduce.search import Budget, Reduction
from optvet.engine.roles import check_options, configured, reference_for
from optvet.engine.sandbox import Limits, Sandbox, enter
from optvet.engine.shrink import REDUCIBLE, Accused, Shown, look, reduce_finding
from optvet.engine.trial import Judge, Outputs, Subject, visible
from optvet.engine.trust import options_from
from optvet.engine.vet import Vetting, default_jobs, open_vetting, resolve_model
from optvet.graph.cost import total_nodes
from optvet.graph.identity import structure_of
from optvet.graph.text import graph_text
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.memory import check_size
from optvet.spec.parsing import read_json
from optvet.spec.protocols import Optimizer, Runtime
from optvet.spec.records import (
    Divergence,
    Finding,
    Outcome,
    Replayed,
    Reproduction,
    VetResult,
)
from optvet.spec.records.reading import read_document
from optvet.spec.request import VetRequest
from optvet.spec.types import NOTES, Failure, Sample, Symptom
from optvet.spec.words import printable, quoted

REDUCTION_S = 300.0
"""A reduction that takes longer ends with the best so far."""
_REPRO_S = 300.0
_LONGEST_S = 7 * 24 * 3600.0
_PRELOAD = ("numpy", "onnx", "onnx.checker")


@dataclass(frozen=True)
class Bundle:
    """A finding that was written down; ``note`` says what did not work, if anything.

    ``index`` is the finding's place in the result. ``known`` tells that a bundle of the same
    fingerprint was there before, and was left alone. ``before`` and ``after`` are the graphs as
    text.
    """

    index: int
    path: Path
    record: Reproduction
    before: str
    after: str
    note: str = ""
    known: bool = False


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; ``bundles`` are those that were written until then, the last not fully reduced."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        super().__init__()
        self.bundles = tuple(bundles)


@dataclass(frozen=True)
class Evidence:
    """What one model shows: its fault if any, what was expected, and the two graphs as text."""

    shown: Shown | None
    expected: Outputs
    before: str
    after: str
    full_check: bool
    divergence: Divergence | None = None
    sketches: tuple[Sketch, ...] = ()


class Draw(Protocol):
    """Makes an SVG document of a graph; see ``optvet.report.graph_svg.draw``."""

    def __call__(
        self,
        model: ModelProto,
        *,
        title: str,
        changed: Collection[int] = (),
        wrong: str | None = None,
        about: Collection[int] | None = None,
    ) -> str:
        """``about`` are the nodes to draw with their neighbours; None leaves the choice to it."""
        ...


# --- from findings to folders ---------------------------------------------------------------------


def is_written(finding: Finding) -> bool:
    """Whether a bundle can show it: a fault, or a note that no documented limit explains."""
    return finding.severity == "fault" or finding.symptom in REDUCIBLE


def write_bundles(
    result: VetResult,
    request: VetRequest,
    out: Path,
    plugins: Plugins,
    *,
    draw: Draw | None = None,
    progress: Progress = lambda text, done, total: None,
) -> list[Bundle]:
    """One folder below ``out`` per finding of ``result``; those of one fingerprint share it.

    Args:
        result: What came of ``request``.
        request: What was asked: the witnesses are made again from it, and each finding is reduced
            first if it says so.
        out: Where the folders go; made if it is not there.
        plugins: What is installed.
        draw: Makes the pictures; none are written without it.
        progress: Called with what is being done.

    Raises:
        Interrupted: Ctrl-C; what was found until then is written.
    """
    wanted = [(i, f) for i, f in enumerate(result.findings) if is_written(f)]
    if not wanted:
        return []
    (opened,) = resolve_model(request.model, plugins, request.cache_dir or cache_root())
    bundles: list[Bundle] = []
    with open_vetting(opened, request, plugins, progress=progress) as vetting:
        lab = vetting.lab_of(vetting.judge, vetting.reference_judge)
        names = [f.witness.sample if f.witness else None for _, f in wanted]
        samples = vetting.find_samples(lab, names)
        for (index, finding), witness in zip(wanted, names, strict=True):
            task = _Task(
                index,
                finding,
                result.model.source,
                _accused(vetting, finding, lab, samples[witness]),
                samples[witness],
                Limits(request.timeout, request.memory),
                vetting.sandbox,
                out,
                (request.jobs or default_jobs()) if request.reduce else None,
                progress,
                draw,
            )
            bundle, interrupted = _write(task, opened.load())
            bundles.append(bundle)
            if interrupted:
                raise Interrupted(bundles)
    return bundles


def with_fingerprints(result: VetResult, bundles: Sequence[Bundle]) -> VetResult:
    """``result`` whose findings tell the fingerprints and folders of their bundles."""
    findings = list(result.findings)
    for bundle in bundles:
        update = {"fingerprint": bundle.record.fingerprint, "bundle": bundle.path.name}
        findings[bundle.index] = findings[bundle.index].model_copy(update=update)
    return result.model_copy(update={"findings": findings})


def _accused(vetting: Vetting, finding: Finding, lab: Lab, witness: Sample) -> Accused:
    patience_s = None
    if finding.symptom == Symptom.TIMEOUT:
        began = time.monotonic()
        lab.fresh(vetting.with_required(()), [witness])
        patience_s = vetting.patience(time.monotonic() - began)
    judge, reference = vetting.judge, vetting.reference_judge
    if finding.as_deployed:
        judge = reference = Judge(vetting.runtime, vetting.runtime.deployed)
    return Accused(
        vetting.optimizer,
        vetting.options,
        tuple(finding.culprit),
        judge,
        reference,
        vetting.with_required,
        vetting.interface,
        vetting.tolerance,
        patience_s,
    )


@dataclass(frozen=True)
class _Task:
    """One finding that becomes a folder; it is not reduced if ``jobs`` is None."""

    index: int
    finding: Finding
    source: str
    accused: Accused
    witness: Sample
    limits: Limits
    sandbox: Sandbox
    out: Path
    jobs: int | None
    progress: Progress
    draw: Draw | None = None

    @property
    def asks(self) -> Symptom | None:
        return _asks(self.finding)


def _asks(finding: Finding) -> Symptom | None:
    """The note to look for; None for faults."""
    return finding.symptom if finding.symptom in NOTES else None


def _write(task: _Task, proto: ModelProto) -> tuple[Bundle, bool]:
    """The bundle of one finding, and whether Ctrl-C cut its reduction short."""
    finding, accused = task.finding, task.accused
    feeds: Mapping[str, np.ndarray] = task.witness.feeds
    note, nodes, end = "", total_nodes(proto), None
    if task.jobs is not None:
        try:
            shrunk = _reduced(task, proto)
        except UsageError as error:
            note = f"not reduced: {error}"
        else:
            proto, feeds, end = shrunk.model, shrunk.feeds or {}, shrunk.end
            note = _ENDS[end]
    task.progress("writing the bundle", 0, None)
    accused = replace(accused, timeout_s=_last_patience(accused))
    evidence = observe(proto, feeds, accused, task.sandbox, task.asks, explained=True)
    shown = evidence.shown
    if shown is None or shown.signature.symptom != finding.symptom:
        words = "shows nothing" if shown is None else f"shows {shown.signature.symptom}"
        note = note or f"did not show again: judged once more, the model {words}"
    else:
        seen = shown.observation
        finding = finding.model_copy(
            update={
                "message": seen.message,
                "outputs": list(seen.outputs),
                "error": finite(seen.error),
                "noise_floor": finite(seen.noise),
                "divergence": evidence.divergence,
            }
        )
    gist = shown.signature.words if shown is not None else ""
    record = Reproduction(
        schema="optvet.finding/2",
        fingerprint=fingerprint(accused.optimizer.name, finding, proto, gist),
        finding=finding,
        gist=gist,
        # A path tells of the machine it is on; a name says enough.
        model=task.source if task.source.startswith("zoo:") else Path(task.source).name,
        nodes=(nodes, total_nodes(proto)),
        optimizer=accused.optimizer.name,
        optimizer_options=accused.options.model_dump(mode="json"),
        passes=list(accused.complete(accused.culprit)),
        runtime=accused.judge.runtime.name,
        runtime_options=accused.judge.options.model_dump(mode="json"),
        inputs=list(feeds),
        outputs=list(evidence.expected),
        versions=versions(accused.optimizer, accused.judge),
        timeout_s=_last_patience(accused) or task.limits.timeout_s,
        memory_bytes=task.limits.memory_bytes,
    )
    more, problem = _pictures(finding, evidence, task.draw)
    note = note or problem
    bundle = write_bundle(task.out, task.index, record, proto, feeds, evidence, accused, note, more)
    return bundle, end == "interrupted"


def _pictures(
    finding: Finding, evidence: Evidence, draw: Draw | None
) -> tuple[dict[str, bytes], str]:
    """``before.svg`` and ``after.svg``, and of each the region if it is but a part; or why not."""
    if draw is None or not evidence.sketches:
        return {}, ""
    culprit = " → ".join(finding.culprit) or "import and export"
    files: dict[str, bytes] = {}
    try:
        for when, sketch in zip(("before", "after"), evidence.sketches, strict=False):
            model = onnx.load_from_string(sketch.graph)
            title, wrong = f"{when} {culprit}", sketch.wrong
            picture = draw(model, title=title, changed=sketch.changed, wrong=wrong)
            files[f"{when}.svg"] = picture.encode()
            region = sketch.region
            if region and len(region) + _REST <= len(model.graph.node):
                picture = draw(
                    model, title=title, changed=sketch.changed, wrong=wrong, about=region
                )
                files[f"region-{when}.svg"] = picture.encode()
    except Exception as error:  # a bundle without pictures is one all the same
        return {}, f"no pictures: {type(error).__name__}: {error}"
    return files, ""


_REST = 6
"""With fewer nodes around it, a picture of the region alone shows nothing new."""

_ENDS = {
    "done": "",
    "budget": "not reduced to the end: it took too long",
    "interrupted": "the reduction was interrupted; this is the smallest model so far",
}


def _reduced(task: _Task, proto: ModelProto) -> Reduction:
    with _on_disk(proto) as model:
        return reduce_finding(
            model,
            task.accused,
            task.witness,
            sandbox=task.sandbox,
            jobs=task.jobs or 1,
            note=task.asks,
            budget=Budget(seconds=REDUCTION_S),
            progress=task.progress,
        ).reduction


def _last_patience(accused: Accused) -> float | None:
    """Seconds to wait for what never ends; longer than while searching: slow is not hung."""
    return None if accused.timeout_s is None else max(5.0, accused.timeout_s)


def versions(optimizer: Optimizer, judge: Judge) -> dict[str, str]:
    """Versions of everything that takes part."""
    return {
        optimizer.name: optimizer.version(),
        judge.runtime.name: judge.runtime.version(),
        "onnx": onnx.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


# --- judging --------------------------------------------------------------------------------------


@contextmanager
def _on_disk(proto: ModelProto) -> Iterator[Any]:
    """The model as the engine takes models, in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="optvet-bundle-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        yield open_model(path, "model", Path(folder))


def observe(
    proto: ModelProto,
    feeds: Mapping[str, np.ndarray],
    accused: Accused,
    sandbox: Sandbox,
    note: Symptom | None = None,
    *,
    explained: bool = False,
) -> Evidence:
    """What the accused does to the model on these inputs; ``note`` as ``shrink.look`` takes it.

    Where it does so, and the graphs for pictures, are found out only if ``explained``.

    Raises:
        InputError: The original does not run.
    """
    sample = Sample("witness", dict(feeds))
    cache = Cache(None)
    try:
        with _on_disk(proto) as model:
            lab = Lab(
                model,
                accused.optimizer,
                accused.options,
                accused.judge,
                sandbox,
                cache,
                jobs=1,
                reference_judge=accused.reference_judge,
                interface=accused.interface,
            )
            evidence = _observed(lab, sample, accused, note)
            return _explained(lab, sample, accused, evidence) if explained else evidence
    finally:
        cache.close()


def _observed(lab: Lab, sample: Sample, accused: Accused, note: Symptom | None) -> Evidence:
    lab.timeout_s = accused.timeout_s
    reference = lab.reference([sample])
    if reference.build.failure is not None and reference.build.failure.kind == "error":
        # Strict shape inference may fail on the original already: it is no test then.
        lab.full_check = False
        reference = lab.reference([sample])
    run = reference.runs.get(sample.id)
    if run is None or isinstance(run, Failure):
        failure = run or reference.build.failure
        words = describe(failure) if failure else "no answer"
        raise InputError(f"the original does not run under {lab.judge.runtime.name}: {words}")
    examiner = Examiner(lab, [sample], tolerance=accused.tolerance)
    examiner.learn_reference(reference)
    if accused.optimizer.traits.reference == "empty pipeline" and accused.culprit:
        examiner.learn_reference(lab.trial(accused.complete(()), [sample], "control"))
    passes = accused.complete(accused.culprit)
    if accused.timeout_s is None:
        trial = lab.fresh(passes, [sample])
    else:
        trial = lab.trial(passes, [sample], "confirm")
    shown = look(examiner, reference, trial, [sample], note)
    built = trial.build.failure is None or trial.build.failure.stage != "build"
    after = lab.sandbox.call(_text_after, lab.subject(passes), fresh=True).value if built else ""
    return Evidence(
        shown,
        examiner.reference[sample.id],
        lab.sandbox.call(_text_of, lab.model.blob, fresh=True).value or "",
        after or "",
        lab.full_check,
    )


def _explained(lab: Lab, sample: Sample, accused: Accused, evidence: Evidence) -> Evidence:
    passes, found = accused.complete(accused.culprit), None
    if evidence.shown is not None:
        seen = evidence.shown.observation
        found = explain(lab, seen.symptom, seen.outputs, passes, sample)
    return replace(evidence, divergence=found, sketches=sketches(lab, passes, found))


def _text_of(path: Path) -> str:
    enter("load")
    return graph_text(onnx.load(str(path)))


def _text_after(subject: Subject) -> str:
    """The optimized model as text, where it can be seen. Called in a worker."""
    model = visible(subject)
    return "" if model is None else graph_text(model)


# --- duplicates -----------------------------------------------------------------------------------


def fingerprint(optimizer: str, finding: Finding, proto: ModelProto, gist: str = "") -> str:
    """Equal for findings of one optimizer, culprit, symptom and structure; 16 hexadecimal digits.

    A structure is what operators read from what operators; names, sizes, values and the order of
    nodes that do not depend on each other are no part of it. Where metadata change, ``gist`` says
    which, and that is what counts: any node will do to show it.
    """
    metadata = finding.symptom == Symptom.METADATA_CHANGE and gist
    structure = [gist] if metadata else structure_of(proto)
    about = [optimizer, list(finding.culprit), str(finding.symptom), structure]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


# --- the folder -----------------------------------------------------------------------------------


def write_bundle(
    out: Path,
    index: int,
    record: Reproduction,
    proto: ModelProto,
    feeds: Mapping[str, np.ndarray],
    evidence: Evidence,
    accused: Accused,
    note: str = "",
    more: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Write the folder whole or not at all; one of the same fingerprint is left as it is.

    ``more`` are further files by name.
    """
    place = out / _folder_name(record)
    if (place / "finding.json").exists():
        known = read_record(place)
        return Bundle(index, place, known, evidence.before, evidence.after, note, known=True)
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".optvet-", dir=out))
    try:
        (folder / "model.onnx").write_bytes(proto.SerializeToString(deterministic=True))
        write_arrays(folder / "inputs.npz", feeds)
        write_arrays(folder / "expected.npz", evidence.expected)
        files = _documents(record, proto, evidence, accused) | dict(more or {})
        for name, content in files.items():
            (folder / name).write_bytes(content)
        code = _try_script(folder / "repro.py")
        record = record.model_copy(update={"script_exit": code})
        (folder / "finding.json").write_text(f"{record.to_json()}\n", "utf-8")
        folder.chmod(0o755)
        os.replace(folder, place)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if code != 1 and not note:
        note = f"repro.py ended with {code}, not 1, when it was tried"
    return Bundle(index, place, record, evidence.before, evidence.after, note)


def _folder_name(record: Reproduction) -> str:
    blame = "-".join(record.finding.culprit) or "round-trip"
    words = f"{record.optimizer}-{blame}-{record.finding.symptom}"
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', words)[:80]}-{record.fingerprint[:8]}"


def _documents(
    record: Reproduction, proto: ModelProto, evidence: Evidence, accused: Accused
) -> dict[str, bytes]:
    """The files of a bundle that are for people, by name; what explains more is added here."""
    finding = record.finding
    story = repro.Story(
        optimizer=accused.optimizer,
        options=accused.options,
        passes=tuple(record.passes),
        culprit=tuple(finding.culprit),
        runtime=accused.judge.runtime,
        runtime_options=accused.judge.options,
        symptom=finding.symptom,
        stage=finding.stage,
        message=finding.message,
        inputs=tuple(record.inputs),
        outputs=tuple(record.outputs),
        judged=tuple(n for n in finding.outputs if n in record.outputs),
        about=tuple(record.gist.split("; ")),
        tolerance=_tolerance(finding),
        full_check=evidence.full_check,
        timeout_s=record.timeout_s,
        memory_bytes=record.memory_bytes,
        versions=record.versions,
        before=evidence.before,
        after=evidence.after,
        where="" if evidence.divergence is None else told(evidence.divergence),
    )
    texts = {
        "model.txt": evidence.before,
        "optimized.txt": evidence.after,
        "repro.py": repro.script(story),
        "ISSUE.md": repro.issue(story),
    }
    # Names in a model are foreign; in the script they stand as escaped literals.
    return {name: printable(text).encode() for name, text in texts.items() if text}


def _tolerance(finding: Finding) -> float:
    """Between noise and error, both relative to the largest magnitude; 1e-3 if there is no size."""
    error = finding.error
    if error is None or not 0 < error < math.inf:
        return 1e-3
    noise = min(max(finding.noise_floor or 0.0, 1e-9), error)
    return min(math.sqrt(error * noise), error / 2)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An ``npz`` whose keys are safe as file names; the order of the arrays is what counts."""
    used: set[str] = set()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for index, (name, array) in enumerate(arrays.items()):
            key = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60].strip(".")
            key = key if key and key not in used else f"{key}_{index}"
            used.add(key)
            plain = array.astype(str) if array.dtype == object else array
            # A fixed date: equal bundles are equal byte for byte.
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(plain), allow_pickle=False)


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of ``path`` by ``names``, which are in their order.

    Raises:
        InputError: They cannot be read, are too large, or are not as many.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) != len(names):
                raise InputError(f"{path}: {len(members)} arrays, expected {len(names)}")
            check_size(str(path), sum(member.file_size for member in members))
            values = [_array_in(archive, member) for member in members]
    except InputError:
        raise
    except Exception as error:  # numpy and zipfile let through whatever a damaged file leads to
        reason = str(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read ({reason}); make the bundle anew") from error
    plain = (v.astype(object) if v.dtype.kind == "U" else v for v in values)
    return dict(zip(names, plain, strict=True))


def _array_in(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _try_script(script: Path) -> int | None:
    command = [sys.executable, str(script.resolve())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_REPRO_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


# --- judged again ---------------------------------------------------------------------------------


def read_record(bundle: Path) -> Reproduction:
    """``finding.json`` of a bundle."""
    path = bundle / "finding.json"
    if not path.is_file():
        raise UsageError(
            f"{bundle}: no bundle, it has no {path.name}; give a folder that optvet vet --out wrote"
        )
    try:
        return read_document(Reproduction, read_json(path, "listing"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: {quoted(where)}: {first['msg']}; make the bundle anew"
        ) from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path}: no document of optvet ({error}); make the bundle anew"
        ) from error


def replay_bundle(bundle: Path, plugins: Plugins, *, trust: bool = False) -> Replayed:
    """Judge a bundle again under the installed versions; no file of the bundle is executed.

    Args:
        bundle: The folder.
        plugins: What is installed.
        trust: Whether options of the bundle may name code, commands and files.

    Raises:
        UsageError: It is no bundle, or what it needs is not installed.
        InputError: Its model does not run any more, optimized or not; or it names code, commands
            or files and is not trusted.
    """
    record = read_record(bundle)
    # NaN fails the comparison, too.
    if not (0 < record.timeout_s <= _LONGEST_S and 0 < record.memory_bytes < 1 << 62):
        raise InputError(
            f"{bundle / 'finding.json'}: timeout_s is {record.timeout_s} and memory_bytes "
            f"{record.memory_bytes}, which can be no limits; make the bundle anew"
        )
    accused = _accused_again(record, plugins, bundle / "finding.json", trust)
    path = bundle / "model.onnx"
    if not path.is_file():
        raise InputError(f"{path} is missing; make the bundle anew")
    with tempfile.TemporaryDirectory(prefix="optvet-bundle-") as store:
        proto = open_model(path, str(path), Path(store)).load()
    feeds = read_arrays(bundle / "inputs.npz", record.inputs)
    preload = (*_PRELOAD, *accused.optimizer.preload, *accused.judge.runtime.preload)
    limits = Limits(record.timeout_s, record.memory_bytes)
    with Sandbox(jobs=1, limits=limits, preload=preload) as sandbox:
        check_options(sandbox, accused.optimizer, accused.options)
        check_options(sandbox, accused.judge.runtime, accused.judge.options)
        shown = observe(proto, feeds, accused, sandbox, _asks(record.finding)).shown
    return Replayed(
        schema="optvet.replay/2",
        bundle=bundle.name,
        outcome=_outcome(record, shown),
        was=record.finding,
        now=None if shown is None else shown.signature.symptom,
        message="" if shown is None else shown.observation.message,
        versions_then=record.versions,
        versions_now=versions(accused.optimizer, accused.judge),
    )


def _outcome(record: Reproduction, shown: Shown | None) -> Outcome:
    if shown is None:
        return "fixed"
    seen = shown.signature
    same = (seen.symptom, seen.stage, seen.words)
    was = (record.finding.symptom, record.finding.stage, record.gist)
    return "still there" if same == was else "changed"


def _accused_again(record: Reproduction, plugins: Plugins, file: Path, trust: bool) -> Accused:
    def options_of(plugin: Optimizer | Runtime, key: str) -> BaseModel:
        given = getattr(record, key)
        given = options_from(str(file), key, plugin.options, given, folder=None, trust=trust)
        return parse_options(plugin.name, plugin.options, given)

    optimizer = plugins.optimizer(record.optimizer)
    options = options_of(optimizer, "optimizer_options")
    optimizer = configured(optimizer, options)
    known = {p.name: p for p in optimizer.passes()}
    for name in record.passes:
        if name not in known:
            hint = f"(of {optimizer.name} {optimizer.version()})"
            raise UnknownName("pass", name, known, hint)
    runtime = plugins.runtime(record.runtime)
    judge = Judge(runtime, options_of(runtime, "runtime_options"))
    base = tuple(n for n in record.passes if known[n].required)
    tolerances = [t for n in record.passes if (t := known[n].tolerance) is not None]
    accused = Accused(
        optimizer,
        options,
        tuple(record.finding.culprit),
        judge,
        reference_for(plugins, optimizer, judge),
        lambda culprit: tuple(record.passes) if culprit else base,
        lambda passes: frozenset[Any]().union(*(known[p].interface for p in passes)),
        lambda passes: max(tolerances, default=None),
    )
    if record.finding.symptom == Symptom.TIMEOUT:
        accused = replace(accused, timeout_s=record.timeout_s)
    return accused
