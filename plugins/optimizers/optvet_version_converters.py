"""Converters between operator sets: onnx's own, up and down, and onnxscript's, up.

A pass is a step from one operator set to the next, such as ``12_13``. The adapters of a step cannot
be applied one by one, since no valid model has operators of two operator sets; the place of a fault
names the operator. Steps without a gap are one call, as users write it. The first steps may begin
ahead of the model, which is then converted up to them, too: one step can be at fault alone. Steps
behind a gap have no effect, so that a fault is not found in them once more. No passes are a round
trip.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx
from onnx import ModelProto
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import ONNX_DOMAIN, opset_versions
from optvet.plugin import (
    Artifact,
    KnownLimit,
    Optimizer,
    Pass,
    Symptom,
    Traits,
    UnknownName,
    Unsupported,
    hookimpl,
    version_of,
)

_NEWEST = 28
"""The newest operator set that passes lead to; a library may know fewer."""
REFUSED = re.compile(
    "No Previous Version|unallowed|[Nn]ot supported|not representable|[Uu]nsupported|cannot (be|in)"
    "|must (not )?have|must be|have broadcastable|not currently handled|input to .*node found"
)
"""Words with which the libraries say that the other operator set cannot say the same."""
_LIMIT = KnownLimit(
    frozenset({Symptom.METADATA_CHANGE}), "is there to change the operator set that a model imports"
)


@dataclass(frozen=True)
class _StepRange:
    """Steps without a gap; ``first``: the first ones in their direction."""

    start: int
    end: int
    first: bool

    @property
    def up(self) -> bool:
        """Whether they lead to newer operator sets."""
        return self.start < self.end

    def reached(self, opset: int) -> int:
        """Where they lead a model of ``opset``."""
        ahead = opset < self.end if self.up else opset > self.end
        begun = self.first or (self.start <= opset if self.up else self.start >= opset)
        return self.end if ahead and begun else opset

    def code(self) -> str:
        """The same as code."""
        if self.first:
            return f"opset = {'max' if self.up else 'min'}(opset, {self.end})"
        there = range(self.start, self.end, 1 if self.up else -1)
        return f"opset = {self.end} if opset in {list(there)} else opset"


class OnnxConverterOptions(BaseModel):
    """Options of ``onnx.version_converter``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset: int = Field(default=21, ge=1, le=_NEWEST)
    """The operator set that the default pipeline leads to, from older and from newer ones."""


