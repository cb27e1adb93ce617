"""What the names of passes say of operators."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SHORTEST = 3
"""Letters of a word that may stand for the beginning of an operator's name."""


def mentions(name: str, operator: str) -> bool:
    """Whether a pass of this name is about ``operator``, by its name, its beginning or initials.

    >>> [mentions(n, "BatchNormalization") for n in ("fuse_bn_into_conv", "ConvBNFusion", "nop")]
    [True, True, False]
    >>> mentions("fuse_consecutive_transposes", "Transpose"), mentions("fuse_conv", "ConvInteger")
    (True, True)
    """
    words = _WORD.findall(operator.rpartition("::")[2])
    whole, initials = "".join(words).lower(), "".join(word[0] for word in words).lower()
    return any(
        word in (whole, f"{whole}s")
        or (word == initials and len(initials) > 1)
        or (len(word) >= _SHORTEST and whole.startswith(word))
        for word in (found.lower() for found in _WORD.findall(name))
    )
