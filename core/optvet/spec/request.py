"""What can be asked of ``vet``: one value, taken by Python, the command line and TOML alike.

The fields below are the only list of options. They are options of the command line
(``cross_check`` is ``--cross-check``), keys of a TOML file, and keywords of ``optvet.vet``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.requirement import exactly, parse_requirement, parse_tolerance
from optvet.spec.validation_words import words_of

Strategy = Literal["auto", "walk", "subset", "each", "none"]
OnBad = Literal["refuse", "skip"]
EachOn = Literal["first", "all"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_WEEK_S = 7 * 24 * 3600.0


def bytes_of(size: object) -> int:
    """The number of bytes that ``512M``, ``4G``, ``1.5GiB`` or a plain number means.

    Raises:
        ValueError: It is no size.
    """
    match = _SIZE.fullmatch(str(size).strip()) if not isinstance(size, bool) else None
    if match is None or not float(match[1]):
        raise ValueError(f"{size!r} is not a size; write it as 512M or 4G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration_of(time: object) -> float:
    """The number of seconds, above 0, that ``60``, ``90s``, ``10m`` or ``2h`` means.

    Raises:
        ValueError: It is no such time.
    """
    match = _TIME.fullmatch(str(time).strip()) if not isinstance(time, bool) else None
    if match is None or not float(match[1]):
        raise ValueError(f"{str(time)[:100]!r} is no time above 0; write it as 60, 90s, 10m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def _optional_duration(time: object) -> float | None:
    return None if time is None else duration_of(time)


Budget = Annotated[float | None, BeforeValidator(_optional_duration)]
"""Seconds for a whole answer; None for no limit."""


def seconds_of(time: object) -> float:
    """The number of seconds, above 0 and at most a week, that ``90``, ``2.5`` or ``90s`` means.

    Raises:
        ValueError: It is no such number.
    """
    try:
        seconds = float(str(time).removesuffix("s")) if not isinstance(time, bool) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _WEEK_S:
        raise ValueError(f"{time!r} is not a number of seconds above 0; write it as 120")
    return seconds


def _names(value: object) -> object:
    """As ``_chain``, without duplicates."""
    names = _chain(value)
    return tuple(dict.fromkeys(names)) if isinstance(names, tuple) else names


def _chain(value: object) -> object:
    """Names in order; each item may be several names separated by commas."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        return value
    listed = list(values)
    if not all(isinstance(item, str) for item in listed):
        return listed
    names = [part.strip() for item in listed for part in item.split(",")]
    if not all(names):
        raise ValueError(f"{','.join(listed)!r}: expected names separated by commas")
    return tuple(names)


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _requirements(value: object) -> object:
    """Texts, each of which states a requirement."""
    return _each(parse_requirement, _texts(value))


def _tolerances(value: object) -> object:
    """Texts or numbers, each of which states a tolerance."""
    values = [value] if isinstance(value, (str, int, float)) else value
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        return value
    plain = (int, float)
    listed = (exactly(t) if isinstance(t, plain) and not isinstance(t, bool) else t for t in values)
    return _each(parse_tolerance, tuple(listed))


def _each(parse: Callable[[str], object], value: object) -> object:
    """``value``, after ``parse`` has taken every text in it without a ValueError."""
    for text in value if isinstance(value, (tuple, list)) else ():
        if isinstance(text, str):
            parse(text)
    return value


