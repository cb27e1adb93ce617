"""A user's model in one small class: its data, its inputs, its score, what counts as the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


class UserModel:
    """What only the owner of a model knows about it.

    Inherit from it, and override ``dataset`` and ``feed``; ``score`` and ``compare`` if outputs
    mean more than numbers. ``optvet vet MODEL --user-model FILE:CLASS --trust`` uses the class of a
    file; the hook ``optvet_user_models`` registers an instance under its ``name``.

    Attributes:
        name: The name of its dataset and of its comparator. By default the name of the class.
    """

    name: str = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = vars(cls).get("name") or cls.__name__

    def dataset(self) -> Iterable[Any]:
        """The items to test with, such as paths or rows: the same ones in every call."""
        raise NotImplementedError

    def feed(self, item: Any) -> Mapping[str, np.ndarray]:
        """The model's inputs for ``item``, by name: arrays with the declared shapes and dtypes."""
        raise NotImplementedError

    def score(self, item: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """How good ``outputs`` are for ``item``, by metric; the mean over all items is shown.

        The same metrics for every item. ``--require 'NAME>=0.9'`` reads that of the optimized
        model; ``original_NAME`` is that of the original.
        """
        return {}

    def compare(
        self,
        item: Any,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
    ) -> bool:
        """Whether both outputs give the user of the model the same answer.

        By default: whether the scores are equal.
        """
        return dict(self.score(item, reference)) == dict(self.score(item, candidate))
