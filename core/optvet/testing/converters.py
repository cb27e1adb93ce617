"""The conformance suites of converters, and of runtimes that run their sources."""

from __future__ import annotations

from pathlib import Path

from optvet.engine.convert import worker_steps
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.converters import ConversionStage, Converter, Factory, TellsSource
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.scratch import temporary_folder
from optvet.spec.types import Artifact, Sample
from optvet.testing.conformance import LIMITS, check_form, require

_KINDS = frozenset({"load", "convert", "optimize", "export", "lossy"})


def check_converter(
    converter: Converter, source: Path, function: str = "", format: str = ""
) -> None:
    """Check that ``converter`` keeps the contract; raises AssertionError where it does not.

    Args:
        converter: The converter.
        source: A file that it converts.
        function: Of a Python file, the function that makes the model.
        format: Format of the source; needed if the converter takes several.
    """
    check_form(converter, Converter, "a converter")
    consumes = sorted(converter.consumes)
    require(converter, bool(consumes), "consumes names no format")
    require(converter, bool(format) or len(consumes) == 1, "takes several formats: say which")
    stages = list(converter.stages(converter.options))
    require(converter, bool(stages), "stages() gave none")
    for stage in stages:
        about = f"stages() gave {stage!r}"
        require(converter, isinstance(stage, ConversionStage), f"{about}, no ConversionStage")
        require(converter, stage.kind in _KINDS, f"{about}, whose kind is none of {sorted(_KINDS)}")
        lossy = stage.kind == "lossy"
        require(converter, not lossy or stage.tolerance is not None, f"{about} without a tolerance")
    names = [stage.name for stage in stages]
    require(converter, len(set(names)) == len(names), f"stages() has names twice: {names}")
    promised, last = converter.produces, stages[-1].format
    require(
        converter, promised == last, f"produces {promised!r}, but its last stage makes {last!r}"
    )
    handle = Factory(function) if function else None
    artifact = Artifact(format or consumes[0], path=source, handle=handle)
    if artifact.format == "onnx":
        artifact = Artifact("onnx", source.read_bytes())
    _check_artifacts(converter, artifact, len(stages))


def check_source_runtime(runtime: Runtime, source: Path, function: str = "") -> None:
    """Check that ``runtime`` runs a source; raises AssertionError where it breaks the contract.

    Args:
        runtime: A runtime that tells how sources are called.
        source: A source whose outputs are floats.
        function: Of a Python file, the function that makes the model.
    """
    check_form(runtime, Runtime, "a runtime")
    require(runtime, isinstance(runtime, TellsSource), "has no source_facts()")
    assert isinstance(runtime, TellsSource)
    format = runtime.source_formats.get(source.suffix)
    require(runtime, format in runtime.accepts, f"source_formats gives {format!r}, not accepted")
    artifact = Artifact(str(format), path=source, handle=Factory(function) if function else None)
    config = RuntimeConfig(runtime, runtime.options)
    preload = (*preload_for(None, runtime), worker_steps.__name__)
    with Sandbox(jobs=1, limits=LIMITS, preload=preload) as sandbox:
        facts = sandbox.call(worker_steps.describe, config, artifact)
        words = describe(facts.failure) if facts.failure else ""
        require(runtime, facts.value is not None, f"source_facts() failed: {words}")
        assert facts.value is not None
        sample = Sample("example", facts.value.inputs)
        about = (config, artifact, [sample])
        seen = [sandbox.call(worker_steps.observe, *about, fresh=True).value for _ in range(2)]
        runs = [None if s is None else s.runs.get("example") for s in seen]
        require(runtime, isinstance(runs[0], dict), f"load() or run() failed: {runs[0]}")
        require(runtime, repr(runs[0]) == repr(runs[1]), "two runs of one source differ")
        for inside in (False, True):
            moved = sandbox.call(worker_steps.run_perturbed, *about, [0, 1], inside)
            words = describe(moved.failure) if moved.failure else ""
            require(runtime, moved.value is not None, f"load_perturbed() failed: {words}")
        exact = sandbox.call(worker_steps.run_in_float64, *about)
        words = describe(exact.failure) if exact.failure else ""
        require(runtime, exact.value is not None, f"load_double() failed: {words}")


def _check_artifacts(converter: Converter, source: Artifact, stages: int) -> None:
    """Convert in a worker, and load the last artifact if anything here runs it."""
    plugins = Plugins()
    preload = (*converter.preload, type(converter).__module__, worker_steps.__name__)
    with (
        temporary_folder("optvet-check-") as folder,
        Sandbox(jobs=1, limits=LIMITS, preload=preload) as sandbox,
    ):
        about = (converter, source, converter.options, Path(folder))
        outcome = sandbox.call(worker_steps.convert, *about, fresh=True)
        words = describe(outcome.failure) if outcome.failure else ""
        require(converter, outcome.failure is None, f"convert() failed: {words}")
        done = outcome.value
        assert done is not None
        words = describe(done.failure) if done.failure else ""
        require(converter, done.failure is None, f"convert() refused the source: {words}")
        require(converter, len(done.artifacts) == stages, "convert() gave too few artifacts")
        final = done.artifacts[-1]
        require(
            converter,
            bool(final.data or final.path),
            "the last artifact has neither data nor path",
        )
        if final.path is not None:
            inside = Path(folder).resolve() in final.path.resolve().parents
            require(converter, inside, f"{final.path} is not in the folder that was given")
        running = [
            r for r in map(plugins.runtime, plugins.names("runtime")) if final.format in r.accepts
        ]
        require(converter, bool(running), f"no installed runtime runs {final.format}")
