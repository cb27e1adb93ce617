"""What can be asked of ``bisect``: a question of ``vet``, and the releases to ask it of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from optvet.spec.request import VetRequest, bytes_of, option, seconds_of

_RELEASES, _PREDICATE = "Releases", "What is bad"


class BisectRequest(VetRequest):
    """One question: which release of a package changed the answer to that of ``vet``?"""

    package: str = option("", group=_RELEASES, metavar="PACKAGE", shown="that of the optimizer")
    """Package whose releases to try, such as that of an optimizer."""
    good: str | None = option(None, group=_RELEASES, metavar="VERSION", shown="the oldest")
    """Release that was right."""
    bad: str | None = option(None, group=_RELEASES, metavar="VERSION", shown="the newest")
    """Release that is wrong; one older than `good` looks for the release that mended it."""
    versions: str | None = option(None, group=_RELEASES, metavar="V1,V2,…", shown="all")
    """Releases to try: a list, or bounds such as `>=1.20,<1.28`."""
    pre: bool = option(False, group=_RELEASES)
    """Try pre-releases too."""
    index: Path | None = option(None, group=_RELEASES, metavar="DIR", shown="that of pip")
    """Folder of wheels to install from, in place of the index that pip is set up with."""
    room: Annotated[int, BeforeValidator(bytes_of)] = option(
        20_000_000_000, group=_RELEASES, metavar="SIZE", shown="20 GB"
    )
    """Disk that all kept releases may take; the longest unused are removed."""

    symptom: str | None = option(None, group=_PREDICATE, metavar="SYMPTOM")
    """A release is bad if it shows this symptom; by default if the verdict is faulty or a
    requirement is not met."""
    culprit: str | None = option(None, group=_PREDICATE, metavar="PASS")
    """A release is bad if this pass is at fault there."""
    check: str | None = option(None, group=_PREDICATE, metavar="'COMMAND {model}'")
    """A command decides, run with the release in place: exit code 0 is good, 125 skips the
    release, another one is bad."""
    check_timeout: Annotated[float, BeforeValidator(seconds_of)] = option(
        600.0, group=_PREDICATE, metavar="SECONDS"
    )
    """Limit of one command of `check`; a release that exceeds it is skipped."""

    jobs: int | None = option(None, group="Limits and cache", ge=1, shown="1")
    """Releases to try at a time."""
    reduce: bool = option(True, group="The answer")
    """Reduce the findings of the release at fault before they are replayed on the others."""
    out: Path | None = option(None, group="The answer", metavar="DIR", shown="not kept")
    """Keep the bundles of the release at fault below this folder."""

    def of_vet(self, **changes: object) -> VetRequest:
        """The question that is asked of each release."""
        values = {name: getattr(self, name) for name in VetRequest.model_fields}
        plain = {"jobs": None, "reduce": False, "out": None, "save": None}
        return VetRequest.model_validate({**values, **plain, **changes})
