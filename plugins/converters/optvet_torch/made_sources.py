"""Sources for hunts: PyTorch's operators on the sample inputs of its own tests, as Python files."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optvet.plugin import MissingLibrary, SourceStep

_TYPES = ("float32", "int64", "float64", "float16", "int32", "bool", "uint8", "int8")
"""The usual one first. Complex numbers and bfloat16 are left out: few runtimes have them."""
_MOST_SAMPLES = 80
_MOST_ELEMENTS = 400
_PARTS = 64
"""Floats of sample inputs are multiples of a 64th, if they are at most ``_LARGEST_SHORT``."""
_LARGEST_SHORT = 1000
_UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators that give uninitialized memory; what draws random numbers is found by running it."""
_SOURCE = '''\
"""{title}"""

from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


class Part(torch.nn.Module):
    def forward(self, {names}):
{lines}


example_inputs = (
{inputs}
)
{dynamic}

def part():
    return Part().eval()
'''


class CannotBeWrittenError(Exception):
    """An argument has no form in a source."""


def operators() -> dict[str, list[str]]:
    """Element types of each operator.

    Raises:
        MissingLibrary: PyTorch's tests cannot be imported.
    """
    found = {}
    for name, info in _database().items():
        known = {str(t).removeprefix("torch.") for t in info.supported_dtypes("cpu")}
        types = [t for t in _TYPES if t in known]
        if types:
            found[name] = types
    return found


