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
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from optvet.plugin import (
    Artifact,
    Pass,
    ReleasedPackage,
    Traits,
    UnknownName,
    Unsupported,
    UsageError,
    version_of,
)
from optvet_tvm.extra_passes import load_extra, module_name, parse_extras, source_of
from optvet_tvm.options import UNOPTIMIZED, TvmOptions
from optvet_tvm.passes import (
    GRAPH_PASSES,
    KERNEL_PASSES,
    LOWERING_PASSES,
    NUMBERING_PASS,
    OPTIONAL_KERNEL_PASSES,
    REQUIRED_LOWERING,
    describe_graph_pass,
    is_installed,
    make_pass,
    passes_of_package,
    zero_pipeline,
)
from optvet_tvm.steps import Step, are_intact, with_own_weights


class TvmError(RuntimeError):
    """TVM refused; the message says in which pass."""


_BUILT = 4
_SMALL_BYTES = 1 << 20
_built: dict[str, tuple[Any, list[str]]] = {}
"""The last executables of small models, by the content of their modules."""


@dataclass(frozen=True)
class _Imported:
    """A model in Relax, before any pass."""

    first: Step
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_imported: dict[tuple[bytes, TvmOptions], _Imported] = {}
"""The last small model, as options have it."""


class TvmOptimizer:
    """The Relax pass infrastructure of the ``apache-tvm`` package."""

    name = "tvm"
    preload: Sequence[str] = ("tvm", "tvm.relax.frontend.onnx")
    # 0.25 was built against an older interface of the library of foreign functions.
    released = ReleasedPackage(
        "apache-tvm", "tvm", "import tvm.relax.frontend.onnx", ("apache-tvm-ffi==0.1.12",)
    )
    traits = Traits(produces="tvm-executable", reference="empty pipeline")
    # LLVM takes most of the time, and none of the passes is its own.
    quick_options: Mapping[str, Any] = {"target": UNOPTIMIZED}

    def __init__(self, options: TvmOptions | None = None) -> None:
        self.options: TvmOptions = options or TvmOptions()

    def configured(self, options: TvmOptions) -> TvmOptimizer:
        """The same with the passes that exist under ``options``."""
        return TvmOptimizer(options)

    def check_options(self, options: TvmOptions) -> None:
        """Whether TVM has the target, and the files of the user's own passes have the functions."""
        _check_target(options.target)
        names = [p.name for p in self.configured(options).passes()]
        for text, extra in zip(options.extra_passes, parse_extras(options), strict=True):
            option = f"optimizer 'tvm': option 'extra_passes' = {text!r}"
            if names.count(extra.name) > 1:
                raise UsageError(
                    f"{option}: there is a pass {extra.name!r} already; choose another NAME"
                )
            try:
                load_extra(extra)
            except Exception as error:
                raise UsageError(f"{option}: {_brief(error)}") from error

    def version(self) -> str:
        """Version of the installed package, and a digest of the passes that were added to it."""
        version = version_of("apache-tvm", extra="optvet[tvm]")
        # Results are remembered by version: a pass that was edited is another one.
        extras = [source_of(e.module) for e in parse_extras(self.options)]
        digest = hashlib.sha256(b"\0".join(extras)).hexdigest()[:12]
        return f"{version}+passes.{digest}" if extras else version

    def passes(self) -> Sequence[Pass]:
        """Passes over the graph, of the lowering, over kernels: the order of a full pipeline."""
        more = passes_of_package() if self.options.package else ()
        graph = [describe_graph_pass(n) for n in (*GRAPH_PASSES, *more) if is_installed(n)]
        known = [
            *graph,
            *(Pass(n, "lower", required=n in REQUIRED_LOWERING) for n in LOWERING_PASSES),
        ]
        if self.options.tir:
            known += [
                Pass(n, "tir", required=n not in OPTIONAL_KERNEL_PASSES) for n in KERNEL_PASSES
            ]
        for extra in sorted(parse_extras(self.options), key=lambda e: e.position):
            at = len(graph) if extra.position < 0 else extra.position
            known.insert(at, Pass(extra.name, "extra", description=f"{extra.module}"))
        return known

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """``default``; ``cpu``, ``zero``: TVM's own; ``lowering``, the required; ``all``."""
        known, zero = self.passes(), zero_pipeline()
        return {
            "default": [p.name for p in known if p.default],
            "cpu": [p.name for p in known if p.kind in ("lower", "tir")],
            "zero": [p.name for p in known if p.required or p.name in zero],
            "lowering": [p.name for p in known if p.required],
            "all": [p.name for p in known],
        }

    def apply(self, source: Artifact, passes: Sequence[str], options: TvmOptions) -> Artifact:
        """An executable of the model after ``passes``, alive in this process."""
        self = self.configured(options)
        imported = self._import_once(source.data)
        order = self._arrange(passes)
        names = [n for n in order if n not in KERNEL_PASSES]
        try:
            steps = self._transform(source.data, imported.first, names)
            content, changing_passes = self._describe(names, steps)
            executable, kernels = self._built_before(steps[-1].module, content, order, source.data)
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
                "module": _before_lowering(names, steps),
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
        from optvet_tvm.snippets import build_code, extra_code, list_code, pass_code, skip_code

        self = self.configured(options)
        extras = {e.name: e for e in parse_extras(options)}
        order = self._arrange(passes)
        own = [extras[name] for name in order if name in extras]
        lines = [
            extra_code(extras[name], options) if name in extras else pass_code(name)
            for name in order
            if name not in KERNEL_PASSES
        ]
        # As ``load_extra`` has it: a function makes a pass, unless it is one already.
        call = "[make if isinstance(make, tvm.ir.transform.Pass) else make() for make in passes]"
        return build_code(
            options,
            [f"import {module_name(e, options)}" for e in dict.fromkeys(own)],
            [*list_code("passes = ", lines), *([f"passes = {call}"] if own else [])],
            skip_code(order) if options.tir else [],
        )

    def simple_snippets(self, passes: Sequence[str], options: TvmOptions) -> Sequence[str]:
        """TVM's own pipeline; then with the passes over the graph in ``passes`` before it."""
        from optvet_tvm.snippets import build_code, list_code, pass_code

        if parse_extras(options):
            return []
        own = (*GRAPH_PASSES, *passes_of_package())
        graph = [n for n in self.configured(options)._arrange(passes) if n in own]
        passes_line = list_code("passes = ", [pass_code(n) for n in graph])
        return [build_code(options, [], lines, None) for lines in ([], passes_line)][
            : 2 if graph else 1
        ]

    def carried(self, options: TvmOptions) -> Mapping[str, bytes]:
        """The files of the user's own passes."""
        own = [e for e in parse_extras(options) if e.module.endswith(".py")]
        return {f"{module_name(e, options)}.py": source_of(e.module) for e in own}

    def _arrange(self, passes: Sequence[str]) -> list[str]:
        """``passes`` in the order in which they can run: the lowering last, as TVM has it."""
        place = {p.name: i for i, p in enumerate(self.passes())}
        for name in passes:
            if name not in place:
                raise UnknownName("pass of tvm", name, place)
        lowering = next(i for i, name in enumerate(place) if name == LOWERING_PASSES[0])
        # Stable: passes over the graph share one key, so they stay as they were given.
        return sorted(passes, key=lambda n: max(place[n], lowering - 1))

    def _import_once(self, model: bytes) -> _Imported:
        """The model in Relax, which is kept if it is small."""
        key = model, self.options
        if key not in _imported:
            imported = _import(model)
            if len(model) > _SMALL_BYTES or self.options.extra_passes:
                return imported
            _imported.clear()
            _imported[key] = imported
        return _imported[key]

    def _transform(self, model: bytes, first: Step, names: Sequence[str]) -> list[Step]:
        """The steps before each pass over the graph, and behind the last."""
        steps = self._take_steps(first, names)
        if (model, self.options) in _imported and not are_intact(steps):
            # A pass has changed the module that it was given, or a run the weights.
            _imported.clear()
            steps = self._take_steps(_import(model).first, names)
        return steps

    def _take_steps(self, first: Step, names: Sequence[str]) -> list[Step]:
        import tvm

        from optvet_tvm.kernels import compiled_once

        extras = {e.name: e for e in parse_extras(self.options)}
        steps = [first]
        context = tvm.transform.PassContext(opt_level=self.options.opt_level)
        # FoldConstant compiles a kernel for each value that it folds.
        once = compiled_once(self.options.opt_level)
        with tvm.target.Target(self.options.target), context, once:
            for name in names:
                try:
                    step = steps[-1].apply(
                        name,
                        # It skips a pass above the level, and adds those that a pass requires.
                        lambda n: tvm.transform.Sequential(
                            [load_extra(extras[n]) if n in extras else make_pass(n)]
                        ),
                    )
                except Exception as error:
                    raise TvmError(f"pass {name}: {_brief(error)}") from error
                steps.append(step)
        return steps

    def _describe(self, names: Sequence[str], steps: Sequence[Step]) -> tuple[str, list[str]]:
        """The content of the last module in a word, and the passes that changed one."""
        changing = [steps[i + 1] is not steps[i] for i in range(len(names))]
        told = list(names).index(NUMBERING_PASS) if NUMBERING_PASS in names else len(names)
        content = [self.options.target, str(self.options.opt_level), str(steps[told].digest)]
        content += [n for n, changed in zip(names[told:], changing[told:], strict=True) if changed]
        return "|".join(content), [n for n, c in zip(names, changing, strict=True) if c]

    def _built_before(
        self, module: Any, content: str, order: Sequence[str], source: bytes
    ) -> tuple[Any, list[str]]:
        """What ``_build`` gives, and gave before for the same content of a small source.

        Generating code takes longer than all passes, most of which change nothing.
        """
        listed = [n for n in order if n in KERNEL_PASSES] if self.options.tir else ["all"]
        key = "|".join((hashlib.sha256(source).hexdigest(), content, *listed))
        if key not in _built:
            while len(_built) >= _BUILT:
                del _built[next(iter(_built))]
            if len(source) > _SMALL_BYTES:
                return self._build(module, order)
            _built[key] = self._build(with_own_weights(module), order)
        return _built[key]

    def _build(self, module: Any, order: Sequence[str]) -> tuple[Any, list[str]]:
        """The executable, and which of the listed passes over kernels changed them."""
        import tvm

        from optvet_tvm.kernels import build_executable

        listed = [n for n in order if n in KERNEL_PASSES]
        watch = _watch(set(KERNEL_PASSES) - set(listed), listed) if self.options.tir else None
        # Armed here only: FoldConstant compiles too, by the same passes, and must stay whole.
        context = tvm.transform.PassContext(
            opt_level=self.options.opt_level, instruments=[watch] if watch else []
        )
        target = tvm.target.Target(self.options.target)
        try:
            with target, context:
                executable = build_executable(module, target, self.options.opt_level)
        except Exception as error:
            raise TvmError(f"relax.build: {_brief(error)}") from error
        changed = watch.changed if watch else set()
        return executable, [n for n in listed if n in changed]


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


def _before_lowering(names: Sequence[str], steps: Sequence[Step]) -> Any | None:
    """The module before ``ToNonDataflow``, whose values can still be looked at."""
    return steps[names.index("ToNonDataflow")].module if "ToNonDataflow" in names else None


_REFUSAL = re.compile(
    r"not (yet )?(supported|implemented)|unsupported|unknown dtype", re.IGNORECASE
)


def _import(model: bytes) -> _Imported:
    """The model in Relax, imported anew."""
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
    return _Imported(Step.of(module), inputs, outputs)


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
