"""The tables of the failure study of converters, for a stored campaign of conversions.

The study took 200 reported failures of tf2onnx and torch.onnx apart, by stage, symptom and cause,
and converted real and synthetic models. Operator sequences and operator sets are read from sources
in ONNX; of sources in Python there is no such graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from optvet.graph import is_synthetic, sequences_of
from optvet.plugin import (
    ConversionFault,
    ReportTable,
    StudiedConversion,
    Study,
    StudyData,
    hookimpl,
    read_toml,
)

Cell = str | int | float | None
Sequences = frozenset[tuple[str, ...]]

_LENGTHS = (3, 4, 5)
_LISTED = 20
_STAGES = ("load", "node conversion", "optimization", "export", "validation", "unclear")
_SYMPTOMS: Mapping[str, str] = {
    "refused": "crash",
    "crash": "crash",
    "out-of-memory": "crash",
    "timeout": "bad performance",
    "wrong-output": "wrong model",
    "invalid-model": "wrong model",
    "load-failure": "wrong model",
    "run-failure": "wrong model",
    "interface-change": "wrong model",
}
"""The study's word for a symptom; of any other, "other"."""
_OF_STUDY = ("crash", "wrong model", "bad performance", "other")


class Converters:
    """The study's tables."""

    name = "converters"
    description = "Failures of tf2onnx and torch.onnx: stages, symptoms, causes, operators"

    def tables(self, data: StudyData) -> Sequence[ReportTable]:
        """The study's tables, then those of any campaign of conversions."""
        found = data.conversions
        return [
            stages(found),
            symptoms(found),
            causes(found),
            outcomes(found),
            operators(found),
            sequences(found),
            operator_sets(found),
            *data.general,
        ]


@hookimpl
def optvet_studies() -> Iterable[Study]:
    """The study."""
    return [Converters()]


@cache
def published() -> Mapping[str, Any]:
    """The figures that the study printed."""
    return read_toml(Path(__file__).with_name("published.toml"), "listing")


def _faults(found: Iterable[StudiedConversion]) -> Iterator[ConversionFault]:
    return (fault for conversion in found for fault in conversion.faults)


def _stage(fault: ConversionFault) -> str:
    """The study's word for a stage; what a runtime or a checker alone sees is validation."""
    if fault.stage in _STAGES:
        return fault.stage
    return "validation" if fault.stage == "target runtime" else "unclear"


def _symptom(fault: ConversionFault) -> str:
    return _SYMPTOMS.get(str(fault.finding.symptom), "other")


def _count_pairs(
    pairs: Iterable[tuple[str, str]], columns: Sequence[str]
) -> Iterator[tuple[str, list[int]]]:
    """Counts of pairs: per first part, in order of its name, those of each second part."""
    counted = Counter(pairs)
    for name in sorted({first for first, _ in counted}):
        yield name, [counted[name, column] for column in columns]


def stages(found: Sequence[StudiedConversion]) -> ReportTable:
    """Converter × stage: faults and refusals, and their shares beside the study's."""
    faults = list(_faults(found))
    lines: list[list[Cell]] = [
        [name, *counts, sum(counts)]
        for name, counts in _count_pairs(((f.converter, _stage(f)) for f in faults), _STAGES)
    ]
    counts = Counter(map(_stage, faults))
    shares = [100 * counts[stage] / len(faults) if faults else None for stage in _STAGES]
    paper: Mapping[str, float] = published()["stages"]
    lines.append(["all, %", *shares, 100.0 if faults else None])
    lines.append(["the study, %", *(paper[stage] for stage in _STAGES), None])
    return ReportTable(
        title="Converters: by stage",
        note="Faults and refusals. Validation: the checker or a runtime refuses what was made. "
        "Unclear: several stages, with nothing between that could be run.",
        columns=["converter", *_STAGES, "all"],
        rows=lines,
    )


def symptoms(found: Sequence[StudiedConversion]) -> ReportTable:
    """Converter × symptom."""
    pairs = ((fault.converter, _symptom(fault)) for fault in _faults(found))
    return ReportTable(
        title="Converters: by symptom",
        note="A crash raises an error or ends the converter; a wrong model does not load, does not "
        "run or gives other results.",
        columns=["converter", *_OF_STUDY],
        rows=[[name, *counts] for name, counts in _count_pairs(pairs, _OF_STUDY)],
    )


