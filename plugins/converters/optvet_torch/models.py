"""PyTorch modules, exported on the spot: ``torch:PACKAGE.MODULE:FACTORY[@SHAPE[,SHAPE…]]``.

FACTORY is a function without arguments that returns a ``torch.nn.Module``, the module's class, or
a module itself; it is looked for as ``import`` would, and in the current folder. The inputs that an
export is traced with are ``example_inputs``, a function or a value, of the factory, of the module
or beside the factory: a tensor, a tuple of them or a dictionary by name. Where there is none, they
may be given as shapes of float32, as in ``torch:torchvision.models:resnet18@1x3x224x224``.

The user's code and PyTorch run in a process of their own, with PyTorch's seed set to 0 so that
random weights are the same each time. The module is exported anew for each call: no checksum of a
source file tells what else it imports or reads. The file is named after its content.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import json
import operator
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from optvet.plugin import (
    InfrastructureError,
    InputError,
    MissingLibrary,
    ModelCard,
    UsageError,
    file_sha256,
)

TIMEOUT_S = 900.0
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_SHAPE = r"\d+(?:x\d+)*"
_REFERENCE = re.compile(
    rf"(?P<module>{_NAME}):(?P<factory>{_NAME})(?:@(?P<shapes>{_SHAPE}(?:,{_SHAPE})*))?"
)
_WORDS = 600


class TorchSource:
    """Exports what a Python import path leads to."""

    name = "torch"
    wants = ("torch", "onnxscript")
    runs_code = True

    def models(self) -> Iterable[ModelCard]:
        """Nothing: what can be imported is not listed."""
        return []

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """The exported module; its file is named after factory and content.

        Raises:
            UsageError: The reference is malformed, or leads to no module.
            InputError: The module cannot be exported.
            MissingLibrary: PyTorch is not installed.
            InfrastructureError: The cache cannot be written.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise UsageError(
                f"torch reference {reference!r} is not understood; write it as "
                "PACKAGE.MODULE:FACTORY, or PACKAGE.MODULE:FACTORY@1x3x224x224"
            )
        if importlib.util.find_spec("torch") is None:
            raise MissingLibrary("torch", "optvet[torch,onnxscript]", "model source 'torch'")
        folder = cache / "torch"
        with _scratch(folder, reference) as scratch:
            _export_elsewhere(reference, scratch)
            digest = file_sha256(scratch / "model.onnx")
            place = folder / f"{match['module']}.{match['factory']}-{digest[:16]}"
            path = place / f"{match['factory'].rpartition('.')[2]}.onnx"
            if not path.is_file():
                place.mkdir(exist_ok=True)
                os.replace(scratch / "model.onnx", path)
        return [path]


@contextlib.contextmanager
def _scratch(folder: Path, reference: str) -> Iterator[Path]:
    """A new folder in ``folder``, gone afterwards."""
    scratch = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".exporting."))
        yield scratch
    except OSError as error:
        raise InfrastructureError(
            f"torch model {reference!r}: cannot write to {folder}: {error.strerror or error}; make "
            "room, or choose another cache folder"
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _export_elsewhere(reference: str, scratch: Path) -> None:
    """Export in another process; ``scratch/model.onnx`` is there afterwards."""
    code = "import optvet_torch.models, sys; optvet_torch.models.work(*sys.argv[1:])"
    # -P: what lies in the current folder must not be taken for PyTorch or what it imports.
    command = [sys.executable, "-P", "-c", code, reference, str(scratch)]
    # Imported for the export, torch's compiler makes this folder, by default among temporary files.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor")}
    paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    subject = f"torch model {reference!r}"
    try:
        done = subprocess.run(
            command,
            env=os.environ | cache | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{subject}: its export did not end within {TIMEOUT_S:g} s; export it yourself and "
            "give the file"
        ) from error
    answer = scratch / "answer.json"
    if answer.is_file():
        reply = json.loads(answer.read_text(encoding="utf-8"))
        if reply["kind"] == "done":
            return
        raise (UsageError if reply["kind"] == "usage" else InputError)(f"{subject}{reply['words']}")
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    how = f"exit code {done.returncode}"
    if done.returncode < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-done.returncode).name
    raise InputError(
        f"{subject}: its process died while exporting ({how}): {''.join(last)[:_WORDS]}; export "
        "it yourself and give the file"
    )


