"""Faults that are known before a hunt begins."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from optvet.engine.bundle.folder import read_record
from optvet.engine.bundle.layout import RECORD
from optvet.engine.campaign.baseline import read_baseline
from optvet.spec.errors import InputError
from optvet.spec.foreign import files_in


def known_fingerprints(places: Iterable[Path]) -> set[str]:
    """Fingerprints in baselines, bundles and folders of bundles, such as that of another hunt.

    Raises:
        InputError: A place holds neither.
    """
    found: set[str] = set()
    for place in places:
        if not os.path.isdir(place):
            found |= {entry.fingerprint for entry in read_baseline(place).findings}
            continue
        bundles = sorted({f.parent for f in files_in(place, lambda f: f.name == RECORD)})
        if not bundles:
            raise InputError(
                f"--known {place}: the folder has no bundle; give a baseline, a bundle, or a "
                "folder that has some, such as that of an earlier hunt"
            )
        found |= {read_record(folder).fingerprint for folder in bundles}
    return found
