"""``repro.py`` of a bundle: a script that reproduces the finding from the files of its folder.

A pure function from facts to text. The script is meant to be read: it contains the call that fails.
Names and messages come from models and native code, so they are quoted or escaped.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from optvet.spec.protocols import (
    CarriesFiles,
    Explains,
    ExplainsRuntime,
    Optimizer,
    Runtime,
    SetsEnvironment,
)
from optvet.spec.requirement import Required, Requirement, Tolerance
from optvet.spec.symptoms import ScriptCheck, Stage, Symptom


@dataclass(frozen=True)
class ReproContext:
    """The content of the script and of the issue text.

    Attributes:
        passes: Passes to apply, including required ones.
        inputs: Names of the arrays of ``inputs.npz``, in their order.
        outputs: The same for ``expected.npz``.
        judged: The outputs that are wrong; empty for all.
        about: The metadata that changed, as in ``Finding.changed``.
        lost: Optional inputs that are gone; other weights among the inputs may come and go.
        tolerance: Allowed difference, relative to the largest magnitude of an output.
        full_check: Whether the checker infers shapes too.
        timeout_s: Time limit of the script's child process.
        memory_bytes: Memory limit of the optimizer, for the symptom out-of-memory.
        versions: Versions under which it was observed, by package.
        before: The model as text.
        after: The optimized model as text; empty if there is none.
        where: The place in the graph, as text; empty if it is not known.
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
    required: Required | None = None
    lost: tuple[str, ...] = ()

    @property
    def less_lost(self) -> str:
        """Code that takes the lost inputs out of a set of weights; none where none is lost."""
        return f" - {{{', '.join(map(repr, self.lost))}}}" if self.lost else ""


def title(context: ReproContext) -> str:
    """One line that says what is wrong."""
    blame = " then ".join(context.culprit) or "import and export alone"
    return line(f"{context.optimizer.name}: {blame}: {context.symptom.info.headline}")


def line(text: str, limit: int = 0) -> str:
    """Foreign text on one printable line."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"{words[: limit - 1]}…" if 0 < limit < len(words) else words


# --- the script -----------------------------------------------------------------------------------

_SCRIPT = '''\
"""@TITLE@

Exits 1 while this is so, 0 when it is gone, 2 when it cannot be judged.
Seen with @SEEN@.
"""

@IMPORTS@import subprocess
import sys
from pathlib import Path
@ENVIRONMENT@
FOLDER = Path(__file__).resolve().parent
@PATH@INPUTS = @INPUTS@
OUTPUTS = @OUTPUTS@
TOLERANCE = @TOLERANCE@  # relative to the largest magnitude of an output
SECONDS = @SECONDS@


def optimize(model):
@OPTIMIZE@


def run(model, feeds):
@RUN@


def check():
    """What goes wrong in words, or nothing; runs in a process of its own, for it may crash."""
    print("preparing", flush=True)
    import numpy as np
    import onnx
@MEMORY@
    def arrays(file, names):
        with np.load(FOLDER / file, allow_pickle=False) as loaded:
            values = [loaded[key] for key in loaded.files]
        return dict(zip(names, (v.astype(object) if v.dtype.kind == "U" else v for v in values)))

    model = onnx.load(FOLDER / "model.onnx")
    feeds, expected = arrays("inputs.npz", INPUTS), arrays("expected.npz", OUTPUTS)
@ORIGINAL@    print("optimizing the model", flush=True)
    optimized = optimize(onnx.load(FOLDER / "model.onnx"))  # some change what they are given
@CHECK@@COMPARE@

def main():
    command = [sys.executable, __file__, "check"]
    try:
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SECONDS)
        said, code = child.stdout.splitlines(), child.returncode
    except subprocess.TimeoutExpired as error:
        said, code = (error.stdout or b"").decode(errors="replace").splitlines(), "no end"
    reached = [line for line in said if line in STEPS] or ["preparing"]
    if code == 0:
        print("gone: the optimized model is as it should be")
        return 0
    how = f"signal {-code}" if isinstance(code, int) and code < 0 else code
    print(*(line for line in said if line not in STEPS), sep="\\n")
    # What ends before it gets there shows something else.
    if code == CANNOT or STEPS.index(reached[-1]) < STEPS.index(@STEP@):
        print(f"cannot be judged: it ended while {reached[-1]}: {how}")
        return 2
    print(f"still there: {reached[-1]}" + ("" if code == FAULT else f": {how}"))
    return 1


FAULT, CANNOT = 10, 11
STEPS = [
    "preparing",
    "running the original",
    "optimizing the model",
    "checking the optimized model",
    "running the optimized model",
    "comparing the outputs",
    "comparing the two models",
]

if __name__ == "__main__":
    if sys.argv[1:] != ["check"]:
        sys.exit(main())
    try:
        words = check()
    except ImportError as error:
        print(error)
        sys.exit(CANNOT)
    print(words)
    sys.exit(FAULT if words else 0)
'''

_CHECK = """\
    if isinstance(optimized, (bytes, onnx.ModelProto)):
        print("checking the optimized model", flush=True)
        onnx.checker.check_model(optimized, full_check=@FULL@)
