"""What models are called where a path would say too much."""

from __future__ import annotations

from pathlib import Path


def short_model(reference: str) -> str:
    """A model as tables show it: of a path, the file; of a source's, all of it.

    >>> short_model("a/b/c.onnx"), short_model("zoo:alexnet")
    ('c.onnx', 'zoo:alexnet')
    """
    scheme, colon, _ = reference.partition(":")
    if (colon and scheme.isidentifier()) or "/" not in reference:
        return reference
    return Path(reference).name
