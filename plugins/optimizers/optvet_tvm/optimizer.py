"""Apache TVM (Relax): passes over the whole graph, then the lowering to an executable, as one list.

A pipeline is what ``tvm.transform.Sequential`` would be given. Graph-level passes run in the order
in which they are given; passes of the lowering behind them, in TVM's own order, since none of them
makes sense before those that prepare for it. What a fixed lowering needs is *required*. Passes over
the loops of the generated kernels (TIR) run inside ``relax.build`` and are a second level, which
the option ``tir`` opens: then one that is not listed is skipped.

The artifact is an executable of TVM's virtual machine, alive in the worker that built it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import onnx
from pydantic import BaseModel, ConfigDict, Field, field_validator

from optvet.plugin import (
    Artifact,
    Pass,
    PluginError,
    Sensitive,
    Traits,
    UnknownName,
    Unsupported,
    UsageError,
    version_of,
)

# Exact on paper; what each does to floating point is rounding. FoldBatchnormToConv2D goes first:
# DecomposeOpsForInference leaves no batch normalization to fold. ToMixedPrecision goes before
# FuseTransposeMatmul, whose functions it does not understand (0.27: "Expected TensorType").
_GRAPH = (
    "FoldBatchnormToConv2D DecomposeOpsForInference CanonicalizeBindings EliminateCommonSubexpr "
    "FoldConstant CombineParallelMatmul ExpandMatmulOfSum AdjustMatmulOrder ReorderTakeAfterMatmul "
    "ReorderPermuteDimsAfterConcat RemoveRedundantReshape FastMathTransform ConvertLayout "
    "ToMixedPrecision FuseTransposeMatmul DataflowUseInplaceCalls TopologicalSort "
    "RemoveUnusedOutputs DeadCodeElimination"
).split()
_ON_REQUEST = ("ConvertLayout", "FastMathTransform", "ToMixedPrecision")
# Relative to the largest value of an output. Half precision holds 11 bits, and a deep network
# rounds often; TVM's fast exp and tanh are polynomials of a few units in the last place.
_TOLERANCES = {"ToMixedPrecision": 2e-2, "FastMathTransform": 1e-4}
# relax.get_default_pipeline(llvm), flattened: TVM gives it away as one opaque pass.
_LOWER = (
    "DispatchSampling DispatchSortScan LegalizeOps AnnotateTIROpPattern FoldConstant#2 FuseOps "
    "FuseTIR RewriteDataflowReshape ToNonDataflow RemovePurityChecking CallTIRRewrite "
    "StaticPlanBlockMemory LowerAllocTensor KillAfterLastUse LowerRuntimeBuiltin ComputePrimValue "
    "VMShapeLower AttachGlobalSymbol"
).split()
_OPTIONAL_LOWER = frozenset(
    "AnnotateTIROpPattern FoldConstant#2 FuseOps FuseTIR RewriteDataflowReshape "
    "StaticPlanBlockMemory KillAfterLastUse".split()
)
# It numbers the shapes of a model in an order that is another in each process (TVM 0.27), so what
# comes of it is told by what went into it.
_NUMBERING = "VMShapeLower"
# Those of tvm.tirx.build that were seen to change a kernel on CPU; all others always run.
_TIR = (
    "tirx.BindTarget s_tir.LowerInitBlock s_tir.PlanAndUpdateBufferAllocationLocation "
    "s_tir.ConvertBlocksToOpaque s_tir.CompactBufferAllocation s_tir.StmtSimplify "
    "s_tir.LowerOpaqueBlock tirx.FlattenBuffer tirx.NarrowDataType tirx.StorageRewrite "
    "s_tir.HoistIfThenElse s_tir.RenormalizeSplitPattern tirx.StmtSimplify tirx.CommonSubexprElim "
    "tirx.MakePackedAPI tirx.FP8StorageLegalize tirx.Filter tirx.LowerTVMBuiltin tirx.LowerIntrin"
).split()
_OPTIONAL_TIR = frozenset(
    "s_tir.PlanAndUpdateBufferAllocationLocation s_tir.CompactBufferAllocation s_tir.StmtSimplify "
    "tirx.NarrowDataType tirx.StorageRewrite s_tir.HoistIfThenElse s_tir.RenormalizeSplitPattern "
    "tirx.StmtSimplify tirx.CommonSubexprElim tirx.FP8StorageLegalize".split()
)
_EXTRA = re.compile(
    r"(?:(?P<name>[^=@:,]+)=)?(?P<module>[^=@:,]+):(?P<function>\w+)(?:@(?P<position>\d+))?"
)


_TARGET = re.compile(r"llvm(\s+-(mcpu|mattr|mtriple|num-cores|opt-level)=[\w+,.-]+)*")


def _is_plain_target(target: object) -> bool:
    """Whether a target has none but options that choose a processor."""
    return isinstance(target, str) and _TARGET.fullmatch(target) is not None


class TvmOptions(BaseModel):
    """How models are compiled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Annotated[
        str,
        Sensitive("may pass LLVM options that name files", unless=lambda t: _is_plain_target(t)),
    ] = "llvm"
    """What code is generated for; the runtime runs on the CPU."""
    opt_level: int = Field(default=3, ge=0)
    """Optimization level of TVM's pass context."""
    tir: bool = False
    """Passes over the loops of kernels can be left out too: they are listed, behind the others."""
    extra_passes: Annotated[tuple[str, ...], Sensitive("runs Python code")] = ()
    """Passes of your own, [NAME=]MODULE:FUNCTION[@POSITION]. MODULE is a module or a file.py,
    FUNCTION makes a TVM pass, POSITION counts in the list of all passes (default: behind those of
    the graph)."""

    @field_validator("extra_passes")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not _EXTRA.fullmatch(text):
                raise ValueError(f"{text!r} is not [NAME=]MODULE:FUNCTION[@POSITION]")
        return value


