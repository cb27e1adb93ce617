"""Calls of huggingface_hub, whose errors are put into words that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, TypeVar

from optvet.plugin import InfrastructureError, InputError, MissingLibrary, PluginError, UsageError

_T = TypeVar("_T")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR)


class Unreachable(UsageError):
    """The hub gives no answer at all, so one that was kept will do."""


def hub_api() -> Any:
    """The client of the hub; MissingLibrary without huggingface_hub."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        who, extra = "model source 'huggingface'", "optvet[huggingface]"
        raise MissingLibrary("huggingface_hub", extra, who) from error
    # The library reads the variable when it is imported, which may be long ago.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="optvet")


def call_library(subject: str, action: Callable[[], _T]) -> _T:
    """What ``action`` gives; an error of the library in words that say what to do.

    Its exceptions are told apart by name: they moved between modules, and those for a network
    that fails are of another library from one version to the next.
    """
    try:
        return action()
    except PluginError:
        raise
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, OSError) and error.errno in _FULL:
            raise InfrastructureError(
                f"{subject}: {error}; make room, or choose another cache folder"
            ) from error
        raise _in_words(subject, error, kinds) from error


def _in_words(subject: str, error: Exception, kinds: set[str]) -> UsageError:
    if "GatedRepoError" in kinds:
        return UsageError(
            f"{subject} is gated: accept its terms on its page, then log in with 'hf auth login' "
            "or set HF_TOKEN"
        )
    if "DisabledRepoError" in kinds:
        return UsageError(f"{subject} is disabled by its hub; choose another")
    if "RepositoryNotFoundError" in kinds:
        return UsageError(
            f"{subject}: there is no such repository, or it is private; check ORG/REPO, or log in "
            "with 'hf auth login' or set HF_TOKEN"
        )
    if "RevisionNotFoundError" in kinds:
        return UsageError(f"{subject}: there is no such revision; give a branch, tag or commit")
    if "HFValidationError" in kinds:
        return UsageError(f"{subject} is no name of a repository: {error}; write it as ORG/REPO")
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        return InputError(f"{subject} is listed by the hub, but it does not give it; try later")
    status = getattr(getattr(error, "response", None), "status_code", None)
    words = f"the hub answers {status}" if status else f"{type(error).__name__}: {error}"
    words = " ".join(words.split())[:300]
    return Unreachable(
        f"{subject} is not available ({words}), and is not in the cache; check your network and "
        "HF_ENDPOINT, or try later"
    )
