"""Resolves the source and the converters of a request, and checks that they fit together."""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optvet.engine.contract import checked_calls
from optvet.engine.convert.converted_elsewhere import GivenConverter
from optvet.engine.convert.default_chain import choose_converter
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.options import parse_options
from optvet.engine.trust import check_source
from optvet.engine.work.cache.disk import cache_root
from optvet.spec.convert import ConvertRequest, parts_of
from optvet.spec.converters import ConversionStage, Converter, Factory, TellsSource
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.foreign import load_model, read_file
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Artifact


@dataclass(frozen=True)
class Link:
    """A converter of the chain with its options and stages."""

    converter: Converter
    options: BaseModel
    stages: tuple[ConversionStage, ...]


@dataclass(frozen=True)
class ConversionSource:
    """The source model and its runtime.

    ``digest`` covers its file only, not other files that a Python file imports.
    """

    artifact: Artifact
    runtime: Runtime
    digest: str


def in_full(registered: str) -> str:
    """A function that registers converters, with the path of its file if it lies here.

    Workers run in folders of their own.
    """
    place, _, name = registered.rpartition(":")
    file = Path(place if place.endswith(".py") else f"{place.replace('.', '/')}.py")
    return f"{file.resolve()}:{name}" if file.is_file() else registered


def _refuse_registered(request: ConvertRequest) -> None:
    """Refuse functions to register converters with that nothing calls, or nobody trusts.

    Raises:
        UsageError: They are refused.
    """
    listed = ", ".join(request.registered)
    if request.registered and request.converted is not None:
        raise UsageError(f"--register {listed}: --converted converts nothing; leave one out")
    if request.registered and not request.trust:
        raise UsageError(
            f"--register {listed} runs the code that it names; add --trust to allow it"
        )


def links_of(request: ConvertRequest, plugins: Plugins) -> list[Link]:
    """The converters of the request in order.

    Raises:
        UsageError: There is none, formats do not meet, or an option is wrong.
    """
    _refuse_registered(request)
    if request.converted is not None:
        return [_link_of_request(request, plugins)]
    via = request.via or choose_converter(request.model, plugins)
    converters = [plugins.converter(name) for name in via]
    for before, after in itertools.pairwise(converters):
        if before.produces not in after.consumes:
            takes = ", ".join(sorted(after.consumes))
            raise UsageError(
                f"--via {','.join(request.via)}: {before.name} makes {before.produces}, but "
                f"{after.name} takes {takes}; choose converters whose formats match"
            )
    return [_link(c, options) for c, options in _options(request, converters)]


def _link_of_request(request: ConvertRequest, plugins: Plugins) -> Link:
    """A converter that gives the model of the request.

    Raises:
        UsageError: There is no such file, it is no ONNX model, or a chain is named too.
    """
    path = request.converted
    assert path is not None
    if request.via or request.converter_options:
        raise UsageError(
            "--converted is a model that was converted elsewhere; leave out --via and its options"
        )
    if not os.path.isfile(path):
        raise UsageError(f"no such file: {path}; give the converted model")
    formats = {"onnx"}
    for runtime in map(plugins.runtime, plugins.names("runtime")):
        if isinstance(runtime, TellsSource):
            formats |= set(runtime.source_formats.values())
    return _link(GivenConverter(_whole(path), frozenset(formats)), {})


def _whole(path: Path) -> bytes:
    """The model with external weights read into memory."""
    try:
        return bytes(load_model(path).SerializeToString())
    except Exception as error:
        raise InputError(
            f"{path} cannot be read as an ONNX model: {error}; give a .onnx file"
        ) from error


def _link(converter: Converter, requested: Mapping[str, Any]) -> Link:
    options = parse_options(f"converter {converter.name!r}", converter.options, requested)
    stages = checked_calls.list_items(
        "converter", converter, "stages", lambda: converter.stages(options), ConversionStage
    )
    return Link(converter, options, tuple(stages))


