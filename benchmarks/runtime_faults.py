"""Faults of runtimes and of importers from ONNX, each shown plainly, without optvet.

    python benchmarks/runtime_faults.py PROGRAM [NAME…]

PROGRAM is a key of ``CASES``. Needs released wheels alone: onnx, ONNX Runtime, the program, and the
other runtimes by which a case is judged. Outputs are compared with those of the judges, mostly ONNX
Runtime without optimizations and onnx's reference evaluator; a fault counts only if they agree.
Each case runs in a process of its own. Exit status 1 if one does not show.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import logging
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.version_converter
from onnx.reference import ReferenceEvaluator
from runtime_cases import CASES, Case

CLOSE, OF_HALF = 1e-3, 2e-2
Inputs = Sequence[np.ndarray]
Outputs = list[np.ndarray]
Runner = Callable[[onnx.ModelProto, Inputs, Sequence[str]], Outputs]
"""Runs a model on inputs in their order, after passes that the program has."""


def evaluator(model: onnx.ModelProto, inputs: Inputs, passes: Sequence[str] = ()) -> Outputs:
    """By onnx's reference evaluator."""
    return [
        np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds(model, inputs))
    ]


def feeds(model: onnx.ModelProto, inputs: Inputs) -> dict[str, np.ndarray]:
    """Inputs by name."""
    return {value.name: array for value, array in zip(model.graph.input, inputs, strict=True)}


def onnxruntime(model: onnx.ModelProto, inputs: Inputs, passes: Sequence[str] = ()) -> Outputs:
    """By ONNX Runtime without optimizations; "passes" are the providers."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if not set(passes) <= set(onnxruntime.get_available_providers()):
        raise SystemExit("needs a GPU")
    providers = [*passes, "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers)
    return [np.asarray(value) for value in session.run(None, feeds(model, inputs))]


def qnn(model: onnx.ModelProto, inputs: Inputs, passes: Sequence[str] = ()) -> Outputs:
    """By the emulator of Qualcomm's NPU, as a chip that computes in float16."""
    import onnxruntime

    package = importlib.import_module("onnxruntime_qnn")
    onnxruntime.register_execution_provider_library("qnn", package.get_library_path())
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "qnn"][:1]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings = {"backend_path": package.get_qnn_htp_path(), "soc_model": "60"}
    options.add_provider_for_devices(devices, settings)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, enable_fallback=0)
    groups = session.get_provider_graph_assignment_info()
    if all(group.ep_name == "CPUExecutionProvider" for group in groups):
        raise SystemExit("needs a node that the device takes")
    return [np.asarray(value) for value in session.run(None, feeds(model, inputs))]


def openvino(model: onnx.ModelProto, inputs: Inputs, passes: Sequence[str] = ()) -> Outputs:
    """By OpenVINO's plugin for CPUs, in full precision."""
    import openvino

    core = openvino.Core()
    read = core.read_model(model.SerializeToString(), b"")
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = compiled(list(inputs))
    return [np.array(given[i]) for i in range(len(compiled.outputs))]


def onnx2torch(model: onnx.ModelProto, inputs: Inputs, passes: Sequence[str] = ()) -> Outputs:
    """By the module that onnx2torch makes."""
    leave_torchvision_out()
    import onnx2torch
    import torch

    given = onnx2torch.convert(model).eval()(*map(torch.from_numpy, inputs))
    several = given if isinstance(given, list | tuple) else [given]
    return [value.detach().numpy() for value in several]


def leave_torchvision_out() -> None:
    """onnx2torch imports it for two operators; one made for another torch does not import."""
    for name in ("torchvision", "torchvision.ops"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(__path__=[], roi_align=None, nms=None)
        sys.modules[name] = module


def tvm(model: onnx.ModelProto, inputs: Inputs, passes: Sequence[str] = ()) -> Outputs:
    """By TVM's virtual machine, on LLVM; passes run before the lowering."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    arguments = {"ConvertLayout": [{"relax.nn.conv2d": ["NHWC", "OHWI"]}]}
    module = from_onnx(model, keep_params_in_input=False)
    for name in ["DecomposeOpsForInference", *passes, "LegalizeOps"]:
        module = getattr(relax.transform, name)(*arguments.get(name, []))(module)
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    given = machine["main"](*[tvm.runtime.tensor(np.array(i, order="C")) for i in inputs])
    return [value.numpy() for value in ([given] if hasattr(given, "numpy") else given)]


IREE_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",  # what it computes must not depend on the machine
)


def iree(model: onnx.ModelProto, inputs: Inputs, passes: Sequence[str] = ()) -> Outputs:
    """By IREE's virtual machine; passes run between import and compilation."""
    from iree import runtime
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer
    from iree.compiler.passmanager import PassManager
    from iree.compiler.tools import compile_str

    kinds = [value.type.tensor_type.elem_type for value in model.graph.output]
    if model.opset_import[0].version < 17:  # the oldest that the import knows
        model = onnx.version_converter.convert_version(model, 17)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    model.graph.name = "main"
    info = onnx_importer.ModelInfo(model)
    module = info.create_module(context=ir.Context()).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    text = module.get_asm(assume_verified=True)
    code = compile_str(text, input_type="onnx", extra_args=[*IREE_FLAGS, "--compile-to=input"])
    with ir.Context():
        parsed = ir.Module.parse(code)
        for name in passes:
            PassManager.parse(f"builtin.module(util.func({name}))").run(parsed.operation)
        code = str(parsed).encode()
    compiled = compile_str(code, extra_args=[*IREE_FLAGS, "--compile-from=input"])
    context = runtime.SystemContext(config=runtime.Config("local-sync"))
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, compiled))
    given = context.modules.module["main"](*inputs)
    several = given if isinstance(given, list | tuple) else [given]
    return [as_declared(v.to_host(), kind) for v, kind in zip(several, kinds, strict=True)]


