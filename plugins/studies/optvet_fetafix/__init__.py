"""The tables of FetaFix: faults of conversions of image classifiers, found by layers, and repaired.

Labels and layers are those of ``optvet compare --limit N --json NAME.before.json``, between a
source and what was made of it, and of ``NAME.after.json``, after the repair; the repair is the
answer of ``optvet repair --json NAME.json``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from optvet.plugin import (
    ReportTable,
    Study,
    StudyData,
    hookimpl,
    read_toml,
)

if TYPE_CHECKING:  # Every command loads this plugin, and few need these.
    from optvet.plugin import AnswerContrast, Edit, ModelComparison, RepairResult

Cell = str | int | float | None
_BEFORE, _AFTER = ".before", ".after"
_LAYERS = 10
"""Of each conversion, so many layers, those that tell the two groups of images apart best."""
_SIGNIFICANT = 0.05
_KINDS = ("weights", "biases", "hyperparameters", "layers", "preprocessing")


class Fetafix:
    """The study's tables."""

    name = "fetafix"
    description = "FetaFix: conversions of image classifiers, their faulty layers, and repairs"

    def tables(self, data: StudyData) -> Sequence[ReportTable]:
        """The study's tables, then those of any campaign of conversions."""
        return [
            conversions(data),
            other_labels(data),
            labels(data),
            layers(data.comparisons),
            repairs(data.repairs),
            *data.general,
        ]


@hookimpl
def optvet_studies() -> Iterable[Study]:
    """The study."""
    return [Fetafix()]


@cache
def published() -> Mapping[str, Any]:
    """What the study says of itself."""
    return read_toml(Path(__file__).with_name("published.toml"), "listing")


def conversions(data: StudyData) -> ReportTable:
    """Formats of sources and of results: how many conversions are right, wrong or refused."""
    counted: dict[tuple[str, str], Counter[str]] = {}
    for conversion in data.conversions:
        if (result := conversion.result) is not None:
            about = (result.source.format, result.stages[-1].format)
            counted.setdefault(about, Counter())[conversion.outcome] += 1
    rows: list[list[Cell]] = []
    for (source, target), found in sorted(counted.items()):
        wrong = sum(found[o] for o in ("differs", "does not run", "does not load"))
        refused = found["refused"] + found["died"]
        rows.append([source, target, found.total(), found["right"], wrong, refused])
    return ReportTable(
        title="FetaFix: conversions",
        note=f"The study converts between {', '.join(published()['frameworks'])}, each by way of "
        "ONNX where the converter needs it.",
        columns=["from", "to", "conversions", "right", "wrong", "refused"],
        rows=rows,
    )


def other_labels(data: StudyData) -> ReportTable:
    """Each model from one format to another: the share of images whose label changes (Fig. 1)."""
    rows: list[list[Cell]] = []
    for conversion in data.conversions:
        if (result := conversion.result) is None:
            continue
        known = result.impact.metrics if result.impact is not None else {}
        # An image is a row of a sample, which may be a batch.
        images, other = known.get("rows"), known.get("labels_changed")
        if result.impact is not None and other is None:
            continue  # it names no class
        share = 100 * other / images if images and other is not None else None
        about: list[Cell] = [PurePath(conversion.source).name, result.source.format]
        about += [result.stages[-1].format, conversion.chain]
        counts: list[Cell] = [None if n is None else int(n) for n in (images, other)]
        rows.append([*about, *counts, share, conversion.outcome, None])
    rows += [
        [each["model"], each["from"], each["to"], None, None, None, None, None, each["share"]]
        for each in published()["labels"]
    ]
    return ReportTable(
        title="FetaFix: images with another label after conversion",
        note="Of the images on which both models ran, those whose first label is another one. "
        "Last, what the text of the study says of its Figure 1, in %: other cells are in the "
        "picture alone.",
        columns=[
            *("model", "from", "to", "by", "images", "other label", "%", "outcome"),
            "study %",
        ],
        rows=rows,
    )


