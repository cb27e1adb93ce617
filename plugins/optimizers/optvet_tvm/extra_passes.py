"""The user's own passes: a function of a module or of a file that makes a pass of TVM."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

from optvet.plugin import PluginError
from optvet_tvm.options import EXTRA_PASS, TvmOptions


class ExtraPass(NamedTuple):
    """An entry of the option ``extra_passes``; a negative position is behind all of the graph."""

    name: str
    module: str
    function: str
    position: int


def module_name(extra: ExtraPass, options: TvmOptions) -> str:
    """What code imports: a module's name; of a file a name of its own, beside the code."""
    if not extra.module.endswith(".py"):
        return extra.module
    files = list(dict.fromkeys(e.module for e in parse_extras(options) if e.module.endswith(".py")))
    stems = [re.sub(r"\W", "_", Path(file).stem) for file in files]
    index = files.index(extra.module)
    return stems[index] if stems.count(stems[index]) == 1 else f"{stems[index]}_{index}"


def parse_extras(options: TvmOptions) -> list[ExtraPass]:
    """The user's own passes, in the order of the option."""
    found = []
    for text in options.extra_passes:
        match = EXTRA_PASS.fullmatch(text)
        assert match is not None
        name = match["name"] or match["function"]
        position = int(match["position"]) if match["position"] else -1
        found.append(ExtraPass(name, match["module"], match["function"], position))
    return found


def source_of(module: str) -> bytes:
    """The source text of a module or file; its digest is part of the version."""
    spec = None if module.endswith(".py") else importlib.util.find_spec(module)
    path = Path(module if spec is None else spec.origin or "")
    try:
        return path.read_bytes()
    except OSError as error:
        raise PluginError(
            f"optimizer 'tvm': extra pass from {module!r}: {error}; give an importable module or "
            "a file.py"
        ) from error


def load_extra(extra: ExtraPass) -> Any:
    """The pass of the user's own."""
    import tvm

    if extra.module.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(extra.module).stem, extra.module)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(extra.module)
    if not hasattr(module, extra.function):
        raise AttributeError(f"{extra.module} has no function {extra.function!r}")
    function = getattr(module, extra.function)
    function = function if isinstance(function, tvm.ir.transform.Pass) else function()
    if not isinstance(function, tvm.ir.transform.Pass):
        raise TypeError(f"{extra.function} gave {type(function).__name__}, expected a pass of TVM")
    return function
