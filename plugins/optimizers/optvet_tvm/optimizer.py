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
from contextlib import nullcontext
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
from optvet_tvm.kernels import compiled_once
from optvet_tvm.options import TvmOptions
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
)
from optvet_tvm.snippets import build_code, extra_code, list_code, pass_code, skip_code


class TvmError(RuntimeError):
    """TVM refused; the message says in which pass."""


_BUILT = 4
_SMALL_BYTES = 1 << 20
_built: dict[str, tuple[Any, list[str]]] = {}
"""The last executables of small models, by the content of their modules."""


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
    # 0.25 was built against an older interface of the library of foreign functions.
    released = ReleasedPackage(
        "apache-tvm", "tvm", "import tvm.relax.frontend.onnx", ("apache-tvm-ffi==0.1.12",)
    )
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
        graph = [describe_graph_pass(n) for n in GRAPH_PASSES if is_installed(n)]
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
            executable, kernels = self._built_before(module, content, order, source.data)
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
        if parse_extras(options):
            return []
        graph = [n for n in self.configured(options)._arrange(passes) if n in GRAPH_PASSES]
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

    def _transform(self, module: Any, order: Sequence[str]) -> tuple[Any, str, list[str], Any]:
        """The module that is to be built, its content in a word, and the passes that changed it.

        Last comes the module before ``ToNonDataflow``, whose values can still be looked at.
        """
        import tvm
        import tvm_ffi

        extras = {e.name: e for e in parse_extras(self.options)}
        changing_passes: list[str] = []
        content = [self.options.target, str(self.options.opt_level)]
        hashed, inside = False, None
        context = tvm.transform.PassContext(opt_level=self.options.opt_level)
        with tvm.target.Target(self.options.target), context:
            for name in (n for n in order if n not in KERNEL_PASSES):
                inside = module if name == "ToNonDataflow" else inside
                if name == NUMBERING_PASS and not hashed:
                    content.append(str(tvm_ffi.structural_hash(module)))
                    hashed = True
                try:
                    after = (load_extra(extras[name]) if name in extras else make_pass(name))(
                        module
                    )
                except Exception as error:
                    raise TvmError(f"pass {name}: {_brief(error)}") from error
                # Most passes hand out a new object even where they changed nothing.
                if not tvm_ffi.structural_equal(module, after):
                    changing_passes.append(name)
                    content += [name] if hashed else []
                module = after
        content += [] if hashed else [str(tvm_ffi.structural_hash(module))]
        return module, "|".join(content), changing_passes, inside

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
            built = self._build(module, order)
            if len(source) > _SMALL_BYTES:
                return built
            _built[key] = built
        return _built[key]

    def _build(self, module: Any, order: Sequence[str]) -> tuple[Any, list[str]]:
        """The executable, and which of the listed passes over kernels changed them."""
        import tvm
        from tvm import relax

        listed = [n for n in order if n in KERNEL_PASSES]
        watch = _watch(set(KERNEL_PASSES) - set(listed), listed) if self.options.tir else None
        # Armed here only: FoldConstant compiles too, by the same passes, and must stay whole.
        context = tvm.transform.PassContext(
            opt_level=self.options.opt_level, instruments=[watch] if watch else []
        )
        target = tvm.target.Target(self.options.target)
        # Passes over kernels run while these are compiled.
        once = compiled_once(self.options.opt_level) if watch is None else nullcontext()
        try:
            with target, context, once:
                executable = relax.build(module, target, relax_pipeline=None)
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