def labels(data: StudyData) -> ReportTable:
    """Each conversion: images whose label differs from the source's, before and after repair."""
    rows: list[list[Cell]] = []
    for name in _names(data):
        before, after = (_contrast(data.comparisons.get(name + e)) for e in (_BEFORE, _AFTER))
        repair = data.repairs.get(name)
        images = len(before.similar) + len(before.dissimilar) if before else None
        differ = [len(c.dissimilar) if c else None for c in (before, after)]
        share = [100 * n / images if images and n is not None else None for n in differ]
        verdict = repair.verdict if repair else None
        rows.append(
            [name, _chain(repair), images, differ[0], share[0], differ[1], share[1], verdict]
        )
    return ReportTable(
        title="FetaFix: labels before and after repair",
        note="Images whose label is another than the source's. A repair is kept only where no "
        "image gets worse.",
        columns=[
            *("conversion", "by", "images", "labels differ", "%"),
            *("after repair", "after repair, %", "verdict"),
        ],
        rows=rows,
    )


def _names(data: StudyData) -> list[str]:
    """What was repaired or compared, by name."""
    compared = [n.removesuffix(_BEFORE).removesuffix(_AFTER) for n in data.comparisons]
    return list(dict.fromkeys((*data.repairs, *compared)))


def _contrast(comparison: ModelComparison | None) -> AnswerContrast | None:
    return comparison.contrast if comparison else None


def _chain(repair: RepairResult | None) -> str:
    if repair is None:
        return ""
    return ", ".join(c.name for c in repair.converters) or "converted elsewhere"


def layers(comparisons: Mapping[str, ModelComparison]) -> ReportTable:
    """Layers by how far they differ on images with another label, against those with the same."""
    rows: list[list[Cell]] = []
    for name, comparison in comparisons.items():
        if (contrast := comparison.contrast) is None or not name.endswith(_BEFORE):
            continue
        for rank, layer in enumerate(contrast.layers[:_LAYERS], 1):
            about: list[Cell] = [name.removesuffix(_BEFORE), rank, layer.name, layer.operator]
            numbers = [layer.similar, layer.dissimilar, layer.f, layer.p, layer.rank_p]
            sure = None if layer.p is None else "yes" if layer.p < _SIGNIFICANT else "no"
            rows.append([*about, *numbers, sure])
    return ReportTable(
        title="FetaFix: layers",
        note="Root mean square of the difference relative to the source's value, mean over images "
        "with the same label and over those with another; F and p of an analysis of variance "
        f"between the two groups, rank p of the Kruskal-Wallis test. Significant: p below "
        f"{_SIGNIFICANT}. At most {_LAYERS} layers of each conversion.",
        columns=[
            *("conversion", "rank", "layer", "operator", "same label", "other label"),
            *("F", "p", "rank p", "significant"),
        ],
        rows=rows,
    )


def repairs(found: Mapping[str, RepairResult]) -> ReportTable:
    """Repairs by the study's kinds: edits that were kept, in how many conversions."""
    edits = [(name, _kind(edit, repair)) for name, repair in found.items() for edit in repair.edits]
    better = {name for name, r in found.items() if r.verdict in ("repaired", "improved")}
    rows: list[list[Cell]] = []
    for kind in _KINDS:
        those = {name for name, k in edits if k == kind}
        rows.append([kind, sum(k == kind for _, k in edits), len(those), len(those & better)])
    return ReportTable(
        title="FetaFix: repairs by kind",
        note="Edits of patches. Hyperparameters are attributes, and constants such as axes and "
        "pads; layers are nodes put in, taken out or replaced.",
        columns=["kind", "edits", "conversions", "better"],
        rows=rows,
    )


def _kind(edit: Edit, repair: RepairResult) -> str:
    if repair.place is not None and repair.place.preprocessing:
        return "preprocessing"
    kind = str(published()["kinds"][edit.kind])
    set_ = [o for o in edit.operations if o.operation == "set-weight"]
    is_bias = bool(set_) and all(len(o.tensor.shape) == 1 for o in set_)
    return "biases" if kind == "weights" and is_bias else kind
