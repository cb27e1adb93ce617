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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import ModelProto
from pydantic import ValidationError

from optvet.engine import repro
from optvet.engine.cache import Cache, cache_root
from optvet.engine.discovery import Plugins
from optvet.engine.examine import Examiner, Observation, describe, finite
from optvet.engine.lab import Lab, Progress
from optvet.engine.models import open_model
from optvet.engine.reduce import Budget
from optvet.engine.sandbox import Limits, Sandbox, enter
from optvet.engine.shrink import Accused, reduce_finding
from optvet.engine.trial import Judge, Outputs, Subject, build
from optvet.engine.vet import (
    Settings,
    Vetting,
    open_vetting,
    parse_options,
    resolve_model,
)
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.protocols import DependsOnOptions, Optimizer
from optvet.spec.result import Finding, Record, VetResult
from optvet.spec.types import Failure, Sample, Symptom

REDUCTION_S = 300.0
"""A reduction that takes longer ends with the best so far."""
_REPRO_S = 300.0
_PRELOAD = ("numpy", "onnx", "onnx.checker")


class Reproduction(Record):
    """``finding.json``: what a bundle shows, and all that judging it again needs.

    ``finding`` is as seen on the model of the bundle; ``nodes`` counts before and after reducing.
    ``gist`` are the words of a failure without names and numbers. ``passes`` are applied: the
    culprit with what the optimizer cannot do without. ``inputs`` and ``outputs`` name the arrays of
    ``inputs.npz`` and ``expected.npz`` in their order. ``script_exit`` is what ``repro.py`` ended
    with when the bundle was written; None if it was not run.
    """

    schema_: Literal["optvet.finding/1"] = "optvet.finding/1"
    fingerprint: str
    finding: Finding
    gist: str = ""
    model: str
    nodes: tuple[int, int]
    optimizer: str
    optimizer_options: dict[str, Any]
    passes: list[str]
    runtime: str
    runtime_options: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    versions: dict[str, str]
    timeout_s: float
    script_exit: int | None = None


@dataclass(frozen=True)
class Bundle:
    """A finding that was written down; ``note`` says what did not work, if anything.

    ``known`` tells that a bundle of the same fingerprint was there before, and was left alone.
    ``before`` and ``after`` are the graphs as text.
    """

    path: Path
    record: Reproduction
    before: str
    after: str
    note: str = ""
    known: bool = False


@dataclass(frozen=True)
class Evidence:
    """What one model shows: its fault if any, what was expected, and the two graphs as text."""

    observation: Observation | None
    expected: Outputs
    before: str
    after: str
    full_check: bool


# --- from findings to folders ---------------------------------------------------------------------


def write_bundles(
    model: str,
    result: VetResult,
    settings: Settings,
    out: Path,
    plugins: Plugins,
    *,
    reduce: bool = True,
    progress: Progress = lambda text, done, total: None,
) -> list[Bundle]:
    """One folder below ``out`` for each fault of ``result``; findings of one fingerprint share it.

    Args:
        model: What was vetted: a path, or ``zoo:NAME``.
        result: What came of it.
        settings: How it was vetted; the witnesses are made again from them.
        out: Where the folders go; made if it is not there.
        plugins: What is installed.
        reduce: Whether to reduce each finding first.
        progress: Called with what is being done.

    Raises:
        KeyboardInterrupt: It was interrupted; what was found until then is written.
    """
    faults = [f for f in result.findings if f.severity == "fault"]
    if not faults:
        return []
    root = settings.cache_dir or cache_root()
    (opened,) = resolve_model(model, plugins, root)
    bundles: list[Bundle] = []
    with open_vetting(opened, settings, plugins, progress=progress) as vetting:
        lab = vetting.lab_of(vetting.judge, vetting.reference_judge)
        samples = {s.id: s for s in vetting.make_samples(lab)}
        for finding in faults:
            witness = finding.witness.sample if finding.witness else next(iter(samples))
            accused = _accused(vetting, finding)
            bundles.append(
                _bundle(
                    opened.load(),
                    result.model.source,
                    accused,
                    finding,
                    samples[witness],
                    vetting.sandbox,
                    out,
                    settings if reduce else None,
                    progress,
                )
            )
            if bundles[-1].note == _INTERRUPTED:
                raise KeyboardInterrupt
    return bundles


_INTERRUPTED = "the reduction was interrupted; this is the smallest model so far"


def _accused(vetting: Vetting, finding: Finding) -> Accused:
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
        vetting.settings.timeout_s if finding.symptom == Symptom.TIMEOUT else None,
    )


