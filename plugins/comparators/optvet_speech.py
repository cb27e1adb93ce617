"""Speech to text: scores per frame, and the words that come out of them.

Frames are decoded greedily (the best symbol of each frame, repeats merged, blanks dropped) where a
vocabulary says what the symbols are; models that give symbols or words themselves need no decoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Sample,
    Sensitive,
    Suggestion,
    Summary,
    hookimpl,
    parse_json,
    read_text,
    readable_outputs,
)

_TASK = re.compile(
    r"speech.recognition|\basr\b|speech.to.text|transcri|\bctc\b|phoneme|text.recognition|\bocr\b"
)
_FRAMES = re.compile(r"ctc|log_?prob|logit", re.IGNORECASE)


_COUNTS = (
    *("word_errors", "words", "character_errors", "characters"),
    *("truth_errors_reference", "truth_errors_candidate", "truth_words"),
)


class SpeechOptions(BaseModel):
    """Which output is heard, and how it becomes words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    """The output that has frames, symbols or words; found where it is empty."""
    layout: Literal["NTV", "TNV", "NVT"] = "NTV"
    """Meaning of the axes of frames: "N" batch, "T" time, "V" symbols."""
    vocabulary: Annotated[
        str | tuple[str, ...],
        Sensitive("reads a file", reads_data=True, unless=lambda v: not isinstance(v, str)),
    ] = ()
    """Symbols by number, or a file that has them: a JSON list, a JSON object from
    symbol to number, or lines of text. Empty: numbers stand for symbols.
    """
    blank: int = Field(default=0, ge=-1)
    """Number of CTC's blank; -1 for the last symbol."""
    separator: str = Field(default="|", min_length=1)
    """The symbol between words; numbers alone are words themselves."""


class SpeechComparator:
    """Frame agreement and error; word and character error rate of the decoded text."""

    name = "speech"
    suggestions = (Suggestion("speech"),)
    wants = ("jiwer",)
    options: SpeechOptions = SpeechOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.95 for a declared task; less for normalized scores per frame of float inputs."""
        if _TASK.search((model.task or "").lower()):
            return 0.95
        if len(outputs) != 1 or any(i.dtype != "float" for i in model.inputs):
            return 0.0
        name, value = next(iter(outputs.items()))
        if value.ndim != 3 or value.dtype.kind != "f" or not value.size or min(value.shape[1:]) < 2:
            return 0.0
        sound = all(len(i.shape or ()) in (2, 3) for i in model.inputs)
        wide = value.astype(np.float64)
        with np.errstate(over="ignore"):
            log = np.allclose(np.exp(wide).sum(axis=-1), 1, atol=1e-3)
        return 0.5 if sound and (log or _FRAMES.search(name)) else 0.0

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: SpeechOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Frames where there are scores; words where there are symbols or a vocabulary."""
        name = output_name(reference, options.output)
        expected, actual = reference[name], candidate[name]
        metrics: dict[str, float] = {}
        flips, firm = False, False
        symbols = vocabulary_of(options.vocabulary)
        texts: tuple[list[str], list[str]] | None = None
        if expected.dtype.kind == "f":
            first, second = (_frames(v, options.layout) for v in (expected, actual))
            metrics, wrong, sure = frame_metrics(first, second, noise.get(name, 0.0))
            flips, firm = bool(wrong.any()), bool((wrong & sure).any())
            if symbols and first.shape[-1] > 1:
                texts = tuple(  # type: ignore[assignment]  # two of them, as there are sides
                    [_decode(row, symbols, options) for row in best_of(v)] for v in (first, second)
                )
        else:
            texts = tuple(  # type: ignore[assignment]  # two of them, as there are sides
                [_join(row, symbols, options) for row in _rows(v)] for v in (expected, actual)
            )
        detail: dict[str, Any] = {}
        changed, sensitive = firm, flips and not firm
        if texts is not None:
            metrics |= _word_metrics(*texts)
            metrics |= _against_truth(sample.label, *texts)
            detail = {"reference": texts[0][:10], "candidate": texts[1][:10]}
            differ = texts[0] != texts[1]
            # Text is what a user sees; frames are not.
            changed = differ and (firm or not flips)
            sensitive = differ and not changed
        return Comparison(sample.id, metrics, changed, sensitive, detail)

    def metrics(self, options: SpeechOptions) -> Sequence[str]:
        """Every metric of a summary."""
        rates = ("wer", "cer", "wer_reference", "wer_candidate")
        frames = ("frames", "frame_agreement", "frame_rmse")
        return (*rates, *frames, *_COUNTS)

    def summarise(self, comparisons: Sequence[Comparison], options: SpeechOptions) -> Summary:
        """Errors are added over all samples before they are divided by the words there are."""
        metrics: dict[str, float] = {}
        for rate, errors, total in (
            ("wer", "word_errors", "words"),
            ("cer", "character_errors", "characters"),
            ("wer_reference", "truth_errors_reference", "truth_words"),
            ("wer_candidate", "truth_errors_candidate", "truth_words"),
        ):
            having = [c for c in comparisons if errors in c.metrics]
            if having:
                wrong = sum(c.metrics[errors] for c in having)
                metrics[rate] = error_rate(wrong, sum(c.metrics[total] for c in having))
                metrics[errors], metrics[total] = wrong, sum(c.metrics[total] for c in having)
        framed = [c for c in comparisons if "frames" in c.metrics]
        changed = sum(c.changed for c in comparisons)
        headline = f"{changed} of {len(comparisons)} utterances changed"
        if framed:
            frames = sum(c.metrics["frames"] for c in framed)
            agreed = sum(c.metrics["frame_agreement"] * c.metrics["frames"] for c in framed)
            metrics["frames"] = frames
            metrics["frame_agreement"] = agreed / frames if frames else 1.0
            metrics["frame_rmse"] = max(c.metrics["frame_rmse"] for c in framed)
        if "wer" in metrics:
            headline += f"; word error rate {metrics['wer']:.4g} between the two"
        elif framed:
            headline += f"; {metrics['frame_agreement']:.6g} of frames agree"
        if "wer_reference" in metrics:
            headline += f", {metrics['wer_reference']:.4g} → {metrics['wer_candidate']:.4g}"
        return Summary(metrics, headline)