def _options(
    request: ConvertRequest, converters: Sequence[Converter]
) -> Iterator[tuple[Converter, dict[str, Any]]]:
    """Options by converter: those with its name as prefix, and others that it knows."""
    names = [c.name for c in converters]
    by_link: list[dict[str, Any]] = [{} for _ in converters]
    for key, value in request.converter_options.items():
        name, dot, field = key.rpartition(".")
        if dot and name not in names:
            raise UnknownName("converter", name, names, f"(in option {key!r})")
        having = [
            i
            for i, c in enumerate(converters)
            if (not dot or c.name == name) and field in type(c.options).model_fields
        ]
        if not having:
            fields = {f for c in converters for f in type(c.options).model_fields}
            raise UnknownName(f"option of {', '.join(names)}", key, fields)
        for i in having:
            by_link[i][field] = value
    return zip(converters, by_link, strict=True)


_FUNCTIONS = 8


def functions_in(file: Path) -> list[str]:
    """Functions of a file of Python that may make a model: those that need no argument.

    The file is read, and not run.
    """
    try:
        tree = ast.parse(read_file(file))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        # Each default belongs to one of the last arguments.
        and len(node.args.posonlyargs + node.args.args) == len(node.args.defaults)
    ]
    return found[:_FUNCTIONS]


def sources_of(
    request: ConvertRequest, first: Converter, plugins: Plugins
) -> list[ConversionSource]:
    """The source of the request in each format that the first converter takes.

    Raises:
        UsageError: There is no such file, or no such format is known.
    """
    path, function = parts_of(request.model)
    file = _file_of(path, plugins, request.cache_dir or cache_root())
    suffix = file.suffix.lower()
    if suffix == ".py" and not function:
        named = [f"{path}:{name}" for name in functions_in(file)]
        there = f"; there are {', '.join(named)}" if named else ""
        raise UsageError(
            f"{path} is Python: say which function makes the model, as {path}:FUNCTION{there}"
        )
    ways = runtimes_for(suffix, first, plugins, request.model)
    check_source(request.model, suffix, [runtime for runtime, _ in ways], trust=request.trust)
    handle = Factory(function, request.seed) if function else None
    data = read_file(file) if os.path.isfile(file) else b""
    digest = hashlib.sha256(data + function.encode()).hexdigest()
    found = []
    for runtime, format in ways:
        whole = Artifact(format, data) if format == "onnx" else None
        artifact = whole or Artifact(format, path=file.absolute(), handle=handle)
        found.append(ConversionSource(artifact, runtime, digest))
    return found


def _file_of(path: str, plugins: Plugins, root: Path) -> Path:
    """The file of a source: a path, or a model in ONNX by the name that a model source gives it."""
    file = Path(path).expanduser()
    if os.path.exists(file):
        return file
    if path.partition(":")[0] not in plugins.names("model source"):
        raise UsageError(f"{path}: there is no such file; check the path")
    models = resolve_model(path, plugins, root)
    if len(models) != 1:
        raise UsageError(f"{path}: {len(models)} models; convert one at a time")
    return models[0].blob


def runtimes_for(
    suffix: str, first: Converter, plugins: Plugins, model: str
) -> list[tuple[Runtime, str]]:
    """Runtimes for files of this suffix, with the formats that the converter accepts.

    Raises:
        InputError: There is nothing; the message says what ``first`` takes.
    """
    known: set[str] = set()
    found: list[tuple[Runtime, str]] = []
    for name in plugins.names("runtime"):
        runtime = plugins.runtime(name)
        if isinstance(runtime, TellsSource):
            format = runtime.source_formats.get(suffix)
            known |= {s for s, f in runtime.source_formats.items() if f in first.consumes}
            if format in first.consumes:
                found.append((runtime, str(format)))
    if found:
        return found
    if suffix == ".onnx" and "onnx" in first.consumes:
        runtimes = (plugins.reference_runtime(), *plugins.evaluators())
        return [(runtime, "onnx") for runtime in runtimes]
    known |= {".onnx"} & {f".{f}" for f in first.consumes}
    takes = ", ".join(sorted(known)) or "files that no installed runtime can run"
    raise InputError(
        f"{model}: converter {first.name!r} takes {takes}; choose another source or converter"
    )


def reachable_formats(plugins: Plugins) -> dict[str, frozenset[str]]:
    """Formats that chains of converters can reach, by the format of the source."""
    converters = [plugins.converter(name) for name in plugins.names("converter")]
    reached: dict[str, frozenset[str]] = {}
    for start in {format for c in converters for format in c.consumes}:
        found: set[str] = set()
        ends = {start}
        while ends:
            formats = {c.produces for c in converters if c.consumes & ends}
            ends = formats - found
            found |= formats
        reached[start] = frozenset(found)
    return reached