class OnnxscriptConverterOptions(BaseModel):
    """Options of ``onnxscript.version_converter``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset: int = Field(default=25, ge=18, le=25)
    """The operator set that the default pipeline leads to."""
    form: Literal["graph", "message"] = "graph"
    """graph: the library gets a model of ``onnx_ir``. message: it gets an ``onnx.ModelProto``."""


class OnnxConverter:
    """``onnx.version_converter.convert_version``."""

    name = "onnx_version_converter"
    preload: Sequence[str] = ("onnx.version_converter",)
    libraries: Mapping[str, str] = {"onnx": "onnx"}
    options: Any = OnnxConverterOptions()
    # A step alone takes those before it along: tried one by one, all steps behind a faulty one
    # would show its fault.
    traits = Traits(single=False, max_model_bytes=2**31 - 1)
    first, last, down = 1, _NEWEST, True

    def version(self) -> str:
        """Version of onnx."""
        return version_of("onnx", extra="optvet")

    def configured(self, options: Any) -> Optimizer:
        """The same converter, whose default pipeline leads to ``options.opset``."""
        same = type(self)()
        same.options = options
        return same

    def passes(self) -> Sequence[Pass]:
        """Each step up, then each step down."""
        steps = [(n, n + 1) for n in range(self.first, self.last)]
        steps += [(b, a) for a, b in reversed(steps)] if self.down else []
        default = self.pipelines()["default"]
        names = [f"{a}_{b}" for a, b in steps]
        return [Pass(n, "step", n in default, known_limits=(_LIMIT,)) for n in names]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """The steps to the operator set of the options, up and down."""
        goal = self.options.opset
        up = [f"{n}_{n + 1}" for n in range(self.first, goal)]
        down = [f"{n}_{n - 1}" for n in range(self.last, goal, -1)] if self.down else []
        return {"default": (*up, *down)}

    def apply(self, source: Artifact, passes: Sequence[str], options: Any) -> Artifact:
        """One call that converts as far as ``passes`` lead."""
        model = onnx.load_from_string(source.data)
        version = goal = opset_versions(model).get(ONNX_DOMAIN)
        if version is not None:
            for run in self._runs(passes):
                goal = run.reached(goal or version)
        try:
            converted = self._convert(model, goal, options)
        except Exception as error:
            if REFUSED.search(str(error)):
                raise Unsupported(f"{self.name} refuses the model: {error}") from error
            raise
        return Artifact("onnx", converted.SerializeToString(deterministic=True))

    def _runs(self, passes: Sequence[str]) -> list[_StepRange]:
        """``passes`` as steps without a gap."""
        known = [p.name for p in self.passes()]
        runs: list[_StepRange] = []
        for name in passes:
            if name not in known:
                raise UnknownName(f"pass of {self.name}", name, known)
            start, end = map(int, name.split("_"))
            first = not any(run.up == (start < end) for run in runs)
            if runs and (runs[-1].end, runs[-1].up) == (start, start < end):
                start, first = runs[-1].start, runs.pop().first
            runs.append(_StepRange(start, end, first))
        return runs

    def _convert(self, model: ModelProto, opset: int | None, options: Any) -> ModelProto:
        from onnx import version_converter

        return version_converter.convert_version(model, opset or 0)

    def snippet(self, passes: Sequence[str], options: Any) -> str:
        """The call of the library, as far as ``passes`` lead."""
        steps = [f"{run.code()}\n" for run in self._runs(passes)]
        return "".join((_OPSET, *steps, self._call("opset", options)))

    def simple_snippets(self, passes: Sequence[str], options: Any) -> Sequence[str]:
        """The call with the operator set that the last of ``passes`` leads to."""
        return [self._call(passes[-1].split("_")[1], options)] if passes else []

    def _call(self, goal: str, options: Any) -> str:
        imports = "from onnx import version_converter\n\n"
        return f"{imports}return version_converter.convert_version(model, {goal})"


class OnnxscriptConverter(OnnxConverter):
    """``onnxscript.version_converter.convert_version``, without its fallback to onnx's."""

    name = "onnxscript_version_converter"
    preload = ("onnx", "onnxscript.version_converter")
    libraries: Mapping[str, str] = {"onnxscript": "onnxscript", "onnx-ir": "onnx_ir"}
    options: Any = OnnxscriptConverterOptions()
    rare_options: Mapping[str, Any] = {"form": "message"}
    first, last, down = 17, 25, False

    def version(self) -> str:
        """Versions of both packages, since either may change without the other."""
        extra = "optvet[onnxscript]"
        ours, theirs = version_of("onnxscript", extra=extra), version_of("onnx_ir", extra=extra)
        return f"{ours} (onnx_ir {theirs})"

    def _convert(self, model: ModelProto, opset: int | None, options: Any) -> ModelProto:
        from onnxscript import ir

        if options.form == "message":
            self._convert_in_place(model, opset)
            return model
        graph = ir.serde.deserialize_model(model)
        self._convert_in_place(graph, opset)
        return ir.serde.serialize_model(graph)

    def _convert_in_place(self, model: Any, opset: int | None) -> None:
        from onnxscript import version_converter

        # The library takes no older operator set, not even to leave it.
        if opset is not None and opset > self.first:
            version_converter.convert_version(model, opset)

    def _call(self, goal: str, options: Any) -> str:
        code = _OF_MESSAGE if options.form == "message" else _OF_GRAPH
        condition = "" if goal.isdigit() else f"if {goal} > {self.first}:\n    "
        return code.format(call=f"{condition}version_converter.convert_version(graph, {goal})")


_OPSET = 'opset = next(i.version for i in model.opset_import if i.domain in ("", "ai.onnx"))\n'
_OF_MESSAGE = """\
from onnxscript import version_converter

graph = model
{call}
return graph"""
_OF_GRAPH = """\
from onnxscript import ir, version_converter

graph = ir.serde.deserialize_model(model)
{call}
return ir.serde.serialize_model(graph)"""


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The two converters."""
    return [OnnxConverter(), OnnxscriptConverter()]
