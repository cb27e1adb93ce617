"""What runs in a process whose path has one release first: one task from stdin, one answer.

``python -P -m optvet.engine.bisect.in_release FILE`` writes the answer to FILE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optvet.engine.bisect.predicate import is_of
from optvet.engine.bundle import with_fingerprints, write_bundles
from optvet.engine.bundle.replay import replay_bundle
from optvet.engine.discovery import Plugins
from optvet.engine.vetting import error_of, internal, vetted
from optvet.spec.errors import OptvetError
from optvet.spec.files import write_file
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
    """Do the task; errors are answers too."""
    task = json.load(sys.stdin)
    try:
        document = _TASKS[task["kind"]](task)
    except OptvetError as error:
        document = error_of(task["about"], error)
    except Exception as error:
        document = error_of(task["about"], internal(error))
    write_file(Path(sys.argv[1]), document.to_json(), advice="make room, then run again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
