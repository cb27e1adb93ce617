"""What can be asked of ``convert``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from optvet.spec.request import (
    Budget,
    Chain,
    Measured,
    Names,
    OnBad,
    Request,
    Requirements,
    Texts,
    VetRequest,
    bytes_of,
    option,
    seconds_of,
)


def _places(value: object) -> object:
    """Folders or interpreters by name; in TOML also as a table with the key ``python``."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: place["python"] if isinstance(place, Mapping) and set(place) == {"python"} else place
        for name, place in value.items()
    }


Places = Annotated[dict[str, Path], BeforeValidator(_places)]

_HOW, _INPUTS, _LIMITS, _ANSWER = "How to convert", "Inputs", "Limits", "The answer"
_REQUIRED = "Requirements"


class ConversionRequest(Request):
    """A source and how it is converted: what ``convert`` and ``repair`` have in common."""

    model: str
    """A source: `FILE.py:FUNCTION`, which makes a model, or a file that the first converter
    takes."""

    via: Chain = option((), group=_HOW, metavar="C1,C2,…", shown="a converter to ONNX that fits")
    """Converters in order; each takes the format that the one before makes."""
    converted: Path | None = option(None, group=_HOW, metavar="FILE.onnx")
    """A model that was converted elsewhere, to judge instead of using `--via`."""
    converter_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the converters; `NAME.KEY=VALUE` for one of several."""
    registered: Names = option((), group=_HOW, metavar="MODULE:FUNCTION", also="--register")
    """A function that registers your converters of operators or estimators with the library; it is
    called in the converter's process. Needs `--trust`."""
    runtime: str | None = option(
        None, group=_HOW, metavar="NAME", shown="one that runs the last converter's format"
    )
    """What runs the converted model."""
    cross_check: Names = option((), group=_HOW, metavar="R1,R2,…", shown="the next best one")
    """Runtimes that run a wrong model before a converter is blamed."""

    environments: Places = option({}, group=_HOW, metavar="NAME=PATH")
    """Where an environment of its own is, as `tf=/opt/tf`: a folder, or a Python in it; by default
    what `optvet env make` made."""

    dataset: Texts = option((), group=_INPUTS, metavar="NAME[:PATH]", shown="random")
    """Where the inputs of a source in ONNX come from; other sources bring their own."""
    random: int = option(2, group=_INPUTS, ge=0, le=1000)
    """Number of random inputs to draw beside the example."""
    edges: bool = option(True, group=_INPUTS)
    """Whether to try edge values: zeros, negative and large numbers, NaN, all false."""
    sizes: bool = option(True, group=_INPUTS)
    """Whether to try two other sizes of each dynamic axis."""
    seed: int = option(0, group=_INPUTS, ge=0)
    """Seed of all random choices, those of the source's factory included."""

    jobs: int | None = option(None, group=_LIMITS, ge=1, shown="one per processor, at most 8")
    """Worker processes at a time."""
    timeout: Annotated[float, BeforeValidator(seconds_of)] = option(
        300.0, group=_LIMITS, metavar="SECONDS"
    )
    """Wall-clock limit of one step, seconds."""
    budget: Budget = option(None, group=_LIMITS, metavar="TIME", shown="none")
    """Wall-clock limit of the whole answer, such as 60, 90s or 10m; there is none after that."""
    memory: Annotated[int, BeforeValidator(bytes_of)] = option(
        8 << 30, group=_LIMITS, metavar="SIZE", shown="8G"
    )
    """Memory that one step may add, such as 512M."""
    trust: bool = option(False, group=_LIMITS)
    """Load a source whose format may hold code, such as a pickle."""


class ConvertRequest(Measured, ConversionRequest):
    """One question: does this conversion keep the model intact?"""

    dataset: Texts = option((), group=_INPUTS, metavar="NAME[:PATH]", shown="random")
    """Inputs beside those that a source brings; all inputs of a source in ONNX. Then requirements
    and labels are measured on these samples, else on all inputs but edge values."""
    dataset_options: dict[str, Any] = option({}, group=_INPUTS, metavar="KEY=VALUE")
    """Options of the datasets that have them."""
    limit: int | None = option(
        None, group=_INPUTS, ge=1, shown="all of a dataset that is named, else 5"
    )
    """Maximum number of samples per dataset."""
    start: int = option(0, group=_INPUTS, ge=0)
    """Samples to skip at the start of each dataset."""
    shuffle: bool = option(False, group=_INPUTS)
    """Take samples in random order; with `limit`, a random subset."""
    on_bad: OnBad = option("refuse", group=_INPUTS)
    """What to do with unreadable data: report an error, or skip and count it."""
    measure: bool = option(False, group=_HOW)
    """Time the converted model beside its source, both under their runtimes' own defaults; a slower
    one is a finding."""
    comparator: str | None = option(
        None, group=_HOW, metavar="NAME", shown="the one that fits the model best"
    )
    """Comparator that explains what a difference means."""
    comparator_options: dict[str, Any] = option({}, group=_HOW, metavar="KEY=VALUE")
    """Options of the comparator."""

    require: Requirements = option((), group=_REQUIRED, metavar="[OUTPUT:]METRIC>=N")
    """A bound on a metric of the comparator over all samples, such as `top1_agreement>=0.99`; of
    one output alone, `boxes:cosine>=0.999`. Outputs are named as those of the source."""

    cache: bool = option(True, group=_LIMITS)
    """Whether to use and keep whole answers. None is kept where the source's code cannot be told
    apart, which the screen says, nor with `measure` or `out`."""
    cache_dir: Path | None = option(
        None, group=_LIMITS, metavar="DIR", shown="the user's cache folder"
    )
    """Folder of the cache."""
    fixed_tolerances: bool = option(False, group=_ANSWER)
    """Show how many samples exceed tolerances of papers and other tools; the JSON always has
    them."""
    out: Path | None = option(None, group=_ANSWER, metavar="DIR")
    """Keep the artifact of every stage in this folder."""

    def as_vet(self) -> VetRequest:
        """The request of a vet that judges two models in the same way."""
        shared = set(type(self).model_fields) & set(VetRequest.model_fields) - {"out"}
        return VetRequest(**{name: getattr(self, name) for name in sorted(shared)})


def parts_of(source: str) -> tuple[str, str]:
    """The file of a source, and the function in it that makes the model; or nothing.

    >>> parts_of("a/net.py:small"), parts_of("a/net.pt2")
    (('a/net.py', 'small'), ('a/net.pt2', ''))
    """
    path, _, function = source.rpartition(":")
    return (path, function) if path.endswith(".py") else (source, "")
