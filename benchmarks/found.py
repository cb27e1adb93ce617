"""Whether what hunts report is true: each finding once more, without optvet.

    python benchmarks/found.py FOLDER… [--python PYTHON] [--seconds N] [--show]

FOLDER holds bundles, at any depth, as ``optvet hunt --out`` and ``--bundles`` write them. Of each:

fault       ``repro.py``, which needs nothing of optvet, must show the fault in a new process:
            under this interpreter, or under one that has little but the optimizer (``--python``).
original    Its ``model.onnx`` must pass onnx's checker and shape inference.
defined     The standard has an answer for it on these inputs (``answers.py``, which shares no code
            with optvet's own check).
reference   Of wrong outputs, what optvet expected (``expected.npz``) must be what another evaluator
            computes of the original: onnx's reference evaluator, with float32 widened to float64
            where the operators allow it, else as it is; in a newer operator set where it lacks the
            old one. Compared by the tolerance of the bundle's own script; not where two draws
            of the evaluator differ themselves.

Of a bundle that a hunt in a converter wrote, ``reproduce.py`` must show the fault, and of wrong
outputs once more where onnx's reference evaluator runs the model in place of the runtime: else the
runtime is at fault, not the converter. If the finding says that the runtime is, it must be gone.
Wrong outputs are undefined where the source has no answer of its own (``source_answers.py``).

Findings of one fingerprint (optimizer, culprit, symptom, and structure of the reduced model) are
one, wherever they are; the first is judged. A finding that fails one of these is a false alarm, or
at least not shown: its line says which.
What the reference evaluator cannot run (it lacks the operator, or fails itself) is counted apart.
Exit status 1 if a finding is not shown, or if there is none.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import answers
import machine
import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
from onnx import AttributeProto, TensorProto, numpy_helper

FORMS = ("widened", "same", "newer")
DRAWS = 8
OPSET = 21
"""The operator set that models are converted to whose own the evaluator lacks."""


def main() -> None:
    """Judge every bundle, and print a line for each that is not shown, and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--python", default=sys.executable, help="runs the bundles' scripts")
    parser.add_argument("--seconds", type=float, default=120, help="limit for one step")
    parser.add_argument("--show", action="store_true", help="a line for each finding")
    parser.add_argument("--evaluate", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.evaluate is not None:
        np.seterr(all="ignore")
        print(compared(chosen.evaluate))
        return
    print(machine.describe(machine.environment()), flush=True)
    counts: dict[str, Counter[str]] = {}
    for folder, finding in distinct(bundles(chosen.folders)):
        words = judged(folder, finding, chosen.python, chosen.seconds)
        kind = "shown" if not words else words.partition(":")[0]
        counts.setdefault(finding["optimizer"], Counter())[kind] += 1
        if words or chosen.show:
            print(f"  {folder.name}: {words or 'shown'}", flush=True)
    for folder in sources(chosen.folders):
        answer = json.loads((folder / "conversion.json").read_text())
        words = judged_source(folder, answer, chosen.python, chosen.seconds)
        kind = "shown" if not words else words.partition(":")[0]
        counts.setdefault(answer["converters"][0]["name"], Counter())[kind] += 1
        if words or chosen.show:
            print(f"  {folder.name}: {words or 'shown'}", flush=True)
    sys.exit(summary(counts))


def bundles(folders: list[Path]) -> Iterator[Path]:
    """Folders with a finding and a model, in order."""
    for folder in folders:
        for file in sorted(folder.rglob("finding.json")):
            if (file.parent / "model.onnx").is_file():
                yield file.parent


def sources(folders: list[Path]) -> Iterator[Path]:
    """Folders with a source and the answer of its conversion, in order; each name once."""
    seen: set[str] = set()
    for folder in folders:
        for file in sorted(folder.rglob("conversion.json")):
            place = file.parent
            if (place / "reproduce.py").is_file() and place.name not in seen:
                seen.add(place.name)
                yield place


def distinct(folders: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each folder with its finding, the first of each fingerprint."""
    seen: set[str] = set()
    for folder in folders:
        finding = json.loads((folder / "finding.json").read_text())
        if finding["fingerprint"] not in seen:
            seen.add(finding["fingerprint"])
            yield folder, finding


def summary(counts: dict[str, Counter[str]]) -> int:
    """Print the table; the exit status."""
    total = sum(counts.values(), Counter())
    for name, each in [*sorted(counts.items()), ("all", total)]:
        others = ", ".join(f"{n} {kind}" for kind, n in each.most_common() if kind != "shown")
        print(f"{name:18} {each['shown']:4} of {each.total():4} shown{others and '; '}{others}")
    good = total["shown"] + total["not evaluated"]
    return 0 if total and good == total.total() else 1


def judged(folder: Path, finding: dict[str, Any], python: str, seconds: float) -> str:
    """Why a finding is not shown; empty if it is."""
    code, said = run([python, str(folder / "repro.py")], seconds)
    if code != 1:
        return f"no fault: repro.py ended with {code}: {said[-200:]}"
    code, said = run([sys.executable, __file__, "--evaluate", str(folder)], seconds)
    return said if code == 0 else f"not evaluated: it ended with {code}: {said[-200:]}"


_ELSEWHERE = """

def run_by_reference(model, feeds):
    try:
        return run_2(model, feeds)
    except Exception as error:  # it lacks an operator, or fails itself
        raise ImportError(str(error)) from error


RUNS = [run_by_reference]
"""
_UNTOLD = 3


def judged_source(folder: Path, answer: dict[str, Any], python: str, seconds: float) -> str:
    """Why a finding about a converter is not shown; empty if it is."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "copy"
        shutil.copytree(folder, copy)
        code, said = run([python, str(copy / "reproduce.py")], seconds)
        if code != 1 or not said.endswith("the fault is there"):
            return f"no fault: reproduce.py ended with {code}: {said[-200:]}"
        fault = next(f for f in answer["findings"] if f["severity"] == "fault")
        if fault["symptom"] != "wrong-output":
            return ""
        open_points = Path(__file__).with_name("source_answers.py")
        code, said = run([python, str(open_points), str(copy)], seconds)
        if code or said:
            return f"undefined: {said}" if code == 0 else f"not evaluated: {said[-200:]}"
        return _judged_elsewhere(copy, fault, python, seconds)


def _judged_elsewhere(copy: Path, fault: dict[str, Any], python: str, seconds: float) -> str:
    """Why onnx's reference evaluator in place of the runtime speaks against a finding."""
    ways = (copy / "running.py").read_text()
    if "def run_2" not in ways:
        return ""
    (copy / "running.py").chmod(0o644)
    (copy / "running.py").write_text(ways + _ELSEWHERE)
    code, said = run([python, str(copy / "reproduce.py")], seconds)
    if code == _UNTOLD:
        return "not evaluated: the evaluator does not run it"
    of_runtime = fault["kind"] == "target-runtime"
    return "" if code == (0 if of_runtime else 1) else f"reference disagrees: {said[-200:]}"


def run(command: list[str], seconds: float) -> tuple[int | str, str]:
    """Exit status and output of a process of its own: foreign code may take it down."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return "time out", ""
    said = ended.stderr if ended.returncode and not ended.stdout.strip() else ended.stdout
    return ended.returncode, " ".join(said.split())


# --- in the process of its own -------------------------------------------------------------------


def compared(folder: Path) -> str:
    """Why the original is not what the finding says it is; empty if it is."""
    model = onnx.load(folder / "model.onnx")
    finding = json.loads((folder / "finding.json").read_text())["finding"]
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return f"original refused: {error}"[:300]
    if words := answers.open_points(model, given(folder, model)):
        return f"undefined: {words}"[:300]
    if finding["symptom"] != "wrong-output":
        return ""
    script = (folder / "repro.py").read_text()
    feeds = arrays(folder / "inputs.npz", constant(script, "INPUTS"))
    expected = arrays(folder / "expected.npz", constant(script, "OUTPUTS"))
    found = re.search(r"^TOLERANCE = (\S+)", script, re.MULTILINE)
    tolerance = float(found[1]) if found else 0.0
    got = evaluated(model, feeds)
    if isinstance(got, str):
        return f"not evaluated: {got}"[:300]
    # Two draws of a few bits are often alike.
    draws = [evaluated(model, feeds) for _ in range(DRAWS)]
    # Where terms cancel, float32 rounds by more than the tolerance: it may be right as that.
    narrow = evaluated(model, feeds, FORMS[1:])
    for name, value in expected.items():
        random = any(isinstance(d, str) or difference(got[name], d[name], 0.0) for d in draws)
        if random or not (words := difference(value, got[name], tolerance)):
            continue
        if isinstance(narrow, str) or difference(value, narrow[name], tolerance):
            return f"reference disagrees: {name}: {words}"
    return ""


def evaluated(
    model: onnx.ModelProto, feeds: dict[str, Any], forms: tuple[str, ...] = FORMS
) -> dict[str, np.ndarray[Any, Any]] | str:
    """Outputs of ``model`` by onnx's reference evaluator in the first of ``forms`` that runs.

    Or why there are none.
    """
    from onnx.reference import ReferenceEvaluator

    names = [output.name for output in model.graph.output]
    words = ""
    made = {"widened": widened, "same": same, "newer": newer}
    for form in forms:
        wide = form == "widened"
        given = {
            n: v.astype(np.float64) if wide and v.dtype == np.float32 else v
            for n, v in feeds.items()
        }
        try:
            values = ReferenceEvaluator(made[form](model)).run(None, given)
        except Exception as error:  # Whatever an operator's Python raises; the next form is tried.
            words = f"{type(error).__name__}: {error}"
            continue
        held = [held_by(o, v) for o, v in zip(model.graph.output, values, strict=True)]
        pairs = zip(names, held, strict=True)
        return {part: array for pair in pairs for part, array in parts(*pair).items()}
    return words


def held_by(output: onnx.ValueInfoProto, value: Any) -> Any:
    """The tensor in an optional output, which the evaluator gives as a list of one."""
    inside = output.type.optional_type.elem_type.HasField("tensor_type")
    return value[0] if inside and isinstance(value, list) and len(value) == 1 else value


def parts(name: str, value: Any) -> dict[str, np.ndarray[Any, Any]]:
    """An output by the names of its arrays: of a sequence, its length and its elements."""
    if not isinstance(value, list):
        return {name: np.asarray(value)}
    each = (parts(f"{name}[{n}]", item) for n, item in enumerate(value))
    return {f"{name}.length": np.array(len(value))} | {k: v for one in each for k, v in one.items()}


def same(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` as it is."""
    return model


def newer(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` in an operator set that the evaluator has.

    The converter leaves out functions, and refuses sparse constants: neither is in what it gets.
    """
    plain = onnx.inliner.inline_local_functions(model)
    half = numpy_helper.from_array(np.array(0.5, np.float32), "ratio by default")
    plain.graph.initializer.append(half)
    for node in plain.graph.node:
        if node.op_type == "Dropout" and len(node.input) > 1 and not node.input[1]:
            node.input[1] = half.name  # the evaluator wants to be told
        for attribute in node.attribute:
            if attribute.type == AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                value = dense(attribute.sparse_tensor)
                attribute.CopyFrom(onnx.helper.make_attribute("value", value))
    return onnx.version_converter.convert_version(plain, OPSET)


def dense(sparse: onnx.SparseTensorProto) -> TensorProto:
    """The tensor with its zeros; places are numbers of elements, or one row for each."""
    values, places = (numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    full = np.zeros(list(sparse.dims), values.dtype)
    if places.ndim == 1:
        full.reshape(-1)[places] = values
    else:
        full[tuple(places.T)] = values
    return numpy_helper.from_array(full)


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with float64 in place of every float32.

    Raises:
        ValueError: It has subgraphs, whose types are their own.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for value in [*wide.graph.input, *wide.graph.output, *wide.graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in wide.graph.initializer:
        widen(tensor)
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                raise ValueError(f"{node.op_type} has a subgraph")
            if attribute.type == AttributeProto.TENSOR:
                widen(attribute.t)
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return wide


def widen(tensor: TensorProto) -> None:
    """Make a float32 tensor float64."""
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def difference(was: Any, now: np.ndarray[Any, Any], tolerance: float) -> str:
    """In what ``now`` is not what was expected; empty if it is."""
    if was.shape != now.shape:
        return f"{list(was.shape)}, and {list(now.shape)} by the reference"
    if was.dtype.kind in "fcV" or now.dtype.kind == "f":
        was = np.asarray(was, dtype=np.float64)
        now = np.asarray(now, dtype=np.float64)
        finite = np.abs(was[np.isfinite(was)])
        allowed = tolerance * finite.max(initial=0.0)
        equal = np.isclose(now, was, rtol=0, atol=allowed, equal_nan=True)
    else:
        equal = np.asarray(was == now)
    if np.all(equal):
        return ""
    at = tuple(np.argwhere(~np.atleast_1d(equal))[0])
    return f"{list(map(int, at))}: {np.atleast_1d(was)[at]!r}, and {np.atleast_1d(now)[at]!r}"


def given(folder: Path, model: onnx.ModelProto) -> dict[str, Any]:
    """The inputs of a bundle, which lie in the order of the graph."""
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in weights]
    with np.load(folder / "inputs.npz", allow_pickle=False) as loaded:
        count = len(loaded.files)
    return arrays(folder / "inputs.npz", names) if count == len(names) else {}


def constant(script: str, name: str) -> list[str]:
    """A list of names that the script of a bundle declares."""
    for node in ast.parse(script).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return list(ast.literal_eval(node.value))
    return []


def arrays(file: Path, names: list[str]) -> dict[str, Any]:
    """Arrays of a bundle by name."""
    with np.load(file, allow_pickle=False) as loaded:
        values = [loaded[key] for key in loaded.files]
    texts = (v.astype(object) if v.dtype.kind == "U" else v for v in values)
    return dict(zip(names, texts, strict=True))


if __name__ == "__main__":
    main()
