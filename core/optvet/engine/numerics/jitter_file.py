"""A large model moved by rounding, from file to file: one weight at a time is in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from optvet.engine.numerics.perturb import Jitter, jitter_model
from optvet.graph.outline import Spill, fetch, is_outside, outline_of, place_of
from optvet.graph.weights import tensors_of


def jitter_file(model: Path, folder: Path, seed: int, ulps: float = 1.0) -> Path:
    """The model in a file, jittered as by ``jitter_bytes``.

    Args:
        model: Its file, which stays as it is.
        folder: Where the new file goes, and its weights.
        seed: Seed of the signs.
        ulps: Step in units in the last place.
    """
    target = folder / "jittered.onnx"
    # Named after the folder, whose name is new: no weight of the model lies in such a file.
    weights = folder / f"{folder.name}.bin"
    with weights.open("wb") as file:
        jitter = _FileJitter(seed, ulps, model.parent, Spill(file, weights.name))
        moved = jitter_model(outline_of(model), jitter.rng, ulps, jitter)
        for tensor in tensors_of(moved):
            # What belongs to an operator is not moved by values, but moves along.
            if is_outside(tensor) and place_of(tensor, folder)[0] != weights:
                jitter.move_along(tensor)
    target.write_bytes(moved.SerializeToString())
    return target


class _FileJitter(Jitter):
    """Moves the values of tensors on their way from one file to another."""

    def __init__(self, seed: int, ulps: float, folder: Path, spill: Spill) -> None:
        super().__init__(np.random.default_rng(seed), ulps)
        self._folder, self._spill = folder, spill

    def tensor(self, tensor: TensorProto) -> None:
        """Move a tensor; one whose data is in a file goes to the other."""
        if not is_outside(tensor):
            super().tensor(tensor)
            return
        fetch(tensor, self._folder)
        super().tensor(tensor)
        self._spill.put(tensor, tensor.raw_data)

    def move_along(self, tensor: TensorProto) -> None:
        """Copy the data of a tensor to the other file."""
        fetch(tensor, self._folder)
        self._spill.put(tensor, tensor.raw_data)