def _bundle(
    proto: ModelProto,
    source: str,
    accused: Accused,
    finding: Finding,
    witness: Sample,
    sandbox: Sandbox,
    out: Path,
    reduction: Settings | None,
    progress: Progress,
) -> Bundle:
    note, nodes = "", len(proto.graph.node)
    feeds: Mapping[str, np.ndarray] = witness.feeds
    if reduction is not None:
        began = time.monotonic()
        try:
            with _on_disk(proto) as model:
                shrunk = reduce_finding(
                    model,
                    accused,
                    witness,
                    sandbox=sandbox,
                    jobs=reduction.jobs,
                    budget=Budget(seconds=REDUCTION_S),
                    progress=progress,
                ).reduction
        except UsageError as error:
            note = f"not reduced: {error}"
        else:
            proto, feeds, nodes = shrunk.model, shrunk.feeds or {}, shrunk.nodes[0]
            if not shrunk.complete:
                late = time.monotonic() - began >= REDUCTION_S
                note = "not reduced to the end: it took too long" if late else _INTERRUPTED
    progress("writing the bundle", 0, None)
    evidence = observe(proto, feeds, accused, sandbox)
    seen = evidence.observation
    if seen is None or seen.symptom != finding.symptom:
        words = "shows nothing" if seen is None else f"shows {seen.symptom}"
        note = note or f"did not show again: judged once more, the model {words}"
    else:
        finding = finding.model_copy(
            update={
                "message": seen.message,
                "outputs": list(seen.outputs),
                "error": finite(seen.error),
                "noise_floor": finite(seen.noise),
            }
        )
    record = Reproduction(
        fingerprint=fingerprint(accused.optimizer.name, finding, proto),
        finding=finding,
        gist=_gist(seen),
        # A path tells of the machine it is on; a name says enough.
        model=source if source.startswith("zoo:") else Path(source).name,
        nodes=(nodes, len(proto.graph.node)),
        optimizer=accused.optimizer.name,
        optimizer_options=accused.options.model_dump(mode="json"),
        passes=list(accused.complete(accused.culprit)),
        runtime=accused.judge.runtime.name,
        runtime_options=accused.judge.options.model_dump(mode="json"),
        inputs=list(feeds),
        outputs=list(evidence.expected),
        versions=versions(accused.optimizer, accused.judge),
        timeout_s=sandbox_patience(accused),
    )
    return write_bundle(out, record, proto, feeds, evidence, accused, note)


def sandbox_patience(accused: Accused) -> float:
    """Seconds that the script waits for an end."""
    return accused.timeout_s or 120.0


def _gist(observation: Observation | None) -> str:
    if observation is None or observation.symptom == Symptom.INTERFACE_CHANGE:
        return ""  # made of the names and shapes of this very model
    return observation.signature[1]


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
    proto: ModelProto, feeds: Mapping[str, np.ndarray], accused: Accused, sandbox: Sandbox
) -> Evidence:
    """What the accused does to the model on these inputs.

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
            return _observed(lab, sample, accused)
    finally:
        cache.close()


def _observed(lab: Lab, sample: Sample, accused: Accused) -> Evidence:
    lab.timeout_s = accused.timeout_s
    reference = lab.reference([sample])
    if reference.build.failure is not None:
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
    if accused.optimizer.traits.produces != "onnx" and accused.culprit:
        examiner.learn_reference(lab.trial(accused.complete(()), [sample], "control"))
    passes = accused.complete(accused.culprit)
    observation = examiner.examine(lab.fresh(passes, [sample]), [sample]).observation
    after = lab.sandbox.call(_text_after, lab.subject(passes)).value
    return Evidence(
        observation,
        examiner.reference[sample.id],
        lab.sandbox.call(_text_of, lab.model.blob).value or "",
        after or "",
        lab.full_check,
    )


_TEXT_ELEMENTS = 256


def _text_of(path: Path) -> str:
    enter("load")
    return graph_text(onnx.load(str(path)))


def _text_after(subject: Subject) -> str:
    """The optimized model as text, where it is ONNX. Called in a worker."""
    artifact = build(subject)
    return graph_text(onnx.load_from_string(artifact.data)) if artifact.format == "onnx" else ""


def graph_text(proto: ModelProto) -> str:
    """The model in ONNX's own text form; large weights are shown as inputs, with a remark."""
    large = [t for t in proto.graph.initializer if math.prod(t.dims) > _TEXT_ELEMENTS]
    if not large:
        return str(onnx.printer.to_text(proto))
    shown = ModelProto()
    shown.CopyFrom(proto)
    names = {t.name for t in large}
    kept = [t for t in shown.graph.initializer if t.name not in names]
    del shown.graph.initializer[:]
    shown.graph.initializer.extend(kept)
    listed = {i.name for i in shown.graph.input}
    for tensor in large:
        if tensor.name not in listed:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            shown.graph.input.append(value)
    words = " ".join(t.name for t in large)
    return f"# weights shown as inputs: {words}\n{onnx.printer.to_text(shown)}"


