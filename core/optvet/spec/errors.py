"""Errors for misuse and for broken plugins.

A crash, hang or divergence of the software under test is never an exception here: it is a
``Failure`` or a ``Finding``, a value that cannot be overlooked.

::

    OptvetError
    ├── UsageError          what the caller gave is wrong           (exit code 2)
    │   ├── UnknownName     no plugin, pass, option of that name
    │   ├── SeveralFit      it may mean several things; has a command for each
    │   └── InputError      a model, dataset or sample is unusable
    ├── PluginError         a plugin is missing or broken           (exit code 3)
    │   ├── ContractError   a plugin gave what its protocol forbids
    │   └── MissingLibrary  a library of an extra is not installed
    ├── InfrastructureError the sandbox, cache or disk failed       (exit code 3)
    ├── BudgetSpent         the time for the whole is over      (exit code 4)
    └── NothingTested       no sample could be judged               (exit code 5)
        ├── NoneTried       no release could be tried; has a reason for each
        └── Unsupported     a program under test says that it does not take the model
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST_MESSAGE = 3000
"""Characters of an error's message; what is longer is cut in the middle."""


_SHORTEST = 3
_LONGEST_ABBREVIATION = 4
"""Letters of names that are asked what they are a part of, and short for."""
_LISTED = 400
"""Characters of a list of all names, where none is near."""


class OptvetError(Exception):
    """Root of all errors that optvet raises on purpose.

    Messages quote files and libraries, which may hold texts of any length: ``str`` gives at most
    ``LONGEST_MESSAGE`` characters.
    """

    exit_code = 3

    def __str__(self) -> str:
        """The message, cut in the middle if it is long."""
        text = super().__str__()
        excess = len(text) - LONGEST_MESSAGE
        return text if excess <= 0 else f"{text[:2000]}…{text[2001 + excess :]}"


class BudgetSpent(OptvetError):
    """The time that was given for an answer is over."""

    exit_code = 4

    def __init__(self) -> None:
        super().__init__("the time of --budget was over before there was an answer: give more")


class UsageError(OptvetError):
    """What was given is wrong; the message says where and what to do."""

    exit_code = 2


def near_names(
    name: str, known: Iterable[str], *, count: int = 3, cutoff: float = 0.5
) -> list[str]:
    """Of ``known``, what ``name`` may have meant: what it is a part of, near to, or short for.

    Nearness is that of ``difflib.get_close_matches``; case and separators do not count for a part.
    """
    names = sorted(known)
    short = _plain(name)
    part = len(short) >= _SHORTEST
    whole = sorted((n for n in names if part and short in _plain(n)), key=len)
    # The whole name of what is called by its beginning: "onnx-simplifier" for "onnxsim".
    whole += [n for n in names if len(n) > _SHORTEST and short.startswith(_plain(n))]
    close = difflib.get_close_matches(name, names, n=count, cutoff=cutoff)
    if not _SHORTEST <= len(short) <= _LONGEST_ABBREVIATION:
        return list(dict.fromkeys((*whole, *close)))[:count]
    # Few letters stand inside of many names by chance: "ort" in "torch".
    begun = [n for n in whole if any(w.startswith(short) for w in _words(n))]
    meant = [n for n in names if _abbreviates(short, _plain(n)) and n not in begun]
    meant.sort(key=lambda n: (_spread(short, _plain(n)), len(n)))
    # An abbreviation comes before several names that begin so: "onnxruntime" for "ort".
    first = meant[:1] if len(begun) > 1 else begun
    found = dict.fromkeys((*first, *begun[: count - 2], *meant, *begun, *close, *whole))
    return list(found)[:count]


def _words(name: str) -> list[str]:
    """The parts of a name between separators, in lower case."""
    return "".join(c if c.isalnum() else " " for c in name.lower()).split()


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _abbreviates(short: str, name: str) -> bool:
    """Whether ``short`` begins as ``name`` does, and has its letters in their order."""
    letters = iter(name)
    return name[:1] == short[:1] and all(letter in letters for letter in short)


def _spread(short: str, name: str) -> int:
    """Up to where in ``name`` the letters of ``short`` stand that it abbreviates."""
    at = -1
    for letter in short:
        at = name.find(letter, at + 1)
    return at


class UnknownName(UsageError):
    """No ``kind`` is called ``name``; the message suggests the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Compose the message from what was given and what exists."""
        names = sorted(known)
        near = near_names(name, names)
        if near:
            advice = f"did you mean {' or '.join(repr(n) for n in near)}?"
        elif len(listed := ", ".join(names)) <= _LISTED:
            advice = f"known: {listed or 'none'}"
        else:
            advice = f"there are {len(names)} known ones"
        super().__init__(f"unknown {kind} {name!r}; {advice}{' ' + hint if hint else ''}")
        self.kind, self.name, self.near = kind, name, near


class SeveralFit(UsageError):
    """Several commands may be meant: ``commands``; ``text`` says of what."""

    def __init__(self, text: str, commands: Sequence[str]) -> None:
        """Compose the message of both."""
        super().__init__(f"{text}: {'; '.join(commands)}")
        self.text, self.commands = text, tuple(commands)


class InputError(UsageError):
    """A model, dataset or sample cannot be used as it is."""


class CannotLoad(InputError):
    """The runtime that judges does not load the original model; another one may."""


class PluginError(OptvetError):
    """A plugin is missing, broken, or broke its contract."""


class MissingLibrary(PluginError, ImportError):
    """A library of an extra is not installed.

    Attributes:
        extra: The requirement that installs it, such as "optvet[tvm]".
    """

    def __init__(self, library: str, extra: str, who: str = "it") -> None:
        """Compose the message: ``who`` needs ``library``, which ``extra`` installs."""
        super().__init__(f"{who} needs {library}; install {extra}")
        self.library, self.extra, self.who = library, extra, who

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild it from its parts: workers raise it too."""
        return type(self), (self.library, self.extra, self.who)


def absence_of(error: BaseException) -> ModuleNotFoundError | MissingLibrary | None:
    """The absent module or library that caused ``error``; None if another thing did."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError | MissingLibrary):
        cause = cause.__cause__
    return cause


class ContractError(PluginError):
    """A plugin broke its contract: which method, what was expected, and what it gave."""


class InfrastructureError(OptvetError):
    """optvet's own machinery (sandbox, cache, disk) failed."""


class NothingTested(OptvetError):
    """No sample could be judged, so there is no answer."""

    exit_code = 5


class NoneTried(NothingTested):
    """No release could be tried, each for its reason: ``reasons``; ``text`` says how many."""

    def __init__(self, text: str, reasons: Sequence[str]) -> None:
        """Compose the message of both."""
        super().__init__(f"{text}: {'; '.join(reasons)}")
        self.text, self.reasons = text, tuple(reasons)


class Unsupported(NothingTested):
    """The program under test does not take the model: this is refused, and not a finding.

    It says which operator, type or domain it does not support, or the model is not valid.
    ``of_runtime`` is false if no other runtime would change that.
    """

    def __init__(self, text: str = "", *, of_runtime: bool = True) -> None:
        super().__init__(text)
        self.of_runtime = of_runtime


REFUSALS = (ContractError, InfrastructureError, InputError, PluginError, Unsupported, UsageError)
"""Errors by which a plugin rejects its input or reports its environment; these are not findings.

Subclasses count too.
"""
