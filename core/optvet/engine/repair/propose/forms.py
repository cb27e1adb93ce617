"""Builds one operator of a source out of ONNX's operators, at the operator set of a model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from optvet.spec.converters import SourceValue

_SUM_AXES, _AXES = 13, 18
"""Operator sets from which on axes are an input: of ReduceSum, of the other reductions."""


class UnknownForm(Exception):
    """The operator is given something that its form does not cover."""


@dataclass
class OperatorForm:
    """A model under construction that computes what one operator of a source computes.

    Attributes:
        operator: The source's operator.
        version: The operator set of ONNX.
        constants: Operands that no input changes, by their number.
        dtypes: Types of the other operands, by their number.
    """

    operator: SourceValue
    version: int
    constants: dict[int, np.ndarray]
    dtypes: dict[int, np.dtype[Any]]
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    read: dict[int, str] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def operand(self, *where: int | str) -> str:
        """An operand by argument name, or by its number; a constant becomes a weight.

        Raises:
            UnknownForm: There is none.
        """
        found = self.optional(*where)
        if not found:
            raise UnknownForm(f"{self.operator.operator} has no operand {where}")
        return found

    def optional(self, *where: int | str) -> str:
        """As ``operand``; empty if there is none."""
        index = self._index(where)
        if index is None:
            return ""
        if index in self.constants:
            value = self.constants[index]
            return self.constant(value if value.ndim else value.astype(self.dtype))
        if index not in self.dtypes:
            return ""
        return self.read.setdefault(index, f"given_{index}")

    def setting(self, name: str, usual: Any = None) -> Any:
        """An argument that is no tensor, as the source writes it; else ``usual``."""
        for operand in self.operator.operands:
            if operand.name == name and operand.constant is not None:
                return operand.constant
        for known in (self.operator.settings, self.operator.attributes):
            if known.get(name) is not None:
                return known[name]
        return usual

    def numbers(self, name: str, count: int, usual: Any = None) -> list[int]:
        """A setting that is one number or a list of ``count``."""
        value = self.setting(name, usual)
        listed = list(value) if isinstance(value, (list, tuple)) else [value]
        if not listed or not all(isinstance(v, int) for v in listed):
            raise UnknownForm(f"{name} is {value!r}")
        return listed * count if len(listed) == 1 else listed

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the first operand that is no constant; else that of the result."""
        return self.dtypes[min(self.dtypes)] if self.dtypes else self.operator.value.dtype

    @property
    def is_float(self) -> bool:
        """Whether it computes with floats."""
        return self.dtype.kind == "f"

    def constant(self, value: Any, dtype: Any = None) -> str:
        """A weight; a number has the type of the operands."""
        kind = dtype if dtype is not None else (None if np.ndim(value) else self.dtype)
        array = np.asarray(value) if kind is None else np.asarray(value, kind)
        name = f"constant_{next(self._numbers)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def shape(self, *values: int) -> str:
        """A list of integers."""
        return self.constant(np.asarray(values, np.int64))

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The first result of a node."""
        output = f"value_{next(self._numbers)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def cast(self, value: str, dtype: Any) -> str:
        """The value as another type."""
        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reduce(self, operator: str, value: str, axes: Sequence[int], keep: bool) -> str:
        """A reduction over ``axes``, or over all for none."""
        kept: dict[str, Any] = {"keepdims": int(keep)}
        if axes and self.version >= (_SUM_AXES if operator == "ReduceSum" else _AXES):
            return self.op(operator, value, self.shape(*axes), **kept)
        return self.op(operator, value, **(kept | ({"axes": list(axes)} if axes else {})))

    def unsqueezed(self, value: str) -> str:
        """The value with an axis more, the last."""
        if self.version >= _SUM_AXES:
            return self.op("Unsqueeze", value, self.shape(-1))
        return self.op("Unsqueeze", value, axes=[-1])

    def rank(self, *where: int | str) -> int:
        """The number of axes of the result, or of a constant operand."""
        index = self._index(where) if where else None
        if index is not None and index in self.constants:
            return self.constants[index].ndim
        return self.operator.value.ndim

    def model(self, result: str, ir_version: int) -> tuple[ModelProto, list[int]]:
        """The whole, and the numbers of the operands that are its inputs, in order."""
        places = sorted(self.read)
        inputs = [onnx.ValueInfoProto(name=self.read[place]) for place in places]
        graph = helper.make_graph(
            self.nodes, "form", inputs, [onnx.ValueInfoProto(name=result)], self.weights
        )
        opset = helper.make_opsetid("", self.version)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=ir_version)
        return model, places

    def _index(self, where: Sequence[int | str]) -> int | None:
        operands = self.operator.operands
        for each in where:
            if isinstance(each, int) and each < len(operands):
                return each
            index = next((i for i, o in enumerate(operands) if o.name == each), None)
            if index is not None:
                return index
        return None
