"""The lines of a pass's own code that run on a model, for the text of an issue.

Lines that also run without the pass, or on a model that the pass has rewritten already, look for
something to rewrite; the others rewrite, and are suspected.
"""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType

from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.building import BuildSpec, read_model
from optvet.engine.work.trials.code_of_passes import files_of_passes, tracing
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.types import Artifact

MOST = 100
"""Lines that are shown."""
Place = tuple[CodeType, int]
"""A line of a function."""


def suspected_lines(build_spec: BuildSpec) -> str:
    """The lines with their numbers, by file; empty if none is known. Called in a worker."""
    optimizer = build_spec.optimizer
    if optimizer is None or build_spec.scratch is not None:
        return ""
    enter("build")
    files = files_of_passes(optimizer, build_spec.passes, build_spec.options)
    if not files:
        return ""
    source = read_model(build_spec.blob, build_spec.digest, private=True)
    ran, result = _traced(optimizer, source, build_spec, build_spec.passes, files)
    looking, _ = _traced(optimizer, source, build_spec, (), files)
    if result is not None:
        again, _ = _traced(optimizer, result, build_spec, build_spec.passes, files)
        looking |= again
    return _text(ran - looking, files)


def _traced(
    optimizer: Optimizer,
    source: bytes,
    build_spec: BuildSpec,
    passes: tuple[str, ...],
    files: Mapping[str, str],
) -> tuple[set[Place], bytes | None]:
    """The lines of ``files`` that run while ``passes`` are applied, and the result in ONNX."""
    ran: set[Place] = set()
    result = None
    # What it raises is the finding, or was told before.
    with suppress(Exception), tracing(files, lambda *place: ran.add(place)):
        artifact = optimizer.apply(Artifact("onnx", bytes(source)), passes, build_spec.options)
        result = artifact.data if artifact.format == "onnx" else None
    return ran, result


def _text(places: Iterable[Place], files: Mapping[str, str]) -> str:
    """Lines with their numbers, each function with its first line, and dots for what is between."""
    by_file: dict[str, set[int]] = defaultdict(set)
    for code, line in places:
        by_file[code.co_filename] |= {code.co_firstlineno, line}
    shown: list[str] = []
    for path, lines in sorted(by_file.items()):
        shown += ["", _name_of(path, files[path])] if shown else [_name_of(path, files[path])]
        last = 0
        for line in sorted(lines):
            shown += ["     …"] if last and line > last + 1 else []
            shown.append(f"{line:6} {linecache.getline(path, line).rstrip()}".rstrip())
            last = line
    more = len(shown) - MOST
    return "\n".join([*shown[:MOST], f"… {more} more lines"] if more > 1 else shown)


def _name_of(path: str, module: str) -> str:
    """A file's path from the library on, which is the same on each machine."""
    inside = module.count(".") + (Path(path).name == "__init__.py")
    return "/".join(Path(path).parts[-inside - 1 :])
