"""Short names of models."""

from __future__ import annotations

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
