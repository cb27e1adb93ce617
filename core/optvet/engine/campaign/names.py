"""Short names of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path


def short_model(reference: str) -> str:
    """A model's name in tables: the file name of a path, or the whole name of a model source.

    >>> short_model("a/b/c.onnx"), short_model("zoo:alexnet")
    ('c.onnx', 'zoo:alexnet')
    """
    scheme, colon, _ = reference.partition(":")
    if (colon and scheme.isidentifier()) or "/" not in reference:
        return reference
    return Path(reference).name


def short_models(references: Iterable[str]) -> dict[str, str]:
    """The name of each model in a table of them: short where no other has the same short name.

    >>> short_models(["a/x.onnx", "b/x.onnx", "b/y.onnx"])
    {'a/x.onnx': 'a/x.onnx', 'b/x.onnx': 'b/x.onnx', 'b/y.onnx': 'y.onnx'}
    """
    short = {reference: short_model(reference) for reference in references}
    taken = Counter(short.values())
    return {whole: name if taken[name] == 1 else whole for whole, name in short.items()}
