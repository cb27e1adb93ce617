"""Makes one short script that shows a finding, with the model, its inputs and the call inline.

Several scripts are possible: with the exact call that was vetted, or with a shorter one of the
plugin (``run_snippets``, ``simple_snippets``). Each is run in a folder and a process of its own.
The first shorter one that prints the same as the exact one is used. A script that reports a fault
for the original model too is rejected.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from onnx import ModelProto

from optvet.engine.scripts import literals
from optvet.engine.scripts.confined_run import try_script
from optvet.engine.scripts.context import ReproContext
from optvet.engine.scripts.literals import array_code, arrays_code
from optvet.engine.scripts.rendering import indented, render
from optvet.engine.work.cache.modified_installs import owners_of
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.extras import PluginExtras, extras, given
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.requirement import Requirement
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.scratch import temporary_folder

MAX_LINES = 100
"""No script is made if it would be longer: the bundle has ``repro.py`` with separate files."""
_MAX_MODEL_BYTES = 20_000
_MAX_ELEMENTS = 1_000
_TRY_S = 120.0
_LIMITS = Limits(timeout_s=60.0, memory_bytes=4 << 30)

_REFERENCE = """\
import onnx.reference

evaluator = onnx.reference.ReferenceEvaluator(model)
return dict(zip(evaluator.output_names, evaluator.run(None, feeds)))
"""
_UNCHANGED = "return model"
_ACTUAL = re.compile(r"^actual(?!: (Import|ModuleNotFound)Error:)", re.MULTILINE)
"""What a script prints that shows the finding; where a library is missing, it shows nothing."""
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
    steps: str = "optimized = optimize(model)"
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
        step = self.context.failing_step
        runs = step in ("comparing the outputs", "running the optimized model")
        return runs and not self.context.check.info.wrong


def standalone(
    context: ReproContext,
    model: ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> Standalone | None:
    """The shortest script that shows the finding; None if all are too long or none shows it."""
    if isinstance(context.required, Requirement):
        return None  # its metric is measured by a plugin of optvet
    if context.random:
        return None  # distributions are compared by modules of the folder
    draft = _draft(context, model, feeds, expected)
    snippet = given(context.optimizer, OptimizerExtras.snippet)
    if draft is None or snippet is None or not context.is_explained:
        return None
    exact = snippet(context.passes, context.options)
    for run in _ways_to_run(draft):
        code = script(draft, _apart(exact, run))
        if "optvet" in code:
            continue
        printed = _try_script(code, context)
        if printed is None or (draft.runs and not _blames_no_other(draft, exact, run, printed)):
            continue
        code = _shorter(draft, exact, run, printed) or code
        if len(code.splitlines()) <= MAX_LINES:
            return Standalone(code, printed)
    return None


def _draft(
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
    return _Draft(context, _code_of(model), feeds, expected)


def _code_of(model: ModelProto) -> str:
    """``model_code``, in a worker: onnx's printer and parser, native code, read foreign names."""
    with Sandbox(jobs=1, limits=_LIMITS, preload=("onnx", literals.__name__)) as sandbox:
        made = sandbox.call(literals.code_of_bytes, model.SerializeToString(deterministic=True))
    return made.value or literals.code_with_bytes(model)


def _ways_to_run(draft: _Draft) -> Iterator[str]:
    """Bodies of the function ``run``, those with the fewest requirements first."""
    context = draft.context
    if not draft.runs:
        yield ""
        return
    if context.optimizer.traits.produces == "onnx":
        yield _REFERENCE
    if snippet := given(context.runtime, RuntimeExtras.snippet):
        yield from extras(context.runtime, RuntimeExtras).simple_snippets(context.runtime_options)
        yield snippet(context.runtime_options)


def _blames_no_other(draft: _Draft, exact: str, run: str, printed: str) -> bool:
    """Whether what the script reports is not a mistake of ``run`` itself.

    It must report no fault for the original model. Where the runtime cannot run that, it must print
    what the runtime's full snippet prints: a short one may not take what it is given.
    """
    context = draft.context
    if context.takes_original:
        code, _ = _run(script(draft, _apart(_UNCHANGED, run)), context)
        return code == 0
    snippet = given(context.runtime, RuntimeExtras.snippet)
    if snippet is None:
        return True
    full = snippet(context.runtime_options)
    return run == full or _try_script(script(draft, _apart(exact, full)), context) == printed


