"""onnxscript's optimizer: the passes of ``optimize_ir`` and, inside its rewriting, every rule.

The default pipeline is read from the installed library, round by round. Rules that follow each
other are applied as one group, node by node, as the library does; so the whole pipeline does what
``onnxscript.optimizer.optimize`` does, and any part of it is a pipeline, too. One difference
remains: the library leaves out the second round where the first says that it changed nothing.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    KnownLimit,
    Optimizer,
    Pass,
    ReleasedPackage,
    Symptom,
    Traits,
    UnknownName,
    Unsupported,
    hookimpl,
    version_of,
)

_LIMITS = {
    "ClearMetadataAndDocString": KnownLimit(
        frozenset({Symptom.METADATA_CHANGE}), "is there to clear metadata"
    ),
    # Either undoes the other; which weights a caller may replace is what both are for.
    **dict.fromkeys(
        ("AddInitializersToInputs", "RemoveInitializersFromInputs"),
        KnownLimit(
            frozenset({Symptom.INTERFACE_CHANGE, Symptom.METADATA_CHANGE}),
            "is there to change which weights a caller may replace",
        ),
    ),
}
_NO_REWRITES = {"Checker"}


class OnnxscriptOptions(BaseModel):
    """Options of ``onnxscript.optimizer.optimize``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    onnx_shape_inference: bool = True
    """Infer shapes node by node while constants are folded."""
    input_size_limit: int = Field(default=8192, ge=0)
    """Elements of an input above which a node is not folded."""
    output_size_limit: int = Field(default=512 * 512, ge=0)
    """Elements of an output above which a node is not folded."""
    weights: Literal["inside", "beside"] = "inside"
    """inside: the library gets the model as one message. beside: it loads a file, and the weights,
    where they are used, from another one beside it."""


class Onnxscript:
    """The ``onnxscript`` package, 0.5 and later, with ``onnx_ir``."""

    name = "onnxscript"
    libraries: Mapping[str, str] = {"onnxscript": "onnxscript", "onnx-ir": "onnx_ir"}
    preload: Sequence[str] = ("onnx", "onnxscript.optimizer", "onnxscript.rewriter.rules.common")
    released = ReleasedPackage(
        "onnxscript", "onnxscript", "import onnxscript.optimizer, onnxscript.rewriter.rules.common"
    )
    options: OnnxscriptOptions = OnnxscriptOptions()
    rare_options: Mapping[str, Any] = {"weights": "beside"}
    traits = Traits(repeatable=True, max_model_bytes=2**31 - 1)

    def version(self) -> str:
        """Versions of both packages, since either may change without the other."""
        extra = "optvet[onnxscript]"
        ours, theirs = version_of("onnxscript", extra=extra), version_of("onnx_ir", extra=extra)
        return f"{ours} (onnx_ir {theirs})"

    def extra_rules(self) -> Mapping[str, Any]:
        """Rules of one's own, by name, for a subclass to vet: applied after the library's."""
        return {}

    def passes(self) -> Sequence[Pass]:
        """Passes and rules of the default pipeline, then those that a user has to ask for."""
        steps, default = _steps(self, self.options)
        return [
            Pass(
                name,
                kind="pass" if callable(step) else "rule",
                default=name in default,
                known_limits=(_LIMITS[name],) if name in _LIMITS else (),
            )
            for name, step in steps.items()
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """What ``optimize`` does; "all" goes on with everything else."""
        steps, default = _steps(self, self.options)
        rest = [n for n in steps if n not in default and n not in _LIMITS]
        return {"default": tuple(default), "all": (*default, *rest)}

    def apply(
        self, source: Artifact, passes: Sequence[str], options: OnnxscriptOptions
    ) -> Artifact:
        """Apply ``passes`` in order; neighbouring rules as one group, each at most once in it."""
        from onnxscript import ir

        if options.weights == "beside":
            return self._from_files(source, passes, options)
        graph = _read(source.data)
        changing = self._rewritten(graph, passes, options)
        data = ir.serde.serialize_model(graph).SerializeToString(deterministic=True)
        return Artifact("onnx", data, changing_passes=changing)

    def _from_files(
        self, source: Artifact, passes: Sequence[str], options: OnnxscriptOptions
    ) -> Artifact:
        """Apply ``passes`` to the model in a file whose weights are in another one."""
        from onnxscript import ir

        _read(source.data)  # refuses what the library cannot represent
        with tempfile.TemporaryDirectory(prefix="optvet-") as folder:
            path, optimized = f"{folder}/model.onnx", f"{folder}/optimized.onnx"
            model = onnx.load_from_string(source.data)
            onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
            graph = ir.load(path)
            changing = self._rewritten(graph, passes, options)
            ir.save(graph, optimized, external_data="optimized.data")
            data = onnx.load(optimized).SerializeToString(deterministic=True)
        return Artifact("onnx", data, changing_passes=changing)

    def _rewritten(
        self, graph: Any, passes: Sequence[str], options: OnnxscriptOptions
    ) -> tuple[str, ...]:
        """Apply ``passes`` to the library's form of a model; those that changed it."""
        from onnxscript.rewriter import RewritePass

        steps, _ = _steps(self, options)
        changing_passes: list[str] = []
        for group in _groups(passes, steps):
            step = steps[group[0]]
            if callable(step):
                # The library makes its passes anew for each model, and so some hold what they saw.
                changing_passes += group if copy.deepcopy(step)(graph).modified else []
            else:
                rules = [
                    _spy(rule, name, changing_passes) for name in group for rule in steps[name]
                ]
                RewritePass(rules)(graph)
        return tuple(dict.fromkeys(changing_passes))

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OnnxscriptOptions
    ) -> Sequence[str] | None:
        """Passes that say they modified the model, and rules that matched."""
        return self.apply(source, passes, options).changing_passes

    def snippet(self, passes: Sequence[str], options: OnnxscriptOptions) -> str:
        """The passes one after the other, neighbouring rules as one group."""
        steps, _ = _steps(self, options)
        calls = [_spell(group, steps, self) for group in _groups(passes, steps)]
        imports = dict.fromkeys(name for _, needed in calls for name in needed)
        if options.weights == "beside":
            inner = textwrap.indent("\n".join(line for lines, _ in calls for line in lines), "    ")
            return "\n".join(
                (
                    "import tempfile\n\nimport onnx\nfrom onnxscript import ir",
                    *imports,
                    _OPEN,
                    inner,
                    _CLOSE,
                )
            )
        return "\n".join(
            (
                "from onnxscript import ir",
                *imports,
                "\ngraph = ir.serde.deserialize_model(model)",
                *(line for lines, _ in calls for line in lines),
                "return ir.serde.serialize_model(graph)",
            )
        )

    def code_of(self, name: str, options: OnnxscriptOptions) -> Sequence[str]:
        """The module of a pass; those of the functions that a rule is made of."""
        steps, _ = _steps(self, options)
        step = steps[name]
        return [type(step).__module__] if callable(step) else sorted(_modules_of(step))

    def simple_snippets(self, passes: Sequence[str], options: OnnxscriptOptions) -> Sequence[str]:
        """The library's own function; it takes no files."""
        if options.weights == "beside":
            return []
        defaults = type(options)().model_dump()
        changed = {n: v for n, v in options.model_dump().items() if v != defaults[n]}
        arguments = ", ".join(("model", *(f"{name}={value!r}" for name, value in changed.items())))
        return [f"import onnxscript.optimizer\n\nreturn onnxscript.optimizer.optimize({arguments})"]


