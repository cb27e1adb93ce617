"""Faults of programs that rewrite ONNX models, each vetted by optvet, and shown by its bundle.

    python benchmarks/rewrite_faults.py PROGRAM [CASE…] [--python PYTHON] [--out DIR]

PROGRAM is a file of ``benchmarks/finds``. A case is a small model with the passes at fault, in that
file or in a document of ``known/`` or ``benchmarks/ranges``. optvet vets the model with these
passes, must blame some of them (or none, if the case names none), and writes a bundle; then the
bundle's ``repro.py`` is run by PYTHON, which needs released wheels alone. A line tells what the
script said, or which release shows the fault if the installed one does not. Exit status 1 if a case
does not show.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from optvet import Finding, vet

HERE = Path(__file__).parent
FINDS = HERE / "finds"
PACKAGES = {
    "onnx_version_converter": "onnx",
    "onnxscript_version_converter": "onnxscript",
    "ort_transformers": "onnxruntime",
}
"""Of optimizers that are named otherwise."""
_LIMIT_S = 300
_MOST = 150
"""Characters of an error."""


def cases_of(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The cases that a file of ``benchmarks/finds`` tells or names."""
    places = [*HERE.parent.glob("known/*/*.toml"), *HERE.glob("ranges/*.toml")]
    documents = {place.stem: place for place in places}
    told = table.get("cases", {})
    return {
        name: told[name] if name in told else tomllib.loads(documents[name].read_text())
        for name in table["lines"].values()
    }


def fault(
    optimizer: str,
    case: Mapping[str, Any],
    python: str,
    folder: Path,
    intended: Collection[str] = (),
) -> str:
    """What happens to a model, as the script of its bundle says; empty if nothing does.

    ``intended`` are symptoms that all passes of the optimizer are there to bring.
    """
    folder.mkdir(parents=True)
    model, passes = onnx.parser.parse_model(case["model"]), case.get("passes", [])
    for part in case.get("parts", []):
        PARTS[part](model)
    onnx.save(model, folder / "model.onnx")
    dataset = "random"
    if inputs := case.get("inputs"):
        np.savez(folder / "inputs.npz", **arrays(model, inputs))  # type: ignore[arg-type]
        dataset = f"files:{folder / 'inputs.npz'}"
    pipeline = case.get("pipeline", passes)
    result = vet(
        str(folder / "model.onnx"),
        dataset=dataset,
        optimizer=optimizer,
        pipeline=",".join(pipeline) or "default",
        optimizer_options=case.get("options", {}),
        out=folder / "bundles",
        cache=False,
        jobs=1,
    )
    faults = [f for f in result.findings if not (f.culprit and f.symptom in intended)]
    blamed = [finding for finding in faults if is_blamed(finding, pipeline)]
    said = (script_says(folder / "bundles" / str(f.bundle), python) for f in blamed if f.bundle)
    return next(filter(None, said), "")


def annotate_quantization(model: onnx.ModelProto) -> None:
    """Say of the first result of a node which weight is its scale."""
    tensor, scale = model.graph.node[0].output[0], model.graph.initializer[0].name
    annotation = model.graph.quantization_annotation.add(tensor_name=tensor)
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=scale)


def denote(model: onnx.ModelProto) -> None:
    """Say what the first dimension of the first input and output means."""
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"


def add_metadata(model: onnx.ModelProto) -> None:
    """Give metadata to the graph and to its nodes."""
    for owner in (model.graph, *model.graph.node):
        owner.metadata_props.add(key="origin", value="here")


def train(model: onnx.ModelProto) -> None:
    """Add training information: a weight starts at 0."""
    information, weight = model.training_info.add(), model.graph.initializer[0].name
    zero = onnx.helper.make_node("Constant", [], ["start"], value_floats=[0.0])
    start = onnx.helper.make_tensor_value_info("start", onnx.TensorProto.FLOAT, [1])
    information.initialization.CopyFrom(onnx.helper.make_graph([zero], "start", [], [start]))
    information.initialization_binding.add(key=weight, value="start")


def add_sparse_constant(model: onnx.ModelProto) -> None:
    """Make the first result of the graph that of a Constant with a sparse value."""
    name = model.graph.node[0].input[1]
    value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [2.0])
    place = onnx.helper.make_tensor("place", onnx.TensorProto.INT64, [1], [0])
    sparse = onnx.helper.make_sparse_tensor(value, place, [1])
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], sparse_value=sparse))


def write_weights_as_bytes(model: onnx.ModelProto) -> None:
    """As files have them; ONNX's text makes lists of numbers, which stay in the model's file."""
    graphs = [model.graph]
    for graph in graphs:
        graphs += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
        for tensor in graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


PARTS: Mapping[str, Callable[[onnx.ModelProto], None]] = {
    "quantization_annotation": annotate_quantization,
    "denotation": denote,
    "metadata_props": add_metadata,
    "training_info": train,
    "sparse_value": add_sparse_constant,
    "bytes": write_weights_as_bytes,
}
"""What ONNX's text cannot say, by what the ``parts`` of a case name."""


def is_blamed(finding: Finding, passes: list[str]) -> bool:
    """Whether the culprit is some of the passes, or none where there are none."""
    return set(finding.culprit) <= set(passes) and bool(finding.culprit) == bool(passes)


def arrays(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Inputs in the types that the model declares."""
    types = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(types[name]) for name in inputs}
    return {name: np.array(value, dtypes[name]) for name, value in inputs.items()}


def script_says(bundle: Path, python: str) -> str:
    """What the script of a bundle says if it shows the fault: its error, or else its last line."""
    command = [python, "-I", str(bundle / "repro.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_LIMIT_S, cwd=bundle
    )
    told = [line for line in done.stdout.splitlines() if line.strip()]
    raised = [
        line
        for line in done.stderr.splitlines()
        if re.match(r"(\w+\.)+\w+: |\w+(Error|Exception)(: |$)", line)
    ]
    said = [*told[-1:], *raised[-1:], *told[-2:-1]]
    return said[-1][:_MOST] if done.returncode == 1 and said else ""


def main() -> int:
    """Print a line for each case; 1 if one does not show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep models and bundles here")
    options = parser.parse_args()
    table, missing = tomllib.loads((FINDS / f"{options.program}.toml").read_text()), 0
    package = PACKAGES.get(table["optimizer"], table["optimizer"])
    released, releases = metadata.version(package), table.get("releases", {})
    with tempfile.TemporaryDirectory(prefix="optvet-faults-") as scratch:
        for name, case in cases_of(table).items():
            if options.names and name not in options.names:
                continue
            if (needed := releases.get(name, released)) != released:
                print(f"{name}: needs {package} {needed}", flush=True)
                continue
            folder = (options.out or Path(scratch)) / options.program / name
            intended = table.get("intended", ())
            said = fault(table["optimizer"], case, options.python, folder, intended)
            missing += not said
            print(f"{name}: {said or 'does not show'}", flush=True)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
