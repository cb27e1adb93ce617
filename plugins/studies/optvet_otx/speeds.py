"""How fast models are at each level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from optvet.plugin import (
    ReportTable,
    Timing,
    TrialRow,
)
from optvet_otx.figures import (
    Cell,
    by_level,
    megabytes,
    percent,
    published,
    study_name_of,
)


def speed(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: how many models became slower or faster, and by how much; and the study's."""
    lines: list[list[Cell]] = []
    theirs: Mapping[str, str] = published()["speed_per_level"]
    for name, group in by_level(rows).items():
        known = [row.timing for row in group if row.timing]
        counted = Counter(timing.verdict for timing in known)
        ratios = [timing.ratio for timing in known if timing.ratio is not None]
        if known:
            lines.append(
                [
                    name,
                    len(known),
                    counted["faster"],
                    counted["no-difference"],
                    counted["slower"],
                    counted["undecided"],
                    median(ratios) if ratios else None,
                    min(ratios, default=None),
                    max(ratios, default=None),
                    theirs.get(group[0].parts.pipeline),
                ]
            )
    return ReportTable(
        title="OTX: speed per level",
        note="Of models that were timed (measure = true). Ratio: the time of one run over that of "
        "what the model was compared with, under the runtime's own defaults.",
        columns=[
            "level",
            "models",
            "faster",
            "no difference",
            "slower",
            "undecided",
            "ratio",
            "lowest",
            "highest",
            "OTX",
        ],
        rows=lines,
    )


def times(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model at each level: the time of one run, its interval, memory, and the study's."""
    lines: list[list[Cell]] = []
    still: Sequence[str] = published()["speed"]["no_difference"]
    faster: Mapping[str, float] = published()["speedup"]
    for name, group in by_level(rows).items():
        for row in group:
            if (timing := row.timing) is None:
                continue
            was, now, studied = timing.reference, timing.candidate, study_name_of(row.source)
            memory = [megabytes(s.memory_bytes) if s else None for s in (was, now)]
            busy = [percent(s.cpu_utilization) if s else None for s in (was, now)]
            known = studied in faster and row.parts.pipeline == "all"
            theirs = f"{faster[studied]:.2f} times as fast" if known else None
            lines.append(
                [
                    row.model,
                    name,
                    1000 * was.latency_s if was else None,
                    1000 * now.latency_s if now else None,
                    ratio_words(timing),
                    now.throughput if now else None,
                    *memory,
                    *busy,
                    sum(s.warm_ups for s in (was, now) if s),
                    timing.repeats,
                    timing.redone,
                    "no difference" if studied in still else theirs,
                ]
            )
    return ReportTable(
        title="OTX: time per model and level",
        note="Time of one run, of models that were timed (measure = true), and the ratio with its "
        "interval. Redone: rounds beyond three standard deviations, which were measured again. "
        "Each process first runs both models without counting. Processors: 100 % is one of them, "
        "all of the time. Last, the study's models that are not in this campaign.",
        columns=[
            "model",
            "level",
            "original ms",
            "optimized ms",
            "ratio",
            "runs per s",
            "original MB",
            "optimized MB",
            "original processors %",
            "optimized processors %",
            "warm-up runs",
            "processes",
            "redone",
            "OTX",
        ],
        rows=[*sorted(lines, key=lambda line: str(line[0])), *_unasked_times(rows)],
    )


def _unasked_times(rows: Sequence[TrialRow]) -> list[list[Cell]]:
    """What the study says of the time of models that are not among ``rows``, at its level all."""
    asked_names = {study_name_of(row.source) for row in rows}
    published_words = dict.fromkeys(published()["speed"]["no_difference"], "no difference")
    published_words |= {
        n: f"{ratio:.2f} times as fast" for n, ratio in published()["speedup"].items()
    }
    return [
        [name, "all", *[None] * 11, words]
        for name, words in published_words.items()
        if name not in asked_names
    ]


def ratio_words(timing: Timing | None) -> str | None:
    """The ratio of times with its interval and verdict; the verdict alone without a ratio."""
    if timing is None or timing.ratio is None:
        return None if timing is None else timing.verdict
    return f"{timing.ratio:.2f} ({timing.low:.2f}–{timing.high:.2f}), {timing.verdict}"
