"""Faults that only a shipped session shows: found, with the right side and option; and no others.

    python benchmarks/shipped.py [NAME…] [--samples N] [--most N]

**Faults.** The natural faults of ONNX Runtime's sessions in ``benchmarks/finds`` and ``known/``,
those that the installed release shows (a plain script says which, ``shipped_plain.py``), and at
most ``--most``. Every other one is planted apart: nodes between the model's own keep the session
from fusing it, and the pass under vet, which is right, removes them. So the sides at fault are
known:

- *runtime*: the vetted pass changes nothing, and the session is wrong on the original too;
- *both*: the session is right on the original, the optimized model in the clean room.

Two sessions are those that a user describes (``--runtime-option``), of a lower level. And a pass
writes a wrong shape of a value, of which a session that optimizes makes a constant (*both*).

In OpenVINO, whose default is bfloat16 where the processor has it, three models are vetted whose
results are small differences of large values. Three more have 4-bit weights, which packed kernels
multiply in 8 bits, of which one is saved by the runtime beforehand. A line tells whether the fault
was found, which side was blamed, and by which options and passes of the runtime.

**Healthy models.** Blocked, fused, packed and 8-bit ones, five of them in OpenVINO as well. None
may be called faulty; a line tells how far the default session is from one without optimizations.

**Saved.** Five models that ``vet --save`` writes, loaded by the plain script in a default session,
beside the original without optimizations: equal to the float32 noise of such sums, 1e-5.

Exit status 1 unless all faults are found with the right side, 90 % of the options are named, no
healthy model is called faulty, and all saved ones are equal.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto
from rewrite_faults import FINDS, PARTS, arrays, cases_of
from shipped_models import Declaring, Joining, apart, cancelling, declared, healthy
from shipped_plain import difference, drawn

from optvet import OptvetError, VetResult
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.spec.request import VetRequest
from optvet.testing import Planted

HERE = Path(__file__).parent
PLAIN = HERE / "shipped_plain.py"
FAULT = 1e-4
"""Relative difference from which a plain session is wrong; rounding is a hundredth of it."""
EQUAL = 1e-5
BFLOAT16 = 5e-2
"""What OpenVINO's default is documented to lose, where it computes in bfloat16."""
SAVED = ("conv-twice", "gelu", "layer-norm", "matmul-batchnorm", "attention-long")
OPTIONS_NAMED = 0.9


@dataclass(frozen=True)
class Fault:
    """A model that a shipped session gets wrong.

    Attributes:
        name: Of the case.
        file: The model.
        inputs: A file with inputs that show it; None for random ones.
        side: "runtime" or "both".
        option: The option of the session that it takes.
        passes: The runtime's passes, any of which is right; none where it is not asked.
        saved: The runtime saves the optimized model, which is vetted as a file.
        runtime: By which the model is run.
        given: Options that the user's session has, beside the runtime's defaults.
        optimizer: The planted one, if it is none of the two for sides.
    """

    name: str
    file: Path
    inputs: Path | None
    side: str
    option: str
    passes: tuple[str, ...]
    saved: bool = False
    runtime: str = "onnxruntime"
    given: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = ""


def plainly_in_openvino(model: ModelProto) -> float | None:
    """How far OpenVINO's default session is off; None if its session in float32 is off too."""
    import onnxruntime as ort
    import openvino as ov

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = drawn(session, 0)
    wanted = session.run(None, feeds)

    def off(properties: dict[str, str]) -> float:
        compiled = ov.Core().compile_model(
            ov.Core().read_model(model.SerializeToString()), "CPU", properties
        )
        given = compiled([feeds[i.get_any_name()] for i in compiled.inputs])
        return difference(wanted, [given[o] for o in compiled.outputs])

    exact = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    return off({}) if off(exact) < FAULT else None


def plainly(original: Path, file: Path | None = None, inputs: Path | None = None) -> float | None:
    """How far a default session is off; None if the original does not run."""
    command = [sys.executable, str(PLAIN), str(original), *([str(file)] if file else [])]
    command += ["--inputs", str(inputs)] if inputs else []
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode < 0:
        return float("inf")  # the session ended the process
    return None if done.returncode else float(done.stdout.split()[-1])