class TvmError(RuntimeError):
    """TVM refused; the message says in which pass."""


class _Extra(NamedTuple):
    name: str
    module: str
    function: str
    position: int


@dataclass(frozen=True)
class _Imported:
    """A model in Relax."""

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class TvmOptimizer:
    """The Relax pass infrastructure of the ``apache-tvm`` package."""

    name = "tvm"
    preload: Sequence[str] = ("tvm", "tvm.relax.frontend.onnx")
    traits = Traits(produces="tvm-executable", reference="empty pipeline")

    def __init__(self, options: TvmOptions | None = None) -> None:
        self.options: TvmOptions = options or TvmOptions()

    def configured(self, options: TvmOptions) -> TvmOptimizer:
        """The same with the passes that exist under ``options``."""
        return TvmOptimizer(options)

    def check_options(self, options: TvmOptions) -> None:
        """Whether TVM has the target, and the files of the user's own passes have the functions."""
        _check_target(options.target)
        names = [p.name for p in self.configured(options).passes()]
        for text, extra in zip(options.extra_passes, _extras(options), strict=True):
            option = f"optimizer 'tvm': option 'extra_passes' = {text!r}"
            if names.count(extra.name) > 1:
                raise UsageError(
                    f"{option}: there is a pass {extra.name!r} already; choose another NAME"
                )
            try:
                _own(extra)
            except Exception as error:
                raise UsageError(f"{option}: {_brief(error)}") from error

    def version(self) -> str:
        """Version of the installed package, and a digest of the passes that were added to it."""
        version = version_of("apache-tvm", extra="optvet[tvm]")
        # Results are remembered by version: a pass that was edited is another one.
        extras = [_source_of(e.module) for e in _extras(self.options)]
        digest = hashlib.sha256(b"\0".join(extras)).hexdigest()[:12]
        return f"{version}+passes.{digest}" if extras else version

    def passes(self) -> Sequence[Pass]:
        """Passes over the graph, of the lowering, over kernels: the order of a full pipeline."""
        graph = [_graph_pass(n) for n in _GRAPH if _is_installed(n)]
        known = [*graph, *(Pass(n, "lower", required=n not in _OPTIONAL_LOWER) for n in _LOWER)]
        if self.options.tir:
            known += [Pass(n, "tir", required=n not in _OPTIONAL_TIR) for n in _TIR]
        for extra in sorted(_extras(self.options), key=lambda e: e.position):
            at = len(graph) if extra.position < 0 else extra.position
            known.insert(at, Pass(extra.name, "extra", description=f"{extra.module}"))
        return known

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """``default``; ``cpu``, TVM's own for CPUs; ``lowering``, the required alone; ``all``."""
        known = self.passes()
        return {
            "default": [p.name for p in known if p.default],
            "cpu": [p.name for p in known if p.kind in ("lower", "tir")],
            "lowering": [p.name for p in known if p.required],
            "all": [p.name for p in known],
        }

    def apply(self, source: Artifact, passes: Sequence[str], options: TvmOptions) -> Artifact:
        """An executable of the model after ``passes``, alive in this process."""
        self = self.configured(options)
        imported = _import(source.data)
        order = self._arrange(passes)
        try:
            module, content, changing_passes, inside = self._transform(imported.module, order)
            executable, kernels = self._build(module, order)
        except TvmError as error:
            missing = [p.name for p in self.passes() if p.required and p.name not in order]
            if not missing:
                raise
            words = f"{error}; the pipeline lacks the required {', '.join(missing)}"
            raise TvmError(words) from error
        return Artifact(
            "tvm-executable",
            handle={
                "executable": executable,
                "inputs": imported.inputs,
                "outputs": imported.outputs,
                "module": inside,
                "target": options.target,
            },
            # A kernel is told by its module and by the passes that changed it on the way.
            fingerprint="|".join((content, *kernels)),
            changing_passes=(*changing_passes, *kernels),
        )

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: TvmOptions
    ) -> Sequence[str] | None:
        """Passes after which the module was another one; None if it cannot be built."""
        try:
            return self.apply(source, passes, options).changing_passes
        except TvmError:
            return None

    def snippet(self, passes: Sequence[str], options: TvmOptions) -> str:
        """Import, the passes one after the other, and the build of the executable."""
        self = self.configured(options)
        extras = {e.name: e for e in _extras(options)}
        order = self._arrange(passes)
        own = [extras[name] for name in order if name in extras]
        lines = [
            _spell_own(extras[name], options) if name in extras else _spell(name)
            for name in order
            if name not in _TIR
        ]
        # As ``_own`` has it: a function makes a pass, unless it is one already.
        call = "[make if isinstance(make, tvm.ir.transform.Pass) else make() for make in passes]"
        return _build_code(
            options,
            [f"import {_module_name(e, options)}" for e in dict.fromkeys(own)],
            [*_list("passes = ", lines), *([f"passes = {call}"] if own else [])],
            _skip_code(order) if options.tir else [],
        )

    def simple_snippets(self, passes: Sequence[str], options: TvmOptions) -> Sequence[str]:
        """TVM's own pipeline; then with the passes over the graph in ``passes`` before it."""
        if _extras(options):
            return []
        graph = [n for n in self.configured(options)._arrange(passes) if n in _GRAPH]
        passes_line = _list("passes = ", [_spell(n) for n in graph])
        return [_build_code(options, [], lines, None) for lines in ([], passes_line)][
            : 2 if graph else 1
        ]

    def carried(self, options: TvmOptions) -> Mapping[str, bytes]:
        """The files of the user's own passes."""
        own = [e for e in _extras(options) if e.module.endswith(".py")]
        return {f"{_module_name(e, options)}.py": _source_of(e.module) for e in own}

    def _arrange(self, passes: Sequence[str]) -> list[str]:
        """``passes`` in the order in which they can run: the lowering last, as TVM has it."""
        place = {p.name: i for i, p in enumerate(self.passes())}
        for name in passes:
            if name not in place:
                raise UnknownName("pass of tvm", name, place)
        lowering = next(i for i, name in enumerate(place) if name == _LOWER[0])
        # Stable: passes over the graph share one key, so they stay as they were given.
        return sorted(passes, key=lambda n: max(place[n], lowering - 1))

    def _transform(self, module: Any, order: Sequence[str]) -> tuple[Any, str, list[str], Any]:
        """The module that is to be built, its content in a word, and the passes that changed it.

        Last comes the module before ``ToNonDataflow``, whose values can still be looked at.
        """
        import tvm
        import tvm_ffi

        extras = {e.name: e for e in _extras(self.options)}
        changing_passes: list[str] = []
        content = [self.options.target, str(self.options.opt_level)]
        hashed, inside = False, None
        context = tvm.transform.PassContext(opt_level=self.options.opt_level)
        with tvm.target.Target(self.options.target), context:
            for name in (n for n in order if n not in _TIR):
                inside = module if name == "ToNonDataflow" else inside
                if name == _NUMBERING and not hashed:
                    content.append(str(tvm_ffi.structural_hash(module)))
                    hashed = True
                try:
                    after = (_own(extras[name]) if name in extras else _make(name))(module)
                except Exception as error:
                    raise TvmError(f"pass {name}: {_brief(error)}") from error
                # Most passes hand out a new object even where they changed nothing.
                if not tvm_ffi.structural_equal(module, after):
                    changing_passes.append(name)
                    content += [name] if hashed else []
                module = after
        content += [] if hashed else [str(tvm_ffi.structural_hash(module))]
        return module, "|".join(content), changing_passes, inside

    def _build(self, module: Any, order: Sequence[str]) -> tuple[Any, list[str]]:
        """The executable, and which of the listed passes over kernels changed them."""
        import tvm
        from tvm import relax

        listed = [n for n in order if n in _TIR]
        watch = _watch(set(_TIR) - set(listed), listed) if self.options.tir else None
        # Armed here only: FoldConstant compiles too, by the same passes, and must stay whole.
        context = tvm.transform.PassContext(
            opt_level=self.options.opt_level, instruments=[watch] if watch else []
        )
        target = tvm.target.Target(self.options.target)
        try:
            with target, context:
                executable = relax.build(module, target, relax_pipeline=None)
        except Exception as error:
            raise TvmError(f"relax.build: {_brief(error)}") from error
        changed = watch.changed if watch else set()
        return executable, [n for n in listed if n in changed]