@functools.cache
def _database() -> Mapping[str, Any]:
    """Sample inputs of operators, by a name that is an expression."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ModuleNotFoundError as error:
        raise MissingLibrary(str(error.name), "expecttest", "making sources for PyTorch") from error
    found = {}
    for info in op_db:
        function = _function_of(info.name)
        if function and info.name not in _UNDEFINED:
            # Variants are operators of their own: with other samples.
            variant = info.variant_test_name
            found[f"{info.name}:{variant}" if variant else info.name] = info
    return found


def _function_of(name: str) -> str:
    """The function by which a source calls an operator, or ``.method``; empty if it has none."""
    import torch

    place: Any = torch
    for part in name.split("."):
        place = getattr(place, part, None)
    if callable(place):
        return f"torch.{name}"
    return f".{name}" if hasattr(torch.Tensor, name) else ""


@functools.lru_cache(maxsize=64)
def _samples(operator: str, dtype: str) -> list[Any]:
    import torch

    info = _database()[operator]
    torch.manual_seed(0)
    samples = info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)
    try:
        return list(itertools.islice(samples, _MOST_SAMPLES))
    except Exception as error:
        # The makers of samples call operators too, some of which this build lacks.
        raise CannotBeWrittenError(str(error)) from error


@dataclass
class SourceWriter:
    """Writes calls as lines, and gathers the tensors that they read as inputs."""

    inputs: list[Any] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def call(self, function: str, sample: Any, before: str) -> str:
        """The call on a sample; its first tensor is the value ``before``, if there is one."""
        taken = [before] if before else []
        arguments = [self.text(value, taken) for value in (sample.input, *sample.args)]
        named = [f"{name}={self.text(value, taken)}" for name, value in sample.kwargs.items()]
        if taken:
            raise CannotBeWrittenError("no tensor is read")
        if function.startswith("."):
            return f"{arguments[0]}{function}({', '.join([*arguments[1:], *named])})"
        return f"{function}({', '.join([*arguments, *named])})"

    def text(self, value: Any, taken: list[str]) -> str:
        """An argument as Python."""
        import torch

        if isinstance(value, torch.Tensor):
            if taken:
                return taken.pop()
            if value.layout != torch.strided or value.is_complex() or value.is_quantized:
                raise CannotBeWrittenError("a tensor of a kind of its own")
            others = self.inputs and self.inputs[0].dtype != value.dtype
            if others and value.dtype == torch.uint8 and not value.numel():
                # A sample of gather, which takes an index of this type if it has no elements.
                raise CannotBeWrittenError("an index of a type that is not documented")
            self.inputs.append(_short(value.detach()))
            return f"x{len(self.inputs) - 1}"
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.text(each, taken) for each in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * bool(inner)})"
        if isinstance(value, slice):
            return repr(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if value is Ellipsis:
            return "..."
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return str(value)
        raise CannotBeWrittenError(f"a {type(value).__name__}")


def write_source(
    steps: Sequence[SourceStep], dynamic: bool, folder: Path, example: Sequence[Any] | None = None
) -> str | None:
    """Write ``part.py``; None if the steps do not fit each other, or cannot be written.

    ``example`` are inputs in place of those of the samples.
    """
    writer = SourceWriter()
    try:
        for number, step in enumerate(steps):
            _add(writer, step, number)
    except CannotBeWrittenError:
        return None
    if not writer.inputs or sum(x.numel() for x in writer.inputs) > _MOST_ELEMENTS:
        return None
    if example is not None:
        writer.inputs = list(example)
    names = [f"x{i}" for i in range(len(writer.inputs))]
    axes = {n: [0] for n, x in zip(names, writer.inputs, strict=True) if x.ndim and len(x) > 1}
    if dynamic and not axes:
        return None
    text = _SOURCE.format(
        title=" → ".join(step.operator for step in steps),
        names=", ".join(names),
        lines="\n".join(f"        {line}" for line in writer.lines),
        inputs="\n".join(f"    {_literal(x)}," for x in writer.inputs),
        dynamic=f"dynamic_axes = {axes}\n" if dynamic else "",
    )
    (folder / "part.py").write_text(text, "utf-8")
    return "part.py"


def _add(writer: SourceWriter, step: SourceStep, number: int) -> None:
    """Write a step, and take it, so that the next one knows what it gives."""
    import torch

    samples = _samples(step.operator, step.dtype)
    if not samples:
        raise CannotBeWrittenError("no samples")
    name = step.operator.partition(":")[0]
    before = f"y{number - 1}" if number else ""
    if number:
        _choose_tensor(writer)
    call = writer.call(_function_of(name), samples[step.sample % len(samples)], before)
    writer.lines[-1:] = [*(_as_assigned(writer.lines[-1:], before)), f"return {call}"]
    values = _values(writer)
    if not _tensors(values):
        raise CannotBeWrittenError("no tensor is given")
    if any(v.is_complex() or v.layout != torch.strided for v in _tensors(values)):
        raise CannotBeWrittenError("complex numbers")


def _as_assigned(lines: Sequence[str], name: str) -> list[str]:
    return [line.replace("return ", f"{name} = ", 1) for line in lines]


def _choose_tensor(writer: SourceWriter) -> None:
    """Take the first tensor of what the step before returns."""
    if isinstance(_values(writer), (list, tuple)):
        writer.lines[-1] += "[0]"


def _values(writer: SourceWriter) -> Any:
    """What the lines return."""
    import torch

    names = [f"x{i}" for i in range(len(writer.inputs))]
    head = f"def made({', '.join(names)}):\n"
    scope: dict[str, Any] = {"torch": torch}
    exec(head + "\n".join(f"    {line}" for line in writer.lines), scope)
    try:
        with torch.no_grad():
            return scope["made"](*(x.clone() for x in writer.inputs))
    except Exception as error:
        # Whatever an operator raises on an input that it does not take.
        raise CannotBeWrittenError(str(error)) from error


def _tensors(values: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [v for v in _pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]


def _short(value: Any) -> Any:
    """The tensor with floats of few digits, as one writes them."""
    if not value.is_floating_point() or not value.numel() or value.abs().max() > _LARGEST_SHORT:
        return value.contiguous()
    return (value.double() * _PARTS).round().div(_PARTS).to(value.dtype).contiguous()


def _literal(value: Any) -> str:
    """A tensor as Python."""
    listed = repr(value.tolist()).replace("nan", 'float("nan")').replace("inf", 'float("inf")')
    if 0 in value.shape:
        return f"torch.zeros({list(value.shape)}, dtype={value.dtype})"
    return f"torch.tensor({listed}, dtype={value.dtype})"