"""
_INTERFACE = """\
    after = optimized if hasattr(optimized, "graph") else onnx.load_from_string(optimized)
    weights = {t.name for t in (*model.graph.initializer, *after.graph.initializer)}@LOST@
    for side in ("input", "output"):
        was, now = getattr(model.graph, side), getattr(after.graph, side)
        was, now = ([v for v in values if v.name not in weights] for values in (was, now))
        if [str(v) for v in was] != [str(v) for v in now]:
            show = onnx.helper.printable_value_info
            return f"was {', '.join(map(show, was))}, is {', '.join(map(show, now))}"
"""
_OUTPUTS = """\
    print("running the optimized model", flush=True)
    outputs = run(optimized, feeds)
@FLAT@    print("comparing the outputs", flush=True)
    for name in @JUDGED@:
        if name not in outputs:
            return f"there is no output {name!r}"
        was, now = expected[name], np.asarray(outputs[name])
        if (was.dtype, was.shape) != (now.dtype, now.shape):
            return f"{name!r} was {was.dtype}{list(was.shape)}, is {now.dtype}{list(now.shape)}"
        if was.dtype.kind in "fc":
@ALLOWED@
            same = np.isclose(now, was, rtol=@RTOL@, atol=allowed, equal_nan=True)
        else:
            same = now == was
        if not np.all(same):
            at = np.argwhere(~np.atleast_1d(same))[0]
            pair = [np.atleast_1d(v)[tuple(at)] for v in (was, now)]
            return f"{name!r}{at.tolist()}: expected {pair[0]!r}, got {pair[1]!r}"
    return ""
"""
_FLAT = """\
    def flat(name, value):
        if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            if all(list(v) == list(value[0]) for v in value):
                rows = np.array([list(v.values()) for v in value], np.float32)
                return {**flat(name, dict.fromkeys(value[0])), name: rows}
        if isinstance(value, dict):
            keys = np.array(list(value))
            keys = keys.astype(object) if keys.dtype.kind == "U" else keys
            return {f"{name}.keys": keys, name: np.array(list(value.values()))}
        if isinstance(value, (list, tuple)):
            parts = [flat(f"{name}[{i}]", v) for i, v in enumerate(value)]
            parts += [{f"{name}.length": np.array(len(value))}]
            return {key: v for part in parts for key, v in part.items()}
        return {f"{name}.is_none": np.array(True)} if value is None else {name: value}

    outputs = {key: v for name in outputs for key, v in flat(name, outputs[name]).items()}
"""
_PART = re.compile(r"(\[\d+\]|\.keys|\.length|\.is_none)\Z")
"""Ends of the names of what a sequence, a map or an optional value is made of."""
_ALLOWED = """\
            finite = np.abs(was[np.isfinite(was)]).astype(np.float64)
            allowed = TOLERANCE * finite.max(initial=0.0)"""
_REQUIRED = """\
            was, now = was.astype(np.float64), now.astype(np.float64)
            allowed = @ATOL@"""
_METRIC = """\
    from optvet.engine.bundle.measure import samples, unmet  # the metric is that of a plugin

    print("running the optimized model", flush=True)
    outputs = [run(optimized, feeds) for feeds in samples(FOLDER)]
    print("comparing the outputs", flush=True)
    return unmet(FOLDER, outputs)