def _graph_pass(name: str) -> Pass:
    tolerance = _TOLERANCES.get(name)
    return Pass(
        name,
        "graph",
        default=name not in _ON_REQUEST,
        lossy=tolerance is not None,
        tolerance=tolerance,
    )


@lru_cache
def _is_installed(name: str) -> bool:
    """Whether this release has the pass; read from its sources, as importing it takes seconds."""
    spec = importlib.util.find_spec("tvm")
    folders = spec.submodule_search_locations if spec else None
    files = [f for d in folders or () for f in Path(d, "relax", "transform").glob("*.py")]
    wanted = re.compile(rf"^(def|class) {name}\b", re.MULTILINE)
    return not files or any(wanted.search(f.read_text("utf-8")) for f in files)


def _make(name: str) -> Any:
    from tvm import relax

    if name == "ConvertLayout":
        return relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})
    kind = name.partition("#")[0]
    room = relax.backend if kind.startswith("Dispatch") else relax.transform
    return getattr(room, kind)()


def _spell(name: str) -> str:
    """Code that makes a pass, as ``_make`` does."""
    if name == "ConvertLayout":
        return 'relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})'
    kind = name.partition("#")[0]
    room = "backend" if kind.startswith("Dispatch") else "transform"
    return f"relax.{room}.{kind}()"


