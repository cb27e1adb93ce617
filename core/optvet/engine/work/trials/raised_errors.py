"""What foreign code raised: as a value, and as a message that can be compared."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic import BaseModel

from optvet.engine.work.sandbox import last_stage
from optvet.engine.work.sandbox.messages import text_of, type_name
from optvet.spec.errors import MissingLibrary, UsageError
from optvet.spec.extras import WorkerExtras, extras
from optvet.spec.types import Failure, FailureKind


def objection(
    plugin: object, options: BaseModel
) -> UsageError | ModuleNotFoundError | MissingLibrary | None:
    """Why ``plugin`` refuses ``options``, or what is absent; None if it accepts them."""
    try:
        extras(plugin, WorkerExtras).check_options(options)
    except UsageError as error:
        return UsageError(str(error))
    except (ModuleNotFoundError, MissingLibrary) as error:
        return error
    return None


_GIST_CHARS = 4000
# Each takes linear time: the text is untrusted, and may be one word of a megabyte.
_QUOTED = re.compile(r"""'[^'\n]*'|"[^"\n]*"|`[^`\n]*`""")
_NAMED = re.compile(r"\bname: ?\S*")
_ADDRESS = re.compile(r"\b0[xX][0-9a-fA-F]+")  # Addresses differ from process to process.
_SPACE = re.compile(r"(\s+)")
_NO_LETTERS = re.compile("[^A-Za-z]+")


def normalized_message(message: str) -> str:
    """The first words of a message, without names, numbers, addresses and paths."""
    text = _ADDRESS.sub(" ", _NAMED.sub(" ", _QUOTED.sub(" ", message[:_GIST_CHARS])))
    words = " ".join(word for word in text.split() if "/" not in word[:-1])
    return " ".join(_NO_LETTERS.sub(" ", words).split()[:12])


def quote_names(message: str, names: Collection[str]) -> str:
    """``message`` with the words that are ``names`` in quotes, as most messages have them.

    >>> quote_names("conv_w in initializer but not in graph input", {"conv_w"})
    "'conv_w' in initializer but not in graph input"
    """
    parts = _SPACE.split(message)
    bare = [part.rstrip(".,;:") for part in parts]
    return "".join(
        f"'{word}'{part[len(word) :]}" if word in names else part
        for part, word in zip(parts, bare, strict=True)
    )


def failure_of(error: BaseException) -> Failure:
    """An exception as a value."""
    text = text_of(error).strip() or type(error).__name__
    out_of_memory = isinstance(error, MemoryError) or "bad_alloc" in text
    kind: FailureKind = "out-of-memory" if out_of_memory else "error"
    return Failure(kind, last_stage(), text, type_name(error))