"""
_NODES = """\
    def count(graph):
        inner = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
        inner += [g for n in graph.node for a in n.attribute for g in a.graphs]
        return len(graph.node) + sum(map(count, inner))

    print("comparing the two models", flush=True)
    after = optimized if hasattr(optimized, "graph") else onnx.load_from_string(optimized)
    was, now = count(model.graph), count(after.graph)
    return f"{was} nodes became {now}" if now > was else ""
"""
_METADATA = """\
    def said(m):
        graph = m.graph
        used = {n.domain for n in graph.node} | {""}
        sides = [(v.name, v.type) for v in (*graph.input, *graph.output)]
        listed = {v.name for v in graph.input} & {t.name for t in graph.initializer}
        dims = [(n, d.denotation) for n, t in sides for d in t.tensor_type.shape.dim]
        known = [(n, t.tensor_type) for n, t in sides if t.tensor_type.HasField("shape")]
        shapes = [(n, [d.dim_value or "?" for d in t.shape.dim]) for n, t in known]
        return {
            "weaker shapes": shapes,
            "stronger shapes": shapes,
            "corrected shapes": shapes,
            "ir_version": m.ir_version,
            "opset_import": sorted(
                (o.domain, o.version) for o in m.opset_import if o.domain in used
            ),
            "functions": sorted((f.domain, f.name) for f in m.functions),
            "training_info": len(m.training_info),
            "metadata_props": sorted((p.key, p.value) for p in m.metadata_props),
            "graph metadata_props": sorted((p.key, p.value) for p in graph.metadata_props),
            "quantization_annotation": len(graph.quantization_annotation),
            "sparse_initializer": len(graph.sparse_initializer),
            "denotations": [(n, t.denotation) for n, t in sides] + dims,
            "doc_string": m.doc_string,
            "replaceable weights": len(listed) if m.ir_version >= 4 else 0,
            "weights missing among the inputs": len(graph.initializer) - len(listed)
            if m.ir_version < 4
            else 0,
        }

    print("comparing the two models", flush=True)
    after = optimized if hasattr(optimized, "graph") else onnx.load_from_string(optimized)
    was, now = said(model), said(after)
    changed = [key for key in @ABOUT@ if was[key] != now[key]]
    return "; ".join(f"{key}: {was[key]!r} became {now[key]!r}" for key in changed)
"""
_ORIGINAL = """\
    print("running the original", flush=True)
    run(model, feeds)
"""
_MEMORY = """\
    import resource

    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + @BYTES@
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


def script(context: ReproContext) -> str:
    """The text of ``repro.py``."""
    explained = isinstance(context.optimizer, Explains)
    # What fails later passed the vet's own check, which knows a runtime's own operators.
    checks = failing_step(context) == "checking the optimized model"
    check = _CHECK.replace("@FULL@", repr(context.full_check)) if checks else ""
    if context.symptom.info.check is ScriptCheck.INTERFACE:
        check += _INTERFACE.replace("@LOST@", context.less_lost)
    compare = _METRIC if isinstance(context.required, Requirement) else _outputs(context)
    if context.symptom.info.check is ScriptCheck.NODES:
        compare = _NODES
    if context.symptom.info.check is ScriptCheck.METADATA:
        compare = _METADATA.replace("@ABOUT@", repr(list(context.about)))
    environment = _environment(context)
    values = {
        "IMPORTS": "import os\n" if environment else "",
        "ENVIRONMENT": environment,
        "TITLE": _quotable(title(context)),
        "SEEN": _quotable(", ".join(f"{n} {v}" for n, v in context.versions.items())),
        "INPUTS": repr(list(context.inputs)),
        "OUTPUTS": repr(list(context.outputs)),
        "TOLERANCE": f"{context.tolerance:.1g}",
        "SECONDS": f"{max(context.timeout_s, 10):g}",
        "OPTIMIZE": _indented(
            context.optimizer.snippet(context.passes, context.options)
            if isinstance(context.optimizer, Explains)
            else optimize_by_plugin(context)
        ),
        "RUN": _indented(
            context.runtime.snippet(context.runtime_options)
            if explained and isinstance(context.runtime, ExplainsRuntime)
            else _run_by_plugin(context)
        ),
        "PATH": "sys.path.insert(0, str(FOLDER))\n" if carried(context) else "",
        "MEMORY": _MEMORY.replace("@BYTES@", str(context.memory_bytes))
        if context.symptom.info.limit == "memory"
        else "",
        "ORIGINAL": _ORIGINAL if context.optimizer.traits.reference == "original" else "",
        "STEP": repr(failing_step(context)),
        "CHECK": check,
        "COMPARE": compare,
    }
    # In one pass, since an inserted text may itself look like a placeholder.
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], _SCRIPT)


