"""Runs commands of optvet one after the other in one process: ``python -m tests.assault.driver``.

Reads a JSON list of command lines from stdin; writes what came of each to the file that is named.
With ``--keep-servers`` a command leaves its server to the next, as one that vets many models does.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys
import time
from pathlib import Path


def main() -> None:
    target = Path(sys.argv[1])
    answers = []
    import optvet.cli
    from optvet.engine.work.sandbox import keep_servers

    if "--keep-servers" in sys.argv:
        keep_servers()
    gc.freeze()  # Else it looks for garbage among all modules, again and again.

    for words in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        started = time.monotonic()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = optvet.cli.main(words)
        seconds = time.monotonic() - started
        answers.append(
            {"code": code, "out": out.getvalue(), "err": err.getvalue(), "seconds": seconds}
        )
        # Each answer at once: if a later command takes the process down, the earlier ones are told.
        target.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
