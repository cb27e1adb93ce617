"""Several models as they are named: files, folders, globs, ``zoo:resnet*``, ``zoo:@cnn``.

What follows the ``@`` is a tag that the source gives to its models.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from optvet.engine.contract import source_returns
from optvet.engine.discovery import Plugins
from optvet.spec.errors import InputError, UsageError
from optvet.spec.foreign import check_name, matching
from optvet.spec.types import ModelCard

_ALL, _TAG = "all", "@"


def expand_models(
    selectors: Sequence[str],
    plugins: Plugins,
    *,
    folder: Path | None = None,
    exclude: Iterable[str] = (),
) -> list[str]:
    """References to single models, each once, in the order of the selectors.

    Args:
        selectors: As a user names models.
        plugins: What is installed.
        folder: Where relative paths begin, if not here.
        exclude: Patterns of references, file names and names of models that are left out.

    Raises:
        UsageError: A selector means no model.
    """
    found: dict[str, None] = {}
    if not all(selectors):  # As of a variable that is not set; a path of nothing is the folder.
        raise UsageError("a model's name is empty; give a file, a folder or SOURCE:NAME")
    for selector in selectors:
        found |= dict.fromkeys(_expand(selector, plugins, folder))
    for reference in found:
        check_name(reference)
    patterns = tuple(exclude)
    return [r for r in found if not any(_is_meant(r, pattern) for pattern in patterns)]


def models_with_tag(plugins: Plugins, tag: str) -> list[str]:
    """References to the models with that tag, of all sources that list theirs without a network."""
    sources = [plugins.model_source(name) for name in plugins.names("model source")]
    return [
        f"{source.name}:{card.name}"
        for source in sources
        if not getattr(source, "needs_network", False)
        for card in source.models()
        if tag in card.tags
    ]


def _is_meant(reference: str, pattern: str) -> bool:
    names = {reference, Path(reference).name, Path(reference).stem, reference.partition(":")[2]}
    return any(fnmatchcase(name, pattern) for name in names if name)


_MESSAGE_CHARS = 500


def _expand(selector: str, plugins: Plugins, folder: Path | None) -> list[str]:
    scheme, colon, rest = selector.partition(":")
    if colon and scheme in plugins.names("model source"):
        return _list_models(selector, scheme, rest, plugins)
    try:
        path = Path(selector).expanduser()
    except RuntimeError as error:  # the home of nobody
        raise UsageError(f"{selector[:200]}: no path: {error}"[:_MESSAGE_CHARS]) from error
    if folder is not None and not path.is_absolute() and not _looks_foreign(selector):
        path = folder / path
    if not os.path.exists(path) and glob.has_magic(selector):
        files = [p for p in matching(str(path)) if os.path.isfile(p)]
        if not files:
            raise UsageError(f"{str(path)[:_MESSAGE_CHARS]}: no file matches; check the pattern")
        return files
    if os.path.isdir(path):
        source = plugins.model_source(plugins.default("model source"))
        return [str(file) for file in source_returns.files(source, str(path), Path())]
    # What is wrong with a single model is told by the job that opens it.
    return [str(path)] if os.path.exists(path) or folder is None else [_missing(selector, path)]


def _missing(selector: str, path: Path) -> str:
    if _looks_foreign(selector):
        return selector
    raise UsageError(f"{str(path)[:_MESSAGE_CHARS]}: no such file or folder")


def _looks_foreign(selector: str) -> bool:
    """Whether it is the name of a model source that is not installed, rather than a path."""
    scheme, colon, _ = selector.partition(":")
    return bool(colon) and scheme.isalpha() and len(scheme) > 1


def _list_models(selector: str, scheme: str, rest: str, plugins: Plugins) -> list[str]:
    """Models that a source lists, by pattern; a plain name as it is."""
    if rest != _ALL and not rest.startswith(_TAG) and not glob.has_magic(rest):
        return [selector]
    cards = list(plugins.model_source(scheme).models())
    if rest in {card.name for card in cards}:
        return [selector]
    meant = [card.name for card in cards if _fits(card, rest)]
    if not meant:
        words = f"{len(cards)} models, none" if cards else "no models, so none"
        raise InputError(f"{selector}: {scheme} lists {words} that matches; see: optvet models")
    return [f"{scheme}:{name}" for name in meant]


def _fits(card: ModelCard, rest: str) -> bool:
    if rest.startswith(_TAG):
        return rest.removeprefix(_TAG) in card.tags
    return rest == _ALL or fnmatchcase(card.name, rest)
