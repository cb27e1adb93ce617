"""What an untrusted file may set: the record beside a model, or a bundle.

Options that the user types are trusted. A record beside a downloaded model, or a bundle from
somebody else, may set numbers and names, and name data in its own folder. It may not run code, read
or write elsewhere, or use a network, unless the user gives ``--trust``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.spec.contract import Family
from optvet.spec.convert import parts_of
from optvet.spec.converters import SourceExtras
from optvet.spec.errors import InputError
from optvet.spec.extras import extras
from optvet.spec.protocols import ModelSourceExtras
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.sensitive import sensitive_options
from optvet.spec.types import ModelConfig
from optvet.spec.words import show


def options_from(
    file: str,
    key: str,
    defaults: BaseModel,
    requested: Mapping[str, Any],
    *,
    folder: Path | None,
    trust: bool,
) -> dict[str, Any]:
    """Options of a plugin that ``file`` sets, with paths resolved in ``folder``.

    Args:
        file: The file, for messages.
        key: The key of ``file`` that has ``requested``, for messages.
        defaults: The options of the plugin; a file may always set a default value.
        requested: The options in the file.
        folder: Options that only read data may name files in this folder; None: no files.
        trust: Whether the user trusts the file.

    Raises:
        InputError: An option is sensitive, and the file is not trusted.
    """
    plain = defaults.model_dump(mode="json")
    settled = dict(requested)
    for name, mark in sensitive_options(type(defaults)).items():
        value = requested.get(name)
        if name not in requested or value in (plain[name], getattr(defaults, name)):
            continue
        if mark.unless(value):
            continue
        if not trust and not (mark.reads_data and folder and is_inside(folder, value)):
            raise _refusal(file, f"{key}.{name}", value, mark.what)
        if mark.reads_data and folder and isinstance(value, str):
            settled[name] = locate(folder, value)
    return settled


_TABLES: Mapping[str, Family] = {
    "optimizer_options": "optimizer",
    "runtime_options": "runtime",
    "comparator_options": "comparator",
    "dataset_options": "dataset",
    "converter_options": "converter",
}


def check_request(file: str, request: Mapping[str, Any], plugins: Plugins) -> None:
    """Refuse a request from a file that names code or commands, or sets ``trust``.

    It may name data, since the user chose to read the file.

    Raises:
        InputError: The request is refused.
    """
    if request.get("trust"):
        raise InputError(f"{file}: only the command line grants trust; give --trust")
    model = request.get("model")
    if isinstance(model, str) and (code := _code_named_by(model, plugins, request)):
        raise _refusal(file, "model", model, f"runs the code of {code}")
    user_model = request.get("user_model")
    if isinstance(user_model, str) and ":" in user_model:
        raise _refusal(file, "user_model", user_model, "runs the code of that file")
    if registered := request.get("registered"):
        raise _refusal(file, "registered", registered, "names code that is executed")
    if wheels := request.get("wheels"):
        raise _refusal(file, "wheels", wheels, "holds code that is executed")
    if environments := request.get("environments"):
        raise _refusal(file, "environments", environments, "names programs that are executed")
    for table, family in _TABLES.items():
        table_options = request.get(table)
        if not isinstance(table_options, Mapping):
            continue
        if family == "converter":
            table_options = {key.rpartition(".")[2]: value for key, value in table_options.items()}
        for name in plugins.names(family):
            options = getattr(plugins, family)(name).options
            marks = sensitive_options(type(options))
            named = {
                k: v for k, v in table_options.items() if k in marks and not marks[k].reads_data
            }
            options_from(file, table, options, named, folder=None, trust=False)


def _code_named_by(model: str, plugins: Plugins, request: Mapping[str, Any]) -> str:
    """What code is run to read a model; empty if none is."""
    if request.get("via") and parts_of(model)[1]:
        return "that file"
    scheme, *rest = model.split(":")
    while rest:  # The reference of one source may hold that of another.
        if scheme in plugins.names("model source"):
            source = plugins.model_source(scheme)
            if extras(source, ModelSourceExtras).runs_code:
                return "that module"
        scheme, *rest = rest
    return ""


def locate_data(folder: Path, request: Mapping[str, Any], plugins: Plugins) -> dict[str, Any]:
    """``request`` whose options that name data to read name it from ``folder``, if it is there."""
    settled = dict(request)
    for table, names in _data_options(request, plugins).items():
        settled[table] = {
            key: locate(folder, value) if key in names else value
            for key, value in request[table].items()
        }
    return settled


def data_named_in(request: Mapping[str, Any], plugins: Plugins) -> list[str]:
    """What the options of ``request`` that name data to read are set to."""
    found = _data_options(request, plugins).items()
    return [request[table][key] for table, names in found for key in sorted(names)]


def _data_options(request: Mapping[str, Any], plugins: Plugins) -> dict[str, set[str]]:
    """Per table of ``request``, the keys whose value names data that a plugin reads.

    A value that any plugin of the family takes as a word of its own, not as a file, is not data.
    """
    found: dict[str, set[str]] = {}
    for table, family in _TABLES.items():
        given = request.get(table)
        if not isinstance(given, Mapping) or not given:
            continue
        plugin_options = [getattr(plugins, family)(name).options for name in plugins.names(family)]
        marked = [sensitive_options(type(options)) for options in plugin_options]
        for key, value in given.items():
            # Options of converters carry the name of theirs.
            marks = [m for each in marked if (m := each.get(key.rpartition(".")[2]))]
            if isinstance(value, str) and any(m.reads_data for m in marks):
                if not any(m.unless(value) for m in marks):
                    found.setdefault(table, set()).add(key)
    return found


def check_source(model: str, suffix: str, runtimes: Iterable[Runtime], *, trust: bool) -> None:
    """Refuse a source that may run code as it is loaded, unless the user trusts it.

    A file of ONNX is read as data. A Python file is code, and the user names a function of it.

    Args:
        model: The source, for the message.
        suffix: That of its file, in lower case; empty for a folder.
        runtimes: Those that may load it.
        trust: Whether the user trusts it.

    Raises:
        InputError: It is not trusted, and a runtime does not say that such files hold data alone.
    """
    if trust or suffix in (".onnx", ".py"):
        return
    for runtime in runtimes:
        if risk := extras(runtime, SourceExtras).source_risks.get(suffix, _UNKNOWN_RISK):
            raise InputError(
                f"{model}: loading it may run code: it {risk}; say --trust (in Python trust=True) "
                "if you trust who made it, or give a model in ONNX"
            )


_UNKNOWN_RISK = "has a format that no plugin declares to hold data alone"


def dataset_from(config: ModelConfig, *, trust: bool) -> str | None:
    """The dataset of a record, ``NAME`` or ``NAME:ARGUMENT``, with a path resolved.

    Raises:
        InputError: The record is not trusted, and ``ARGUMENT`` is not in its folder.
    """
    if config.dataset is None:
        return None
    name, colon, argument = config.dataset.partition(":")
    if not colon:
        return name
    folder = Path(config.origin).parent
    if not trust and not is_inside(folder, argument):
        what = "is not in the record's folder"
        raise _refusal(config.origin, "dataset", config.dataset, what, ", or choose by --dataset")
    return f"{name}:{locate(folder, argument)}"


def locate(folder: Path, words: str) -> str:
    """``words`` as a path, if they name something that exists in ``folder``; else unchanged."""
    try:
        path = folder / Path(words).expanduser()
        return str(path) if words and path.exists() else words
    except (OSError, ValueError, RuntimeError):
        return words


def is_inside(folder: Path, value: object) -> bool:
    """Whether ``value`` names something that exists in ``folder``, after following links."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        path = folder / value
        return path.exists() and path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # too long a name, a loop of links
        return False


def _refusal(file: str, key: str, value: object, what: str, instead: str = "") -> InputError:
    """The error for a value that only a trusted file may have."""
    return InputError(
        f"{file}: key {key!r} is {show(value)}, which {what}; read that file, and say --trust (in "
        f"Python trust=True) if you trust it{instead}"
    )
