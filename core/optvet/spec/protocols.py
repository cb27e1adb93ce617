"""What plugins provide. Every plugin object must be picklable: trials run in other processes.

Datasets, sources of models and reporters; the other families have modules of their own. A class of
extras has the optional members of a family (see ``extras``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from optvet.spec import comparators
from optvet.spec.generics import OptionsT
from optvet.spec.types import Deferred, Model, ModelCard, Sample

if TYPE_CHECKING:
    # Documents take a fifth of a second to import, which workers would spend for nothing.
    from optvet.spec.records.report import CampaignReport, ReportedFinding

Comparator = comparators.Comparator
Decodes = comparators.Decodes
Run = comparators.Run
Feeds = comparators.Feeds
Probe = Callable[[Sequence[Feeds]], Sequence[str | None]]
"""Runs the reference on each set of feeds: None where it runs, else the error's text."""
FindingFiles = Callable[["ReportedFinding"], Mapping[str, bytes]]
"""Files of a finding's bundle by name, ``before.svg`` among them; empty where there is none."""


@runtime_checkable
class Dataset(Protocol[OptionsT]):
    """A source of inputs, of any number: the engine holds one chunk of them at a time.

    Attributes:
        name: Unique among datasets; ``--dataset NAME`` or ``--dataset NAME:ARGUMENT``.
        options: Its options with their defaults.
    """

    name: str
    options: OptionsT

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: OptionsT,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterable[Sample | Deferred]:
        """Samples for ``model``, deterministic in all arguments, with unique ids.

        Called again if samples are needed again, since they are not kept. Work that is expensive,
        or that may fail for one sample only, is yielded as a ``Deferred``.

        Args:
            model: What the samples are for.
            argument: The part after the colon of ``NAME:ARGUMENT``.
            options: The dataset's options.
            seed: Seed of all randomness.
            limit: Maximal number of samples; None for the dataset's own number.
            probe: Runs the reference to see which feeds it accepts; one inference each.

        Raises:
            InputError: No sample can be made; the message names the input or file at fault.
        """
        ...


@runtime_checkable
class ModelSource(Protocol):
    """Where models come from.

    Attributes:
        name: The scheme in ``NAME:REFERENCE``; "local" serves plain paths.
    """

    name: str

    def models(self) -> Iterable[ModelCard]:
        """Models that can be fetched by name; empty if they cannot be listed."""
        ...

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """ONNX files for ``reference``; generated and downloaded files are kept below ``cache``.

        Raises:
            UsageError: There is no such model, or it cannot be fetched.
        """
        ...


class DatasetExtras:
    """Optional members of a dataset."""

    def suits(self, model: Model, argument: str) -> float:
        """How well a folder suits the model, from 0 (not at all) to 1, for ``auto:FOLDER``.

        1 means that the model's record declares such inputs; a guess from names and shapes is below
        0.9. It must not decode files.
        """
        return 0.0

    def provenance(self, model: Model, argument: str | None, options: Any) -> Mapping[str, str]:
        """Facts that samples depend on, by name: a resolved revision, the preprocessing."""
        return {}


class ModelSourceExtras:
    """Optional members of a model source."""

    needs_network: bool = False
    """Whether its list is on a server: its models are then listed only if the user names it."""

    runs_code: bool = False
    """Whether references name code that is run: files may name them only with ``--trust``."""

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference, ``NAME:…``, with the revision that ``fetch`` has just returned.

        Of a source whose names may refer to different models over time.
        """
        raise NotImplementedError


@runtime_checkable
class Reporter(Protocol):
    """Makes a document of what a campaign found, for ``optvet report``.

    Attributes:
        name: Unique among reporters; ``--format NAME``.
        suffix: What names of its files end in, such as ".html"; ``--out`` chooses the format by it.
            Empty if it is chosen by name alone.
    """

    name: str
    suffix: str

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """The document; it depends on nothing but the arguments.

        Texts in ``report`` may hold anything that a model's author wrote, and are to be escaped.
        Control characters are removed from the document afterwards.
        """
        ...