@lru_cache(maxsize=8)
def _steps(optimizer: Onnxscript, options: OnnxscriptOptions) -> tuple[dict[str, Any], list[str]]:
    """Passes, and lists of rules, by name; and the names in the default pipeline."""
    extra = optimizer.extra_rules()
    names = _names_of_rules() | {id(rule): name for name, rule in extra.items()}
    steps: dict[str, Any] = {}
    pipeline: list[str] = []
    for step in _flat(_passes_of_optimize(options), list(extra.values())):
        if callable(step):
            name = type(step).__name__.removesuffix("Pass")
            steps[name] = step
        else:
            # Commuted twins have no name, but the replacement of the rule that has.
            twin = names.get(id(step._replacement_pattern))
            name = names.get(id(step)) or twin or step.name or f"rule_{len(steps)}"
            rules = steps.setdefault(name, [])
            rules += [step] if step not in rules else []
        if pipeline[-1:] != [name]:
            pipeline.append(name)
    return {**steps, **_opt_in(steps)}, pipeline


def _passes_of_optimize(options: OnnxscriptOptions) -> list[Any]:
    """The passes that the library's own function makes, seen as it is about to apply them.

    In their place a quick one is applied.
    """
    from unittest.mock import patch

    import onnx_ir.passes.common as quick
    from onnxscript import ir, optimizer

    real, seen = ir.passes.Sequential, list[Any]()

    def record(*passes: Any) -> Any:
        seen.extend(passes if not seen else ())
        return real(quick.TopologicalSortPass())

    nothing = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 18}), ir_version=8)
    with patch.object(ir.passes, "Sequential", record):
        optimizer.optimize_ir(nothing, **options.model_dump(exclude={"weights"}))
    return seen


def _flat(passes: Iterable[Any], extra_rules: Sequence[Any]) -> Iterator[Any]:
    """Single passes and rules; a manager's as often as it repeats them."""
    from onnxscript import ir
    from onnxscript.rewriter import RewritePass

    for step in passes:
        if isinstance(step, ir.passes.PassManager):
            yield from list(_flat(step.passes, extra_rules)) * step.steps
        elif isinstance(step, RewritePass):
            yield from (*step.rules, *extra_rules)
        else:
            yield step


