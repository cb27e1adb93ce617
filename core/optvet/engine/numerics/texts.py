"""Arrays of text in one form: the type and the width that numpy keeps them in mean nothing.

ONNX has one type of text. Runtimes return it as objects, as bytes, as ``StringDType``, or in a
width that depends on the longest text of the array.
"""

from __future__ import annotations

import numpy as np


def is_text(dtype: np.dtype) -> bool:
    """Whether arrays of ``dtype`` hold text; objects of a model are texts too."""
    return dtype.kind in "OSUT"


def plain(array: np.ndarray) -> np.ndarray:
    """``array``, its texts as objects of ``str``; an array of numbers as it is.

    >>> plain(np.array(["a", "bc"])), plain(np.array([b"a"]))
    (array(['a', 'bc'], dtype=object), array(['a'], dtype=object))
    """
    if not is_text(array.dtype):
        return array
    found = np.empty(array.shape, object)
    found.reshape(-1)[:] = [_text(item) for item in array.reshape(-1).tolist()]
    return found


def type_name(dtype: np.dtype) -> str:
    """The name of an element type for a message."""
    return "text" if is_text(dtype) else str(dtype)


def _text(item: object) -> object:
    return item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else item