def _spell_own(extra: _Extra, options: TvmOptions) -> str:
    return f"{_module_name(extra, options)}.{extra.function}"


def _module_name(extra: _Extra, options: TvmOptions) -> str:
    """What code imports: a module's name; of a file a name of its own, beside the code."""
    if not extra.module.endswith(".py"):
        return extra.module
    files = list(dict.fromkeys(e.module for e in _extras(options) if e.module.endswith(".py")))
    stems = [re.sub(r"\W", "_", Path(file).stem) for file in files]
    index = files.index(extra.module)
    return stems[index] if stems.count(stems[index]) == 1 else f"{stems[index]}_{index}"


def _list(opening: str, items: Sequence[str]) -> list[str]:
    """A list of expressions, as many on a line as fit."""
    text = f"{opening}[{', '.join(items)}]"
    return textwrap.wrap(text, 92, subsequent_indent=" " * 4, break_long_words=False)


def _skip_code(order: Sequence[str]) -> list[str]:
    skipped = sorted(set(_TIR) - set(order))
    return [
        *_list("skipped = ", [repr(name) for name in skipped]),
        "",
        "@tvm.ir.instrument.pass_instrument",
        "class Skip:",
        "    def should_run(self, module, info):",
        "        return info.name not in skipped",
        "",
    ]


def _build_code(
    options: TvmOptions, imports: Sequence[str], passes: Sequence[str], skip: Sequence[str] | None
) -> str:
    """Code that builds an executable of ``model``.

    Args:
        options: Target and level.
        imports: Modules of the user's own.
        passes: Lines that make the list ``passes``; none if there is nothing to apply.
        skip: Lines that make the instrument ``Skip``, if any; None for TVM's own lowering
            behind the passes.
    """
    level = f"tvm.transform.PassContext(opt_level={options.opt_level}"
    default = options.opt_level == TvmOptions().opt_level and skip is None
    apply = ["for apply in passes:", "    module = apply(module)"] if passes else []
    pipeline = "" if skip is None else ", relax_pipeline=None"
    build = f"executable = relax.build(module, {options.target!r}{pipeline})"
    within = f"with tvm.target.Target({options.target!r}), {level}):"
    if skip:
        tail = [
            *skip,
            f"with tvm.target.Target({options.target!r}), {level}, instruments=[Skip()]):",
        ]
        body = [within, *(f"    {line}" for line in apply), *tail, f"    {build}"]
    elif default and not apply:
        body = [build]
    else:
        body = [within, *(f"    {line}" for line in (*apply, build))]
    return "\n".join(
        (
            "import tvm",
            *imports,
            "from tvm import relax",
            "from tvm.relax.frontend.onnx import from_onnx\n",
            "module = from_onnx(model)",
            *passes,
            *body,
            "weights = {tensor.name for tensor in model.graph.initializer}",
            "inputs = [v.name for v in model.graph.input if v.name not in weights]",
            "return executable, inputs, [v.name for v in model.graph.output]",
        )
    )


