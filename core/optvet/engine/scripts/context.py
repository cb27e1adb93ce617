"""What the scripts of a finding, and its issue text, are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from optvet.spec.extras import extras, given
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.requirement import Required, Tolerance
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.symptoms import ScriptCheck, Stage, Symptom

_SIDES = "for v in sides if v.type.tensor_type.HasField('shape')"
_SHAPES = f"[(v.name, [d.dim_value or '?' for d in v.type.tensor_type.shape.dim]) {_SIDES}]"
_METADATA = {
    "ir_version": "m.ir_version",
    "opset_import": "{o.domain: o.version for o in m.opset_import "
    "if o.domain in {'', *(n.domain for n in graph.node)}}",
    "functions": "sorted((f.domain, f.name) for f in m.functions)",
    "training_info": "len(m.training_info)",
    "metadata_props": "sorted((p.key, p.value) for p in m.metadata_props)",
    "graph metadata_props": "sorted((p.key, p.value) for p in graph.metadata_props)",
    "quantization_annotation": "len(graph.quantization_annotation)",
    "sparse_initializer": "len(graph.sparse_initializer)",
    "denotations": "[(v.name, v.type.denotation, "
    "[d.denotation for d in v.type.tensor_type.shape.dim]) for v in sides]",
    "doc_string": "m.doc_string",
    "replaceable weights": "len(listed & weights) if m.ir_version >= 4 else 0",
    "weights missing among the inputs": "len(weights - listed) if m.ir_version < 4 else 0",
    "weaker shapes": _SHAPES,
    "stronger shapes": _SHAPES,
    "corrected shapes": _SHAPES,
}
"""Code that reads an entry of ``Finding.changed``; its names are those of ``facts.py.jinja``."""


@dataclass(frozen=True)
class ReproContext:
    """The content of the script and of the issue text.

    Attributes:
        passes: Passes to apply, including required ones.
        inputs: Names of the arrays of ``inputs.npz``, in their order.
        outputs: The same for ``expected.npz``.
        judged: The outputs that are wrong; empty for all.
        about: The metadata that changed, as in ``Finding.changed``.
        random: Outputs whose distributions are compared, not their values.
        lost: Optional inputs that are gone; other weights among the inputs may come and go.
        tolerance: Allowed difference, relative to the largest magnitude of an output.
        full_check: Whether the checker infers shapes too.
        timeout_s: Time limit of the script's child process.
        memory_bytes: Memory limit of the optimizer, for the symptom out-of-memory.
        versions: Versions under which it was observed, by package.
        before: The model as text.
        after: The optimized model as text; empty if there is none.
        where: The place in the graph, as text; empty if it is not known.
        lines: Suspected lines of the passes' code, as text; empty if none is known.
        required: The requirement that is not met; None for other findings.
    """

    optimizer: Optimizer
    options: BaseModel
    passes: tuple[str, ...]
    culprit: tuple[str, ...]
    runtime: Runtime
    runtime_options: BaseModel
    symptom: Symptom
    stage: Stage
    message: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    judged: tuple[str, ...]
    about: tuple[str, ...]
    tolerance: float
    full_check: bool
    timeout_s: float
    memory_bytes: int
    versions: Mapping[str, str]
    before: str
    after: str = ""
    where: str = ""
    lines: str = ""
    required: Required | None = None
    lost: tuple[str, ...] = ()
    random: tuple[str, ...] = ()

    @property
    def check(self) -> ScriptCheck:
        """What a script looks at."""
        return self.symptom.info.check

    @property
    def metadata(self) -> Mapping[str, str]:
        """Code that reads the metadata which changed; all but shapes if that is not known."""
        wanted = {key: _METADATA[key] for key in self.about if key in _METADATA}
        return wanted or {key: code for key, code in _METADATA.items() if code != _SHAPES}

    @property
    def allowed(self) -> Tolerance | None:
        """The tolerance that is required; None where rounding decides."""
        return self.required if isinstance(self.required, Tolerance) else None

    @property
    def speaks_dialect(self) -> bool:
        """Whether the optimized model may have operators of its runtime's own."""
        return self.optimizer.traits.dialect

    @property
    def checked(self) -> str:
        """Code of what onnx's checker is given of the optimized model."""
        return "in_plain_onnx(optimized)" if self.speaks_dialect else "optimized"

    @property
    def takes_original(self) -> bool:
        """Whether the reference is the original, run by the same runtime."""
        return self.optimizer.traits.reference == "original"

    @property
    def carried(self) -> Mapping[str, bytes]:
        """Files of the user's that the call imports, by name."""
        return extras(self.optimizer, OptimizerExtras).carried(self.options)

    @property
    def seconds(self) -> str:
        """Time limit of a script's child process."""
        return f"{max(self.timeout_s, 10):g}"

    @property
    def title(self) -> str:
        """One line that says what is wrong."""
        blame = " then ".join(self.culprit) or "import and export alone"
        return line(f"{self.optimizer.name}: {blame}: {self.symptom.info.headline}")

    @property
    def seen(self) -> str:
        """Packages and their versions under which it was observed."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())

    @property
    def failing_step(self) -> str:
        """The step of the script by which the finding shows."""
        traits = self.optimizer.traits
        if self.stage == "compare":
            return "comparing the outputs"
        if self.stage == "check" and traits.produces == "onnx":
            return "checking the optimized model"
        if self.stage == "run" or (self.stage == "load" and not traits.optimizes_on_load):
            return "running the optimized model"
        return "optimizing the model"

    @property
    def is_explained(self) -> bool:
        """Whether the libraries of both plugins show the finding, without optvet.

        A session that an optimizer opens has none of the options that the runtime was given.
        """
        traits = self.optimizer.traits
        own = self.runtime.options.model_copy(update=dict(traits.runtime_options))
        as_given = not traits.optimizes_on_load or self.runtime_options == own
        snippet = given(self.optimizer, OptimizerExtras.snippet)
        return as_given and snippet is not None and bool(snippet(self.passes, self.options))

    @property
    def optimize(self) -> str:
        """Body of ``optimize(model)``; by the plugin where that does not show its call."""
        return self._apply(self.passes)

    @property
    def import_only(self) -> str:
        """Body of a function that gives the reference, which no pass has changed."""
        return "return model" if self.takes_original else self._apply(())

    def _apply(self, passes: Sequence[str]) -> str:
        if self.is_explained:
            return extras(self.optimizer, OptimizerExtras).snippet(passes, self.options)
        return f"""
from optvet.plugin import Artifact
from optvet.engine.discovery import Plugins

optimizer = Plugins().optimizer({self.optimizer.name!r})
options = type(optimizer.options).model_validate({self.options.model_dump(mode="json")!r})
optimizer = optimizer.configured(options) if hasattr(optimizer, "configured") else optimizer
source = Artifact("onnx", model.SerializeToString())
artifact = optimizer.apply(source, {list(passes)!r}, options)
return artifact.data if artifact.format == "onnx" else artifact
"""


def line(text: str, limit: int = 0) -> str:
    """Foreign text on one printable line."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"{words[: limit - 1]}…" if 0 < limit < len(words) else words
