"""PyTorch's own programs on CPU: modules that a function makes, exported and traced programs.

They are the sources and the first stages of conversions. Modules are called in evaluation mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    KEPT_BITS,
    Artifact,
    FactoryResult,
    Feeds,
    InputError,
    PartScript,
    Session,
    SourceFacts,
    SourceInside,
    SourcePart,
    SourceStep,
    load_factory,
    output_names,
    version_of,
)

MODULE, PROGRAM, SCRIPT = "torch", "torch-program", "torchscript"
_ROUNDOFFS = 2.0
_LARGEST_WHOLE = 4096
"""Whole numbers up to this are exact: next to no rounded weight is one."""


class ProgramOptions(BaseModel):
    """How PyTorch computes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(default=1, ge=0)
    """Threads within an operator; 0 lets PyTorch choose."""


class TorchProgramRuntime:
    """``torch`` alone, without any conversion."""

    name = "torch_program"
    accepts = frozenset({MODULE, PROGRAM, SCRIPT})
    source_formats: Mapping[str, str] = {".py": MODULE, ".pt2": PROGRAM}
    source_risks: Mapping[str, str] = {
        # Reading tensors alone (weights_only) does not help: torch.export.load 2.13 unpickles those
        # with pickle_protocol and custom constants, and evaluates sizes by sympy.sympify.
        ".pt2": "is unpickled by PyTorch (weights, constants, sample inputs), which also evaluates "
        "the sizes in it as Python"
    }
    # Recording or moving what a module computes imports torch._dynamo: 1.5 s in each worker.
    preload: Sequence[str] = ("torch", "torch.export", "torch._dynamo")
    source_preload: Sequence[str] = ("torch.testing._internal.common_methods_invocations",)
    libraries: Mapping[str, str] = {"torch": "torch"}
    options: ProgramOptions = ProgramOptions()
    deployed: ProgramOptions = ProgramOptions(threads=0)

    def version(self) -> str:
        """Version of PyTorch."""
        return version_of("torch", extra="optvet[torch]")

    def source_facts(self, artifact: Artifact, options: ProgramOptions) -> SourceFacts:
        """Example inputs of the factory, or those that a program was exported with."""
        if artifact.format == MODULE:
            return made_by(artifact).facts
        program = _load(artifact.path)
        examples = program.example_inputs
        if examples is None:
            raise InputError(f"{artifact.path} has no example inputs; export it with them")
        names = [spec.arg.name for spec in program.graph_signature.input_specs if _is_user(spec)]
        values = [np.asarray(v.detach()) for v in (*examples[0], *examples[1].values())]
        return SourceFacts(dict(zip(names, values, strict=True)), (), _symbols(program, names))

    def load(self, artifact: Artifact, options: ProgramOptions) -> Session:
        """The module, ready to be called."""
        torch = _torch()
        if options.threads:
            torch.set_num_threads(options.threads)
        return TorchProgramSession(*_callable(artifact))

    def load_perturbed(
        self, artifact: Artifact, options: ProgramOptions, seed: int, inside: bool
    ) -> Session:
        """The module with weights moved by a unit in the last place, or with every result moved."""
        torch = _torch()
        torch.set_num_threads(options.threads or torch.get_num_threads())
        module, call, named = _callable(artifact)
        generator = torch.Generator().manual_seed(seed)
        if inside:
            return TorchProgramSession(module, call, named, _moving(generator))
        for value in (*module.parameters(), *module.buffers()):
            if value.dtype in (torch.float32, torch.float64):
                _move(value, generator)
        return TorchProgramSession(module, call, named)

    def inside(
        self, artifact: Artifact, feeds: Feeds, options: ProgramOptions, seed: int | None
    ) -> SourceInside:
        """What every operator of the module gives, as eager PyTorch executes it."""
        from optvet_torch.inside import recorded

        torch = _torch()
        torch.set_num_threads(options.threads or torch.get_num_threads())
        module, call, named = _callable(artifact)
        tensors = {name: _tensor(value) for name, value in feeds.items()}
        generator = None
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            for value in (*module.parameters(), *module.buffers()):
                if value.dtype in (torch.float32, torch.float64):
                    _move(value, generator)
        arguments = ((), tensors) if named else (tuple(tensors.values()), {})
        moved = generator and _mover(generator)
        return recorded(module, call, *arguments, names=list(tensors), moved=moved)

    def parts(
        self, artifact: Artifact, feeds: Feeds, options: ProgramOptions
    ) -> Sequence[SourcePart]:
        """Its submodules; of an exported program as the module had them."""
        from optvet_torch.parts import parts_of

        return parts_of(*_divisible(artifact), _tensors(feeds))

    def write_part(
        self, artifact: Artifact, feeds: Feeds, options: ProgramOptions, name: str, folder: Path
    ) -> str:
        """A submodule as an exported program."""
        from optvet_torch.parts import write_part

        return write_part(*_divisible(artifact), _tensors(feeds), name, folder)

    def script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """For PyTorch's own exporters."""
        from optvet_torch.parts import script_for

        return script_for(converter, options)

    def source_operators(self) -> Mapping[str, Sequence[str]]:
        """Operators that PyTorch's own tests have sample inputs of."""
        from optvet_torch.made_sources import operators

        return operators()

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Feeds | None = None,
    ) -> str | None:
        """A module that calls operators one after the other."""
        from optvet_torch.made_sources import write_source

        example = None if feeds is None else [_tensor(value) for value in feeds.values()]
        return write_source(steps, dynamic, folder, example)

    def load_double(self, artifact: Artifact, options: ProgramOptions) -> Session:
        """The module in float64."""
        module, call, named = _callable(artifact)
        return TorchProgramSession(module.double(), call, named, double=True)


