"""Makes one short script that shows a finding, with the model, its inputs and the call inline.

Several scripts are possible: with the exact call that was vetted, or with a shorter one of the
plugin (``run_snippets``, ``simple_snippets``). Each is run in a folder and a process of its own.
The first shorter one that prints the same as the exact one is used. A script that reports a fault
for the original model too is rejected.
"""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from onnx import ModelProto

from optvet.engine.bundle.inline import array_code, arrays_code, model_code, name_code
from optvet.engine.bundle.repro import ReproContext, carried, failing_step, line, title
from optvet.engine.bundle.trying import try_script
from optvet.spec.protocols import (
    Explains,
    ExplainsRuntime,
    ExplainsRuntimeSimply,
    ExplainsSimply,
    ExplainsTogether,
    UsesLibraries,
)
from optvet.spec.requirement import Requirement, Tolerance
from optvet.spec.scratch import temporary_folder
from optvet.spec.symptoms import ScriptCheck

MAX_LINES = 100
"""No script is made if it would be longer: the bundle has ``repro.py`` with separate files."""
_MAX_MODEL_BYTES = 20_000
_MAX_ELEMENTS = 1_000
_TRY_S = 120.0

_REFERENCE = """\
import onnx.reference

evaluator = onnx.reference.ReferenceEvaluator(model)
return dict(zip(evaluator.output_names, evaluator.run(None, feeds)))
"""
_UNCHANGED = "return model"
_IMPORT = re.compile(r"(?:import|from) \w[^#(\\]*$")


@dataclass(frozen=True)
class Standalone:
    """A script that exits with status 1, and what it printed."""

    script: str
    printed: str


@dataclass(frozen=True)
class _Calls:
    """Functions of a script, and the expressions that call them.

    Attributes:
        functions: Definitions, each with its body as the plugin gave it.
        original: Outputs of the original, by name.
        optimized: Outputs of the optimized model, by name.
        steps: Statements that optimize; ``runs`` runs what they make.
    """

    functions: tuple[tuple[str, str], ...]
    original: str = "run(model, feeds)"
    optimized: str = "run(optimize(model), feeds)"
    steps: str = "optimized = optimize(model)\n"
    runs: str = "run(optimized, feeds)"


def _apart(optimize: str, run: str) -> _Calls:
    """One function that optimizes; another that runs, if there is anything to run."""
    runs = [("def run(model, feeds):", run)] if run else []
    return _Calls((*runs, ("def optimize(model):", optimize)))


def _together(run: str) -> _Calls:
    """One function that runs, optimized or not."""
    original, optimized = (f"run(model, feeds, optimized={value})" for value in (False, True))
    head = "def run(model, feeds, optimized):"
    return _Calls(((head, run),), original, optimized, steps="", runs=optimized)


@dataclass(frozen=True)
class _Draft:
    """The common part of all scripts of one finding."""

    context: ReproContext
    model: str
    feeds: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]

    @property
    def runs(self) -> bool:
        """Whether the optimized model is run."""
        if self.context.symptom.info.check in _COMPARED:
            return False
        step = failing_step(self.context)
        return step in ("comparing the outputs", "running the optimized model")

    @property
    def takes_original(self) -> bool:
        """Whether the reference is the original, run by the same runtime."""
        return self.context.optimizer.traits.reference == "original"