# --- duplicates -----------------------------------------------------------------------------------


def fingerprint(optimizer: str, finding: Finding, proto: ModelProto) -> str:
    """Equal for findings of one optimizer, culprit, symptom and structure; 16 hexadecimal digits.

    A structure is what operators read from what operators; names, sizes, values and the order of
    nodes that do not depend on each other are no part of it.
    """
    about = [optimizer, list(finding.culprit), str(finding.symptom), structure_of(proto)]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def structure_of(proto: ModelProto) -> list[str]:
    """One digest per node, over its operator and all that it is computed from; sorted."""
    made: dict[str, str] = {}
    digests = []
    for node in proto.graph.node:
        read = [made.get(name, "leaf" if name else "") for name in node.input]
        inner = [
            structure_of(ModelProto(graph=a.g))
            for a in sorted(node.attribute, key=lambda a: a.name)
            if a.type == onnx.AttributeProto.GRAPH
        ]
        about = json.dumps([node.domain, node.op_type, read, inner])
        digest = hashlib.sha256(about.encode()).hexdigest()[:16]
        digests.append(digest)
        made |= {name: f"{digest}.{i}" for i, name in enumerate(node.output) if name}
    return sorted(digests)


# --- the folder -----------------------------------------------------------------------------------


def write_bundle(
    out: Path,
    record: Reproduction,
    proto: ModelProto,
    feeds: Mapping[str, np.ndarray],
    evidence: Evidence,
    accused: Accused,
    note: str = "",
) -> Bundle:
    """Write the folder whole or not at all; one of the same fingerprint is left as it is."""
    place = out / _folder_name(record)
    if (place / "finding.json").exists():
        known = read_record(place)
        return Bundle(place, known, evidence.before, evidence.after, note, known=True)
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".optvet-", dir=out))
    try:
        _fill(folder, record, proto, feeds, evidence, accused)
        code = _try_script(folder / "repro.py")
        record = record.model_copy(update={"script_exit": code})
        (folder / "finding.json").write_text(f"{record.model_dump_json(indent=2)}\n", "utf-8")
        folder.chmod(0o755)
        os.replace(folder, place)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if code != 1 and not note:
        note = f"repro.py ended with {code}, not 1, when it was tried"
    return Bundle(place, record, evidence.before, evidence.after, note)


def _folder_name(record: Reproduction) -> str:
    blame = "-".join(record.finding.culprit) or "round-trip"
    words = f"{record.optimizer}-{blame}-{record.finding.symptom}"
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', words)[:80]}-{record.fingerprint[:8]}"


def _fill(
    folder: Path,
    record: Reproduction,
    proto: ModelProto,
    feeds: Mapping[str, np.ndarray],
    evidence: Evidence,
    accused: Accused,
) -> None:
    finding = record.finding
    story = repro.Story(
        optimizer=accused.optimizer,
        options=accused.options,
        passes=tuple(record.passes),
        culprit=tuple(finding.culprit),
        runtime=accused.judge.runtime,
        runtime_options=accused.judge.options,
        symptom=finding.symptom,
        message=finding.message,
        inputs=tuple(record.inputs),
        outputs=tuple(record.outputs),
        judged=tuple(n for n in finding.outputs if n in record.outputs),
        tolerance=_tolerance(finding),
        full_check=evidence.full_check,
        timeout_s=record.timeout_s,
        versions=record.versions,
        before=evidence.before,
        after=evidence.after,
    )
    (folder / "model.onnx").write_bytes(proto.SerializeToString(deterministic=True))
    (folder / "model.txt").write_text(evidence.before, "utf-8")
    if evidence.after:
        (folder / "optimized.txt").write_text(evidence.after, "utf-8")
    write_arrays(folder / "inputs.npz", feeds)
    write_arrays(folder / "expected.npz", evidence.expected)
    (folder / "repro.py").write_text(repro.script(story), "utf-8")
    (folder / "ISSUE.md").write_text(repro.issue(story), "utf-8")


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
    """The arrays of ``path`` by ``names``, which are in their order."""
    try:
        with np.load(path, allow_pickle=False) as loaded:
            values = [loaded[key] for key in loaded.files]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read ({error}); make the bundle anew") from error
    if len(values) != len(names):
        raise InputError(f"{path}: {len(values)} arrays, expected {len(names)}")
    plain = (v.astype(object) if v.dtype.kind == "U" else v for v in values)
    return dict(zip(names, plain, strict=True))


