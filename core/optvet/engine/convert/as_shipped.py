"""The converted model in its runtime's default session, as its users run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optvet.engine.convert.compare_outputs import Judge
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.session import Conversion
from optvet.engine.judge.sample import SampleVerdict
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.extras import extras
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.types import Artifact


def shipped_config(config: RuntimeConfig) -> RuntimeConfig | None:
    """The runtime with its library's own defaults; None where it runs with these anyway."""
    runtime = config.runtime
    return None if runtime.deployed == config.options else RuntimeConfig(runtime, runtime.deployed)


def see_as_shipped(
    conversion: Conversion,
    judge: Judge,
    config: RuntimeConfig,
    artifact: Artifact,
    inputs: Sequence[ConversionInput],
    seen: Mapping[str, SampleVerdict],
) -> dict[str, SampleVerdict]:
    """What is wrong in a default session alone, by sample; edge values are left out.

    Models in ONNX alone are looked at: what other formats become in a session is their converter's.

    Args:
        conversion: The conversion.
        judge: What compares with the source.
        config: What runs the artifact without the runtime's own optimizations.
        artifact: A converted model.
        inputs: All inputs.
        seen: What it does there. An input on which it is wrong needs no second look.
    """
    shipped = shipped_config(config)
    samples = [d.sample for d in inputs if d.origin != "edge" and d.sample.id in seen]
    if artifact.format != "onnx" or shipped is None or not samples:
        return {}
    if not all(seen[s.id].right for s in samples):
        return {}
    observed = conversion.observe(shipped, artifact, samples)
    lost = extras(shipped.runtime, RuntimeExtras).declared_loss(shipped.options)
    found = judge.see(observed, samples, lost)
    return {n: v for n, v in found.items() if not v.right and not v.unexplained}
