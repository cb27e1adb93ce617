"""Models of a user's, for ``features.toml``: sources of conversions, and a model with its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optvet.plugin import UserModel

_rng = np.random.default_rng(0)
_x = _rng.normal(size=(200, 4)).astype(np.float32)
_y = (_x[:, 0] + _x[:, 1] > 0).astype(int)

example_inputs = (_x[:20],)


def forest() -> Any:
    """A random forest."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(5, random_state=0).fit(_x, _y)


def holes() -> Any:
    """A random forest that was fitted to missing values."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(5, random_state=0).fit(_missing, _y)


_missing = np.where(_rng.random(_x.shape) < 0.2, np.float32("nan"), _x)
holes.more_inputs = [(_missing[:20],)]  # type: ignore[attr-defined]  # read beside the function


def pipeline() -> Any:
    """A scaler with a classifier, which some converters do not know."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(_x, _y)


def network() -> Any:
    """A small network in PyTorch."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Softmax(dim=1))


class Digits(UserModel):
    """Ten grey images, with a label each."""

    def dataset(self) -> Sequence[Any]:
        """The items, the same ones in every call."""
        return [(np.full((1, 1, 8, 8), n / 10, np.float32), n) for n in range(10)]

    def feed(self, item: Any) -> Mapping[str, np.ndarray]:
        """The inputs of one item, by name."""
        return {"image": item[0]}

    def score(self, item: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Whether the most likely label is the right one."""
        return {"top1": float(outputs["probabilities"].argmax() == item[1])}
