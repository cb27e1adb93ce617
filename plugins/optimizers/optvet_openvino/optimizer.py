"""OpenVINO, by the switches that it has: single transformations cannot be turned off.

What a release build lets one choose is whether the model transformations of ``convert_model`` run
(MOC), constant folding, the compression of weights, whether quantized models run on integers (LPT),
whether kernels are generated for chains of operators (snippets), the execution mode, and the
inference precision. Each is a pass; which of the transformations behind them changed the graph is
told by OpenVINO's own log (``changed_by``). Everything else that compilation does is the fixed
lowering: the empty pipeline is import and compilation in float32.

Left out on purpose: LowLatency2 and MakeStateful, which turn inputs and outputs into state that
outlives a run; and the cap on the instruction set (OV_CPU_MAX_ISA), which a process reads only once
while its workers make many trials: set it for the whole of optvet to vet another instruction set.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, Pass, ReleasedPackage, Traits, Unsupported, version_of

_PASSES = (
    Pass("moc", "rewrite", description="model transformations of convert_model, without folding"),
    Pass("constant_folding", "eliminate", description="evaluates what depends on no input"),
    Pass(
        "low_precision",
        "lower",
        description="runs quantized models on integers (LP_TRANSFORMS_MODE)",
    ),
    Pass("snippets", "fuse", description="generates kernels for subgraphs (SNIPPETS_MODE)"),
    Pass(
        "performance_mode",
        "lower",
        description="execution mode PERFORMANCE, not ACCURACY, with float32 still asked for",
    ),
    Pass(
        "compress_to_fp16",
        "rewrite",
        default=False,
        lossy=True,
        tolerance=1e-2,
        description="stores weights in half precision, as save_model does by default",
    ),
    Pass(
        "inference_bf16",
        "lower",
        default=False,
        lossy=True,
        tolerance=5e-2,
        description="INFERENCE_PRECISION_HINT=bf16, the default on processors that have it",
    ),
    Pass(
        "inference_f16",
        "lower",
        default=False,
        lossy=True,
        tolerance=5e-2,
        description="INFERENCE_PRECISION_HINT=f16",
    ),
)
_NAMES = tuple(p.name for p in _PASSES)
_OF_CONVERSION = ("moc", "constant_folding")
_LINE = re.compile(
    r"== (?P<step>\w+)| *(?:PassManager (?P<edge>started|finished): +)?"
    r"(?P<name>\S+)(?: +\d+ms (?P<mark>[+-]))?"
)
# Transformation managers inside compilation whose work one pass asked for.
_MANAGERS = {"low_precision": ("CPU:LPT", "LowPrecision"), "snippets": ("CPU:Snippets",)}
_TRACE_S = 100.0


class OpenVinoOptimizerOptions(BaseModel):
    """There are none: what OpenVINO lets one choose is among the passes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OpenVinoOptimizer:
    """The ``openvino`` package, from import to compilation for the CPU."""

    name = "openvino"
    preload: Sequence[str] = ()  # as of the runtime
    released = ReleasedPackage("openvino", "openvino", "openvino.Core().available_devices")
    options: OpenVinoOptimizerOptions = OpenVinoOptimizerOptions()
    traits = Traits(
        ordered=False,
        composable=False,
        single=True,
        max_model_bytes=2**31 - 1,
        optimizes_on_load=True,
        produces="openvino-model",
        reference="empty pipeline",
    )

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("openvino", extra="optvet[openvino]")

    def passes(self) -> Sequence[Pass]:
        """The switches, in the order in which what they switch happens."""
        return _PASSES

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """What a model goes through by either entry point, but in float32; and everything at once.

        ``convert_model`` transforms the graph before ``compile_model`` does, ``read_model`` does
        not: they may differ, and the empty pipeline is ``read_model`` alone.
        """
        default = tuple(p.name for p in _PASSES if p.default)
        read = tuple(n for n in default if n not in _OF_CONVERSION)
        # One session has one precision: bfloat16 stands for both.
        every = tuple(n for n in _NAMES if n != "inference_f16")
        return {"default": default, "convert_model": default, "read_model": read, "all": every}

    def apply(
        self, source: Artifact, passes: Sequence[str], options: OpenVinoOptimizerOptions
    ) -> Artifact:
        """Import, transform as ``passes`` say, and leave compilation properties to the runtime."""
        on = _checked(passes)
        handle = {"model": _transform(source.data, on), "properties": _properties(on)}
        return Artifact("openvino-model", source.data, handle, fingerprint=",".join(sorted(on)))

    def snippet(self, passes: Sequence[str], options: OpenVinoOptimizerOptions) -> str:
        """Import, the transformations that ``passes`` ask for, and compilation on one thread."""
        on = _checked(passes)
        properties = {**_properties(on), "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
        return _call(on, properties)

    def simple_snippets(
        self, passes: Sequence[str], options: OpenVinoOptimizerOptions
    ) -> Sequence[str]:
        """Compilation with default properties; then with the precision alone given."""
        on = _checked(passes)
        precision = {"INFERENCE_PRECISION_HINT": _properties(on)["INFERENCE_PRECISION_HINT"]}
        compression = on & {"compress_to_fp16"}
        return [_call(compression, {}), _call(compression, precision), _call(on, precision)]

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OpenVinoOptimizerOptions
    ) -> Sequence[str] | None:
        """Passes whose transformations changed the graph; hints leave no trace and always count."""
        changed = changed_by(source.data, passes)
        if changed is None:
            return None
        seen = {step for step, _ in changed}
        untold = {"performance_mode", "inference_bf16", "inference_f16"}
        return [name for name in passes if name in seen | untold]