class TorchProgramSession:
    """A module that is called."""

    def __init__(
        self,
        module: Any,
        call: Callable[..., Any],
        named: bool,
        mode: Callable[[], Any] | None = None,
        double: bool = False,
    ) -> None:
        self._module, self._call, self._named = module, call, named
        self._mode, self._double = mode, double

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """All tensors that are returned, in order, by their keys or numbers."""
        from torch.utils import _pytree

        torch = _torch()
        tensors = {name: _tensor(value) for name, value in feeds.items()}
        if self._double:
            tensors = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        mode = contextlib.nullcontext() if self._mode is None else self._mode()
        with torch.no_grad(), mode:
            if self._named:
                returned = self._call(self._module, **tensors)
            else:
                returned = self._call(self._module, *tensors.values())
        found = _pytree.tree_flatten_with_path(returned)[0]
        found = [(path, leaf) for path, leaf in found if leaf is not None]
        names = output_names([list(map(_part, path)) for path, _ in found])
        return {name: as_array(leaf) for name, (_, leaf) in zip(names, found, strict=True)}


def _part(key: Any) -> object:
    """The key, the attribute or the number that a step into what was returned has."""
    return next(getattr(key, n) for n in ("key", "name", "idx") if hasattr(key, n))


def _torch() -> Any:
    import torch

    return torch


def made_by(artifact: Artifact) -> FactoryResult:
    """The module of a factory, in evaluation mode, with PyTorch's random numbers seeded."""
    torch = _torch()
    loaded = load_factory(artifact, torch.manual_seed, torch.tensor)
    if not isinstance(loaded.model, torch.nn.Module):
        assert artifact.path is not None
        raise InputError(
            f"{artifact.path.name}:{artifact.handle.name}() returned a "
            f"{type(loaded.model).__name__}, expected a torch.nn.Module"
        )
    return replace(loaded, model=as_called(loaded), call=None)


def as_called(loaded: FactoryResult) -> Any:
    """The module in evaluation mode; within one that calls it as the file says, if it does."""
    torch = _torch()
    model, call = loaded.model.eval(), loaded.call
    if call is None:
        return model
    around = torch.nn.Module()
    around.model = model
    # What converters and the reference take in place of the module.
    around.forward = lambda *inputs, **named: call(model, *inputs, **named)
    return around.eval()


def _called(module: Any, *arguments: Any, **named: Any) -> Any:
    return module(*arguments, **named)


