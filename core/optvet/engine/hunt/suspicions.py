"""What workers of a hunt report: rewrites, suspicions with their keys, mistakes of plugins."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.symptoms import Symptom

ANY = "*"
"""Stands for the pass, where it is not known which one of the pipeline changed the model."""
REACHED = "code"
"""Stands for the pass of a seed that is one for the lines of code that it reached."""
CONTRIVED = "contrived"
"""Stands for the operators of a seed that has what models of practice hardly have."""
_WORD = re.compile(r"\w+")
_NODE = re.compile(r"\(op_type: ?\w+(, node name: ?[^)]*)?\)")
"""By which the checker names the node where it notices that something before it is wrong."""


class Rewrite(NamedTuple):
    """What a pass did to a model.

    Attributes:
        label: The pass; ``ANY`` if it is not known which one.
        fewer: Types of operators that became fewer, sorted; of a pass that leaves all of them,
            pairs of which one reads the other.
        more: Those that became more, sorted.
    """

    label: str
    fewer: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def change(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What was done, whichever pass did it."""
        return self.fewer, self.more


UNSEEN: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
"""The change of a pass that leaves all operators in their places: it changes what they read.

What is changed in a format that is not ONNX is not seen either.
"""


Place = tuple[tuple[str, ...], Symptom]
"""Passes and a symptom."""


class SuspicionKey(NamedTuple):
    """Equal for suspicions that are probably of one cause.

    Attributes:
        passes: One pass or a pair; ``(ANY,)`` for more; none for import and export.
        symptom: The symptom.
        words: The message without names of the model.
        fewer: What became fewer, as of a rewrite, where values are wrong.
        more: Those that became more.
    """

    passes: tuple[str, ...]
    symptom: Symptom
    words: str
    fewer: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        operators = " ".join(self.fewer), " ".join(self.more)
        return "|".join((label_of(self.passes), self.symptom, self.words, *operators))

    @property
    def place(self) -> Place:
        """The passes, and how it shows."""
        return self.passes, self.symptom

    def after(self, rewrite: Rewrite | None) -> SuspicionKey:
        """The key with the operators of a rewrite, where these tell causes apart."""
        if rewrite is None or not self.symptom.info.of_values:
            return self
        return self._replace(fewer=rewrite.fewer, more=rewrite.more)


@dataclass(frozen=True)
class Suspicion:
    """What looks wrong after ``passes``; after import and export alone if there are none.

    ``edit`` is what was changed of a model that does not show it; see ``edit_between``.
    """

    passes: tuple[str, ...]
    key: SuspicionKey
    edit: tuple[str, ...] = ()

    @property
    def symptom(self) -> Symptom:
        """How it shows."""
        return self.key.symptom


@dataclass(frozen=True)
class Complaint:
    """A mistake of a plugin.

    Attributes:
        about: What failed, and how; a hunt tells the first of those that are alike in this.
        text: The words for the user.
    """

    about: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, what: str, error: Exception) -> Complaint:
        """The complaint that ``what`` raised ``error``, or fails because of it."""
        kind = type(error).__name__
        return cls((what, kind), f"{what} {kind}: {error}"[:300])


def suspect(
    passes: tuple[str, ...],
    symptom: Symptom,
    message: str,
    names: Set[str],
    rewrite: Rewrite | None = None,
) -> Suspicion:
    """The suspicion that ``message`` gives.

    Args:
        passes: What was applied.
        symptom: How it shows.
        message: Of the judge, or of the library that failed.
        names: Names in the model, which do not belong to the cause.
        rewrite: What the passes did, if known.
    """
    text = message[:2000]
    words = _without_names(_NODE.sub(" ", text) if passes else text, names)
    return Suspicion(passes, SuspicionKey(passes_of_key(passes), symptom, words).after(rewrite))


def passes_of_key(passes: tuple[str, ...]) -> tuple[str, ...]:
    """The passes as keys name them."""
    return passes if len(passes) <= 2 else (ANY,)


def label_of(passes: tuple[str, ...]) -> str:
    """One name for passes: their own for up to two, none for import and export."""
    return "+".join(passes_of_key(passes))


def _without_names(message: str, names: Set[str]) -> str:
    """The normalized message without names of the model, and without single letters."""
    # One pattern of all names would take 15 ms to compile, for each model anew.
    odd = [name for name in names if name in message and not _WORD.fullmatch(name)]
    for name in sorted(odd, key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", " ", message)
    message = _WORD.sub(lambda found: " " if found[0] in names else found[0], message)
    return " ".join(word for word in normalized_message(message).split() if len(word) > 1)
