"""A document of a known fault, made of a bundle and perhaps of the answer of ``bisect``."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto
from pydantic import ValidationError

from optvet.engine.bisect.run import released_packages
from optvet.engine.bundle.folder import open_bundled, read_record
from optvet.engine.discovery import Plugins
from optvet.engine.known.documents import look_at_fault
from optvet.engine.work.native import native_code
from optvet.graph.walk import ONNX_DOMAIN, domain_of
from optvet.graph.weights import constants_of
from optvet.spec.errors import InputError, UsageError
from optvet.spec.records import BisectResult, Reproduction
from optvet.spec.records.known import AffectedRange, KnownFault
from optvet.spec.scratch import temporary_folder
from optvet.spec.toml_lines import join_with_dots
from optvet.spec.validation_words import words_of

_MOST_NODES = 30
_MOST_ELEMENTS = 64
_ID_CHARS = 120


def fault_from_bundle(
    bundle: Path, plugins: Plugins, *, answer: BisectResult | None = None, today: datetime.date
) -> KnownFault:
    """A document to complete by hand: its trigger has the operators of the model, no more.

    Args:
        bundle: A reduced bundle.
        plugins: The installed plugins, which tell the package of an optimizer.
        answer: Dates the fault; without it, it is dated by the version of the bundle alone.
        today: When it was checked.

    Raises:
        UsageError: It is no bundle, its optimizer has no package, or the answer is of another one.
        InputError: Its model is too large to be a text.
    """
    record = read_record(bundle)
    package = _package_of(bundle, record, plugins)
    if answer is not None and answer.package != package:
        raise UsageError(f"the answer of bisect is about {answer.package}, the bundle {package}")
    with temporary_folder("optvet-bundle-") as store:
        model = open_bundled(bundle, Path(store)).load()
    named = record.versions.get(package) or record.versions.get(record.optimizer) or ""
    # Some optimizers name a second library too: "0.7.2 (acme_ir 0.1)".
    version = named.partition(" ")[0]
    affected, oldest, newest = _dated(answer, version)
    culprit = record.finding.culprit
    about = dict(
        schema="optvet.known/1",
        id=_id_of(package, record),
        title=f"{' then '.join(culprit) or 'import and export'}: {record.finding.symptom}",
        package=package,
        optimizer=record.optimizer,
        passes=culprit if len(culprit) <= 1 else [],
        pipeline=culprit if len(culprit) > 1 else [],
        symptom=record.finding.symptom,
        severity="note" if record.finding.severity == "note" else "fault",
        affected=affected,
        oldest=oldest,
        newest=newest,
        checked=today.isoformat(),
        trigger=trigger_of(model),
        fingerprints=[record.fingerprint],
        model=_as_text(bundle, model),
    )
    return _checked(bundle, about)


def _package_of(bundle: Path, record: Reproduction, plugins: Plugins) -> str:
    """The package of the record's optimizer."""
    package = next(
        (
            name
            for name, several in released_packages(plugins).items()
            if record.optimizer in dict(several)
        ),
        None,
    )
    if package is None:
        raise UsageError(
            f"{bundle}: optimizer {record.optimizer!r} declares no package; see docs/plugins.md"
        )
    return package


def _checked(bundle: Path, about: Mapping[str, object]) -> KnownFault:
    """The document with these values.

    Raises:
        InputError: What the bundle says makes none.
    """
    try:
        fault = KnownFault.model_validate(about)
    except ValidationError as error:
        first = error.errors()[0]
        where = join_with_dots(first["loc"])
        raise InputError(
            f"{bundle}: {where} of its document: {words_of(first)}; write the document by hand"
        ) from error
    with native_code() as call:
        problem, _ = call(f"{bundle}: reading its model", look_at_fault, fault)
    if problem:
        raise InputError(f"{bundle}: {problem}; write its document by hand")
    return fault


def _id_of(package: str, record: Reproduction) -> str:
    words = "-".join((package, *record.finding.culprit, record.finding.symptom))
    return re.sub(r"[^a-z0-9]+", "-", words.lower())[:_ID_CHARS].strip("-")


def _dated(answer: BisectResult | None, version: str) -> tuple[list[AffectedRange], str, str]:
    """The affected releases, and the oldest and the newest one that were decided."""
    if answer is None:
        return [AffectedRange(introduced=version)], version, version
    decided = [r for r in answer.releases if r.state in ("good", "bad")]
    if not decided:
        raise UsageError("the answer of bisect has no release that is good or bad")
    ranges: list[AffectedRange] = []
    if decided[0].state == "bad":
        ranges.append(AffectedRange())
    for change in answer.changes:
        if change.to == "bad":
            ranges.append(AffectedRange(introduced=change.first, good_before=change.last))
        elif ranges:
            ranges[-1] = ranges[-1].model_copy(update={"fixed": change.first})
    if not ranges:
        raise UsageError("the answer of bisect has no bad release")
    return ranges, decided[0].version, decided[-1].version


def trigger_of(model: ModelProto) -> str:
    """A pattern of all nodes of the outermost graph, without their attributes."""
    constants = set(constants_of(model))
    names: dict[str, str] = {}

    def short(name: str) -> str:
        if not name:
            return "-"
        kind = "C" if name in constants else "v"
        return names.setdefault(name, f"{kind}{len(names)}")

    lines = [_line(node, short) for node in model.graph.node if node.op_type != "Constant"]
    return "\n".join(lines or [_line(node, short) for node in model.graph.node])


def _line(node: NodeProto, short: object) -> str:
    assert callable(short)
    domain = domain_of(node)
    name = node.op_type if domain == ONNX_DOMAIN else f"?.{node.op_type}"
    results = ", ".join(short(result) if result else "_" for result in node.output)
    operands = ", ".join(short(operand) for operand in node.input)
    return f"{results} = {name}({operands})"


def _as_text(bundle: Path, model: ModelProto) -> str:
    """The model as ONNX text with all of its weights, which must be few and small."""
    elements = sum(math.prod(t.dims) for t in model.graph.initializer)
    if len(model.graph.node) > _MOST_NODES or elements > _MOST_ELEMENTS * _MOST_NODES:
        raise InputError(f"{bundle}: its model is too large for a text; reduce it (--reduce)")
    with native_code() as call:
        what = f"{bundle}: reading its model"
        return str(call(what, onnx.printer.to_text, model))
