"""Runs a model in a process that a profiler has started: ``python -m`` this module, and a folder.

The folder has the job, which the worker that made the folder has written there.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optvet.engine.work.trials.inference import RuntimeConfig, load
from optvet.spec.errors import OptvetError
from optvet.spec.types import Artifact

JOB = "job.pickle"


@dataclass(frozen=True)
class ProfiledRun:
    """A model, how it is run, and the inputs of each run."""

    artifact: Artifact
    config: RuntimeConfig
    feeds: Sequence[Mapping[str, np.ndarray]]


def main(folder: Path) -> None:
    """Run the job of ``folder``."""
    # By its full name: run as a script, this module is another one, whose class is another.
    job: ProfiledRun = pickle.loads((folder / JOB).read_bytes())
    session = load(job.config, job.artifact)
    for feeds in job.feeds:
        session.run(dict(feeds))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except OptvetError as error:
        sys.exit(str(error))  # Without the traceback, which the caller would have to cut.
