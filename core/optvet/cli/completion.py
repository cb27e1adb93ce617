"""Names that a shell completes: of models, optimizers, their passes, and other plugins.

A shell asks with each Tab. Listing passes imports libraries, so the names are kept in the cache
folder until something is installed or removed.
"""

from __future__ import annotations

import contextlib
import glob
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from optvet import __version__
from optvet.engine.work.cache.disk import cache_root
from optvet.spec.errors import OptvetError
from optvet.spec.extras import extras
from optvet.spec.files import write_file
from optvet.spec.foreign import matching
from optvet.spec.parsing import read_json
from optvet.spec.protocols import ModelSourceExtras

Names = Mapping[str, Any]
Completer = Callable[[typer.Context, str], list[str]]


def known_names() -> Names:
    """Names by family; optimizers with their passes and pipelines; from the cache if they are.

    Keys: "optimizer" (names to passes and pipelines), "default" (the default optimizer),
    "runtime", "comparator", "dataset", "converter", and "model" (models that need no network).
    """
    stamp, file = _stamp(), cache_root() / "completion.json"
    with contextlib.suppress(OSError, OptvetError, KeyError, TypeError):
        kept: dict[str, Any] = read_json(file, "record")
        if kept["stamp"] == stamp:
            names: Names = kept["names"]
            return names
    found = _list_names()
    # Without a cache that can be written, it is only slower.
    with contextlib.suppress(OSError, OptvetError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, json.dumps({"stamp": stamp, "names": found}), advice="make room")
    return found


def _stamp() -> list[Any]:
    """Changes when a package is installed or removed, which only their own metadata says.

    A folder on the path may be one in which files come and go, such as that of a project.
    """
    folders = [Path(entry) for entry in dict.fromkeys(sys.path) if entry]
    return [__version__, *([str(f), _packages_in(f)] for f in folders if f.is_dir())]


def _packages_in(folder: Path) -> list[list[Any]]:
    """The metadata of the packages in a folder, and when each was written."""
    found = (f for pattern in ("*.dist-info", "*.egg-info") for f in folder.glob(pattern))
    return sorted([f.name, f.stat().st_mtime_ns] for f in found)


def _list_names() -> dict[str, Any]:
    from optvet.engine.discovery import Plugins

    plugins = Plugins()
    usable = [p for p in plugins.all() if p.problem is None]
    found: dict[str, Any] = {
        family: sorted({p.name for p in usable if p.family == family})
        for family in ("runtime", "comparator", "dataset", "converter")
    }
    found["default"] = plugins.default("optimizer")
    found["optimizer"] = {
        p.name: {
            "passes": [each.name for each in p.plugin.passes()],
            "pipelines": sorted(p.plugin.pipelines()),
        }
        for p in usable
        if p.family == "optimizer"
    }
    found["model"] = [
        f"{p.name}:{card.name}"
        for p in usable
        if p.family == "model source" and not extras(p.plugin, ModelSourceExtras).needs_network
        for card in p.plugin.models()
    ]
    return found


def _of(family: str) -> Completer:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return _in_list(list(known_names()[family]), incomplete)

    return complete


def _in_list(names: Iterable[str], incomplete: str) -> list[str]:
    """``names`` behind what precedes the last comma of ``incomplete``."""
    before = incomplete[: incomplete.rfind(",") + 1]
    return [f"{before}{name}" for name in names]


def _optimizer(ctx: typer.Context, names: Names) -> Mapping[str, list[str]]:
    """Passes and pipelines of the optimizer that was typed, or of the default."""
    named = ctx.params.get("optimizer") or names["default"]
    chosen = named if isinstance(named, str) else named[0]
    found: Mapping[str, list[str]] = names["optimizer"].get(chosen, {"passes": [], "pipelines": []})
    return found


def _passes(ctx: typer.Context, incomplete: str) -> list[str]:
    return _in_list(_optimizer(ctx, known_names())["passes"], incomplete)


def _pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    optimizer = _optimizer(ctx, known_names())
    left_out = [f"-{name}" for name in optimizer["passes"]]
    return _in_list([*optimizer["pipelines"], *optimizer["passes"], *left_out], incomplete)


def _models(ctx: typer.Context, incomplete: str) -> list[str]:
    names: list[str] = known_names()["model"]
    # bash parts words at colons, and asks for what follows: zoo : digits
    references = ctx.params.get("model") or ()
    typed = [references] if isinstance(references, str) else list(references)
    if typed[-1:] == [":"]:
        source = f"{typed[-2]}:"
        return [n.removeprefix(source) for n in names if n.startswith(source)]
    paths: list[Path] = []
    with contextlib.suppress(OptvetError):  # such as a folder of the kernel's: nothing to offer
        paths = [Path(p) for p in matching(f"{glob.escape(incomplete)}*")]
    files = [f"{p}/" if p.is_dir() else str(p) for p in paths if _may_be_meant(p)]
    return sorted(files) + names


def _may_be_meant(path: Path) -> bool:
    return not path.name.startswith(".") and (path.suffix == ".onnx" or path.is_dir())


COMPLETERS: Mapping[str, Completer] = {
    "model": _models,
    "optimizer": _of("optimizer"),
    "pipeline": _pipelines,
    "exclude": _passes,
    "runtime": _of("runtime"),
    "cross_check": _of("runtime"),
    "comparator": _of("comparator"),
    "dataset": _of("dataset"),
    "via": _of("converter"),
}
"""The completer of a field of a request."""