def faults(folder: Path) -> Iterator[Fault]:
    """All that the installed release shows."""
    natural = cases_of(tomllib.loads((FINDS / "onnxruntime.toml").read_text()))
    number = 0
    for name, case in natural.items():
        model = onnx.parser.parse_model(case["model"])
        for part in case.get("parts", []):
            PARTS[part](model)
        file, separate = folder / f"{name}.onnx", folder / f"{name}-apart.onnx"
        onnx.save(model, file)
        inputs = None
        if given := case.get("inputs"):
            inputs = folder / f"{name}.npz"
            np.savez(inputs, **arrays(model, given))  # type: ignore[arg-type]
        if (plainly(file, None, inputs) or 0.0) < FAULT:
            continue
        passes = tuple(case.get("passes", ()))
        number += 1
        if name in AT_A_LOWER_LEVEL:
            yield Fault(
                f"{name}-{(level := AT_A_LOWER_LEVEL[name])}",
                file,
                inputs,
                "runtime",
                "optimization",
                passes,
                given={"optimization": level},
            )
        if number % 2 == 0 and _stands_apart(model, separate, inputs):
            yield Fault(name, separate, inputs, "both", "optimization", passes)
        else:
            yield Fault(name, file, inputs, "runtime", "optimization", passes)
    yield from _packed(folder)
    yield from _misdeclared(folder)
    yield from _in_openvino(folder)


def _stands_apart(model: ModelProto, file: Path, inputs: Path | None) -> bool:
    """Whether the model with nodes between its own is written, and right in a default session."""
    separate = apart(model)
    if len(separate.graph.node) == len(model.graph.node):
        return False
    onnx.save(separate, file)
    off = plainly(file, None, inputs)
    return off is not None and off < EQUAL


def _in_openvino(folder: Path) -> Iterator[Fault]:
    """Where its default is bfloat16: on processors that have it."""
    if find_spec("openvino") is None:
        return
    for name, model in cancelling():
        file = folder / f"{name}.onnx"
        onnx.save(model, file)
        if (plainly_in_openvino(model) or 0.0) > BFLOAT16:
            yield Fault(name, file, None, "runtime", "precision", (), runtime="openvino")


def _misdeclared(folder: Path) -> Iterator[Fault]:
    """A pass declares a wrong shape, of which the session computes a constant."""
    model, feeds = declared()
    file, wrong = folder / "declared.onnx", folder / "declared-wrong.onnx"
    inputs = folder / "declared.npz"
    onnx.save(model, file)
    onnx.save(declared(wrong=True)[0], wrong)
    np.savez(inputs, **feeds)  # type: ignore[arg-type]
    if (plainly(file, wrong, inputs) or 0.0) > FAULT:
        # No pass of the runtime is asked for: each may believe what a model declares.
        row = Fault("declared", file, inputs, "both", "optimization", ())
        yield replace(row, optimizer="declaring")


def _packed(folder: Path) -> Iterator[Fault]:
    document = tomllib.loads((HERE.parent / "known/onnxruntime").joinpath(BLOCKS).read_text())
    file, passes = folder / "blocks.onnx", tuple(document["passes"])
    model = onnx.parser.parse_model(document["model"])
    onnx.save(model, file)
    if (plainly(file) or 0.0) < FAULT:
        return
    yield Fault("blocks", file, None, "runtime", "prepacking", passes)
    separate = folder / "blocks-apart.onnx"
    if _stands_apart(model, separate, None):
        yield Fault("blocks-apart", separate, None, "both", "prepacking", passes)
    yield Fault("blocks-saved", file, None, "both", "prepacking", (), saved=True)


AT_A_LOWER_LEVEL = {
    "onnxruntime-div-mul-integers": "extended",
    "onnxruntime-layer-norm-exponent-4": "extended",
}
"""Natural faults that a session of this level shows too."""
BLOCKS = "onnxruntime-matmul-blocks-int8.toml"


def vetted(file: Path, optimizer: str, plugins: Plugins, **more: Any) -> VetResult | str:
    """The answer, or why there is none."""
    request = VetRequest(model=str(file), optimizer=optimizer, jobs=1, **more)
    try:
        return vet_model(open_model(file, str(file), file.parent), request, plugins)
    except OptvetError as error:
        return str(error)


def judged(fault: Fault, plugins: Plugins, samples: int, cache: Path) -> tuple[str, ...]:
    """What was blamed: a side and parts of the runtime; or a reason why nothing was."""
    optimizer = fault.optimizer or ("joining" if fault.side == "both" else "planted")
    more: dict[str, Any] = {"limit": samples, "cache_dir": cache}
    if fault.runtime != "onnxruntime":
        more["runtime"] = fault.runtime
    if fault.given:
        more["runtime_options"] = dict(fault.given)
    if fault.saved:
        optimizer, more["optimizer_options"] = "onnxruntime", {"mode": "offline"}
    if fault.inputs is not None:
        # Its own inputs are of a few elements: random ones are less alike.
        more |= {"dataset": (f"files:{fault.inputs}", "random"), "limit": samples + 1}
    result = vetted(fault.file, optimizer, plugins, **more)
    if isinstance(result, str):
        return ("", result)
    found = [f for f in result.findings if f.severity == "fault" and f.confirmed]
    if not found or not all(f.as_deployed for f in found):
        return ("", f"{result.verdict}: {', '.join(f.symptom for f in found)}")
    return ("both" if found[0].culprit else "runtime", *found[0].runtime_parts)