def _check_target(target: str) -> None:
    import tvm

    option = f"optimizer 'tvm': option 'target' = {target!r}"
    try:
        parsed = tvm.target.Target(target)
        has_code = tvm.runtime.enabled(parsed.kind.name)
    except Exception as error:
        raise UsageError(f"{option}: {_brief(error)}") from error
    if not has_code or "cpu" not in parsed.keys:
        raise UsageError(f"{option}: this TVM makes no such code that runs on the CPU; say llvm")


def _extras(options: TvmOptions) -> list[_Extra]:
    found = []
    for text in options.extra_passes:
        match = _EXTRA.fullmatch(text)
        assert match is not None
        name = match["name"] or match["function"]
        position = int(match["position"]) if match["position"] else -1
        found.append(_Extra(name, match["module"], match["function"], position))
    return found


def _source_of(module: str) -> bytes:
    """The text of a module or file, by which its content is told."""
    spec = None if module.endswith(".py") else importlib.util.find_spec(module)
    path = Path(module if spec is None else spec.origin or "")
    try:
        return path.read_bytes()
    except OSError as error:
        raise PluginError(
            f"optimizer 'tvm': extra pass from {module!r}: {error}; give an importable module or "
            "a file.py"
        ) from error


def _own(extra: _Extra) -> Any:
    """The pass of the user's own."""
    import tvm

    if extra.module.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(extra.module).stem, extra.module)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(extra.module)
    if not hasattr(module, extra.function):
        raise AttributeError(f"{extra.module} has no function {extra.function!r}")
    function = getattr(module, extra.function)
    function = function if isinstance(function, tvm.ir.transform.Pass) else function()
    if not isinstance(function, tvm.ir.transform.Pass):
        raise TypeError(f"{extra.function} gave {type(function).__name__}, expected a pass of TVM")
    return function


_REFUSAL = re.compile(
    r"not (yet )?(supported|implemented)|unsupported|unknown dtype", re.IGNORECASE
)


def _import(model: bytes) -> _Imported:
    """The model in Relax, imported anew: a pass may change the module that it is given."""
    from tvm.relax.frontend.onnx import from_onnx

    proto = onnx.load_from_string(model)
    try:
        module = from_onnx(proto)
    except Exception as error:
        if isinstance(error, NotImplementedError) or _REFUSAL.search(str(error)):
            raise Unsupported(f"TVM's import from ONNX: {_brief(error)}") from error
        raise TvmError(f"import from ONNX: {_brief(error)}") from error
    weights = {w.name for w in proto.graph.initializer}
    inputs = tuple(i.name for i in proto.graph.input if i.name not in weights)
    outputs = tuple(o.name for o in proto.graph.output)
    if len(module["main"].params) != len(inputs):
        raise TvmError(
            f"import from ONNX: {len(inputs)} inputs became {len(module['main'].params)}"
        )
    return _Imported(module, inputs, outputs)


def _watch(skipped: Iterable[str], listed: Iterable[str]) -> Any:
    """An instrument that keeps passes over kernels from running, and notes who changed what."""
    import tvm
    import tvm_ffi

    skip, note = frozenset(skipped), frozenset(listed)

    @tvm.ir.instrument.pass_instrument
    class Watch:
        def __init__(self) -> None:
            self.changed: set[str] = set()
            self.before: list[Any] = []

        def should_run(self, module: Any, info: Any) -> bool:
            return info.name not in skip

        def run_before_pass(self, module: Any, info: Any) -> None:
            self.before.append(module)

        def run_after_pass(self, module: Any, info: Any) -> None:
            before = self.before.pop()
            if info.name in note and not tvm_ffi.structural_equal(before, module):
                self.changed.add(info.name)

    return Watch()


def _brief(error: Exception) -> str:
    """Type and first lines of an error: TVM's stack traces fill pages."""
    text = str(error).strip()
    lines = [line for line in text.splitlines() if line.strip()][:4]
    return f"{type(error).__name__}: {' '.join(lines)}"
