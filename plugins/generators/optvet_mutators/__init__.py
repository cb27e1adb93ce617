"""Mutators: small changes of a model, driven by the schemas of operators; none knows a pass."""

from __future__ import annotations

from collections.abc import Iterable

from optvet.plugin import Mutator, hookimpl
from optvet_mutators import between, form, structure, values
from optvet_mutators.common import Edit

_EDITS = (
    Edit("change-attribute", values.change_attribute, 3.0),
    Edit("add-attribute", values.add_attribute, 1.5),
    Edit("change-constant", values.change_constant, 3.0),
    Edit("change-constant-shape", values.change_constant_shape, 1.5),
    Edit("change-input-shape", values.change_input_shape, 2.0),
    Edit("equal-dimensions", values.equal_dimensions, 0.5, prepares=True),
    Edit("distinct-values", values.distinct_values, 0.5, prepares=True),
    Edit("change-type", values.change_type, prepares=True),
    Edit("change-size", values.change_size, 0.5, prepares=True),
    Edit("repeat-dimension", values.repeat_dimension),
    Edit("change-quantized-type", values.change_quantized_type, 0.5),
    Edit("change-input-type", values.change_input_type, 0.5),
    Edit("change-cast", values.change_cast, 0.5),
    Edit("extra-output", structure.extra_output, 1.5),
    Edit("drop-output", structure.drop_output, 0.5),
    Edit("extra-consumer", structure.extra_consumer),
    Edit("insert-unary", between.insert_unary, 1.5),
    Edit("insert-idle", between.insert_idle, 2.0),
    Edit("insert-reshape", between.insert_reshape, 1.5),
    Edit("append-fragment", structure.append_fragment, 2.0),
    Edit("append-same", structure.append_same, 1.5),
    Edit("parallel-node", structure.parallel_node),
    Edit("same-input-twice", structure.same_input_twice, 0.7),
    Edit("swap-inputs", structure.swap_inputs),
    Edit("rewire", structure.rewire),
    Edit("drop-node", structure.drop_node),
    Edit("omit-input", structure.omit_input),
    Edit("add-input", structure.add_input),
    Edit("variadic-input", structure.variadic_input),
    Edit("more-outputs", structure.more_outputs, 0.7),
    Edit("wrap-in-if", structure.wrap_in_if),
    Edit("branch-of-values", structure.branch_of_values),
    Edit("hold-value", structure.hold_value, 0.7),
    Edit("wrap-in-loop", structure.wrap_in_loop, 0.5),
    Edit("quantize-edge", structure.quantize_edge),
    Edit("make-function", structure.make_function),
    Edit("change-role", form.change_role, 2.0),
    Edit("constant-form", form.constant_form),
    Edit("share-weight", form.share_weight, 0.7),
    Edit("rename-values", form.rename_values, 0.7),
    Edit("invented-name", form.invented_name, 0.7),
    Edit("name-nodes", form.name_nodes, 0.3),
    Edit("change-opset", form.change_opset, 1.5, prepares=True),
    Edit("type-and-opset", form.type_and_opset, prepares=True),
    Edit("old-ir", form.old_ir, 0.5),
    Edit("spell-domain", form.spell_domain, 0.3),
    Edit("symbolic-shapes", form.symbolic_shapes, prepares=True),
    Edit("annotate-values", form.annotate_values, 0.5),
    Edit("unused-weight", form.unused_weight, 0.5),
    Edit("pass-through", form.pass_through, 0.5),
    Edit("order-nodes", form.order_nodes, 0.3),
    Edit("set-field", form.set_field),
)
"""Weights: what can be varied in many ways, attributes and constants above all, has more."""


@hookimpl
def optvet_generators() -> Iterable[Mutator]:
    """All mutators."""
    return list(_EDITS)
