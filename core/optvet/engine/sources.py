"""Models by reference: a path, a folder, or what a model source has under a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from optvet.engine import contract
from optvet.engine.discovery import Plugins
from optvet.engine.models import open_model, refuse_beyond_protobuf
from optvet.engine.roles import with_suggestion
from optvet.spec.errors import InfrastructureError, UnknownName
from optvet.spec.files import private_folder
from optvet.spec.protocols import Pins
from optvet.spec.types import Model


def resolve_model(
    reference: str,
    plugins: Plugins,
    cache_dir: Path,
    *,
    accept: Callable[[str, int], None] = refuse_beyond_protobuf,
) -> list[Model]:
    """The models that ``reference`` (a path, a folder, ``zoo:NAME``) stands for.

    ``Model.source`` says which revision it is, where the source knows revisions. ``accept`` raises
    if a model of a size is not taken; it is asked before a large model is read.
    """
    scheme, colon, rest = reference.partition(":")
    if colon and scheme in plugins.names("model source"):
        source = plugins.model_source(scheme)
        _make_room(cache_dir / "models")
        files = contract.files(source, rest, cache_dir / "models")
        if isinstance(source, Pins):
            reference = contract.pinned(source, rest, cache_dir / "models")
    elif colon and scheme.isalpha() and len(scheme) > 1 and not Path(reference).exists():
        raise UnknownName("model source", scheme, plugins.names("model source"))
    else:
        paths = plugins.model_source(plugins.default("model source"))
        files = contract.files(paths, reference, cache_dir / "models")
    several = len(files) > 1
    models = (
        open_model(f, str(f) if several else reference, cache_dir, accept=accept) for f in files
    )
    return [with_suggestion(m, plugins) for m in models]


def _make_room(folder: Path) -> None:
    try:
        private_folder(folder)
    except OSError as error:
        raise InfrastructureError(
            f"cache folder {folder} cannot be made: {error.strerror or error}; choose another with "
            "--cache-dir"
        ) from error
