"""Samples that show nothing, since the operation that goes wrong has no defined answer on them.

Of an edge value it is enough that some operation of the source has none: usual inputs show the
fault too. Of the inputs that the user cares for, an order of equal scores somewhere in the source
must not hide a fault elsewhere, so it counts only at the place where the model breaks.
"""

from __future__ import annotations

from collections.abc import Sequence

from optvet.engine.convert.guilty_stage import Blame
from optvet.engine.convert.session import Conversion
from optvet.engine.convert.undefined_inputs import OpenOperation, find_open_operations
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.converters import SourceExtras
from optvet.spec.extras import given
from optvet.spec.records.convert import ConversionPlace
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, Sample


def find_undefined_samples(
    conversion: Conversion,
    blame: Blame,
    place: ConversionPlace | None,
    config: RuntimeConfig | None,
    artifact: Artifact | None,
) -> dict[str, str]:
    """Samples of a blame on which the operation at its place has no defined answer, and why not.

    The operation is the source's, or that of the converted model whose format leaves it open: the
    source may define what its own does there, but no runtime of the other format breaks a rule.
    """
    came = blame.symptom.info.of_values or blame.symptom == Symptom.INTERFACE_CHANGE
    if place is None or not came:
        return {}
    # Of edge values, all that the source leaves open are gone by now.
    usual = [each.sample for each in blame.inputs if each.origin != "edge"]
    reference, source = conversion.reference, conversion.source.artifact
    found = _find_at(conversion, place.operator, reference, source, usual)
    if config is not None and artifact is not None and artifact.format != "onnx":
        every = [each.sample for each in blame.inputs]
        found |= _find_at(conversion, place.node, config, artifact, every)
    return found


def _find_at(
    conversion: Conversion,
    operator: str,
    config: RuntimeConfig,
    artifact: Artifact,
    samples: Sequence[Sample],
) -> dict[str, str]:
    runtime: Runtime = config.runtime
    if not operator or not samples or not given(runtime, SourceExtras.inside):
        return {}
    about = (config, artifact, samples)
    outcome = conversion.sandbox_of(runtime).call(find_open_operations, *about, role="judging")
    first = {
        name: _first(operations, operator) for name, operations in (outcome.value or {}).items()
    }
    return {name: operation.words() for name, operation in first.items() if operation is not None}


def _first(operations: Sequence[OpenOperation], operator: str) -> OpenOperation | None:
    return next((each for each in operations if each.operator == operator), None)