def _try_script(script: Path) -> int | None:
    command = [sys.executable, str(script.resolve())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_REPRO_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


# --- judged again ---------------------------------------------------------------------------------

Outcome = Literal["fixed", "still there", "changed"]


class Replayed(Record):
    """What a bundle shows under the versions that are installed now."""

    schema_: Literal["optvet.replay/1"] = "optvet.replay/1"
    bundle: str
    outcome: Outcome
    was: Finding
    now: Symptom | None
    message: str = ""
    versions_then: dict[str, str]
    versions_now: dict[str, str]


def read_record(bundle: Path) -> Reproduction:
    """``finding.json`` of a bundle."""
    path = bundle / "finding.json"
    try:
        return Reproduction.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{bundle}: no bundle, {path.name} cannot be read ({error.strerror}); give a folder "
            "that optvet vet --out wrote"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {where}: {first['msg']}; make the bundle anew") from error


def replay_bundle(bundle: Path, plugins: Plugins, *, memory_bytes: int = 8 << 30) -> Replayed:
    """Judge a bundle again under the installed versions.

    Raises:
        UsageError: It is no bundle, or what it needs is not installed.
        InputError: Its model does not run any more, optimized or not.
    """
    record = read_record(bundle)
    accused = _accused_again(record, plugins)
    path = bundle / "model.onnx"
    if not path.is_file():
        raise InputError(f"{path} is missing; make the bundle anew")
    with tempfile.TemporaryDirectory(prefix="optvet-bundle-") as store:
        proto = open_model(path, str(path), Path(store)).load()
    feeds = read_arrays(bundle / "inputs.npz", record.inputs)
    preload = (*_PRELOAD, *accused.optimizer.preload, *accused.judge.runtime.preload)
    limits = Limits(record.timeout_s, memory_bytes)
    with Sandbox(jobs=1, limits=limits, preload=preload) as sandbox:
        seen = observe(proto, feeds, accused, sandbox).observation
    return Replayed(
        bundle=bundle.name,
        outcome=_outcome(record, seen),
        was=record.finding,
        now=None if seen is None else seen.symptom,
        message="" if seen is None else seen.message,
        versions_then=record.versions,
        versions_now=versions(accused.optimizer, accused.judge),
    )


def _outcome(record: Reproduction, seen: Observation | None) -> Outcome:
    if seen is None:
        return "fixed"
    same = (seen.symptom, seen.stage, _gist(seen))
    was = (record.finding.symptom, record.finding.stage, record.gist)
    return "still there" if same == was else "changed"


def _accused_again(record: Reproduction, plugins: Plugins) -> Accused:
    optimizer = plugins.optimizer(record.optimizer)
    options = parse_options(optimizer.name, optimizer.options, record.optimizer_options)
    if isinstance(optimizer, DependsOnOptions):
        optimizer = optimizer.configured(options)
    known = {p.name: p for p in optimizer.passes()}
    for name in record.passes:
        if name not in known:
            hint = f"(of {optimizer.name} {optimizer.version()})"
            raise UnknownName("pass", name, known, hint)
    runtime = plugins.runtime(record.runtime)
    judge = Judge(runtime, parse_options(runtime.name, runtime.options, record.runtime_options))
    own = "onnx" in runtime.accepts
    original = runtime if own else plugins.runtime("onnxruntime")
    base = tuple(n for n in record.passes if known[n].required)
    tolerances = [t for n in record.passes if (t := known[n].tolerance) is not None]
    accused = Accused(
        optimizer,
        options,
        tuple(record.finding.culprit),
        judge,
        judge if own else Judge(original, original.options),
        lambda culprit: tuple(record.passes) if culprit else base,
        lambda passes: frozenset[Any]().union(*(known[p].interface for p in passes)),
        lambda passes: max(tolerances, default=None),
    )
    if record.finding.symptom == Symptom.TIMEOUT:
        accused = replace(accused, timeout_s=record.timeout_s)
    return accused