def causes(found: Sequence[StudiedConversion]) -> ReportTable:
    """Cause × symptom."""
    pairs = ((fault.cause.name, _symptom(fault)) for fault in _faults(found))
    return ReportTable(
        title="Converters: causes by symptom",
        note="Causes are proposed from messages, places and other runtimes; where these name none "
        "or several, the cause is unclear.",
        columns=["cause", *_OF_STUDY],
        rows=[[name, *counts] for name, counts in _count_pairs(pairs, _OF_STUDY)],
    )


def outcomes(found: Sequence[StudiedConversion]) -> ReportTable:
    """Per chain and kind of model: conversions tried, converted, valid and equal."""
    groups = _chains_and_kinds([c for c in found if c.result is not None])
    lines: list[list[Cell]] = []
    for (chain, kind), group in groups.items():
        counts = Counter(c.outcome for c in group)
        converted = len(group) - counts["refused"] - counts["died"]
        valid = converted - counts["does not load"] - counts["does not run"]
        right = counts["right"]
        ours: list[Cell] = [len(group), converted, valid, right, 100 * right / len(group)]
        same = published()["same_converter"].get(chain) if kind == _REAL else None
        shares: Mapping[str, float] = published()["conversions"].get(same, {})
        theirs = [shares.get(name) for name in ("refused", "does not load", "differs", "right")]
        lines.append([chain, kind, *ours, same, *theirs])
    known = {line[7] for line in lines}
    lines += [
        [None, _REAL, None, None, None, None, None, name, *shares.values()]
        for name, shares in published()["conversions"].items()
        if name not in known
    ]
    return ReportTable(
        title="Converters: tried, converted, valid, equal",
        note="Valid: onnx.checker and the runtime take it. Equal: the same results but for "
        "rounding. Synthetic models are those of `optvet models generate`; the study's shares are "
        "of real models.",
        columns=[
            *("chain", "models", "tried", "converted", "valid", "equal", "equal %"),
            *("study", "refused %", "not loaded %", "differ %", "right %"),
        ],
        rows=lines,
    )


_REAL, _SYNTHETIC = "real", "synthetic"
_ALL = "all"


def _chains_and_kinds(
    found: Sequence[StudiedConversion],
) -> dict[tuple[str, str], list[StudiedConversion]]:
    """Conversions by chain and kind of model, real ones first; then those of all chains."""
    chains = list(dict.fromkeys(c.chain for c in found))
    groups: dict[tuple[str, str], list[StudiedConversion]] = {}
    for chain in [*chains, _ALL] if len(chains) > 1 else chains:
        for kind in (_REAL, _SYNTHETIC):
            those = [c for c in found if chain in (_ALL, c.chain) and _kind(c) == kind]
            if those:
                groups[chain, kind] = those
    return groups


def _kind(conversion: StudiedConversion) -> str:
    made = conversion.graph is not None and is_synthetic(conversion.graph)
    return _SYNTHETIC if made else _REAL


# --- operators -----------------------------------------------------------------------------------


def operators(found: Sequence[StudiedConversion]) -> ReportTable:
    """Operators of failing sources that no other source has, and whether they are tested."""
    known = tested_alone()
    return ReportTable(
        title="Converters: operators that occur only in failing sources",
        note=f"Tested: one of the {len(known)} operators that ONNX's own backend tests are of, "
        f"which converters of ONNX models run.{_unread(found)}",
        columns=["operator", "chain", "failing sources", "of", "tested"],
        rows=_only_in_failing(found, (1,), known),
    )


def sequences(found: Sequence[StudiedConversion]) -> ReportTable:
    """Sequences of operators of failing sources that no other source has, and who tests them."""
    known = tested(_LENGTHS)
    return ReportTable(
        title="Converters: operator sequences that occur only in failing sources",
        note="Three to five operators, each of which reads what the one before makes. Tested: in a "
        f"model of ONNX's own backend tests ({len(known):,} such sequences), which converters of "
        f"ONNX models run; their packages bring no tests of their own.{_unread(found)}",
        columns=["sequence", "chain", "failing sources", "of", "tested"],
        rows=_only_in_failing(found, _LENGTHS, known),
    )


def _unread(found: Sequence[StudiedConversion]) -> str:
    unread = sum(c.graph is None for c in found)
    return f" Sources without a graph in ONNX, not counted: {unread}." if unread else ""