def as_declared(value: np.ndarray, kind: int) -> np.ndarray:
    """An integer without sign, which MLIR does not tell from a signed one."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    return value.view(dtype) if dtype.kind == "u" and value.dtype.kind == "i" else value


RUNNERS: Mapping[str, Runner] = {
    run.__name__: run for run in (evaluator, onnxruntime, openvino, onnx2torch, tvm, iree, qnn)
}
IMPORTED = {
    "onnx2torch": "torch",
    "tvm": "tvm.relax.frontend.onnx",
    "iree": "iree.compiler.extras.onnx_importer",
    "qnn": "onnxruntime_qnn",
}
"""What takes long to import, which the processes of the cases share."""


PLACES = re.compile(
    r"Exception from \S+|\[ONNXRuntimeError\].*?(Message|initialization): |/\S+:\d+ "
)
"""What messages say of their own sources."""


def difference(expected: Sequence[Any], got: Sequence[np.ndarray], close: float = CLOSE) -> str:
    """Nothing where both are the same."""
    if len(expected) != len(got):
        return f"{len(expected)} outputs became {len(got)}"
    for want, have in zip(map(np.asarray, expected), got, strict=True):
        if want.shape != have.shape:
            return f"shape {list(want.shape)} became {list(have.shape)}"
        if want.dtype != have.dtype:
            return f"{want.dtype} became {have.dtype}"
        wide, other = want.astype(np.float64), have.astype(np.float64)
        # Half precision rounds by its largest numbers.
        span = max(1.0, float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0)))
        absolute = close * (span if close > CLOSE else 0.1)
        if not np.allclose(wide, other, close, absolute, equal_nan=True):
            return f"{want.ravel()[:4].tolist()} became {have.ravel()[:4].tolist()}"
    return ""


def model_of(case: Case) -> onnx.ModelProto:
    """The model of a case; its text is that of a graph, or of a model with functions."""
    whole = case.text.startswith("<")
    opening = "" if whole else f'<ir_version: 8, opset_import: ["" : {case.opset}]> g '
    model = onnx.parser.parse_model(opening + case.text)
    if case.sparse:
        for node in model.graph.node:
            if node.op_type == "Constant":
                node.attribute[0].CopyFrom(sparse(node.attribute[0].t))
    onnx.checker.check_model(model, full_check=True)
    return model


def sparse(dense: onnx.TensorProto) -> onnx.AttributeProto:
    """The value of a Constant, which ONNX's text cannot write as a sparse one."""
    indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, dense.dims, range(dense.dims[0]))
    value = onnx.helper.make_sparse_tensor(dense, indices, dense.dims)
    return onnx.helper.make_attribute("sparse_value", value)


def expectation(case: Case, model: onnx.ModelProto) -> Outputs | None:
    """What is right; nothing where the judges disagree."""
    first, *others = [RUNNERS[judge](model, case.inputs, ()) for judge in case.judges.split()]
    return None if any(difference(first, other) for other in others) else first


def fault(case: Case, model: onnx.ModelProto, run: Runner, expected: Outputs) -> str:
    """What happens to a model; empty if the program computes the same."""
    try:
        got = run(model, case.inputs, case.passes.split())
    except ImportError:
        raise
    except Exception as error:  # any error of the program is what is asked for
        words = PLACES.sub("", str(error))
        return f"{type(error).__name__}: {textwrap.shorten(words, 160, placeholder=' …')}"
    return difference(expected, got, OF_HALF if run is qnn else CLOSE)


def answer(case: Case, run: Runner, to: multiprocessing.connection.Connection) -> None:
    """Sends whether the case can be judged, then what happens; in a process of its own."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with Path(os.devnull).open("w") as nowhere:
        for stream in (1, 2):  # what libraries write there themselves
            os.dup2(nowhere.fileno(), stream)
    model = model_of(case)
    expected = expectation(case, model)
    to.send(expected is not None)
    if expected is None:
        return
    try:
        to.send(fault(case, model, run, expected))
    except SystemExit as needed:
        to.send(str(needed))
        raise


def outcome(case: Case, run: Runner) -> tuple[str, bool]:
    """What happens, and whether that is the fault."""
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    child = context.Process(target=answer, args=(case, run, far))
    child.start()
    far.close()
    judged, said = False, ""
    with contextlib.suppress(EOFError):  # the process ended before
        judged = near.recv()
        said = near.recv()
    child.join()
    if judged and child.exitcode is not None and child.exitcode < 0:
        return f"the process ends with {signal.Signals(-child.exitcode).name}", True
    return said, bool(said) and child.exitcode == 0


def main() -> None:
    """Print a line for each fault."""
    program, *wanted = sys.argv[1:]
    importlib.import_module(IMPORTED.get(program, program))
    missing = 0
    for name in wanted or CASES[program]:
        said, shows = outcome(CASES[program][name], RUNNERS[program])
        missing += not shows
        print(f"{program} {name}: {said or 'does not show'}", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
