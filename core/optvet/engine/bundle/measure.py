"""Measures the requirement of a bundle, for its ``repro.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from optvet.engine.bundle.folder import read_record, read_samples
from optvet.engine.bundle.layout import EXPECTED, INPUTS, MODEL, RECORD
from optvet.engine.bundle.observe import sought_by
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.require.portable import PortableRequirement
from optvet.spec.errors import UsageError
from optvet.spec.scratch import temporary_folder


def samples(bundle: Path) -> list[dict[str, np.ndarray]]:
    """The inputs of a bundle."""
    record = read_record(bundle)
    return read_samples(bundle / INPUTS, record.inputs, record.samples)


def unmet(bundle: Path, actual: Sequence[Mapping[str, np.ndarray]]) -> str:
    """What is required and what was measured; empty if the requirement is met.

    Args:
        bundle: The folder.
        actual: Outputs of the optimized model, of each sample.

    Raises:
        UsageError: The bundle states no requirement, or it cannot be measured.
    """
    record = read_record(bundle)
    portable = sought_by(record, Plugins(), trust=True, file=str(bundle / RECORD))
    if not isinstance(portable, PortableRequirement):
        raise UsageError(f"{bundle} is no bundle of a requirement")
    feeds = read_samples(bundle / INPUTS, record.inputs, record.samples)
    expected = read_samples(bundle / EXPECTED, record.outputs, record.samples)
    arrays = [{name: np.asarray(value) for name, value in run.items()} for run in actual]
    with temporary_folder("optvet-bundle-") as folder:
        model = open_model(bundle / MODEL, "model", Path(folder))
        reading = portable.compare(model, feeds, expected, arrays, record.noise)
    if reading.met is None:
        raise UsageError(f"{portable.required} cannot be measured: {reading.words}")
    return "" if reading.met else f"{portable.required} is required; {reading.words}"
