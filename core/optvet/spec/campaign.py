"""The content of a campaign file: which models are vetted or converted to what, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from optvet.spec.convert import ConvertRequest
from optvet.spec.precision import PrecisionRequest
from optvet.spec.request import Names, Texts, VetRequest, bytes_of

JobRequest = VetRequest | ConvertRequest | PrecisionRequest
"""What one job of a campaign asks."""
JobKind = Literal["vet", "convert", "precision"]
"""The command that one job is like."""


def kind_of(request: JobRequest) -> JobKind:
    """The command that asks ``request``."""
    if isinstance(request, ConvertRequest):
        return "convert"
    return "precision" if isinstance(request, PrecisionRequest) else "vet"


class ReleaseRequest(VetRequest):
    """A vet with a release of a package in place of the installed one.

    ``wanted`` is what the campaign file says, such as "latest", and ``release`` what it stands for;
    ``wheels`` is the folder that it is installed from, None for the index of pip.
    """

    package: str
    wanted: str
    release: str
    wheels: Path | None = None


STORE_BYTES = 20 << 30


def _choices(value: object) -> object:
    """Alternatives, each a text or a list of texts that one job uses together."""
    if isinstance(value, str):
        return ((value,),)
    if not isinstance(value, list | tuple):
        return value
    return tuple((item,) if isinstance(item, str) else item for item in value)


class JobSet(BaseModel):
    """Models × optimizers × pipelines × datasets × runtimes × comparators: one job each.

    With `via`, sources × chains × datasets × runtimes: each job is a conversion. With `precisions`,
    models × precisions × datasets × runtimes × comparators: each job is a search for what to keep.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: Texts = ()
    """Files, folders, globs, `SOURCE:NAME`, and `SOURCE:all` or `SOURCE:PATTERN`."""
    exclude: Texts = ()
    """Patterns of models that are left out."""
    optimizers: Names = ()
    """Optimizers; by default the one that comes with optvet."""
    pipelines: Texts = ()
    """Pipelines of the optimizers: names, or passes separated by commas."""
    datasets: Annotated[tuple[Texts, ...], BeforeValidator(_choices)] = ()
    """Where inputs come from; a list within the list is used in one job."""
    runtimes: Names = ()
    """What runs the models."""
    comparators: Names = ()
    """Comparator that explains what a difference means."""
    versions: dict[str, Names] = Field(default_factory=dict)
    """Releases of packages of the optimizers: each job is run with each in place of the installed
    one. A series such as `1.30` (its newest), `latest`, or a folder of wheels such as `./dist`."""
    vet: dict[str, Any] = Field(default_factory=dict)
    """Options of `optvet vet` that hold for all of these jobs."""
    via: Texts = ()
    """Chains of converters, each as `optvet convert --via` takes it; `models` are then sources."""
    convert: dict[str, Any] = Field(default_factory=dict)
    """Options of `optvet convert` that hold for all of these jobs, if they are conversions."""
    precisions: Names = ()
    """What models are converted to, each as `optvet precision --to` takes it."""
    precision: dict[str, Any] = Field(default_factory=dict)
    """Options of `optvet precision` that hold for all of these jobs, if they are such searches."""

    @property
    def kind(self) -> JobKind:
        """What each job is."""
        if self.via:
            return "convert"
        return "precision" if self.precisions else "vet"


class CampaignFile(JobSet):
    """A whole campaign.

    Keys outside of `jobs` are the defaults of each set; without `jobs`, they are the only set.
    """

    name: str = ""
    """What the campaign is called; by default the name of the file."""
    jobs: tuple[JobSet, ...] = ()
    """Sets of jobs."""
    bundles: bool = False
    """Whether to store a bundle per finding; implied by `reduce` of `vet`."""
    baseline: Path | None = None
    """Known findings, which do not make the campaign fail."""
    store_size: Annotated[int, BeforeValidator(bytes_of)] = STORE_BYTES
    """Bytes that artifacts may take; beyond it, the oldest go."""
