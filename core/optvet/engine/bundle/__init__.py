"""Bundles: a finding as a folder with a model, its inputs, a script and an issue text.

::

    finding → sample made again → reduced → tested once more → folder
                                                                  ↓ later, under other versions
                                                       "fixed", "still there", "changed"
"""

from optvet.engine.bundle.folder import (
    Bundle,
    read_arrays,
    read_record,
    write_arrays,
)
from optvet.engine.bundle.replay import replay_bundle
from optvet.engine.bundle.write import (
    BundlesInterrupted,
    Draw,
    is_written,
    with_bundles,
    with_fingerprints,
    write_bundles,
)

__all__ = [
    "Bundle",
    "BundlesInterrupted",
    "Draw",
    "is_written",
    "read_arrays",
    "read_record",
    "replay_bundle",
    "with_bundles",
    "with_fingerprints",
    "write_arrays",
    "write_bundles",
]