def _pipeline(value: object) -> object:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        return value
    return ",".join(str(item) for item in value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Chain = Annotated[tuple[str, ...], BeforeValidator(_chain)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Requirements = Annotated[tuple[str, ...], BeforeValidator(_requirements)]
Tolerances = Annotated[tuple[str, ...], BeforeValidator(_tolerances)]

_HOW, _INPUTS, _LIMITS, _ANSWER = "How to vet", "Inputs", "Limits and cache", "The answer"
_REQUIRED = "Requirements"


def option(
    default: Any = ...,
    *,
    group: str,
    metavar: str | None = None,
    shown: str = "",
    also: str = "",
    **more: Any,
) -> Any:
    """A field listed in ``group`` of the command's help.

    ``shown`` is its default in words, ``also`` a second name of the option.
    """
    extra: dict[str, Any] = {"group": group, "metavar": metavar, "shown": shown, "also": also}
    if isinstance(default, dict):
        return Field(default_factory=dict, json_schema_extra=extra, **more)
    return Field(default, json_schema_extra=extra, **more)


# Options that several requests have stand in one class each. A request inherits them in the reverse
# order of its help screen: pydantic lists the fields of the last base first.


class Request(BaseModel):
    """What every request is: one that does not change, with known options alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class _HowToVet(Request):
    """How a model is vetted."""

    model: str
    """An ONNX file, a folder of them, or `SOURCE:NAME` such as `zoo:resnet50`."""

    optimizer: str | None = option(
        None,
        group=_HOW,
        metavar="NAME",
        shown="the one that comes with optvet",
        also="--provider",
    )
    """Optimizer to vet; or an execution provider, such as `qnn`, whose passes are the model's
    nodes."""
    pipeline: Annotated[str, BeforeValidator(_pipeline)] = option(
        "default", group=_HOW, metavar="NAME|P1,P2,…"
    )
    """A pipeline of the optimizer (default, all, a level), or passes in order; `default,-P` leaves
    one out."""
    exclude: Names = option((), group=_HOW, metavar="PASS")
    """Pass to leave out of the pipeline."""
    strategy: Strategy = option("auto", group=_HOW)
    """How to search for culprits; `each` tries every pass alone, `none` only detects."""
    pairs: bool | None = option(None, group=_HOW, shown="if the model is small")
    """Whether `each` tries ordered pairs too."""
    orders: int | None = option(None, group=_HOW, ge=1, shown="none")
    """How many orders of the passes that change the model to try; this tries every pass alone
    too."""
    each_on: EachOn = option("first", group=_HOW)
    """Whether `each` tries passes on the first chunk of samples, or on all samples."""
    runtime: str | None = option(
        None, group=_HOW, metavar="NAME", shown="one that runs the optimizer's format"
    )
    """What runs the models."""
    cross_check: Names = option((), group=_HOW, metavar="R1,R2,…")
    """Runtimes on which to judge every finding again."""
    clean: bool = option(False, group=_HOW)
    """Judge in the clean room alone, with the runtime's own optimizations off; by default the model
    is judged in a session with the runtime's defaults too."""
    measure: bool = option(False, group=_HOW)
    """Time the optimized model beside the original, under the runtime's own defaults; a slower one
    is a finding."""
    optimizer_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the optimizer."""
    runtime_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the runtime."""
    comparator: str | None = option(
        None, group=_HOW, metavar="NAME", shown="the one that fits the model best"
    )
    """Comparator that explains what a difference means."""
    comparator_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the comparator."""


class Required(Request):
    """What the result must meet."""

    require: Requirements = option((), group=_REQUIRED, metavar="[OUTPUT:]METRIC>=N")
    """A bound on a metric of the comparator over all samples, such as `top1_agreement>=0.99`; of
    one output alone, `boxes:cosine>=0.999`."""
    rtol: Tolerances = option((), group=_REQUIRED, metavar="[OUTPUT:]N")
    """Relative difference from the original that every element may have, beside `atol`."""
    atol: Tolerances = option((), group=_REQUIRED, metavar="[OUTPUT:]N")
    """Absolute difference from the original that every element may have, beside `rtol`."""


class Measured(Required):
    """What the result must meet, its speed too."""

    slower_than: float = option(0.05, group=_REQUIRED, gt=0, le=100, metavar="RATIO")
    """With `measure`: the relative slowdown that counts; 0.05 is 5 %."""


class InputOptions(Request):
    """What a model is run on."""

    dataset: Texts = option(
        (),
        group=_INPUTS,
        metavar="NAME[:PATH]",
        shown="that of the model's record, else random",
    )
    """Where inputs come from; may be given several times. `auto:FOLDER` chooses what suits
    the model."""
    user_model: str | None = option(None, group=_INPUTS, metavar="FILE:CLASS")
    """A `UserModel`: inputs, score and comparison in one class. optvet executes its file, which
    needs `trust`; for a registered one, give its name."""
    dataset_options: dict[str, Any] = option({}, group=_INPUTS, metavar="KEY=VALUE")
    """Options of the datasets that have them."""
    start: int = option(0, group=_INPUTS, ge=0)
    """Samples to skip at the start of each dataset."""
    limit: int | None = option(None, group=_INPUTS, ge=1)
    """Maximum number of samples per dataset."""
    shuffle: bool = option(False, group=_INPUTS)
    """Take samples in random order; with `limit`, a random subset."""
    on_bad: OnBad = option("refuse", group=_INPUTS)
    """What to do with unreadable data: report an error, or skip and count it."""
    seed: int = option(0, group=_INPUTS, ge=0)
    """Seed of all random choices."""


class LimitOptions(Request):
    """What an answer may use."""

    jobs: int | None = option(None, group=_LIMITS, ge=1, shown="one per processor, at most 8")
    """Worker processes at a time."""
    timeout: Annotated[float, BeforeValidator(seconds_of)] = option(
        120.0, group=_LIMITS, metavar="SECONDS"
    )
    """Wall-clock limit of one step, seconds."""
    budget: Budget = option(None, group=_LIMITS, metavar="TIME", shown="none")
    """Wall-clock limit of the whole answer, such as 60, 90s or 10m: what is known then is the
    answer, undecided if no fault is confirmed."""
    memory: Annotated[int, BeforeValidator(bytes_of)] = option(
        8 << 30, group=_LIMITS, metavar="SIZE", shown="8G"
    )
    """Memory that one step may add, such as 512M."""
    cache: bool = option(True, group=_LIMITS)
    """Whether to use and keep results of earlier runs."""
    cache_dir: Path | None = option(
        None, group=_LIMITS, metavar="DIR", shown="the user's cache folder"
    )
    """Folder of the cache."""
    trust: bool = option(False, group=_LIMITS)
    """Allow files that came with the model to name code, commands, and data outside of its
    folder."""


class VetRequest(LimitOptions, InputOptions, Measured, _HowToVet):
    """One question: does this optimizer keep this model intact?"""

    structure: bool = option(False, group=_ANSWER)
    """Show the structure of the optimized model and where it is executed, beside the original,
    under the runtime's own defaults."""
    fixed_tolerances: bool = option(False, group=_ANSWER)
    """Show how many samples exceed tolerances of papers and other tools; the JSON always has
    them."""
    warnings: bool = option(False, group=_ANSWER)
    """Show warnings of optimizer and runtime, before and after optimization; the JSON always has
    them."""
    reduce: bool = option(False, group=_ANSWER)
    """Reduce each finding to a minimal model, and write a bundle."""
    out: Path | None = option(
        None, group=_ANSWER, metavar="DIR", shown="optvet-bundles with --reduce"
    )
    """Write a bundle per finding below this folder: model, inputs, script, issue."""
    save: Path | None = option(None, group=_ANSWER, metavar="FILE.onnx")
    """Write the model of the verified pipeline to this file, if it is right as it lies there:
    loaded by path, under the runtime's own defaults."""
    fail_on: Names = option((), group=_ANSWER, metavar="NOTE")
    """Count notes of this symptom as findings, such as bloat or slowdown."""

    @property
    def plugin_options(self) -> tuple[Mapping[str, Any], ...]:
        """Options of optimizer, runtime, comparator and dataset."""
        return (
            self.optimizer_options,
            self.runtime_options,
            self.comparator_options,
            self.dataset_options,
        )

    def with_pipeline(self, pipeline: str) -> VetRequest:
        """The same request of these passes alone, without the options that narrow a pipeline."""
        return self.model_copy(update={"pipeline": pipeline, "exclude": ()})

    def arguments(self, leave_out: Iterable[str] = ()) -> list[str]:
        """Arguments of ``optvet vet`` that repeat this request."""
        return arguments_of(self, self.model, leave_out)


def arguments_of(request: BaseModel, model: str, leave_out: Iterable[str] = ()) -> list[str]:
    """Arguments of a command that repeat its request about ``model``."""
    words = [model]
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if (
            name != "model"
            and name not in leave_out
            and value != field.get_default(call_default_factory=True)
        ):
            words += _as_arguments(_flag(name), value)
    return words


def _as_arguments(flag: str, value: Any) -> list[str]:
    """One option as arguments of the command line."""
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, dict):
        return [w for k, v in value.items() for w in (flag, f"{k}={_as_text(v)}")]
    if isinstance(value, tuple):
        return [w for item in value for w in (flag, item)]
    return [flag, f"{value:g}" if isinstance(value, float) else str(value)]


def _as_text(value: Any) -> str:
    """The text, or JSON, that ``KEY=VALUE`` parses back to this value."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)


R = TypeVar("R", bound=BaseModel)


def request_of(kind: type[R], values: Mapping[str, Any], where: str = "") -> R:
    """Make a request of values.

    Args:
        kind: ``VetRequest``, or the request of another command.
        values: Values by field.
        where: The source of the values, such as a file; error messages begin with it.

    Raises:
        UsageError: A key is unknown or a value is wrong, such as an empty text.
    """
    for key, value in values.items():
        if key in kind.model_fields and next(empty_texts(value, key), None) is not None:
            prefix = f"{where}: " if where else ""
            raise UsageError(f"{prefix}{_flag(key)} is empty; give a value, or leave it out")
        if key != "model" and (wrong := next(_not_in_utf8(value), None)) is not None:
            words = f"{_flag(key)} {wrong!a}: it is not in UTF-8; rename what it names"
            raise UsageError(f"{where}: {words}" if where else words)
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        prefix = f"{where}: " if where else ""
        if first["type"] == "extra_forbidden":
            raise UnknownName(
                "option", key, kind.model_fields, where and f"(in {where})"
            ) from error
        if first["type"] == "missing":
            raise UsageError(f"{prefix}{_flag(key)} is missing") from error
        value = first["input"]
        if first["type"] == "literal_error":
            choices = get_args(kind.model_fields[key].annotation)
            words = f"choice for {prefix}{_flag(key)}"
            raise UnknownName(words, str(value)[:100], choices) from error
        words = words_of(first)
        shown = "" if first["type"] == "value_error" else f" {value!r:.100}"
        raise UsageError(f"{prefix}{_flag(key)}{shown}: {words}") from error


def _not_in_utf8(value: object) -> Iterator[str]:
    """Texts in a value that no document can hold."""
    if isinstance(value, (str, Path)):
        text = str(value)
        if any("\ud800" <= c <= "\udfff" for c in text):
            yield text
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _not_in_utf8(item)
    elif isinstance(value, Mapping):
        yield from _not_in_utf8([*value, *value.values()])


def empty_texts(value: object, *place: str | int) -> Iterator[tuple[str | int, ...]]:
    """The places of empty texts in a value of a file, without those in options of a plugin."""
    if value == "":
        yield place
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from empty_texts(item, *place, number)
    elif isinstance(value, Mapping) and not (place and str(place[-1]).endswith("_options")):
        for key, item in value.items():
            yield from empty_texts(item, *place, key)


def _flag(field: str) -> str:
    """A field as the command line spells it."""
    return f"--{field.replace('_', '-')}"
