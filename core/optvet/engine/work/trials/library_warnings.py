"""Warnings that libraries write to stderr: which lines are some, and which of them are equal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from optvet.spec.extras import WorkerExtras, extras
from optvet.spec.symptoms import Stage
from optvet.spec.types import LogFormat, Sample

_LINE_CHARS = 2000
_SHOWN_CHARS = 500
# Each takes linear time: the text is untrusted.
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TIME = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?Z?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
)
_GLOG = re.compile(r"([IWEF])\d{4,8} [\d:.]{1,20} +\d+ [^\s\]]+\] ?")
_PYTHON = re.compile(r"\S+:\d+: (?=\w+: )")
_CHATTER = re.compile(r".{0,80}?\b(?:INFO|DEBUG|TRACE|VERBOSE)\b ?[\]:|-]|\W{0,8}[Ii]nfo: ")
_ADDRESS = re.compile(r"\b0[xX][0-9a-fA-F]+")
_THREAD = re.compile(r"\b(thread|tid|pid)([ :=#]{1,3})\d+", re.IGNORECASE)
_SOURCE_LINE = re.compile(r"(\.\w{1,4}):\d+\b")
_LETTER = re.compile(r"[A-Za-z]")
_QUOTED = re.compile(r"""'[^'\n]*'|"[^"\n]*"|`[^`\n]*`""")
_BETWEEN = re.compile(r"[\s:,;=()\[\]{}<>!?]+")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


@dataclass(frozen=True)
class Warned:
    """A warning: the stage in which it came, the plugin whose library it is of, and how often.

    ``text`` is one line, without times, addresses, numbers of threads and source lines. ``by`` is
    empty where no plugin's log format tells.
    """

    stage: Stage
    text: str
    by: str = ""
    count: int = 1


def formats_of(*plugins: object) -> dict[str, LogFormat]:
    """The log formats that ``plugins`` declare, by the plugin's name."""
    found = {str(getattr(p, "name", "")): extras(p, WorkerExtras).log_format for p in plugins}
    return {name: form for name, form in found.items() if form is not None}


def warnings_in(
    stderr: Sequence[tuple[Stage, str]], formats: Mapping[str, LogFormat]
) -> tuple[Warned, ...]:
    """The warnings in what was written to stderr, equal ones of one stage once."""
    found: Counter[tuple[Stage, str, str]] = Counter()
    for stage, text in stderr:
        found.update((stage, words, by) for words, by in _messages(text, formats))
    return tuple(Warned(stage, words, by, n) for (stage, words, by), n in found.items())


def by_sample(
    stderr: Sequence[tuple[Stage, str]], samples: Sequence[Sample], formats: Mapping[str, LogFormat]
) -> tuple[tuple[Warned, ...], dict[str, tuple[Warned, ...]]]:
    """The warnings of a trial before its model was loaded, and those of its load and each run.

    The load belongs to every sample: which of them were run together is by chance.
    """
    before: list[tuple[Stage, str]] = []
    load: list[tuple[Stage, str]] = []
    runs: list[tuple[Stage, str]] = []
    for part in stderr:
        {"load": load, "run": runs}.get(part[0], before).append(part)
    # A model with random operators is loaded anew for each sample.
    once = warnings_in(load[:1], formats)
    during = {
        sample.id: once + warnings_in(runs[i : i + 1], formats)
        for i, sample in enumerate(samples)
        if i < len(runs) or once
    }
    return warnings_in(before, formats), during


def together(runs: Sequence[Sequence[Warned]]) -> list[Warned]:
    """The warnings of one load, and of all runs."""
    counts: dict[tuple[Stage, str, str], int] = {}
    for each in runs:
        for w in each:
            about = (w.stage, w.text, w.by)
            known = counts.get(about, 0)
            counts[about] = max(known, w.count) if w.stage == "load" else known + w.count
    return [Warned(*about, n) for about, n in counts.items()]


def without_warnings(text: str, formats: Mapping[str, LogFormat]) -> str:
    """The lines of ``text`` that are no log's, and those of errors in a log."""
    lines = text.splitlines()
    kept = [line for line in lines if _may_be_a_cause(_ANSI.sub("", line), formats)]
    return text if len(kept) == len(lines) else "\n".join(kept).strip()


def _may_be_a_cause(line: str, formats: Mapping[str, LogFormat]) -> bool:
    logged = _match_line(line, formats)
    return logged is None or logged[1]["severity"] in formats[logged[0]].errors


def _messages(text: str, formats: Mapping[str, LogFormat]) -> Iterator[tuple[str, str]]:
    """Warnings in order, each with the plugin whose format it has."""
    # Not splitlines: it would take the parts of a progress bar for lines.
    for raw in text.split("\n"):
        line = _ANSI.sub("", raw[:_LINE_CHARS].rstrip())
        if "\r" in line or "\b" in line or line[:1].isspace() or not _LETTER.search(line):
            continue  # A progress bar, the continuation of the line above, a rule.
        logged = _parse_log_line(line, formats)
        if logged is None:
            words, by = _plain(line), ""
        else:
            words, by = logged
        if words:
            yield _clean(words), by


def _parse_log_line(line: str, formats: Mapping[str, LogFormat]) -> tuple[str, str] | None:
    """Text and plugin of a line of a log, the text empty if it is no warning; None otherwise."""
    found = _match_line(line, formats)
    if found is None:
        return None
    name, match = found
    form = formats[name]
    return (match["text"] if match["severity"] in form.warnings | form.errors else ""), name


def _match_line(line: str, formats: Mapping[str, LogFormat]) -> tuple[str, re.Match[str]] | None:
    """The plugin whose log has lines of this form, and the match."""
    for name, form in formats.items():
        match = re.match(form.line, line[:_LINE_CHARS])
        if match is not None:
            return name, match
    return None


def _plain(line: str) -> str:
    """A line in no declared format, without its prefix; empty if it says that it is no warning."""
    line = _TIME.sub("", line, count=1).strip()
    glog = _GLOG.match(line)
    if glog is not None:
        return line[glog.end() :] if glog[1] != "I" else ""
    if _CHATTER.match(line) or line.startswith("Traceback (most recent call last)"):
        return ""
    return _PYTHON.sub("", line, count=1) if _PYTHON.match(line) else line


def _clean(words: str) -> str:
    """Without what differs from run to run."""
    words = _THREAD.sub(r"\1\2#", _ADDRESS.sub("0x…", _TIME.sub("", words)))
    words = " ".join(_SOURCE_LINE.sub(r"\1", words).split())
    return words if len(words) <= _SHOWN_CHARS else f"{words[: _SHOWN_CHARS - 1]}…"


def pattern_of(text: str, names: AbstractSet[str]) -> str:
    """The words of a warning without ``names``, quoted texts, numbers, paths and identifiers.

    Warnings that differ in names alone are the same one about another part of a model.
    """
    words = _BETWEEN.split(_QUOTED.sub(" ", text))
    kept = [w.strip(".'-") for w in words if w not in names]
    return " ".join(w for w in kept if _WORD.fullmatch(w) and w not in names)
