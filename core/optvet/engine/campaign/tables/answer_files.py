"""Answers of `optvet convert` and `optvet repair` that a user keeps as files of a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optvet.spec.errors import InputError, UsageError
from optvet.spec.foreign import files_in
from optvet.spec.parsing import read_json
from optvet.spec.records.convert import ConversionResult
from optvet.spec.records.reading import read_document
from optvet.spec.records.repair import RepairResult


@dataclass(frozen=True)
class KeptAnswers:
    """Answers of conversions and of repairs."""

    conversions: tuple[ConversionResult, ...] = ()
    repairs: tuple[RepairResult, ...] = ()


def read_answers(folders: Iterable[Path]) -> KeptAnswers:
    """All answers in folders and below them; other documents in JSON are left out.

    Raises:
        UsageError: A folder has none.
        InputError: A file cannot be read, or is no such answer though it says so.
    """
    conversions: list[ConversionResult] = []
    repairs: list[RepairResult] = []
    for folder in folders:
        before = len(conversions) + len(repairs)
        for file in files_in(folder, lambda path: path.suffix == ".json"):
            answer = _answer(file, read_json(file, "annotations"))
            if isinstance(answer, ConversionResult):
                conversions.append(answer)
            elif answer is not None:
                repairs.append(answer)
        if len(conversions) + len(repairs) == before:
            raise UsageError(
                f"{folder} has no answer of a conversion or a repair; write some with: "
                f"optvet convert SOURCE --via CHAIN --json {folder}/NAME.json"
            )
    return KeptAnswers(tuple(conversions), tuple(repairs))


def _answer(file: Path, document: Any) -> ConversionResult | RepairResult | None:
    schema = str(document.get("schema")) if isinstance(document, dict) else ""
    try:
        if schema.startswith("optvet.convert/"):
            return read_document(ConversionResult, document)
        if schema.startswith("optvet.repair/"):
            return read_document(RepairResult, document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{file} is no {schema}: {place}: {first['msg']}; write it again"
        ) from error
    return None
