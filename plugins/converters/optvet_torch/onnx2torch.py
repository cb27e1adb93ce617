"""PyTorch on CPU, of ONNX through onnx2torch: a reading of the model by another community.

The converter returns what the nodes behind the outputs return, each node once; which of that is
which output is worked out here from the graph.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    Check,
    ConversionStage,
    Feeds,
    Installation,
    PartScript,
    Session,
    version_of,
)

_PICKLED = "torch-module"
"""Format of a module that the converter made."""
_IMPORTS = """\
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import torch

try:
    import torchvision.ops
except Exception:  # onnx2torch imports it for two operators; one for another PyTorch is no use.
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("torchvision", "torchvision.ops"):
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))

import onnx2torch"""
_RUN = """\
import numpy as np
import torch

with torch.no_grad():
    values = model(*[torch.from_numpy(np.array(value)) for value in feeds.values()])
listed = values if isinstance(values, (tuple, list)) else [values]
return {i: np.asarray(value) for i, value in enumerate(listed)}"""


class TorchOptions(BaseModel):
    """How PyTorch computes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(default=1, ge=0)
    """Threads within an operator; 0 lets PyTorch choose."""
    deterministic: bool = True
    """Refuse operators that may give another result on every run."""


class TorchRuntime:
    """The ``onnx2torch`` package on PyTorch."""

    name = "torch"
    accepts = frozenset({"onnx", _PICKLED})
    preload: Sequence[str] = ("torch",)
    # torchvision is not used here, but onnx2torch imports it where it is installed.
    libraries: Mapping[str, str] = {
        "torch": "torch",
        "onnx2torch": "onnx2torch",
        "torchvision": "torchvision",
    }
    options: TorchOptions = TorchOptions()
    deployed: TorchOptions = TorchOptions(threads=0, deterministic=False)

    def version(self) -> str:
        """Versions of PyTorch and of the converter."""
        extra = "optvet[torch]"
        torch, converter = version_of("torch", extra=extra), version_of("onnx2torch", extra=extra)
        return f"{torch} (onnx2torch {converter})"

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        """A torchvision that does not fit torch is no fault: the converter is run without it."""
        for name, why in installation.unimportable.items():
            if name == "torchvision" or (name == "onnx2torch" and "torchvision" in why.modules):
                version = installation.versions[name]
                yield Check(
                    name="libraries",
                    status="warning",
                    message=f"{name} {version} cannot be imported: {why.reason}",
                    cure=torchvision_commands(
                        installation.versions.get("torch", ""), installation.pip
                    ),
                    about=(name,),
                )

    def load(self, artifact: Artifact, options: TorchOptions) -> Session:
        """Convert the model; raises NotImplementedError for an operator without a converter."""
        torch = _torch()
        if options.threads:
            torch.set_num_threads(options.threads)
        if artifact.format == _PICKLED:
            _ensure_torchvision()
            # The converter here has made it: what is executed was executed there already.
            return ModuleSession(torch.load(str(artifact.path), weights_only=False))
        model = onnx.load_from_string(artifact.data)
        _refuse(model.graph)
        with _no_folder_left():
            torch.use_deterministic_algorithms(options.deterministic)
            module = _convert(model).eval()
        return TorchSession(module, model.graph)