def standalone(
    context: ReproContext,
    model: ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> Standalone | None:
    """The shortest script that shows the finding; None if all are too long or none shows it."""
    if isinstance(context.required, Requirement):
        return None  # its metric is measured by a plugin of optvet
    draft = _drafted(context, model, feeds, expected)
    if draft is None or not isinstance(context.optimizer, Explains):
        return None
    exact = context.optimizer.snippet(context.passes, context.options)
    for run in _ways_to_run(draft):
        code = script(draft, _apart(exact, run))
        if "optvet" in code:
            continue
        printed = _tried(code, context)
        if printed is None or (draft.runs and not _is_silent(draft, run)):
            continue
        code = _shorter(draft, exact, run, printed) or code
        if len(code.splitlines()) <= MAX_LINES:
            return Standalone(code, printed)
    return None


def _drafted(
    context: ReproContext,
    model: ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> _Draft | None:
    elements = sum(a.size for a in (*feeds.values(), *expected.values()))
    if model.ByteSize() > _MAX_MODEL_BYTES or elements > _MAX_ELEMENTS:
        return None
    try:
        arrays_code({**feeds, **expected})
    except ValueError:
        return None
    return _Draft(context, model_code(model), feeds, expected)


def _ways_to_run(draft: _Draft) -> Iterator[str]:
    """Bodies of the function ``run``, those with the fewest requirements first."""
    context = draft.context
    if not draft.runs:
        yield ""
        return
    if context.optimizer.traits.produces == "onnx":
        yield _REFERENCE
    if isinstance(context.runtime, ExplainsRuntime):
        if isinstance(context.runtime, ExplainsRuntimeSimply):
            yield from context.runtime.simple_snippets(context.runtime_options)
        yield context.runtime.snippet(context.runtime_options)


def _is_silent(draft: _Draft, run: str) -> bool:
    """Whether the script reports no fault for the original model."""
    if not draft.takes_original:
        return True  # The runtime cannot run the original, so there is nothing to check.
    code, _ = _run(script(draft, _apart(_UNCHANGED, run)), draft.context)
    return code == 0


def _shorter(draft: _Draft, exact: str, run: str, printed: str) -> str | None:
    """The script of the first shorter call that prints the same."""
    if draft.context.symptom.info.limit == "time":
        return None
    for calls in _simpler(draft, exact, run):
        code = script(draft, calls)
        if _tried(code, draft.context) == printed:
            return code
    return None


def _simpler(draft: _Draft, exact: str, run: str) -> Iterator[_Calls]:
    """Calls that may show the same, simplest first."""
    optimizer, passes, options = (
        draft.context.optimizer,
        draft.context.passes,
        draft.context.options,
    )
    if draft.runs and draft.takes_original and isinstance(optimizer, ExplainsTogether):
        yield from map(_together, optimizer.run_snippets(passes, options))
    if isinstance(optimizer, ExplainsSimply):
        for call in optimizer.simple_snippets(passes, options):
            if len(call) < len(exact):
                yield _apart(call, run)


def _tried(code: str, context: ReproContext) -> str | None:
    """What the script printed; None if it does not show the finding."""
    status, printed = _run(code, context)
    return printed if status == 1 and re.search("^actual", printed, re.MULTILINE) else None


def _run(code: str, context: ReproContext) -> tuple[int | None, str]:
    limit = _TRY_S + (context.timeout_s if context.symptom.info.limit == "time" else 0)
    with temporary_folder("optvet-try-") as folder:
        file = Path(folder, "script.py")
        file.write_text(code, "utf-8")
        ended = try_script(file, limit)
        return ended.code, ended.printed.replace(folder, ".").strip()


# --- the text of a script -------------------------------------------------------------------------


def script(draft: _Draft, calls: _Calls) -> str:
    """The whole script, with these functions."""
    context = draft.context
    files = _files_code(context)
    imports: set[str] = set()
    parts = [*files, draft.model]
    if draft.runs:
        parts[-1] += f"\nfeeds = {arrays_code(draft.feeds, 'feeds = ')}"
    for signature, body in calls.functions:
        # Files of the user's are imported where the function begins, after they were written.
        wanted, body = ([], body) if files else _without_imports(body)
        imports.update(wanted)
        parts.append(f"{signature}\n{_indented(body)}")
    code = "\n\n".join(part.strip() for part in (*parts, _body(draft, calls)))
    used = ("base64", "multiprocessing", "resource", "sys", "onnx.parser")
    imports |= {f"import {name}" for name in used if f"{name}." in code}
    has_onnx = any(text.startswith("import onnx.") for text in imports)
    imports = imports - {"import onnx"} if has_onnx else imports | {"import onnx"}
    needed = _requirements(context, "\n".join((*imports, code)))
    imports |= {"import numpy as np"} if "np." in code else set()  # onnx needs it as well
    head = [f"# {line(title(context))}", f"# {needed}"]
    return "\n".join((*head, *_arranged(imports), code)) + "\n"


def _without_imports(body: str) -> tuple[list[str], str]:
    """The imports by which a function begins, and the rest of it."""
    lines = textwrap.dedent(body).strip("\n").split("\n")
    first = next(i for i, text in enumerate(lines) if text and not _IMPORT.match(text))
    return [text for text in lines[:first] if text], "\n".join(lines[first:])


def _arranged(imports: Collection[str]) -> Iterator[str]:
    """Import statements, those of Python's own library first, and a blank line after each group."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    for text in sorted(imports, key=lambda text: (text.startswith("from"), text)):
        groups[re.split(r"[ .]", text)[1] in sys.stdlib_module_names].append(text)
    for group in groups.values():
        yield from (*group, "") if group else ()


def _body(draft: _Draft, calls: _Calls) -> str:
    context = draft.context
    check = context.symptom.info.check
    if check is ScriptCheck.DEATH:
        return _killed(draft, calls)
    if check in _COMPARED:
        compared = _COMPARED[check].replace("@ABOUT@", _about(context))
        return compared.replace("@LOST@", context.less_lost)
    if context.stage == "compare":
        return _outputs(draft, calls)
    step = failing_step(context)
    if step == "checking the optimized model":
        before = f"onnx.checker.check_model(model, full_check={context.full_check})\n"
        before += "optimized = optimize(model)\n"
        call = f"onnx.checker.check_model(optimized, full_check={context.full_check})"
    elif step == "running the optimized model":
        before = f"{calls.original}\n" if draft.takes_original else ""
        before += calls.steps
        call = calls.runs
    else:
        before, call = "", "optimize(model)"
    return (
        f'{before}print("expected: no error")\ntry:\n    {call}\nexcept Exception as error:\n'
        '    print(f"actual: {type(error).__name__}: {error}")\n    sys.exit(1)\n'
    )


def _killed(draft: _Draft, calls: _Calls) -> str:
    context = draft.context
    call = "optimize(model)"
    if failing_step(context) == "running the optimized model":
        call = calls.optimized
    lines = [
        f"child = multiprocessing.get_context('fork').Process(target=lambda: {call})",
        "child.start()",
        f"child.join({max(context.timeout_s, 10):g})",
        'print("expected: exit code 0")',
        'print("actual:", "no end" if child.is_alive() else f"exit code {child.exitcode}")',
        "failed = child.exitcode != 0",
        "child.kill()",
        "sys.exit(failed)\n",
    ]
    if context.symptom.info.limit == "memory":
        limit = context.memory_bytes
        lines.insert(0, f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))")
    return "\n".join(lines)


def _outputs(draft: _Draft, calls: _Calls) -> str:
    context = draft.context
    names = context.judged or tuple(draft.expected)
    if len(names) == 1:
        return _one_output(draft, calls, names[0])
    expected = (
        calls.original
        if draft.takes_original
        else arrays_code({name: draft.expected[name] for name in names}, "expected = ")
    )
    allowed = {name: _tolerance(draft, name)[1] for name in names}
    rtol = _tolerance(draft, names[0])[0]
    return "\n".join(
        (
            f"expected = {expected}",
            f"actual = {calls.optimized}",
            "right = True",
            f"for name, atol in {allowed!r}.items():  # {_what_is_allowed(context)}",
            "    e, a = expected[name], actual[name]",
            '    print(f"expected {name}: {e!r}", f"actual {name}: {a!r}", sep="\\n")',
            "    right = right and (a.dtype, a.shape) == (e.dtype, e.shape)",
            '    close = e.dtype.kind in "fc" and right',
            f"    close = close and np.allclose(a, e, rtol={rtol!r}, atol=atol, equal_nan=True)",
            "    right = right and (close or np.array_equal(a, e))",
            "sys.exit(not right)\n",
        )
    )


def _one_output(draft: _Draft, calls: _Calls, name: str) -> str:
    known = draft.expected[name]
    rtol, atol = _tolerance(draft, name)
    expected = f"{calls.original}[{name_code(name)}]"
    lines = [
        f"expected = {expected if draft.takes_original else array_code(known)}",
        f"actual = {calls.optimized}[{name_code(name)}]",
        'print(f"expected: {expected!r}")',
        'print(f"actual: {actual!r}")',
    ]
    if rtol or atol:
        close = f"np.allclose(actual, expected, rtol={rtol!r}, atol={atol!r}, equal_nan=True)"
        lines += [
            "same = (actual.dtype, actual.shape) == (expected.dtype, expected.shape)",
            f"same = same and {close}  # {_what_is_allowed(draft.context)}",
        ]
    else:
        nan = ", equal_nan=True" if known.dtype.kind in "fc" else ""
        equal = f"np.array_equal(actual, expected{nan})"
        lines += [f"same = actual.dtype == expected.dtype and {equal}"]
    return "\n".join((*lines, "sys.exit(not same)\n"))


def _tolerance(draft: _Draft, name: str) -> tuple[float, float]:
    """The relative and the absolute difference that an output may have."""
    required = draft.context.required
    if isinstance(required, Tolerance):
        return required.rtol, required.atol
    return 0, _allowed(draft.expected[name], draft.context.tolerance)


def _what_is_allowed(context: ReproContext) -> str:
    return "required" if context.required is not None else "rounding"


def _allowed(expected: np.ndarray, tolerance: float) -> float:
    """The allowed absolute difference, with two digits."""
    if expected.dtype.kind not in "fc":
        return 0.0
    finite = np.abs(expected[np.isfinite(expected)]).astype(np.float64)
    return float(f"{tolerance * finite.max(initial=0.0):.1e}")


_SHAPES = (
    "[(v.name, [d.dim_value for d in v.type.tensor_type.shape.dim]) "
    "for v in (*m.graph.input, *m.graph.output)]"
)


def _about(context: ReproContext) -> str:
    known = {
        "ir_version": "m.ir_version",
        "opset_import": "[(o.domain, o.version) for o in m.opset_import]",
        "functions": "[(f.domain, f.name) for f in m.functions]",
        "training_info": "len(m.training_info)",
        "metadata_props": "[(p.key, p.value) for p in m.metadata_props]",
        "graph metadata_props": "[(p.key, p.value) for p in m.graph.metadata_props]",
        "quantization_annotation": "len(m.graph.quantization_annotation)",
        "sparse_initializer": "len(m.graph.sparse_initializer)",
        "doc_string": "m.doc_string",
        "replaceable weights": "len(set(listed) & set(weights)) if m.ir_version >= 4 else 0",
        "weights missing among the inputs": "len(set(weights) - set(listed)) if m.ir_version < 4 "
        "else 0",
        **dict.fromkeys(("weaker shapes", "stronger shapes", "corrected shapes"), _SHAPES),
    }
    wanted = {key: known[key] for key in context.about if key in known} or {
        key: value for key, value in known.items() if value != _SHAPES
    }
    return "\n".join(f'        "{key}": {value},' for key, value in wanted.items())


_LOADED = """\
optimized = optimize(model)
if isinstance(optimized, bytes):
    optimized = onnx.load_from_string(optimized)
print("expected:", expected)
print("actual:", facts(optimized))
sys.exit(facts(optimized) != expected)
"""
_COMPARED = {
    ScriptCheck.INTERFACE: """\
def facts(m):
    weights = {tensor.name for tensor in m.graph.initializer}@LOST@
    values = [v for v in (*m.graph.input, *m.graph.output) if v.name not in weights]
    return [f"{v.name}: {onnx.helper.printable_type(v.type)}" for v in values]

expected = facts(model)
"""
    + _LOADED,
    ScriptCheck.NODES: """\
def count(graph):
    inner = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return len(graph.node) + sum(map(count, inner))

before = count(model.graph)
print(f"expected: at most {before} nodes")
optimized = optimize(model)
if isinstance(optimized, bytes):
    optimized = onnx.load_from_string(optimized)
print(f"actual: {count(optimized.graph)} nodes")
sys.exit(count(optimized.graph) > before)
""",
    ScriptCheck.METADATA: """\
def facts(m):
    listed, weights = [v.name for v in m.graph.input], [t.name for t in m.graph.initializer]
    return {
@ABOUT@
    }

expected = facts(model)
"""
    + _LOADED,
}


def _indented(code: str) -> str:
    return textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")


def _files_code(context: ReproContext) -> Sequence[str]:
    """Statements that write the files which the call imports."""
    lines = []
    for name, content in carried(context).items():
        text = content.decode("utf-8", "replace")
        plain = "'''" not in text and "\\" not in text
        quoted = f"'''\\\n{text}'''" if plain else repr(text)
        lines.append(f"with open({name!r}, 'w') as file:\n    file.write({quoted})\n")
    return lines


@functools.cache
def _owners() -> Mapping[str, list[str]]:
    """The distributions of each package; finding them takes a second where many are installed."""
    return metadata.packages_distributions()


def _requirements(context: ReproContext, code: str) -> str:
    """The packages that the script needs, with the installed versions."""
    roots = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE)) | {"onnx"}
    owners = _owners()
    names = {name for root in roots for name in owners.get(root, ())}
    if isinstance(context.optimizer, UsesLibraries):
        names |= context.optimizer.libraries.keys()
    found = {}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return f"pip install {' '.join(f'{name}=={version}' for name, version in found.items())}"