# ── In the other process ───────────────────────────────────────────────────────────────────────


class _Trouble(Exception):
    """``kind`` "usage" is the reference's fault, "input" the module's."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


def work(reference: str, folder: str) -> None:
    """Export ``reference`` to ``folder/model.onnx`` and tell of it in ``folder/answer.json``."""
    # Last: the folder may have files that are named like libraries.
    sys.path.append(str(Path.cwd()))
    reply = {"kind": "done", "words": ""}
    try:
        _export(reference, Path(folder) / "model.onnx")
    except _Trouble as trouble:
        reply = {"kind": trouble.kind, "words": str(trouble)}
    (Path(folder) / "answer.json").write_text(json.dumps(reply), encoding="utf-8")


def _export(reference: str, target: Path) -> None:
    import torch

    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise _Trouble("usage", " is malformed")
    try:
        module = importlib.import_module(match["module"])
    except Exception as error:
        advice = "run in the folder that has it, or install it"
        # A wheel for another PyTorch finds none of its operators.
        if "torchvision::" in str(error):
            from optvet_torch.onnx2torch import torchvision_commands

            fitting = torchvision_commands(torch.__version__)
            advice = f"torchvision does not fit torch {torch.__version__}: {fitting}"
        words = f": cannot import {match['module']} ({_words(error)}); {advice}"
        raise _Trouble("usage", words) from error
    try:
        factory = operator.attrgetter(match["factory"])(module)
    except AttributeError as error:
        names = sorted(n for n, v in vars(module).items() if callable(v) and n[0] != "_")
        near = difflib.get_close_matches(match["factory"], names)
        advice = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names[:8])}"
        words = f": {match['module']} has no {match['factory']}; {advice}"
        raise _Trouble("usage", words) from error
    torch.manual_seed(0)
    model = _made(factory, match["factory"])
    arguments, named = _inputs(match, module, factory, model)
    model.eval()
    try:
        with torch.no_grad():
            _call_export(model, arguments, named, target)
    except Exception as error:
        raise _Trouble(
            "input",
            f": torch.onnx.export fails: {_words(error)}; check example_inputs, or export it "
            "yourself and give the file",
        ) from error


def _made(factory: Any, name: str) -> Any:
    import torch

    if isinstance(factory, torch.nn.Module):
        return factory
    if not callable(factory):
        raise _Trouble("usage", f": {name} is a {type(factory).__name__}, expected a function")
    try:
        model = factory()
    except Exception as error:
        raise _Trouble(
            "usage", f": {name}() fails: {_words(error)}; it must take no arguments"
        ) from error
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise _Trouble("usage", f": {name}() returns a {kind}, expected a torch.nn.Module")
    return model


def _inputs(
    match: re.Match[str], module: Any, factory: Any, model: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of the module's ``forward``."""
    import torch

    if match["shapes"]:
        shapes = [[int(n) for n in shape.split("x")] for shape in match["shapes"].split(",")]
        return tuple(torch.randn(shape) for shape in shapes), {}
    examples = None
    for owner in (factory, model, module):
        examples = getattr(owner, "example_inputs", None)
        if examples is not None:
            break
    try:
        value = examples() if callable(examples) else examples
    except Exception as error:
        raise _Trouble("usage", f": example_inputs() fails: {_words(error)}") from error
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, dict):
        return (), value
    if isinstance(value, list | tuple):
        return tuple(value), {}
    problem = "gives no example inputs" if examples is None else "gives unusable example inputs"
    raise _Trouble(
        "usage",
        f" {problem}: define example_inputs() beside {match['factory']}, which returns what "
        "forward takes, or give shapes, as in @1x3x224x224",
    )


def _call_export(
    model: Any, arguments: tuple[Any, ...], named: dict[str, Any], target: Path
) -> None:
    import torch

    known = inspect.signature(torch.onnx.export).parameters
    options: dict[str, Any] = {}
    if "dynamo" in known:
        options["dynamo"] = importlib.util.find_spec("onnxscript") is not None
    if options.get("dynamo") and "external_data" in known:
        options["external_data"] = False
    if named and "kwargs" in known:
        options["kwargs"] = named
    elif named:
        arguments = (*arguments, named)
    torch.onnx.export(model, arguments, str(target), **options)


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:_WORDS]