def show_faults(rows: Sequence[Fault], plugins: Plugins, samples: int, cache: Path) -> bool:
    """Print a line for each; whether enough is right."""
    right = {"found": 0, "side": 0, "option": 0, "pass": 0}
    with_passes = sum(bool(row.passes) for row in rows)
    for row in rows:
        started = time.perf_counter()
        side, *parts = judged(row, plugins, samples, cache)
        options = {p.partition("=")[0] for p in parts if "=" in p}
        right["found"] += bool(side)
        right["side"] += side == row.side
        right["option"] += row.option in options
        right["pass"] += bool(row.passes and {*row.passes} & {*parts})
        word = "ok  " if side == row.side and row.option in options else "MISS"
        took = time.perf_counter() - started
        print(f"{word} {row.name}: {row.side}; {side or '–'}: {', '.join(parts)}; {took:.0f} s")
        sys.stdout.flush()
    total = len(rows)
    words = ", ".join(f"{n} {right[n]}/{total}" for n in ("found", "side", "option"))
    print(f"faults: {words}, pass {right['pass']}/{with_passes}\n", flush=True)
    named = right["option"] >= OPTIONS_NAMED * total
    return right["found"] == right["side"] == total and named


IN_OPENVINO = ("matmul-long", "gemm", "attention", "layer-norm", "dense-block")
"""Healthy models that bfloat16 rounds and nothing behind it amplifies, as tanh of 200 does."""


def show_healthy(names: Sequence[str], plugins: Plugins, samples: int, folder: Path) -> bool:
    """Print a line for each healthy model; whether none is called faulty."""
    wrong = moves = total = 0
    for name, model in healthy():
        if names and name not in names:
            continue
        if name in IN_OPENVINO and find_spec("openvino") is not None:
            far = plainly_in_openvino(model)
            file = folder / f"{name}-openvino.onnx"
            onnx.save(model, file)
            cache = folder / "cache"
            result = vetted(
                file, "planted", plugins, limit=samples, cache_dir=cache, runtime="openvino"
            )
            verdict = result if isinstance(result, str) else result.verdict
            total, wrong = total + 1, wrong + (verdict == "faulty")
            moves += bool(far)
            words = "not comparable" if far is None else f"moves by {far:.1e}"
            word = "MISS" if verdict == "faulty" else "ok  "
            print(f"{word} {name} in openvino: {verdict}; {words}", flush=True)
        file = folder / f"{name}.onnx"
        onnx.save(model, file)
        off = plainly(file)
        assert off is not None, f"{name} does not run"
        result = vetted(file, "planted", plugins, limit=samples, cache_dir=folder / "cache")
        verdict = result if isinstance(result, str) else result.verdict
        total, moves, wrong = total + 1, moves + (off > 0), wrong + (verdict == "faulty")
        print(f"{'MISS' if verdict == 'faulty' else 'ok  '} {name}: {verdict}; moves by {off:.1e}")
        sys.stdout.flush()
    print(f"healthy: {total}, {moves} of which round differently; called faulty: {wrong}\n")
    return not wrong


def show_saved(plugins: Plugins, samples: int, folder: Path) -> bool:
    """Print a line for each model that ``--save`` writes; whether all are equal to the original."""
    equal, models = True, dict(healthy())
    for number, name in enumerate(SAVED):
        file, saved = folder / f"{name}.onnx", folder / f"{name}-saved.onnx"
        outside = number == 0
        onnx.save(models[name], file, save_as_external_data=outside, size_threshold=0)
        optimizer = "onnxruntime" if number % 2 else "onnxoptimizer"
        cache = folder / "cache"
        result = vetted(file, optimizer, plugins, limit=samples, cache_dir=cache, save=saved)
        off = plainly(file, saved) if saved.exists() else None
        equal &= off is not None and off <= EQUAL
        where = ", weights beside" if outside else ""
        words = "not written" if off is None else f"off by {off:.1e}"
        verdict = result if isinstance(result, str) else result.verdict
        print(f"{name} by {optimizer}{where}: {verdict}; saved, {words}", flush=True)
    return equal


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all; 1 if something is not as it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults and healthy models")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--most", type=int, default=None, help="so many faults")
    options = parser.parse_args(arguments)
    print(machine.describe(machine.environment()), flush=True)
    plugins = Plugins().register("optimizer", Joining()).register("optimizer", Planted())
    plugins = plugins.register("optimizer", Declaring())
    folder = Path(tempfile.mkdtemp(prefix="optvet-shipped-"))
    try:
        rows = [r for r in faults(folder) if not options.names or r.name in options.names]
        rows = list(islice(rows, options.most))
        about = (plugins, options.samples, folder)
        right = [
            show_faults(rows, plugins, options.samples, folder / "cache"),
            show_healthy(options.names, *about),
            bool(options.names) or show_saved(*about),
        ]
    finally:
        shutil.rmtree(folder)
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