def output_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has frames, symbols or words.

    Raises:
        InputError: There is none.
    """

    def fits(_: str, value: np.ndarray) -> bool:
        return value.dtype.kind in "fiuOUS" and value.ndim > 0

    fitting = readable_outputs("speech", outputs, wanted, fits, "with frames or symbols")
    words = [n for n in fitting if outputs[n].dtype.kind in "OUS"]
    frames = [n for n in fitting if outputs[n].dtype.kind == "f" and outputs[n].ndim == 3]
    return (words or frames or fitting)[0]


_MOST_BYTES = 64 << 20
_MOST_SYMBOLS = 1 << 24


def vocabulary_of(vocabulary: str | Sequence[str]) -> list[str]:
    """Symbols by number.

    Raises:
        InputError: The file cannot be read, or is no list of symbols.
    """
    if not isinstance(vocabulary, str):
        return list(vocabulary)
    if not vocabulary:
        return []
    try:
        text = read_text(vocabulary, _MOST_BYTES)
        if not text.lstrip().startswith(("{", "[")):
            return text.splitlines()
        data = parse_json(text, f"vocabulary {vocabulary}", "listing")
        if isinstance(data, dict):
            symbols = {int(v): str(k) for k, v in data.items()}
            if any(not 0 <= number < _MOST_SYMBOLS for number in symbols):
                raise ValueError(f"a number of a symbol is not below {_MOST_SYMBOLS:,}")
            return [symbols.get(i, "") for i in range(max(symbols, default=-1) + 1)]
        return [str(s) for s in data]
    except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise InputError(
            f"comparator 'speech': vocabulary {vocabulary} cannot be used: {error}; expected "
            "a JSON list, a JSON object from symbol to number, or lines of text"
        ) from error


def _frames(value: np.ndarray, layout: str) -> np.ndarray:
    """Frames as float64 [batch, time, symbols]; lone scores per frame have one symbol."""
    wide = value.astype(np.float64)
    if wide.ndim == 3:
        return np.transpose(wide, [layout.index(a) for a in "NTV"])
    if wide.ndim == 2:
        return wide[:, :, None]
    if wide.ndim == 1:
        return wide[None, :, None]
    raise InputError(
        f"comparator 'speech': frames have shape {list(value.shape)}, expected at most three axes; "
        "choose another output with the option 'output'"
    )


def _rows(value: np.ndarray) -> list[list[Any]]:
    """Symbols or words of each utterance; beams other than the first are left out."""
    if value.dtype.kind in "OUS":
        return [[str(v) for v in np.atleast_1d(value).ravel()]]
    if not value.size:
        return [[] for _ in range(len(value))]
    while value.ndim > 2:
        value = value[:, 0]
    rows: list[list[Any]] = np.atleast_2d(value).tolist()
    return rows


def best_of(frames: np.ndarray) -> np.ndarray:
    """The best symbol of each frame; NaN is never best, and of one score whether it is > 0.5."""
    if frames.shape[-1] == 1:
        return np.asarray(frames[..., 0] > 0.5).astype(np.int64)
    if not frames.size:
        return np.zeros(frames.shape[:-1], np.int64)
    return np.asarray(np.where(np.isnan(frames), -np.inf, frames).argmax(axis=-1))


def frame_metrics(
    reference: np.ndarray, candidate: np.ndarray, noise: float
) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Metrics of frames [batch, time, symbols]; which frames changed; where the reference was sure.

    ``frame_agreement`` is the share of frames with the same best symbol, ``frame_rmse`` the
    root-mean-square difference of all scores; infinite where one side alone is not finite.
    """
    first, second = best_of(reference), best_of(candidate)
    lost = (np.isnan(reference) != np.isnan(candidate)).any(axis=-1)
    wrong = (first != second) | lost
    with np.errstate(invalid="ignore", over="ignore"):
        if reference.shape[-1] == 1:
            margin = np.abs(reference[..., 0] - 0.5)
        else:
            margin = np.take_along_axis(reference, first[..., None], -1)[..., 0]
            margin = margin - np.take_along_axis(reference, second[..., None], -1)[..., 0]
        same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
        distance = np.where(same, 0.0, np.abs(reference - candidate))
        rmse = float(np.sqrt(np.mean(distance**2))) if distance.size else 0.0
    metrics = {
        "frames": float(wrong.size),
        "frame_agreement": float(np.mean(~wrong)) if wrong.size else 1.0,
        "frame_rmse": rmse if np.isfinite(rmse) else float("inf"),
    }
    return metrics, wrong, lost | ~(margin <= noise)


