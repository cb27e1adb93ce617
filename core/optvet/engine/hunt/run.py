"""Runs a hunt: resolves what it is in, opens its state, and keeps what the loop finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from optvet.engine.bundle.write import Draw
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.as_campaign import write_campaign
from optvet.engine.hunt.loop import HuntLoop, HuntSetup
from optvet.engine.hunt.optimizer_target import open_optimizer
from optvet.engine.hunt.sources.converter_target import open_converter
from optvet.engine.hunt.sources.target import is_converter
from optvet.engine.hunt.state import NAME, HuntState, HuntStore, Suspect
from optvet.engine.hunt.summary import About, OnProgress, write_summary
from optvet.engine.vet.session import default_jobs
from optvet.spec.errors import UsageError
from optvet.spec.files import folder_without_links
from optvet.spec.hunt import HuntRequest
from optvet.spec.records import HuntSummary

Wanted = Callable[[Suspect], bool]
"""Whether a suspect is to be vetted."""
_OF_SOURCES = "sources.json"
"""Where the state of a hunt in a converter was, before all hunts had one loop."""


def hunt(
    request: HuntRequest,
    plugins: Plugins,
    *,
    draw: Draw | None = None,
    progress: OnProgress = lambda event: None,
    wanted: Wanted = lambda suspect: True,
    follows_code: bool = True,
) -> HuntSummary:
    """Hunt until the budget is used up and every suspect that is ``wanted`` is vetted.

    The folder of the request holds the state after every round and every suspect, so that a process
    that dies loses only the current one. Models that run new lines of the passes' code are edited
    if it ``follows_code``.

    Raises:
        UsageError: The request cannot be answered, or the folder holds another hunt.
        KeyboardInterrupt: Ctrl-C; ``summary_of`` the folder tells what there is.
    """
    # Before anything is imported or gathered: that takes minutes where an argument names models.
    _check_folder(request)
    jobs = request.jobs or default_jobs()
    opened: AbstractContextManager[HuntSetup[Any]] = (
        open_converter(request, plugins, jobs)
        if is_converter(request)
        else open_optimizer(
            request, plugins, jobs, draw=draw, progress=progress, follows_code=follows_code
        )
    )
    # The version is part of the identity, and a converter's is known to its workers alone.
    with opened as hunted, _open_state(request, hunted.about) as (store, state):

        def save(state: HuntState) -> None:
            # The state first: a summary without one could not be continued.
            store.save(state)
            write_summary(request, hunted.about, state)

        try:
            HuntLoop(hunted, jobs, save, progress, wanted).run(state)
        finally:
            # However it ends, what there is then is told.
            summary = write_summary(request, hunted.about, state)
            if hunted.rare is not None:
                write_campaign(summary, request.folder, hunted.rare)
        return summary


def _check_folder(request: HuntRequest) -> None:
    """Check that the folder holds a hunt exactly if it is to be resumed.

    Raises:
        UsageError: It is not so.
    """
    folder = request.folder
    exists = (folder / NAME).exists()
    if not exists and (folder / _OF_SOURCES).exists():
        raise UsageError(
            f"{folder} holds a hunt that an earlier version kept in {_OF_SOURCES}, which cannot "
            "be continued; give another --out"
        )
    if request.resume and not exists:
        raise UsageError(f"--resume: {folder} holds no hunt; leave --resume out to begin one")
    if exists and not request.resume:
        raise UsageError(
            f"{folder} holds a hunt already; say --resume to continue it, or another --out"
        )


@contextmanager
def _open_state(request: HuntRequest, about: About) -> Iterator[tuple[HuntStore, HuntState]]:
    """The store of the folder, and its state.

    Raises:
        UsageError: It holds a hunt with other options.
    """
    identity: dict[str, Any] = {
        "optimizer": about.name,
        "version": about.version,
        "options": request.optimizer_options,
        "runtime options": request.runtime_options,
        # Only where it is asked: hunts of before are resumed.
        **({"session": "as shipped"} if request.as_shipped else {}),
        "passes": list(request.passes),
        "pools": list(request.pools),
        "seed": request.seed,
    }
    folder = request.folder
    # Before the file is opened: a link in the folder could lead the database anywhere.
    folder_without_links(folder)
    store = HuntStore(folder)
    try:
        stored = store.identity()
        if stored is None:
            store.begin(identity)
        elif stored != identity:
            changed = sorted(k for k in {*identity, *stored} if stored.get(k) != identity.get(k))
            raise UsageError(
                f"--resume: {folder} holds a hunt with another {', '.join(changed)}; use "
                "the same options, or give another --out"
            )
        yield store, store.load()
    finally:
        store.close()