class TorchSession:
    """A converted model."""

    def __init__(self, module: Any, graph: onnx.GraphProto) -> None:
        weights = {t.name for t in graph.initializer}
        self._module = module
        self._inputs = {i.name: i.type.tensor_type for i in graph.input if i.name not in weights}
        self._outputs = {o.name: o.type.tensor_type.elem_type for o in graph.output}
        self._places = _places(graph)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order."""
        torch = _torch()
        arguments = [_tensor(name, feeds, kind) for name, kind in self._inputs.items()]
        with torch.no_grad():
            returned = self._module(*arguments)
        if len({node for node, _ in self._places}) == 1:
            returned = [returned]
        outputs = {}
        for (name, code), (node, index) in zip(self._outputs.items(), self._places, strict=True):
            value = returned[node] if index is None else returned[node][index]
            outputs[name] = _array(value, code)
        return outputs


class ModuleSession:
    """A module as the converter gives it: called in the order of inputs."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """All tensors that are returned, in order, with numbers for names."""
        torch = _torch()
        tensors = [torch.from_numpy(np.array(value, order="C")) for value in feeds.values()]
        with torch.no_grad():
            returned = self._module(*tensors)
        listed = returned if isinstance(returned, (tuple, list)) else [returned]
        return {f"output_{i}": np.asarray(value) for i, value in enumerate(listed)}


@contextmanager
def _no_folder_left() -> Iterator[None]:
    """Imported on the way, torch's compiler makes the folder of its cache; nothing is compiled."""
    from unittest.mock import patch

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        yield


def _torch() -> Any:
    import torch

    return torch


def _convert(model: onnx.ModelProto) -> Any:
    """The module. Weights that are computed from weights are evaluated if they must be.

    Many converters look their weights up among the initializers, and raise KeyError where an
    optimizer left the arithmetic of a fusion in the graph.
    """
    _ensure_torchvision()
    from onnx2torch import convert

    try:
        return convert(model)
    except KeyError:
        folded = _fold(model)
    try:
        return convert(folded)
    except KeyError as error:
        raise NotImplementedError(
            f"onnx2torch needs {error} to be a weight, but it depends on the inputs"
        ) from error


