"""What runs in a process whose path has one release first: tasks from stdin, answers to stdout.

Each task is a line of JSON, and so is each answer, behind a mark.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optvet.engine.bisect.predicate import is_of
from optvet.engine.bisect.release_process import MARK
from optvet.engine.bundle import with_fingerprints, write_bundles
from optvet.engine.bundle.replay import replay_bundle
from optvet.engine.discovery import Plugins
from optvet.engine.vetting import error_of, internal, vetted
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.errors import OptvetError
from optvet.spec.records.base import Record
from optvet.spec.request import VetRequest, request_of


def _vet(task: Mapping[str, Any]) -> Record:
    request = request_of(VetRequest, task["request"])
    plugins = Plugins()
    with vetted(request, plugins) as answer:
        if request.out is None:
            return answer.result
        symptom, culprits = task["symptom"], task["culprits"]
        found = [f for f in answer.result.findings if is_of(f, symptom, culprits)]
        result = answer.result.model_copy(update={"findings": found})
        bundles = write_bundles(result, request, request.out, plugins, session=answer.session)
        return with_fingerprints(result, bundles)


def _replay(task: Mapping[str, Any]) -> Record:
    return replay_bundle(Path(task["bundle"]), Plugins(), trust=bool(task["trust"]))


_TASKS: Mapping[str, Callable[[Mapping[str, Any]], Record]] = {"vet": _vet, "replay": _replay}


def main() -> int:
    """Do each task; errors are answers too."""
    # Plugins print, and what they start may read: both ends of the caller's pipes are out of reach.
    tasks, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    keep_servers()
    for line in tasks:
        document = _answer(json.loads(line))
        on_one_line = json.dumps(json.loads(document.to_json()))
        answers.write(f"{MARK}{on_one_line}\n")
        answers.flush()
    return 0


def _answer(task: Mapping[str, Any]) -> Record:
    try:
        return _TASKS[task["kind"]](task)
    except OptvetError as error:
        return error_of(task["about"], error)
    except Exception as error:
        return error_of(task["about"], internal(error))


if __name__ == "__main__":
    sys.exit(main())
