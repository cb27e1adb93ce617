"""Findings as folders that anyone can use: a model, its inputs, a script, an issue text.

::

    finding → sample made again → reduced → judged once more → folder
                                                                  ↓ later, under other versions
                                                       "fixed", "still there", "changed"
"""

from optvet.engine.bundle.files import (
    Bundle,
    read_arrays,
    read_record,
    write_arrays,
)
from optvet.engine.bundle.replay import replay_bundle
from optvet.engine.bundle.write import (
    Draw,
    Interrupted,
    is_written,
    with_fingerprints,
    write_bundles,
)

__all__ = [
    "Bundle",
    "Draw",
    "Interrupted",
    "is_written",
    "read_arrays",
    "read_record",
    "replay_bundle",
    "with_fingerprints",
    "write_arrays",
    "write_bundles",
]
