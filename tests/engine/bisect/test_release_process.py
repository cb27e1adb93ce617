"""Processes with a release: which tasks share one, and what the end of one means."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from optvet.engine.bisect.overlay import Overlay
from optvet.engine.bisect.release_process import ReleaseProcesses
from optvet.engine.environment.child_process import ChildEnd

TASK = {"kind": "replay", "about": "b", "bundle": "/no/such/bundle", "trust": False}


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Overlay]:
    """A release whose processes write down their numbers, and print when they start."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "with (Path(__file__).parent / 'started').open('a') as file:\n"
        "    print(os.getpid(), file=file)\n"
        "print('a line of a release')\n"
        "if (Path(__file__).parent / 'broken').exists():\n"
        "    sys.stderr.write('it is broken\\n')\n"
        "    os._exit(9)\n"
    )
    with closing(ReleaseProcesses()) as processes:
        yield Overlay("1.0", (tmp_path,), processes)


def started(overlay: Overlay) -> list[int]:
    return [int(line) for line in (overlay.folders[0] / "started").read_text().split()]


def error(answer: dict[str, Any] | ChildEnd) -> str:
    assert not isinstance(answer, ChildEnd), answer
    return str(answer["message"])


def test_tasks_share_a_process_unless_they_ask_for_one_of_their_own(overlay: Overlay) -> None:
    for alone in (False, False, True, False):
        assert "/no/such/bundle" in error(overlay.ask(TASK, alone=alone))
    assert len(started(overlay)) == 2


def test_a_process_that_ended_while_it_waited_is_replaced(overlay: Overlay) -> None:
    overlay.ask(TASK)
    (waiting,) = started(overlay)
    os.kill(waiting, signal.SIGKILL)
    assert "/no/such/bundle" in error(overlay.ask(TASK))
    assert len(started(overlay)) == 2


def test_a_process_that_ends_without_an_answer_says_why(overlay: Overlay) -> None:
    (overlay.folders[0] / "broken").touch()
    ended = overlay.ask(TASK)
    assert isinstance(ended, ChildEnd)
    assert (ended.status, ended.last_lines(1)) == (9, "it is broken")
