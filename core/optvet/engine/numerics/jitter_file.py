"""Perturbing a large model from file to file, with one weight at a time in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from optvet.engine.numerics.perturb import Jitter, jitter_model
from optvet.graph.outline import Spill, fetch, is_outside, outline_of, place_of
from optvet.graph.weights import tensors_of


def jitter_file(model: Path, folder: Path, seed: int, ulps: float = 1.0) -> Path:
    """Write a model perturbed as by ``jitter_bytes``; returns the path of its file.

    Args:
        model: File of the model; it is not changed.
        folder: Folder for the new file and its weights.
        seed: Seed of the signs.
        ulps: Step in units in the last place.
    """
    target = folder / "jittered.onnx"
    # The folder has a new random name, so no existing weight file has this name.
    weights = folder / f"{folder.name}.bin"
    with weights.open("wb") as file:
        jitter = _FileJitter(seed, ulps, model.parent, Spill(file, weights.name))
        moved = jitter_model(outline_of(model), jitter.rng, ulps, jitter)
        for tensor in tensors_of(moved):
            # Structural constants are not perturbed, but must be copied to the new file.
            if is_outside(tensor) and place_of(tensor, folder)[0] != weights:
                jitter.move_along(tensor)
    target.write_bytes(moved.SerializeToString())
    return target


class _FileJitter(Jitter):
    """Perturbs tensors while copying them from one file to another."""

    def __init__(self, seed: int, ulps: float, folder: Path, spill: Spill) -> None:
        super().__init__(np.random.default_rng(seed), ulps)
        self._folder, self._spill = folder, spill

    def tensor(self, tensor: TensorProto) -> None:
        """Perturb a tensor; external data is written to the new file."""
        if not is_outside(tensor):
            super().tensor(tensor)
            return
        fetch(tensor, self._folder)
        super().tensor(tensor)
        self._spill.put(tensor, tensor.raw_data)

    def move_along(self, tensor: TensorProto) -> None:
        """Copy the external data of a tensor to the new file, unchanged."""
        fetch(tensor, self._folder)
        self._spill.put(tensor, tensor.raw_data)