def changed_by(model: bytes, passes: Sequence[str]) -> list[tuple[str, str]] | None:
    """What changed the graph, by OpenVINO's own log, in order.

    Args:
        model: A serialized ONNX model.
        passes: Passes to apply together.

    Returns:
        Pairs of a step and a transformation. The step is a pass, or "import" or "compile" for
        what no pass asked for. None if compilation fails, or this release logs nothing.
    """
    with tempfile.TemporaryFile() as model_file, tempfile.TemporaryFile() as log:
        model_file.write(model)
        model_file.seek(0)
        # In an interpreter of its own: the log goes to the process's standard output, the switch
        # is read from its environment, and a fork would lack OpenVINO's threads.
        code = f"import {__name__} as plugin; plugin._trace({list(passes)!r})"
        environment = os.environ | {
            "OV_ENABLE_PROFILE_PASS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", code],
                stdin=model_file,
                stdout=log,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=_TRACE_S,
            )
        except subprocess.TimeoutExpired:
            return None
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    return list(_changes(text)) if done.returncode == 0 and "PassManager" in text else None


def _trace(passes: Sequence[str]) -> None:
    """Transform and compile what comes on standard input, each step announced in the log."""
    on = _checked(passes)
    transformed = _transform(sys.stdin.buffer.read(), on, _announce)
    _announce("compile")
    _core().compile_model(transformed, "CPU", _properties(on))


def _announce(step: str) -> None:
    import ctypes

    ctypes.CDLL(None).fflush(None)  # what C++ has written comes before this line
    os.write(1, f"== {step}\n".encode())


def _changes(log: str) -> Iterator[tuple[str, str]]:
    step, managers = "import", list[str]()
    for line in log.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        if match["step"]:
            step, managers = match["step"], []
        elif match["edge"] == "started":
            managers.append(match["name"])
        elif match["edge"] == "finished":
            del managers[-1:]
        elif match["mark"] == "+":
            owners = (p for p, names in _MANAGERS.items() if not set(names).isdisjoint(managers))
            yield next(owners, step), match["name"]


def _call(on: frozenset[str], properties: Mapping[str, Any]) -> str:
    """Code that compiles ``model`` after the transformations in ``on``."""
    lines = [
        "import sys\n",
        "sys.modules.setdefault('openvino_telemetry', None)  # or each import sends an event",
        "import openvino",
    ]
    if on & {"moc", "compress_to_fp16"}:
        lines.append("import openvino._offline_transformations as offline")
    if "constant_folding" in on:
        lines.append("import openvino.passes")
    lines += ["\ncore = openvino.Core()", "imported = core.read_model(model.SerializeToString())"]
    if "moc" in on:
        lines.append("offline.apply_moc_transformations(imported, cf=False)")
    if "constant_folding" in on:
        lines += [
            "folding = openvino.passes.Manager()",
            "folding.register_pass(openvino.passes.ConstantFolding())",
            "folding.run_passes(imported)",
        ]
    if "compress_to_fp16" in on:
        lines.append("offline.compress_model_transformation(imported)")
    last = f", {dict(properties)!r})" if properties else ")"
    call = f'return core.compile_model(imported, "CPU"{last}'
    return "\n".join([*lines, *textwrap.wrap(call, 92, subsequent_indent=" " * 4)])


def _checked(passes: Sequence[str]) -> frozenset[str]:
    for name in passes:
        if name not in _NAMES:
            raise ValueError(f"OpenVINO has no pass {name!r}; it has {', '.join(_NAMES)}")
    if {"inference_bf16", "inference_f16"} <= set(passes):
        raise ValueError("inference_bf16 and inference_f16 exclude each other; choose one")
    return frozenset(passes)


def _transform(
    model: bytes, on: frozenset[str], announce: Callable[[str], None] = lambda step: None
) -> Any:
    """``model`` imported and transformed in place, each step announced before it begins."""
    openvino = _openvino()
    offline = openvino._offline_transformations
    announce("import")
    imported = _import(model)
    if "moc" in on:
        announce("moc")
        offline.apply_moc_transformations(imported, cf=False)
    if "constant_folding" in on:
        announce("constant_folding")
        folding = openvino.passes.Manager()
        folding.register_pass(openvino.passes.ConstantFolding())
        folding.run_passes(imported)
    if "compress_to_fp16" in on:
        announce("compress_to_fp16")
        offline.compress_model_transformation(imported)
    return imported


def _import(model: bytes) -> Any:
    """The model as OpenVINO reads it; Unsupported where it says what it could not convert."""
    try:
        return _core().read_model(model)
    except RuntimeError as error:
        if unknown := re.search(r"No conversion rule found for operations: *(.*)", str(error)):
            raise Unsupported(f"OpenVINO has no operator for {unknown[1].strip()}") from error
        if failed := re.search(r"Conversion is failed for: *(.*)", str(error)):
            reasons = " ".join(str(error).partition("detailed log:")[2].split())[:300]
            words = f"OpenVINO does not convert {failed[1].strip()}: {reasons}"
            raise Unsupported(words) from error
        raise


def _properties(on: frozenset[str]) -> dict[str, Any]:
    precision = "bf16" if "inference_bf16" in on else "f16" if "inference_f16" in on else "f32"
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "EXECUTION_MODE_HINT": "PERFORMANCE" if "performance_mode" in on else "ACCURACY",
        "LP_TRANSFORMS_MODE": "low_precision" in on,
        "SNIPPETS_MODE": "ENABLE" if "snippets" in on else "DISABLE",
    }


@functools.cache
def _core() -> Any:
    return _openvino().Core()


def _openvino() -> Any:
    import openvino
    import openvino._offline_transformations
    import openvino.passes

    return openvino