def _outputs(context: ReproContext) -> str:
    """Compares every judged output, by the tolerance that is required or that rounding explains."""
    rtol, allowed, required = "0", _ALLOWED, context.required
    if isinstance(required, Tolerance):
        rtol, allowed = repr(required.rtol), _REQUIRED.replace("@ATOL@", repr(required.atol))
    judged = repr(list(context.judged)) if context.judged else "OUTPUTS"
    parts = any(map(_PART.search, context.outputs))
    values = {"JUDGED": judged, "ALLOWED": allowed, "RTOL": rtol, "FLAT": _FLAT if parts else ""}
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], _OUTPUTS)


def _environment(context: ReproContext) -> str:
    """Lines that set environment variables of the libraries; empty if there are none."""
    plugins = (context.optimizer, context.runtime)
    wanted = [p.environment for p in plugins if isinstance(p, SetsEnvironment)]
    lines = [
        f"os.environ.setdefault({name!r}, {value!r})"
        for name, value in sorted({k: v for each in wanted for k, v in each.items()}.items())
    ]
    return "\n".join(("", "# Read by libraries as they are imported.", *lines, "")) if lines else ""


def carried(context: ReproContext) -> Mapping[str, bytes]:
    """Files of the user's that the call imports, by name."""
    optimizer = context.optimizer
    return optimizer.carried(context.options) if isinstance(optimizer, CarriesFiles) else {}


def failing_step(context: ReproContext) -> str:
    """The step of the script by which the finding shows."""
    traits = context.optimizer.traits
    if context.stage == "compare":
        return "comparing the outputs"
    if context.stage == "check" and traits.produces == "onnx":
        return "checking the optimized model"
    if context.stage == "run" or (context.stage == "load" and not traits.optimizes_on_load):
        return "running the optimized model"
    return "optimizing the model"


def _quotable(text: str) -> str:
    """``text`` as it may stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"', "'")


def _indented(code: str) -> str:
    return textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")


def optimize_by_plugin(context: ReproContext) -> str:
    """Body of ``optimize`` for an optimizer that does not show its call: by way of its plugin."""
    options = context.options.model_dump(mode="json")
    return f"""
from optvet.plugin import Artifact
from optvet.engine.discovery import Plugins

optimizer = Plugins().optimizer({context.optimizer.name!r})
options = type(optimizer.options).model_validate({options!r})
optimizer = optimizer.configured(options) if hasattr(optimizer, "configured") else optimizer
source = Artifact("onnx", model.SerializeToString())
artifact = optimizer.apply(source, {list(context.passes)!r}, options)
return artifact.data if artifact.format == "onnx" else artifact
"""


def _run_by_plugin(context: ReproContext) -> str:
    options = context.runtime_options.model_dump(mode="json")
    return f"""
from optvet.plugin import Artifact
from optvet.engine.discovery import Plugins

if not isinstance(model, Artifact):
    data = model if isinstance(model, bytes) else model.SerializeToString()
    model = Artifact("onnx", data)
runtime = Plugins().runtime({context.runtime.name!r})
options = type(runtime.options).model_validate({options!r})
return runtime.load(model, options).run(feeds)
"""