def ctc_collapsed(symbols: Sequence[int], blank: int) -> list[int]:
    """Merges repeats, then drops blanks: ``a a _ a b b`` is ``a a b``.

    Source: Graves, Fernández, Gomez, Schmidhuber 2006, "Connectionist temporal classification",
    section 3.1 (the map B) and 3.2 (best path decoding).
    """
    merged = [s for i, s in enumerate(symbols) if i == 0 or s != symbols[i - 1]]
    return [s for s in merged if s != blank]


def _decode(best: np.ndarray, symbols: Sequence[str], options: SpeechOptions) -> str:
    blank = options.blank if options.blank >= 0 else len(symbols) - 1
    return _join(ctc_collapsed(best.tolist(), blank), symbols, options)


def _join(row: Sequence[Any], symbols: Sequence[str], options: SpeechOptions) -> str:
    """Text of symbols; numbers without a vocabulary, and words, are separated by blanks."""
    if not symbols or any(isinstance(v, str) for v in row):
        return " ".join(str(v) for v in row)
    named = [symbols[v] if 0 <= v < len(symbols) else f"<{v}>" for v in row]
    return " ".join("".join(named).replace(options.separator, " ").split())


def error_rate(errors: float, total: float) -> float:
    """Errors per word; 1 if there are errors but no words, since that rate has no bound."""
    return errors / total if total else float(errors > 0)


def errors_of(reference: str, candidate: str) -> tuple[int, int, int, int]:
    """Word errors, words, character errors, characters of ``candidate`` against ``reference``.

    Errors are the substitutions, deletions and insertions of the cheapest alignment
    (Levenshtein's distance); their number per word of the reference is the word error rate.

    Source: Morris, Maier, Green 2004, "From WER and RIL to MER and WIL", section 2; jiwer.

    Raises:
        InputError: jiwer is not installed.
    """
    words, others = reference.split(), candidate.split()
    if reference == candidate or not words:
        missed = (0, 0) if reference == candidate else (len(others), len(candidate))
        return missed[0], len(words), missed[1], len(reference)
    try:
        import jiwer
    except ImportError as error:
        raise InputError(
            "comparator 'speech' needs jiwer for word error rates; install optvet[speech]"
        ) from error
    by_word = jiwer.process_words(reference, candidate)
    by_character = jiwer.process_characters(reference, candidate)
    counts = [r.substitutions + r.deletions + r.insertions for r in (by_word, by_character)]
    return counts[0], len(words), counts[1], len(reference)


def _word_metrics(reference: Sequence[str], candidate: Sequence[str]) -> dict[str, float]:
    found = [errors_of(a, b) for a, b in zip(reference, candidate, strict=True)]
    sums = [float(sum(column)) for column in zip(*found, strict=True)] or [0.0] * 4
    return {
        "wer": error_rate(sums[0], sums[1]),
        "cer": error_rate(sums[2], sums[3]),
        "word_errors": sums[0],
        "words": sums[1],
        "character_errors": sums[2],
        "characters": sums[3],
    }


def _against_truth(
    label: Any, reference: Sequence[str], candidate: Sequence[str]
) -> dict[str, float]:
    """Word error rates of both sides against the transcript, where the sample has one."""
    truth = [label] if isinstance(label, str) else label
    if not isinstance(truth, (list, tuple)) or not all(isinstance(t, str) for t in truth):
        return {}
    if len(truth) != len(reference):
        return {}
    words = float(sum(len(t.split()) for t in truth))
    before, after = (
        float(sum(errors_of(t, s)[0] for t, s in zip(truth, side, strict=True)))
        for side in (reference, candidate)
    )
    return {
        "wer_reference": error_rate(before, words),
        "wer_candidate": error_rate(after, words),
        "truth_errors_reference": before,
        "truth_errors_candidate": after,
        "truth_words": words,
    }


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "speech"."""
    return [SpeechComparator()]