def _callable(artifact: Artifact) -> tuple[Any, Callable[..., Any], bool]:
    """A module, how it is called, and whether arguments are passed by name."""
    torch = _torch()
    if artifact.format == MODULE:
        loaded = made_by(artifact)
        return loaded.model, _called, loaded.named
    named = artifact.handle == "named"
    if artifact.format == SCRIPT:
        return torch.jit.load(str(artifact.path)), _called, named
    return _load(artifact.path).module(), _called, named


def _divisible(artifact: Artifact) -> tuple[Any, Callable[..., Any]]:
    """A module with its submodules, and how it is called with tensors by position.

    Raises:
        InputError: It is called in another way.
    """
    if artifact.format == PROGRAM:
        return _torch().export.unflatten(_load(artifact.path)).eval(), _called
    loaded = made_by(artifact)
    if loaded.named:
        raise InputError("only a model that is called as model(*inputs) can be taken apart")
    return loaded.model, _called


def _tensors(feeds: Feeds) -> dict[str, Any]:
    return {name: _tensor(value) for name, value in feeds.items()}


def _load(path: Path | None) -> Any:
    torch = _torch()
    try:
        return torch.export.load(str(path))
    except Exception as error:
        raise InputError(
            f"{path} is no exported program that this PyTorch reads: {type(error).__name__}: "
            f"{error}; write it by torch.export.save"
        ) from error


def _is_user(spec: Any) -> bool:
    return bool(spec.kind.name == "USER_INPUT")


def _symbols(program: Any, names: Sequence[str]) -> dict[str, dict[int, str]]:
    """Names of the sizes that a program leaves open."""
    found: dict[str, dict[int, str]] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            shape = getattr(node.meta.get("val"), "shape", ())
            axes = {i: str(n) for i, n in enumerate(shape) if not isinstance(n, int)}
            if axes:
                found[node.name] = axes
    return found


def _move(value: Any, generator: Any) -> None:
    """Move each element by -1, 0 or +1 units in its last place; what no rounding made is kept."""
    torch = _torch()
    with torch.no_grad():
        exact = (value == value.round()) & (value.abs() <= _LARGEST_WHOLE)
        exact |= ~_may_be_rounded(value)
        step = torch.randint(-1, 2, value.shape, generator=generator)
        to = torch.where(step > 0, torch.inf, -torch.inf).to(value.dtype)
        moved = torch.nextafter(value, to)
        value.copy_(torch.where((step == 0) | exact, value, moved))


def _mover(generator: Any) -> Callable[[Any], Any]:
    """Moves each element of a tensor of floats by its own rounding."""
    torch = _torch()
    movable = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in movable:
            return value
        size = _ROUNDOFFS * torch.finfo(value.dtype).eps / 2
        drawn = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
        rounded = _may_be_rounded(value)
        return torch.where(rounded, value * (1 + size * drawn).to(value.dtype), value)

    return moved


def _may_be_rounded(value: Any) -> Any:
    """As ``optvet.may_be_rounded``, of a tensor."""
    wide = value.double()
    scaled = wide * (2.0 ** (53 - KEPT_BITS[str(value.dtype).removeprefix("torch.")]) + 1)
    return scaled - (scaled - wide) != wide


def _moving(generator: Any) -> Callable[[], Any]:
    """A context in which the result of every operator is moved by its own rounding."""
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = _torch()
    moved = _mover(generator)

    def dispatch(_: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        schema = function._schema
        # What is a view of, or written into, another tensor stays what it is.
        aliased = schema.is_mutable or any(r.alias_info is not None for r in schema.returns)
        leaves = _pytree.tree_leaves((args, kwargs))
        made_of_nothing = not any(isinstance(a, torch.Tensor) for a in leaves)
        return result if aliased or made_of_nothing else _pytree.tree_map(moved, result)

    return cast(
        Callable[[], Any], type("Moving", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})
    )


def _tensor(value: np.ndarray) -> Any:
    torch = _torch()
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(value, order="C").view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(value, order="C"))


def as_array(value: Any) -> np.ndarray:
    """A tensor, or a number, as an array of its type."""
    import ml_dtypes

    torch = _torch()
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:
        return np.array(plain.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(plain.numpy())
