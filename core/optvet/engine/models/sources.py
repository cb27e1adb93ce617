"""Models by reference: a path, a folder, or a name of a model source."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from optvet.engine.contract import source_returns
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model, refuse_beyond_protobuf
from optvet.spec.comparators import ComparatorExtras
from optvet.spec.errors import InfrastructureError, UnknownName
from optvet.spec.extras import extras, given
from optvet.spec.files import private_folder
from optvet.spec.protocols import ModelSourceExtras
from optvet.spec.types import Model


def resolve_model(
    reference: str,
    plugins: Plugins,
    cache_dir: Path,
    *,
    accept: Callable[[str, int], None] = refuse_beyond_protobuf,
) -> list[Model]:
    """The models of ``reference``: a path, a folder, or ``zoo:NAME``.

    ``Model.source`` includes the revision, if the source has revisions. ``accept`` is called with
    name and size before a large model is read, and raises to refuse it.
    """
    scheme, colon, rest = reference.partition(":")
    if colon and scheme in plugins.names("model source"):
        source = plugins.model_source(scheme)
        _make_room(cache_dir / "models")
        files = source_returns.files(source, rest, cache_dir / "models")
        if given(source, ModelSourceExtras.pinned):
            reference = source_returns.check_pinned(source, rest, cache_dir / "models")
    elif colon and scheme.isalpha() and len(scheme) > 1 and not os.path.exists(reference):
        raise UnknownName("model source", scheme, plugins.names("model source"))
    else:
        paths = plugins.model_source(plugins.default("model source"))
        files = source_returns.files(paths, reference, cache_dir / "models")
    # What this process calls by a descriptor of its own, a worker cannot open.
    own = ("/proc/self/", "/dev/fd/")
    files = [file.resolve() if str(file).startswith(own) else file for file in files]
    several = len(files) > 1
    models = (
        open_model(f, str(f) if several else reference, cache_dir, accept=accept) for f in files
    )
    return [with_suggestion(m, plugins) for m in models]


def with_suggestion(model: Model, plugins: Plugins) -> Model:
    """``model`` with the comparator that its catalogue suggests, if a plugin implements it."""
    config = model.config
    claims = [
        (suggestion, name)
        for name in plugins.names("comparator")
        for suggestion in extras(plugins.comparator(name), ComparatorExtras).suggestions
        if suggestion.kind == config.suggestion.get("kind")
        if re.search(suggestion.tasks or "", config.task or "", re.IGNORECASE)
    ]
    if config.comparator is not None or not claims:
        return model
    claim, name = min(claims, key=lambda c: (c[0].tasks is None, c[1]))
    options = {k: v for k, v in config.suggestion.items() if k in claim.options}
    return replace(model, config=replace(config, comparator=name, comparator_options=options))


def _make_room(folder: Path) -> None:
    try:
        private_folder(folder)
    except OSError as error:
        raise InfrastructureError(
            f"cache folder {folder} cannot be made: {error.strerror or error}; choose another with "
            "--cache-dir"
        ) from error
