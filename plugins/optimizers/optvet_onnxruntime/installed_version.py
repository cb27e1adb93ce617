"""The version of the installed ONNX Runtime, which several distributions provide."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

_STATED = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def installed_version() -> str:
    """The version that the package states, read without importing native code where it is plain.

    Raises:
        ImportError: There is no such package, or none that can be imported.
    """
    spec = find_spec("onnxruntime")
    if spec is not None and spec.origin is not None:
        stated = _STATED.search(Path(spec.origin).read_text(encoding="utf-8", errors="replace"))
        if stated is not None:
            return stated[1]
    import onnxruntime

    return str(onnxruntime.__version__)