def _shorter(draft: _Draft, exact: str, run: str, printed: str) -> str | None:
    """The script of the first shorter call that prints the same."""
    if draft.context.symptom.info.limit == "time":
        return None
    for calls in _simpler(draft, exact, run):
        code = script(draft, calls)
        if _try_script(code, draft.context) == printed:
            return code
    return None


def _simpler(draft: _Draft, exact: str, run: str) -> Iterator[_Calls]:
    """Calls that may show the same, simplest first."""
    context = draft.context
    may = extras(context.optimizer, OptimizerExtras)
    if draft.runs and context.takes_original:
        yield from map(_together, may.run_snippets(context.passes, context.options))
    for call in may.simple_snippets(context.passes, context.options):
        if len(call) < len(exact):
            yield _apart(call, run)


def _try_script(code: str, context: ReproContext) -> str | None:
    """What the script printed; None if it does not show the finding."""
    status, printed = _run(code, context)
    return printed if status == 1 and _ACTUAL.search(printed) else None


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
        parts.append(f"{signature}\n{indented(body)}")
    code = "\n\n".join(part.strip() for part in (*parts, _body(draft, calls)))
    used = ("base64", "multiprocessing", "resource", "sys", "onnx.parser")
    imports |= {f"import {name}" for name in used if f"{name}." in code}
    has_onnx = any(text.startswith("import onnx.") for text in imports)
    imports = imports - {"import onnx"} if has_onnx else imports | {"import onnx"}
    needed = _requirements(context, "\n".join((*imports, code)))
    imports |= {"import numpy as np"} if "np." in code else set()  # onnx needs it as well
    head = [f"# {context.title}", f"# {needed}"]
    return "\n".join((*head, *_arrange(imports), code)) + "\n"


def _without_imports(body: str) -> tuple[list[str], str]:
    """The imports by which a function begins, and the rest of it."""
    lines = textwrap.dedent(body).strip("\n").split("\n")
    first = next(i for i, text in enumerate(lines) if text and not _IMPORT.match(text))
    return [text for text in lines[:first] if text], "\n".join(lines[first:])


def _arrange(imports: Collection[str]) -> Iterator[str]:
    """Import statements, those of Python's own library first, and a blank line after each group."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    for text in sorted(imports, key=lambda text: (text.startswith("from"), text)):
        groups[re.split(r"[ .]", text)[1] in sys.stdlib_module_names].append(text)
    for group in groups.values():
        yield from (*group, "") if group else ()


def _body(draft: _Draft, calls: _Calls) -> str:
    context = draft.context
    names = context.judged or tuple(draft.expected)
    known = {name: draft.expected[name] for name in names}
    required = context.allowed
    return render(
        "inline.py",
        context=context,
        calls=calls,
        outputs=names,
        expected=array_code(known[names[0]]) if len(names) == 1 else arrays_code(known, _EXPECTED),
        rtol=required.rtol if required else 0,
        allowed={n: required.atol if required else _allowed(a, context) for n, a in known.items()},
        has_nan=all(array.dtype.kind in "fc" for array in known.values()),
        reason="required" if required else "rounding",
    )


_EXPECTED = "expected = "


def _allowed(expected: np.ndarray, context: ReproContext) -> float:
    """The allowed absolute difference, with two digits."""
    if expected.dtype.kind not in "fc":
        return 0.0
    finite = np.abs(expected[np.isfinite(expected)]).astype(np.float64)
    return float(f"{context.tolerance * finite.max(initial=0.0):.1e}")


def _files_code(context: ReproContext) -> Sequence[str]:
    """Statements that write the files which the call imports."""
    lines = []
    for name, content in context.carried.items():
        text = content.decode("utf-8", "replace")
        plain = "'''" not in text and "\\" not in text
        quoted = f"'''\\\n{text}'''" if plain else repr(text)
        lines.append(f"with open({name!r}, 'w') as file:\n    file.write({quoted})\n")
    return lines


def _requirements(context: ReproContext, code: str) -> str:
    """The packages that the script needs, with the installed versions."""
    roots = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE)) | {"onnx"}
    names = {name for root in roots for name in owners_of(root)}
    names |= extras(context.optimizer, PluginExtras).libraries.keys()
    found = {}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return f"pip install {' '.join(f'{name}=={version}' for name, version in found.items())}"