def _only_in_failing(
    found: Sequence[StudiedConversion], lengths: tuple[int, ...], known: Sequences
) -> list[list[Cell]]:
    """Per chain, those with the most failing sources first."""
    lines: list[list[Cell]] = []
    read = [c for c in found if c.graph is not None and c.result is not None]
    for chain in dict.fromkeys(c.chain for c in read):
        group = [c for c in read if c.chain == chain]
        sound = frozenset[tuple[str, ...]]().union(
            *(_of(c, lengths) for c in group if not c.failed)
        )
        failing = [c for c in group if c.failed]
        counts = Counter(s for c in failing for s in _of(c, lengths) - sound)
        # A longer one that as many fail with says no more than the shorter one within it.
        longest = {s: n for s, n in counts.items() if not _within(s, counts, min(lengths))}
        ordered = sorted(longest.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
        lines += [
            [" → ".join(s), chain, n, len(failing), "yes" if s in known else "no"]
            for s, n in ordered[:_LISTED]
        ]
    return lines


def _of(conversion: StudiedConversion, lengths: tuple[int, ...]) -> Sequences:
    assert conversion.graph is not None
    return frozenset(s for length in lengths for s in sequences_of(conversion.graph, length))


def _within(sequence: tuple[str, ...], counts: Mapping[tuple[str, ...], int], least: int) -> bool:
    parts = (sequence[:-1], sequence[1:])
    return len(sequence) > least and any(counts.get(p) == counts[sequence] for p in parts)


@cache
def tested(lengths: tuple[int, ...]) -> Sequences:
    """Sequences of so many operators in the models of the backend tests that the wheel brings."""
    import onnx
    from onnx.backend import test

    found: set[tuple[str, ...]] = set()
    folder = Path(test.__file__).parent / "data"
    for file in sorted(folder.rglob("*.onnx")):
        model = onnx.load(file, load_external_data=False)
        found.update(s for length in lengths for s in sequences_of(model, length))
    return frozenset(found)


@cache
def tested_alone() -> Sequences:
    """Operators that have a backend test: a node is made in its code, which takes long to run."""
    from onnx.backend.test import case

    folder = Path(case.__file__).parent / "node"
    found: set[str] = set()
    for file in sorted(folder.rglob("*.py")):
        domain = "" if file.parent == folder else f"{file.parent.name.replace('_', '.')}::"
        found |= {f"{domain}{name}" for name in _MAKES_NODE.findall(file.read_text("utf-8"))}
    return frozenset((name,) for name in found)


_MAKES_NODE = re.compile(r"""make_node\(\s*["'](\w+)["']""")


def operator_sets(found: Sequence[StudiedConversion]) -> ReportTable:
    """Per operator set: what changed in it, and failures of sources that import it."""
    read = [(c, _opset(c)) for c in found if c.result is not None and c.graph is not None]
    changed = changes()
    pairs: list[tuple[int, float]] = []
    lines: list[list[Cell]] = []
    for opset in sorted({o for _, o in read}):
        group = [c for c, o in read if o == opset]
        failed = sum(c.failed for c in group)
        share = failed / len(group)
        pairs.append((changed[opset], share))
        lines.append([opset, changed[opset], len(group), failed, 100 * share])
    return ReportTable(
        title="Converters: failures and changes of operator sets",
        note="Changed: operators that have a new version, or appear, in this set or any before it "
        f"since version 7. {_correlate(pairs)}",
        columns=["operator set", "changed operators", "conversions", "failed", "failed %"],
        rows=lines,
    )


def _opset(conversion: StudiedConversion) -> int:
    assert conversion.graph is not None
    imports = {o.domain: o.version for o in conversion.graph.opset_import}
    return int(imports.get("", imports.get("ai.onnx", 1)))


@cache
def changes() -> Mapping[int, int]:
    """Per operator set of ONNX, the changes of operators from set 7 to it."""
    from onnx import defs

    since = Counter(s.since_version for s in defs.get_all_schemas_with_history() if not s.domain)
    last = defs.onnx_opset_version()
    return {v: sum(since[u] for u in range(8, v + 1)) for v in range(1, last + 1)}


def _correlate(pairs: Sequence[tuple[int, float]]) -> str:
    words = "Spearman's rank correlation of changes and share that failed:"
    if len(pairs) < 3:
        return f"{words} not told of fewer than 3 operator sets."
    first, second = zip(*pairs, strict=True)
    if len({*second}) < 2:
        return f"{words} not defined, since all shares are equal."
    from scipy import stats  # Here, since importing it takes a second.

    correlation = stats.spearmanr(first, second)
    return f"{words} rho {correlation.statistic:.2f}, p {correlation.pvalue:.2g}, n {len(pairs)}."