def _names_of_rules() -> dict[int, str]:
    """The library's names, by identity of a rule and of its replacement."""
    from onnxscript.rewriter.rules import common

    rules = {n: rule for n, rule in vars(common).items() if n.endswith("_rule")}
    twins = {id(rule._replacement_pattern): n for n, rule in rules.items()}
    return twins | {id(rule): n for n, rule in rules.items()}


def _opt_in(known: Mapping[str, Any]) -> dict[str, Any]:
    """What the library offers and its default does not use."""
    import onnx_ir.passes.common as passes
    from onnxscript.rewriter import RewriteRule, RewriteRuleSet
    from onnxscript.rewriter.rules import common

    found: dict[str, Any] = {}
    for name in passes.__all__:
        short = name.removesuffix("Pass")
        if short not in known and short not in _NO_REWRITES:
            found[short] = getattr(passes, name)()
    for name, rule in sorted(vars(common).items()):
        if name not in known and isinstance(rule, (RewriteRule, RewriteRuleSet)):
            found[name] = [rule] if isinstance(rule, RewriteRule) else list(rule)
    return found


def _groups(passes: Sequence[str], steps: Mapping[str, Any]) -> list[list[str]]:
    """Each pass alone, neighbouring rules together; a rule that comes again begins a new group."""
    groups: list[list[str]] = []
    for name in passes:
        if name not in steps:
            raise UnknownName("pass of onnxscript", name, steps)
        together = groups and not callable(steps[name]) and not callable(steps[groups[-1][0]])
        if together and name not in groups[-1]:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _spell(
    group: Sequence[str], steps: Mapping[str, Any], optimizer: Onnxscript
) -> tuple[list[str], list[str]]:
    """Code that applies a group to ``graph``, and the imports that it needs."""
    step = steps[group[0]]
    if callable(step):
        import onnx_ir.passes.common as passes

        name = type(step).__name__
        arguments = ", ".join(f"{n}={v!r}" for n, v in _arguments_of(step))
        if hasattr(passes, name):
            call = f"passes.{name}({arguments})(graph)"
            return [call], ["import onnx_ir.passes.common as passes"]
        return [f"{name}({arguments})(graph)"], [f"from {type(step).__module__} import {name}"]
    from onnxscript.rewriter import RewriteRule
    from onnxscript.rewriter.rules import common

    rules = []
    for name in group:
        if not hasattr(common, name):
            rules.append(f"{type(optimizer).__name__}().extra_rules()[{name!r}]")
        elif not isinstance(getattr(common, name), RewriteRule):
            rules.append(f"*rules.{name}")
        else:
            rules.append(f"*rules.{name}.commute()" if len(steps[name]) > 1 else f"rules.{name}")
    needed = ["from onnxscript.rewriter import RewritePass"]
    if any("rules." in rule for rule in rules):
        needed.append("from onnxscript.rewriter.rules import common as rules")
    if any("extra_rules" in rule for rule in rules):
        needed.append(f"from {type(optimizer).__module__} import {type(optimizer).__name__}")
    call = f"RewritePass([{', '.join(rules)}])(graph)"
    return textwrap.wrap(call, 92, subsequent_indent="    "), needed


def _arguments_of(step: Any) -> Iterator[tuple[str, object]]:
    """Those arguments of a pass that can be written down and are not its defaults."""
    for name, parameter in inspect.signature(type(step).__init__).parameters.items():
        value = getattr(step, name, parameter.default)
        if isinstance(value, bool | int | str) and value != parameter.default:
            yield name, value


def _modules_of(rules: Sequence[Any]) -> set[str]:
    """Where the functions that check and replace are from, unless that is where rules are made."""
    pairs = ((r._condition_function, r._replacement_pattern._function) for r in rules)
    modules = {inspect.unwrap(function).__module__ for pair in pairs for function in pair}
    return modules - {type(rule).__module__ for rule in rules}


def _spy(rule: Any, name: str, changing_passes: list[str]) -> Any:
    """``rule``, but it notes its ``name`` whenever it rewrites something."""
    spied = copy.copy(rule)

    def try_rewrite(*args: Any, **kwargs: Any) -> Any:
        delta = rule.try_rewrite(*args, **kwargs)
        if delta is not None:
            changing_passes.append(name)
        return delta

    spied.try_rewrite = try_rewrite
    return spied


_OPEN = """
with tempfile.TemporaryDirectory() as folder:
    path, optimized = f"{folder}/model.onnx", f"{folder}/optimized.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    graph = ir.load(path)"""
_CLOSE = """\
    ir.save(graph, optimized, external_data="optimized.data")
    return onnx.load(optimized)"""


def _read(data: bytes) -> Any:
    """The library's form of a model. Raises Unsupported for what it says it cannot represent."""
    from onnxscript import ir

    try:
        return ir.serde.deserialize_model(onnx.load_from_string(data))
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, NotImplementedError):
            raise Unsupported(f"onnxscript cannot read the model: {cause}") from error
        raise


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The optimizer of onnxscript."""
    return [Onnxscript()]
