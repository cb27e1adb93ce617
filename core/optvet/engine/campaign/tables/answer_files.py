"""Answers of other commands that a user keeps as files of a folder, for the tables of a study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optvet.spec.errors import InputError, UsageError
from optvet.spec.foreign import files_in
from optvet.spec.parsing import read_json
from optvet.spec.records import BenchResult, ModelComparison
from optvet.spec.records.convert import ConversionResult
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.records.reading import read_document
from optvet.spec.records.repair import RepairResult
from optvet.spec.validation_words import words_of

Answer = ConversionResult | RepairResult | ModelComparison | BenchResult | PrecisionResult
_SCHEMAS: dict[str, type[Answer]] = {
    "optvet.convert/": ConversionResult,
    "optvet.repair/": RepairResult,
    "optvet.compare/": ModelComparison,
    "optvet.bench/": BenchResult,
    "optvet.precision/": PrecisionResult,
}


@dataclass
class KeptAnswers:
    """Answers by command; some by the name of their file without ``.json``."""

    conversions: list[ConversionResult] = field(default_factory=list)
    repairs: dict[str, RepairResult] = field(default_factory=dict)
    comparisons: dict[str, ModelComparison] = field(default_factory=dict)
    benches: list[BenchResult] = field(default_factory=list)
    precisions: list[PrecisionResult] = field(default_factory=list)

    def add(self, file: Path, answer: Answer) -> None:
        """Keep the answer of ``file``."""
        if isinstance(answer, ConversionResult):
            self.conversions.append(answer)
        elif isinstance(answer, RepairResult):
            self.repairs[file.stem] = answer
        elif isinstance(answer, ModelComparison):
            self.comparisons[file.stem] = answer
        elif isinstance(answer, BenchResult):
            self.benches.append(answer)
        else:
            self.precisions.append(answer)


def read_answers(folders: Iterable[Path]) -> KeptAnswers:
    """All answers in folders and below them; other documents in JSON are left out.

    Raises:
        UsageError: A folder has none.
        InputError: A file cannot be read, or is no such answer though it says so.
    """
    kept = KeptAnswers()
    for folder in folders:
        found = False
        for file in files_in(folder, lambda path: path.suffix == ".json"):
            answer = _answer(file, read_json(file, "annotations"))
            if answer is not None:
                kept.add(file, answer)
                found = True
        if not found:
            raise UsageError(
                f"{folder} has no answer of convert, repair, compare, bench or precision; write "
                f"some with: optvet convert SOURCE --via CHAIN --json {folder}/NAME.json"
            )
    return kept


def _answer(file: Path, document: Any) -> Answer | None:
    schema = str(document.get("schema")) if isinstance(document, dict) else ""
    kind = next((kind for start, kind in _SCHEMAS.items() if schema.startswith(start)), None)
    if kind is None:
        return None
    try:
        return read_document(kind, document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{file} is no {schema}: {place}: {words_of(first)}; write it again"
        ) from error
