"""Whole answers of conversions in the cache: the same conversion is not made twice.

An answer depends on the request, on what is installed, and on files: those of the source's folder,
others that it opened while it was loaded and converted, and those that options name. What code of
the source may read elsewhere cannot be told, so that such a source is not kept.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from importlib.util import source_from_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optvet.engine.work.cache.disk import Cache, cache_root
from optvet.engine.work.cache.whole_answers import keep_answer, recall_answer, state_of
from optvet.spec.convert import ConvertRequest, parts_of
from optvet.spec.errors import InputError
from optvet.spec.foreign import read_file
from optvet.spec.records.convert import ConversionResult

if TYPE_CHECKING:
    from optvet.engine.convert.session import Conversion

_ELSEWHERE = frozenset(
    "environ getenv environb subprocess socket urllib requests http datetime time secrets uuid "
    "huggingface_hub hub".split()
)
"""Names in the code of a source by which it may read what no fingerprint has."""
_PATTERN = "*?["


def recall_conversion(request: ConvertRequest) -> ConversionResult | None:
    """The kept answer to ``request``, with the time that this took; None if there is none."""
    started = time.perf_counter()
    root = request.cache_dir or cache_root()
    if not _is_plain(request):
        return None
    found = recall_answer(ConversionResult, _without_limits(request), root, os.getcwd())
    if found is None:
        return None
    return found.model_copy(update={"wall_s": time.perf_counter() - started})


def keep_conversion(
    request: ConvertRequest, result: ConversionResult, conversion: Conversion
) -> str:
    """Keep ``result``; returns why its source cannot be told apart, or an empty text.

    What depends on the machine, such as an answer after a time limit, is left out silently.
    """
    plugins = conversion.plugins
    if not (plugins.installed and _is_plain(request)) or _is_circumstantial(result):
        return ""
    try:
        files = {str(path): state_of(path) for path in _places(request, conversion)}
    except (InputError, OSError, SyntaxError, ValueError) as error:
        return f"not kept in the cache: {error}"
    others = [plugins.runtime(name) for name in plugins.names("runtime")]
    used = [link.converter for link in conversion.links] + others
    modules = {name.partition(".")[0] for plugin in used for name in plugin.preload} - {"optvet"}
    with Cache(request.cache_dir or cache_root()) as cache:
        keep_answer(_without_limits(request), os.getcwd(), result, cache, files, modules)
    return ""


def _is_plain(request: ConvertRequest) -> bool:
    """Whether the answer may be kept: timings never are, nor are answers that write files."""
    return request.cache and not request.measure and request.out is None


def _without_limits(request: ConvertRequest) -> ConvertRequest:
    """The request without what no answer depends on."""
    left_out: dict[str, Any] = {"jobs": None, "budget": None, "fixed_tolerances": False}
    return request.model_copy(update=left_out)


def _is_circumstantial(result: ConversionResult) -> bool:
    """Whether the answer may be another one on another day."""
    limited = any(f.symptom.info.limit for f in result.findings)
    return limited or result.verdict == "undecided"


def _places(request: ConvertRequest, conversion: Conversion) -> Iterator[Path]:
    """Files and folders that the answer depends on, but for what is installed here.

    Raises:
        InputError: A place cannot be told.
        SyntaxError: Code of the source cannot be read.
    """
    opened = {_as_written(Path(name)) for name in conversion.read}
    yield from _of_source(request, conversion)
    for file in sorted(opened):
        _refuse_what_reads_elsewhere(file)
        yield file
    for name in (request.converted, *map(_file_of, request.registered)):
        if name is not None:
            yield Path(name).absolute()
    for text in request.dataset:
        name, colon, argument = text.partition(":")
        if colon and (set(argument) & set(_PATTERN) or not os.path.exists(argument)):
            raise InputError(f"dataset {text!r} is no file or folder that could be compared")
        if colon:
            yield Path(argument).absolute()
    for options in (
        request.converter_options,
        request.comparator_options,
        request.dataset_options,
    ):
        texts = (value for value in options.values() if isinstance(value, str))
        yield from (Path(text).absolute() for text in texts if os.path.exists(text))
    for home in conversion.abroad:
        python = conversion.pythons.python_of(home)
        assert python is not None
        folder = python.parent.parent
        yield folder / "pyvenv.cfg"
        for installed in folder.glob("lib*/python*/site-packages/*.dist-info"):
            yield installed / "RECORD"


def _of_source(request: ConvertRequest, conversion: Conversion) -> Iterator[Path]:
    """The folder of a source, with what lies beside it; of one in ONNX the file and its records."""
    file = Path(parts_of(request.model)[0]).expanduser()
    if conversion.source.artifact.format != "onnx":
        file = file.absolute()
        yield file if file.is_dir() else file.parent
        return
    from optvet.engine.convert.source_model import model_in_onnx
    from optvet.engine.models.sidecar import places_of

    model = model_in_onnx(request, conversion.plugins)
    if not file.exists():
        raise InputError(f"{request.model} is no file")
    yield from places_of(model.path)
    yield model.path.absolute()
    if model.blob != model.path:
        yield model.path.absolute().parent


def _file_of(registered: str) -> str:
    """The file of a function that registers converters."""
    place = registered.rpartition(":")[0]
    return place if place.endswith(".py") else f"{place.replace('.', '/')}.py"


def _as_written(file: Path) -> Path:
    """The file of which a compiled module was made."""
    if file.suffix == ".pyc" and file.parent.name == "__pycache__":
        return Path(source_from_cache(str(file)))
    return file


def _refuse_what_reads_elsewhere(file: Path) -> None:
    """Refuse code that uses what may be another one in the next run.

    Raises:
        InputError: It does.
    """
    if file.suffix != ".py":
        return
    for node in ast.walk(ast.parse(read_file(file))):
        names: list[str] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Import):
            names = [each.name.partition(".")[0] for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0], *(each.name for each in node.names)]
        if found := _ELSEWHERE & set(names):
            raise InputError(f"{file.name} uses {min(found)}, which a fingerprint does not cover")
