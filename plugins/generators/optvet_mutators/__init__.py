"""Mutators: small changes of a model, driven by the schemas of operators; none knows a pass."""

from __future__ import annotations

from collections.abc import Iterable

from optvet.plugin import Mutator, hookimpl
from optvet_mutators import (
    between,
    connections,
    form,
    optional_parts,
    rare,
    respell,
    subgraphs,
    values,
)
from optvet_mutators.common import FunctionMutator

_EDITS = (
    FunctionMutator("change-attribute", values.change_attribute, 3.0),
    FunctionMutator("add-attribute", values.add_attribute, 1.5),
    FunctionMutator("change-constant", values.change_constant, 3.0),
    FunctionMutator("change-constant-shape", values.change_constant_shape, 1.5),
    FunctionMutator("change-input-shape", values.change_input_shape, 2.0),
    FunctionMutator("change-input-value", values.change_input_value, 0.7),
    FunctionMutator("equal-dimensions", values.equal_dimensions, 0.5, prepares=True),
    FunctionMutator("distinct-values", values.distinct_values, 0.5, prepares=True),
    FunctionMutator("opposite-magnitudes", values.opposite_magnitudes, 0.5),
    FunctionMutator("change-type", values.change_type, prepares=True),
    FunctionMutator("as-integers", values.as_integers, prepares=True),
    FunctionMutator("change-size", values.change_size, 0.5, prepares=True),
    FunctionMutator("repeat-dimension", values.repeat_dimension),
    FunctionMutator("change-quantized-type", values.change_quantized_type, 0.5),
    FunctionMutator("change-input-type", values.change_input_type, 0.5),
    FunctionMutator("change-cast", values.change_cast, 0.5),
    FunctionMutator("extra-output", connections.extra_output, 1.5),
    FunctionMutator("drop-output", connections.drop_output, 0.5),
    FunctionMutator("extra-consumer", connections.extra_consumer),
    FunctionMutator("insert-unary", between.insert_unary, 1.5),
    FunctionMutator("insert-returned", between.insert_returned),
    FunctionMutator("insert-idle", between.insert_idle, 2.0),
    FunctionMutator("insert-reshape", between.insert_reshape, 1.5),
    FunctionMutator("append-fragment", connections.append_fragment),
    FunctionMutator("append-same", connections.append_same, 1.5),
    FunctionMutator("parallel-node", connections.parallel_node),
    FunctionMutator("same-input-twice", connections.same_input_twice, 0.7),
    FunctionMutator("swap-inputs", connections.swap_inputs),
    FunctionMutator("rewire", connections.rewire),
    FunctionMutator("drop-node", connections.drop_node),
    FunctionMutator("omit-input", optional_parts.omit_input),
    FunctionMutator("add-input", optional_parts.add_input),
    FunctionMutator("newer-part", optional_parts.newer_part, 1.5),
    FunctionMutator("respell", respell.respell, 2.0),
    FunctionMutator("variadic-input", optional_parts.variadic_input),
    FunctionMutator("more-outputs", optional_parts.more_outputs, 0.7),
    FunctionMutator("wrap-in-if", subgraphs.wrap_in_if),
    FunctionMutator("branch-of-values", subgraphs.branch_of_values),
    FunctionMutator("hold-value", between.hold_value, 0.7),
    FunctionMutator("wrap-in-loop", subgraphs.wrap_in_loop, 0.5),
    FunctionMutator("quantize-edge", between.quantize_edge),
    FunctionMutator("make-function", subgraphs.make_function),
    FunctionMutator("change-role", form.change_role, 2.0),
    FunctionMutator("constant-form", form.constant_form),
    FunctionMutator("share-weight", form.share_weight, 0.7),
    FunctionMutator("rename-values", form.rename_values, 0.7),
    FunctionMutator("invented-name", form.invented_name, 0.7),
    FunctionMutator("name-nodes", form.name_nodes, 0.3),
    FunctionMutator("change-opset", form.change_opset, 1.5, prepares=True),
    FunctionMutator("type-and-opset", form.type_and_opset, prepares=True),
    FunctionMutator("old-ir", form.old_ir, 0.5),
    FunctionMutator("spell-domain", form.spell_domain, 0.3),
    FunctionMutator("symbolic-shapes", form.symbolic_shapes, prepares=True),
    FunctionMutator("empty-and-open", form.empty_and_open, 0.3),
    FunctionMutator("annotate-values", form.annotate_values, 0.5),
    FunctionMutator("unused-weight", form.unused_weight, 0.5),
    FunctionMutator("pass-through", form.pass_through, 0.5),
    FunctionMutator("order-nodes", form.order_nodes, 0.7),
    FunctionMutator("set-field", form.set_field),
    FunctionMutator("equation-letters", rare.equation_letters),
    FunctionMutator("rare-type", rare.rare_type, 0.5),
    FunctionMutator("training-info", rare.training_info, 0.2),
    FunctionMutator("repeat-in-branch", rare.repeat_in_branch),
)
"""Weights: what can be varied in many ways, attributes and constants above all, has more."""


@hookimpl
def optvet_generators() -> Iterable[Mutator]:
    """All mutators."""
    return list(_EDITS)
