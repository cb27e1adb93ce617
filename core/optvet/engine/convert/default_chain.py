"""The converter that is taken where the request names none."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from optvet.engine.discovery import Plugins
from optvet.spec.convert import parts_of
from optvet.spec.converters import Converter, TellsSource
from optvet.spec.errors import InputError, SeveralFit, UsageError
from optvet.spec.extras import PluginExtras, extras
from optvet.spec.foreign import read_file

_ONNX = "onnx"


def choose_converter(model: str, plugins: Plugins) -> tuple[str, ...]:
    """The converter to ONNX for a source; what it is and why, ``explain_choice`` says.

    Of those that take such files, these stay whose library the file of Python imports, then those
    whose source's library it imports; of these the most preferred one is taken.

    Raises:
        SeveralFit: Several are as good.
        UsageError: There is none, or the file of the source is missing.
    """
    fitting = _fitting(model, plugins)
    found = _likeliest(model, _to_onnx(model, fitting, plugins), plugins)
    best = [c for c in found if _preference(c) == max(map(_preference, found))]
    if len(best) == 1:
        return (best[0].name,)
    shown = found or fitting
    path = Path(parts_of(model)[0]).expanduser()
    named = model.partition(":")[0] in plugins.names("model source")
    if shown and not named and not path.exists():
        raise UsageError(f"{path}: there is no such file; check the path")
    if not shown:
        names = ", ".join(plugins.names("converter")) or "none is installed"
        raise UsageError(
            f"--via is missing, and no converter at hand takes {model}; at hand: {names}; what "
            "others need, this lists: optvet plugins"
        )
    commands = [f"optvet convert {shlex.quote(model)} --via {c.name}" for c in shown]
    raise SeveralFit("--via is missing, and several converters fit; choose one", commands)


def explain_choice(model: str, plugins: Plugins, chosen: str) -> str:
    """Which converter was taken where none was named, and how to take another one."""
    to_onnx = _to_onnx(model, _fitting(model, plugins), plugins)
    others = [c.name for c in to_onnx if c.name != chosen]
    words = f"{chosen} was taken, since --via names no converter"
    return f"{words}; others: --via {' or --via '.join(others)}" if others else words


def _preference(converter: Converter) -> int:
    return extras(converter, PluginExtras).preference


def _fitting(model: str, plugins: Plugins) -> list[Converter]:
    """The converters that take a format that files like this one have."""
    formats = formats_of(model, plugins)
    converters = [plugins.converter(name) for name in plugins.names("converter")]
    return [c for c in converters if c.consumes & formats]


def formats_of(model: str, plugins: Plugins) -> set[str]:
    """The formats that a file or folder of this name may have; nothing is read."""
    if model.partition(":")[0] in plugins.names("model source"):
        return {_ONNX}
    suffix = _suffix(model)
    if not suffix and not Path(model).is_dir():
        return set()
    formats = {s.source_formats[suffix] for s in _sources(plugins) if suffix in s.source_formats}
    return formats | ({_ONNX} if suffix == ".onnx" else set())


def _to_onnx(model: str, fitting: Iterable[Converter], plugins: Plugins) -> list[Converter]:
    if _ONNX in formats_of(model, plugins):
        return []
    return [c for c in fitting if c.produces == _ONNX]


def _likeliest(
    model: str, converters: Sequence[Converter], plugins: Plugins
) -> Sequence[Converter]:
    """The converters of the libraries that a file of Python imports; all if that says nothing."""
    imported = _imports(model)
    sources = [s for s in _sources(plugins) if imported & _modules(s)]
    formats = {s.source_formats.get(_suffix(model)) for s in sources}
    own = [c for c in converters if imported & _modules(c)]
    return own or [c for c in converters if c.consumes & formats] or converters


def _suffix(model: str) -> str:
    return Path(parts_of(model)[0]).suffix.lower()


def _sources(plugins: Plugins) -> list[TellsSource]:
    usable = map(plugins.runtime, plugins.names("runtime"))
    return [runtime for runtime in usable if isinstance(runtime, TellsSource)]


def _modules(plugin: object) -> set[str]:
    return set(extras(plugin, PluginExtras).libraries.values())


def _imports(model: str) -> set[str]:
    """The top-level modules that a file of Python imports, also in functions; it is not run."""
    if _suffix(model) != ".py":
        return set()
    try:
        tree = ast.parse(read_file(Path(parts_of(model)[0])))
    except (OSError, InputError, SyntaxError, ValueError):
        return set()  # The conversion says what is wrong with the file.
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
