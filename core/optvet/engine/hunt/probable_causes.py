"""Groups findings by probable cause, from what their reduced models still contain.

A reduction removes everything that the fault does not need. Unusual names, forms and types that are
left are needed. If findings of several passes need the same, the cause is probably one mistake in
code that these passes share.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, numpy_helper

from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.graph.plain import is_aliased, is_namesake, is_plain, is_plain_name, lists_weights
from optvet.graph.types import NUMPY_FLOATS
from optvet.graph.walk import ONNX_DOMAIN, nodes_of, operator_of, opset_versions, qualified_name
from optvet.spec.records.hunt import HuntCause, HuntFinding
from optvet.spec.symptoms import Symptom

ROUND_TRIP = "import and export"
_NAMESAKE = "a function of the model that is named as an operator of ONNX is"
_LISTED = "an IR version that lists weights among the inputs"
_ALIASED = "operators imported from `ai.onnx` by that name"
_UNSIZED = "an input dimension without a size"
SPECIAL = "an input that is infinite or NaN"
_NAN_WEIGHT = "a weight that is NaN"
_SPARSE = "a sparse tensor"
EMPTY = "a tensor without elements"
_CONTRIVED = frozenset({_NAMESAKE, _LISTED, _ALIASED, _SPARSE, SPECIAL, _NAN_WEIGHT})
"""Of what a finding needs: what models of practice hardly have."""
_OLDEST = 7
"""The first operator set with broadcasting as it is today; older models are hardly around."""
_TYPE = re.compile(r"^[\w.]+: ")
_NUMBER = re.compile(r"=-?\d[\d.e+-]*$")
_OF_SHARED_CODE = (Symptom.OPTIMIZER_ERROR, Symptom.INTERFACE_CHANGE)
"""Symptoms that are of one cause if several passes show them in the same words on the same."""
_OF_MANY_CAUSES = frozenset({_UNSIZED, SPECIAL, _NAN_WEIGHT})
"""Conditions under which passes go wrong in ways of their own: what they share is no mistake."""


def operators_that_matter(model: ModelProto) -> list[str]:
    """Operator types that a reduction could not replace by others; each once, sorted."""
    kept = (node for node in model.graph.node if not is_plain(node))
    return sorted({qualified_name(*operator_of(node), ".") for node in kept})


def needs(model: ModelProto, feeds: Mapping[str, np.ndarray], message: str) -> list[str]:
    """Unusual features that a reduced model still has.

    Args:
        model: Reduced.
        feeds: Its inputs, reduced too.
        message: Message of the finding. A reduction keeps names that it quotes, so these may not
            be needed.
    """
    return list(dict.fromkeys(_needs(model, feeds, message)))


def contrived_parts(
    model: ModelProto, feeds: Mapping[str, np.ndarray], needed: Sequence[str]
) -> list[str]:
    """What models of practice hardly have, as far as a reduced model still has it.

    Args:
        model: Reduced.
        feeds: Its inputs, reduced too.
        needed: What ``needs`` tells of it.
    """
    parts = [need for need in needed if need in _CONTRIVED]
    if any(0 in shape for shape in _shapes(model, feeds)):
        parts.append(EMPTY)
    if 0 < opset_versions(model).get(ONNX_DOMAIN, 0) < _OLDEST:
        parts.append(f"an operator set below {_OLDEST}")
    return parts


def _shapes(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> Iterator[Sequence[int]]:
    """Shapes of inputs and weights, and those that values are declared to have."""
    yield from (value.shape for value in feeds.values())
    yield from (tensor.dims for tensor in model.graph.initializer)
    for value in (*model.graph.output, *model.graph.value_info):
        dims = value.type.tensor_type.shape.dim
        yield [d.dim_value for d in dims if d.HasField("dim_value")]


def _needs(model: ModelProto, feeds: Mapping[str, np.ndarray], message: str) -> Iterator[str]:
    graph = model.graph
    namesakes = [f for f in model.functions if is_namesake(f)]
    if namesakes:
        yield _NAMESAKE
    elif model.functions:
        yield "a function of the model"
    if is_aliased(model):
        yield _ALIASED
    if lists_weights(model):
        yield _LISTED
    weights = {t.name for t in graph.initializer} | {
        t.values.name for t in graph.sparse_initializer
    }
    if not lists_weights(model) and any(i.name in weights for i in graph.input):
        yield "a weight that callers may replace"
    if graph.sparse_initializer or any(
        a.HasField("sparse_tensor") for node in graph.node for a in node.attribute
    ):
        yield _SPARSE
    inputs = [i.name for i in graph.input if i.name not in weights]
    for name in (*inputs, *weights, *(o for node in graph.node for o in node.output if o)):
        if name in message:
            continue
        if name.isdigit():
            yield "a value whose name is a number"
        elif not is_plain_name(name):
            yield f"a value named `{name[:60]}`"
    if graph.value_info:
        yield "a declared type of an inner value"
    # Those of outputs follow, or are as somebody declared them.
    if any(_is_open(v.type) for v in graph.input):
        yield _UNSIZED
    if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in feeds.values()):
        yield SPECIAL
    # Not infinite ones, by which models mask.
    if any(np.isnan(a).any() for a in _floats_in(model)):
        yield _NAN_WEIGHT


def _floats_in(model: ModelProto) -> Iterator[np.ndarray]:
    """Weights that numpy has a type of, and constants."""
    constants = (a.t for node in nodes_of(model.graph) for a in node.attribute if a.HasField("t"))
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_type in NUMPY_FLOATS and tensor.data_location != TensorProto.EXTERNAL:
            yield numpy_helper.to_array(tensor)


def _is_open(kind: TypeProto) -> bool:
    if not kind.HasField("tensor_type"):
        return False
    tensor = kind.tensor_type
    return not tensor.HasField("shape") or not all(
        d.HasField("dim_value") for d in tensor.shape.dim
    )


def probable_causes(findings: Sequence[HuntFinding]) -> list[HuntCause]:
    """Groups of findings with the reason; groups of the most passes first."""
    left = list(findings)
    causes = []
    while shared := _find_common_cause(left):
        group = [f for f in left if shared in f.needs]
        left = [f for f in left if shared not in f.needs]
        why = f"none of these shows without {shared}, which their passes have in common"
        causes.append(_cause(shared, why, group))
    groups: dict[tuple[str, ...], list[HuntFinding]] = {}
    for finding in sorted(left, key=_is_note):
        place = (*finding.culprit, "", *_about(finding))
        key = (*place, "", *_kind_of_fault(finding))
        if _is_note(finding):  # mostly a remark about what a fault does
            key = next((k for k in groups if k[: len(place) + 1] == (*place, "")), key)
        groups.setdefault(key, []).append(finding)
    for group in _joined(groups.values()):
        first = group[0]
        operators = ", ".join(first.operators)
        title = ", ".join(first.culprit) or ROUND_TRIP
        matter = f"the same operators matter: {operators}" if operators else "no operator matters"
        if any(f.operators != first.operators for f in group):
            matter = f"the same error where these operators matter, and others: {operators}"
        if first.parts:
            matter = f"the same is wrong where a source has {operators} and more, or in shared code"
        whose = "the same passes"
        if any(f.culprit != first.culprit for f in group):
            whose = "the same words of several passes"
        why = f"{whose}, and {matter}" if len(group) > 1 else "the only one of its kind"
        causes.append(_cause(f"{title}: {operators}" if operators else title, why, group))
    return causes


def _about(finding: HuntFinding) -> list[str]:
    """What distinguishes causes within one pass; for changed metadata, its kind.

    Steps with settings, such as estimators, share the code that writes what they compute: of an
    invalid model the checker says which operator is written wrong, and how.
    """
    if finding.parts and finding.symptom == Symptom.INVALID_MODEL:
        return [_words_of(finding)]
    return finding.operators if finding.operators else [finding.fingerprint]


def _is_note(finding: HuntFinding) -> bool:
    return finding.severity != "fault"


def _kind_of_fault(finding: HuntFinding) -> list[str]:
    """Its symptom, and the words of an error: one mistake seldom shows as several of them."""
    if finding.parts:
        return []
    return [finding.symptom, _words_of(finding) if finding.symptom.info.failed else ""]


def _joined(groups: Iterable[list[HuntFinding]]) -> list[list[HuntFinding]]:
    """The groups; what needs more than a finding of another group is one with that."""
    joined: list[list[HuntFinding]] = []
    for group in sorted(groups, key=lambda g: min((len(f.parts), len(f.operators)) for f in g)):
        simpler = next((j for j in joined if _explain(j, group)), None)
        if simpler is None:
            joined.append([*group])
        else:
            simpler += group
    return joined


def _explain(simple: Iterable[HuntFinding], others: Iterable[HuntFinding]) -> bool:
    return any(_explains(one, other) for one, other in itertools.product(simple, others))


def _explains(simple: HuntFinding, other: HuntFinding) -> bool:
    """Whether ``other`` goes wrong in the same way, and needs all that ``simple`` does.

    Of a model, that is told by words alone: wrong values have none that tell causes apart. What a
    pass itself raises has words of its own; a checker says the same of many mistakes.
    """
    symptom = simple.symptom
    if symptom != other.symptom:
        return False
    same_words = _words_of(simple) == _words_of(other)
    if simple.culprit != other.culprit:
        shares_code = symptom in _OF_SHARED_CODE and simple.operators == other.operators
        return same_words and shares_code and not simple.parts
    if simple.parts:
        unlike = symptom.info.failed and not same_words
        return not unlike and _kinds_of_parts(simple) <= _kinds_of_parts(other)
    shared = {*simple.operators} & {*other.operators}
    enough = symptom == Symptom.OPTIMIZER_ERROR or shared == {*simple.operators}
    return symptom.info.failed and same_words and bool(shared) and enough


def _words_of(finding: HuntFinding) -> str:
    """The words of a message without the name of an error's type, which may be most of them."""
    return normalized_message(_TYPE.sub("", finding.message))


def _kinds_of_parts(finding: HuntFinding) -> set[str]:
    """The parts; how large the number of a setting is hardly tells causes apart."""
    return {_NUMBER.sub("", part) for part in finding.parts}


def _find_common_cause(findings: Sequence[HuntFinding]) -> str:
    """The feature that findings of the most passes need; at least two passes."""
    passes: dict[str, set[tuple[str, ...]]] = {}
    for finding in findings:
        for need in set(finding.needs) - _OF_MANY_CAUSES:
            passes.setdefault(need, set()).add(tuple(finding.culprit))
    need = max(passes, key=lambda n: len(passes[n]), default="")
    return need if need and len(passes[need]) > 1 else ""


def _cause(title: str, why: str, findings: Sequence[HuntFinding]) -> HuntCause:
    return HuntCause(title=title, why=why, fingerprints=[f.fingerprint for f in findings])