def _fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of ``model`` in which what depends on weights alone is a weight."""
    from optvet.plugin import reference_evaluator  # imports the engine, which plugins need not

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    known = {"", *(t.name for t in graph.initializer)}
    kept = {o.name for o in graph.output}
    constant, other = [], []
    for node in graph.node:
        plain = not any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute)
        drawn = node.op_type.startswith(("Random", "Bernoulli", "Multinomial", "Dropout"))
        if plain and not drawn and known.issuperset(node.input) and kept.isdisjoint(node.output):
            constant.append(node)
            known.update(node.output)
        else:
            other.append(node)
    names = [name for node in constant for name in node.output if name]
    part = onnx.ModelProto()
    part.CopyFrom(copy)
    for field in (part.graph.node, part.graph.input, part.graph.output):
        del field[:]
    part.graph.node.extend(constant)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = reference_evaluator(part, double=False)({})
    del graph.node[:]
    graph.node.extend(other)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(values[name]), name) for name in names
    )
    return copy


def _ensure_torchvision() -> None:
    """Put a stub where torchvision belongs if it is absent or does not fit the installed PyTorch.

    The converter imports it for NonMaxSuppression and RoiAlign alone; with the stub, only these
    fail. Workers alone come here, so no program that uses optvet sees the stub.
    """
    try:
        import torchvision.ops  # noqa: F401
    except Exception:  # a wheel for another PyTorch raises RuntimeError: no operator nms
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        package, ops = types.ModuleType("torchvision"), types.ModuleType("torchvision.ops")
        package.ops = ops  # type: ignore[attr-defined]
        package.__path__ = []
        for module in (package, ops):
            # Others ask whether torchvision is there, and stumble over a module without a spec.
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
            sys.modules[module.__name__] = module
        for name in ("nms", "roi_align", "box_convert"):
            setattr(ops, name, _missing)


_OF_TORCHVISION = frozenset({"NonMaxSuppression", "RoiAlign"})


def _missing(*_: Any, **__: Any) -> Any:
    mend = torchvision_commands(version_of("torch", extra="optvet[torch]"))
    raise NotImplementedError(
        f"this operator needs a torchvision that fits the installed torch: {mend}"
    )


def torchvision_commands(torch: str, pip: str = "pip") -> str:
    """The commands that bring the torchvision of the installed build of torch.

    torchvision requires a version of torch, but not a build of it, such as ``+cpu``; builds other
    than the default have an index of their own. pip keeps a torchvision that is there already.
    """
    build = torch.partition("+")[2]
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"{pip} uninstall -y torchvision; {pip} install torch=={torch} torchvision{index}"


def _refuse(graph: onnx.GraphProto) -> None:
    """What the converter would stumble over, said more clearly."""
    for value in (*graph.input, *graph.output):
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise NotImplementedError(f"{value.name!r} is no tensor; choose another runtime")
        if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise NotImplementedError(f"{value.name!r} holds strings; choose another runtime")
    computed = {name for node in graph.node for name in node.output}
    for output in graph.output:
        if output.name not in computed:
            raise NotImplementedError(
                f"output {output.name!r} is an input or a weight, which onnx2torch cannot return"
            )


def _places(graph: onnx.GraphProto) -> list[tuple[int, int | None]]:
    """For each output, which of the returned values holds it, and where in that."""
    producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    nodes = list(dict.fromkeys(producer[o.name] for o in graph.output))
    places: list[tuple[int, int | None]] = []
    for output in graph.output:
        node = graph.node[producer[output.name]]
        several = len(node.output) > 1
        index = list(node.output).index(output.name) if several else None
        places.append((nodes.index(producer[output.name]), index))
    return places


def _tensor(name: str, feeds: Feeds, kind: onnx.TypeProto.Tensor) -> Any:
    if name not in feeds:
        raise ValueError(f"input {name!r} is missing")
    value = feeds[name]
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if value.dtype != dtype:
        raise TypeError(f"input {name!r} is {value.dtype}, expected {dtype}")
    rank = len(kind.shape.dim) if kind.HasField("shape") else value.ndim
    if value.ndim != rank:
        raise ValueError(f"input {name!r} has rank {value.ndim}, expected {rank}")
    torch = _torch()
    if dtype.name == "bfloat16":
        bits = np.array(value, order="C").view(np.int16)
        return torch.from_numpy(bits).view(torch.bfloat16)
    return torch.from_numpy(np.array(value, order="C"))


def _array(value: Any, code: int) -> np.ndarray:
    torch = _torch()
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    if value.dtype == torch.bfloat16:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
        return np.array(value.contiguous().view(torch.int16).numpy()).view(kind)
    return np.array(value.numpy())


class TorchConverterOptions(BaseModel):
    """How onnx2torch is called: there is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Onnx2Torch:
    """A module of PyTorch, node by node."""

    name = "onnx2torch"
    consumes = frozenset({"onnx"})
    produces = _PICKLED
    preload: Sequence[str] = ("torch",)
    libraries: Mapping[str, str] = {"torch": "torch", "onnx2torch": "onnx2torch"}
    options: TorchConverterOptions = TorchConverterOptions()

    def version(self) -> str:
        """Version of the converter."""
        return version_of("onnx2torch", extra="optvet[torch]")

    def stages(self, options: TorchConverterOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("convert", "convert", _PICKLED)]

    def convert(
        self, source: Artifact, options: TorchConverterOptions, folder: Path
    ) -> Iterator[Artifact]:
        """The module, pickled; refused where operators are missing here, not in the converter."""
        torch = _torch()
        _ensure_torchvision()
        from onnx2torch import convert

        model = onnx.load_from_string(source.data)
        if sys.modules["torchvision.ops"].nms is _missing and any(
            node.op_type in _OF_TORCHVISION for node in model.graph.node
        ):
            _missing()
        module = convert(model).eval()
        path = folder / "module.pt"
        torch.save(module, str(path))
        yield Artifact(_PICKLED, path=path)

    def part_script(self, options: TorchConverterOptions) -> PartScript:
        """The module is called as the converter gives it."""
        call = "return onnx2torch.convert(model).eval()"
        return PartScript(
            "onnx2torch", ("onnx", "torch", "onnx2torch"), _IMPORTS, "", call, run=_RUN
        )
