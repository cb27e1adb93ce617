"""Whole answers, kept: a question that was asked before needs no plugin and no library.

The parts of an answer are kept by what they depend on (``Cache``), but to put them together takes
every plugin and most of optvet. So an answer that was put together of kept parts alone, without any
process, is kept as a whole too, under everything that it can depend on: the request, the model's
bytes, the code of optvet and of its plugins, and what is installed. Where that is not known, as
with the plugin of a third party, with data that is read from files, or with a model that has a
record beside it, nothing is kept, and the answer is put together anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from optvet.engine.installed_plugins import entry_points
from optvet.engine.work.cache.cache_key import key
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.cache.modified_installs import code_digest
from optvet.spec.errors import InputError
from optvet.spec.files import file_sha256
from optvet.spec.records.base import Record
from optvet.spec.records.vet import VetResult
from optvet.spec.request import VetRequest

if TYPE_CHECKING:
    from optvet.engine.discovery import Plugins
    from optvet.spec.types import Model

R = TypeVar("R", bound=Record)
SELF = "optvet"
CONFINE = "OPTVET_CONFINE"
"""Repeated from ``sandbox.landlock``: importing that would delay a cached answer."""
MOST_FILES = 2000
"""Files of a folder of a source that are looked at to tell whether it is as it was."""
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")


class _KeptAnswer(Record):
    """An answer, and what else it depends on.

    Attributes:
        files: How each file and folder was that was read, or that would have changed the answer if
            it had been there; see ``state_of``.
        modules: Those whose code took part, beside optvet's and its plugins'.
        code: A digest of when their files were written.
        result: The document of the answer.
    """

    files: dict[str, str]
    modules: list[str]
    code: str
    result: dict[str, Any]


def recall(request: VetRequest, root: Path) -> VetResult | None:
    """The answer to ``request`` that is kept in the cache ``root``; None if there is none.

    Its ``cost`` tells the time that this took.
    """
    started = time.perf_counter()
    if (
        not _is_plain(request)
        or (found := recall_answer(VetResult, request, root, _place(request))) is None
    ):
        return None
    cost = found.cost.model_copy(update={"wall_s": time.perf_counter() - started})
    return found.model_copy(update={"cost": cost})


def recall_answer(kind: type[R], request: BaseModel, root: Path, where: str) -> R | None:
    """The answer of ``kind`` to a request of any command that is kept in the cache ``root``.

    ``where`` is the place from which names of files in the request are read.
    """
    if (name := _key_of(request, where)) is None:
        return None
    with Cache(root) as cache:
        kept = cache.read(name, _KeptAnswer.model_validate_json, _encode)
    if kept is None or not _is_current(kept):
        return None
    found = kind.model_validate(kept.result)
    return found if _document(found) == kept.result else None


def keep(
    request: VetRequest,
    result: VetResult,
    model: Model,
    plugins: Plugins,
    cache: Cache,
    *,
    modules: Collection[str] = (),
) -> None:
    """Keep ``result``, which no process took part in, if all that it depends on is known.

    ``modules`` are the top-level modules of libraries that took part.
    """
    from optvet.engine.models.sidecar import places_of

    if not (plugins.installed and _is_plain(request) and _is_stable(request, model, plugins)):
        return
    if any(os.path.lexists(path) for path in places_of(model.path)):
        return
    if result.cost.applications or result.cost.inferences:
        return
    files = {str(path): state_of(path) for path in places_of(model.path)}
    # A file of the name that means a model elsewhere would be that model.
    named = Path(request.model).expanduser().absolute()
    files[str(named)] = state_of(named)
    files[str(model.path.absolute())] = f"{_CONTENT}{model.digest}"
    keep_answer(request, _place(request), result, cache, files, modules)


def _place(request: VetRequest) -> str:
    return str(Path(request.model).expanduser().absolute())


def keep_answer(
    request: BaseModel,
    where: str,
    result: Record,
    cache: Cache,
    files: Mapping[str, str],
    modules: Collection[str],
) -> None:
    """Keep an answer of any command with the states of the files that it depends on.

    ``modules`` are the top-level modules of libraries that took part.
    """
    names = sorted({"onnx", *modules})
    kept = _KeptAnswer(
        files=dict(files), modules=names, code=code_digest(*names), result=_document(result)
    )
    if _is_current(kept) and (name := _key_of(request, where)) is not None:
        cache.put(name, "answer", _encode(kept))


def _document(result: Record) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.model_dump_json(by_alias=True))
    return document


def _encode(kept: _KeptAnswer) -> bytes:
    return kept.model_dump_json(by_alias=True).encode()


def _is_plain(request: VetRequest) -> bool:
    """Whether nothing in ``request`` can name data, devices or files, but for the model."""
    named = (*request.plugin_options, _arguments(request))
    # Timings are never answered from the cache, and a file is not written from it.
    done = request.measure or request.user_model or request.save is not None
    return request.cache and not done and not any(named)


def _arguments(request: VetRequest) -> list[str]:
    return [name for name in request.dataset if ":" in name]


def _is_stable(request: VetRequest, model: Model, plugins: Plugins) -> bool:
    """Whether the reference means one file, which holds the whole model, at any time."""
    from optvet.spec.extras import extras, given
    from optvet.spec.protocols import ModelSourceExtras

    scheme, colon, _ = request.model.partition(":")
    if colon and scheme in plugins.names("model source"):
        source = plugins.model_source(scheme)
        listed_elsewhere = extras(source, ModelSourceExtras).needs_network
        if listed_elsewhere or given(source, ModelSourceExtras.pinned):
            return False
    elif not Path(request.model).expanduser().is_file():
        return False
    return model.blob == model.path and model.path.stat().st_size == model.size_bytes


def _is_current(kept: _KeptAnswer) -> bool:
    """Whether files and libraries are as they were."""
    with contextlib.suppress(OSError):
        if code_digest(*kept.modules) != kept.code:
            return False
        return all(_is_as(Path(path), state) for path, state in kept.files.items())
    return False


_CONTENT = "sha256:"
_ABSENT = "absent"


def state_of(path: Path) -> str:
    """Size and time of a file, those of all files of a folder as a digest, or that it is absent.

    Hidden files and compiled modules are no part of a folder.

    Raises:
        InputError: The folder has more files than are looked at.
    """
    if not os.path.lexists(path):
        return _ABSENT
    if not path.is_dir():
        return " ".join(map(str, _about(str(path))[1:]))
    found: list[tuple[str, int, int]] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(n for n in folders if n[0] != "." and n != "__pycache__")
        found += [_about(os.path.join(folder, n)) for n in sorted(names) if n[0] != "."]
        if len(found) > MOST_FILES:
            raise InputError(f"{path} has more than {MOST_FILES:,} files")
    return key(found)


def _is_as(path: Path, state: str) -> bool:
    if state.startswith(_CONTENT):
        return file_sha256(path) == state.removeprefix(_CONTENT)
    try:
        return state_of(path) == state
    except InputError:
        return False


# --- what an answer depends on --------------------------------------------------------------------


def _key_of(request: BaseModel, where: str) -> str | None:
    """The key of the answer; None if a third party's plugin is installed."""
    points = entry_points(group=SELF)
    if any(d is None or d.name != SELF for d in {point.dist for point in points}):
        return None
    modules = sorted({point.value.partition(":")[0].partition(".")[0] for point in points})
    code = [*_files_of(SELF), *(file for module in modules for file in _files_of(module))]
    fields = request.model_dump(mode="json", exclude={"cache_dir"})
    confined = os.environ.get(CONFINE, "")
    return key(
        "answer",
        sys.version,
        sys.path,
        list(_iter_installed_folders()),
        code,
        fields,
        where,
        confined,
    )


def _files_of(module: str) -> list[tuple[str, int, int]]:
    """Path, size and time of the files of a module or package, which is not imported."""
    spec = PathFinder.find_spec(module)
    if spec is None:
        return []
    roots = spec.submodule_search_locations
    if not roots:
        return [_about(spec.origin or "")]
    names = (
        os.path.join(folder, name)
        for root in roots
        for folder, _, files in os.walk(root)
        for name in files
        if not name.endswith(".pyc")
    )
    return sorted(map(_about, names))


def _iter_installed_folders() -> Iterator[tuple[str, int, int]]:
    """Each folder of modules, and what was installed there: names have versions in them."""
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as entries:
                names = sorted(e.path for e in entries if e.name.endswith(_INSTALLED))
        except OSError:  # a folder that does not exist, an archive
            yield _about(folder)
            continue
        for name in names:
            record = os.path.join(name, "RECORD")
            yield _about(record if os.path.exists(record) else name)


def _about(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return path, -1, -1
    return path, found.st_size, found.st_mtime_ns
