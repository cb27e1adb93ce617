"""Keywords of the Python functions, with the types that each takes.

They are the fields of the requests: a request checks and converts the values. A test compares both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from optvet.spec.request import EachOn, OnBad, Strategy

Strings = str | Sequence[str]
"""One name or several; a comma separates names too where the command line takes a list."""
PathLike = str | os.PathLike[str]
Options = Mapping[str, Any]
"""Options of a plugin, by name."""
Tolerances = str | float | Sequence[str | float]
"""``1e-3``, or ``OUTPUT:1e-3`` for one output."""
Size = int | str
"""Bytes, such as 536870912 or ``512M``."""
Seconds = float | str
"""Seconds, such as 90 or ``90s``."""


class _JudgingKeywords(TypedDict, total=False):
    """What judging has in common, by a vet and by a search for precision."""

    optimizer: str | None
    optimizer_options: Options
    runtime: str | None
    runtime_options: Options
    comparator: str | None
    comparator_options: Options
    require: Strings
    rtol: Tolerances
    atol: Tolerances
    user_model: str | None
    dataset_options: Options
    start: int
    limit: int | None
    shuffle: bool
    on_bad: OnBad
    seed: int
    jobs: int | None
    timeout: Seconds
    budget: Seconds | None
    memory: Size
    cache: bool
    cache_dir: PathLike | None
    trust: bool


class VetOptions(_JudgingKeywords, total=False):
    """Fields of ``VetRequest`` beside the model and its inputs."""

    pipeline: Strings
    exclude: Strings
    strategy: Strategy
    pairs: bool | None
    orders: int | None
    each_on: EachOn
    cross_check: Strings
    clean: bool
    measure: bool
    slower_than: float
    structure: bool
    fixed_tolerances: bool
    warnings: bool
    reduce: bool
    out: PathLike | None
    save: PathLike | None
    fail_on: Strings


class BisectOptions(VetOptions, total=False):
    """Fields of ``BisectRequest`` beside the model and its inputs."""

    package: str
    good: str | None
    bad: str | None
    versions: str | None
    pre: bool
    index: PathLike | None
    room: Size
    symptom: str | None
    culprit: str | None
    check: str | None
    check_timeout: Seconds


class AdviseOptions(TypedDict, total=False):
    """How ``advise`` looks for known faults; see ``optvet advise --help``."""

    confirm: bool | None
    index: PathLike | None
    known: Sequence[PathLike]
    trust: bool
    cache_dir: PathLike | None


class BenchOptions(TypedDict, total=False):
    """Fields of ``BenchRequest`` beside the model and its inputs."""

    optimizer: Strings
    pipeline: Strings
    optimizer_options: Options
    runtime: str | None
    provider: Strings
    runtime_options: Options
    repeats: int
    extra_repeats: bool
    threshold: float
    comparator: str | None
    comparator_options: Options
    ncu: bool
    blame: bool
    dataset_options: Options
    limit: int
    seed: int
    timeout: Seconds
    memory: Size
    cache_dir: PathLike | None
    trust: bool


class _ConversionKeywords(TypedDict, total=False):
    """What converting and repairing have in common."""

    via: Strings
    converted: PathLike | None
    converter_options: Options
    registered: Strings
    runtime: str | None
    cross_check: Strings
    environments: Mapping[str, str]
    random: int
    edges: bool
    sizes: bool
    seed: int
    jobs: int | None
    budget: Seconds | None
    timeout: Seconds
    memory: Size
    trust: bool


class ConvertOptions(_ConversionKeywords, total=False):
    """Fields of ``ConvertRequest`` beside the source and its inputs."""

    comparator: str | None
    comparator_options: Options
    require: Strings
    rtol: Tolerances
    atol: Tolerances
    dataset_options: Options
    start: int
    limit: int | None
    shuffle: bool
    on_bad: OnBad
    measure: bool
    slower_than: float
    cache: bool
    cache_dir: PathLike | None
    fixed_tolerances: bool
    out: PathLike | None


class RepairOptions(_ConversionKeywords, total=False):
    """Fields of ``RepairRequest`` beside the source, its inputs, ``out`` and ``apply``."""

    optimizer: str | None
    pipeline: str
    optimizer_options: Options
    tries: int


class HuntOptions(TypedDict, total=False):
    """Fields of ``HuntRequest`` beside the optimizer."""

    passes: Strings
    optimizer_options: Options
    runtime_options: Options
    as_shipped: bool
    pools: Strings
    seed: int
    known: Sequence[PathLike]
    budget: str | int
    jobs: int | None
    cache_dir: PathLike | None
    out: PathLike | None
    resume: bool


class CompareOptions(TypedDict, total=False):
    """How two models are compared."""

    runtime: str | None
    comparator: str | None
    limit: int
    seed: int
    cache_dir: PathLike | None
    trust: bool
    runtime_options: Options
    clean: bool


class PrecisionOptions(_JudgingKeywords, total=False):
    """Fields of ``PrecisionRequest`` beside the model and its inputs."""

    to: str
    keep: Strings
    rank: bool
    max_trials: int
    measure: bool
    accumulate: str
    sum_block: int
    recipe: str | None
    out: PathLike | None
