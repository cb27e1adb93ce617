from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, TypeProto, helper, numpy_helper, parser

from optvet.graph.types import (
    INTEGERS,
    agrees,
    correct_declaration,
    dtype_name,
    element_bits,
    element_types,
    has_negative,
    inferred_types,
    numpy_dtype,
    same_type,
    type_of_array,
)
from optvet.spec.types import ValueInfo


def tensor(*shape: int | str | None, kind: int = TensorProto.FLOAT) -> TypeProto:
    return helper.make_tensor_type_proto(kind, list(shape))


def test_types_are_the_same_only_where_every_dimension_is_known_to_be() -> None:
    assert same_type(tensor(2, "N"), tensor(2, "N"))
    assert not same_type(tensor(2, "N"), tensor(2, "M"))
    assert not same_type(tensor(2, None), tensor(2, None))
    assert not same_type(tensor(2), tensor(2, kind=TensorProto.INT64))


def test_a_declared_type_allows_every_size_of_an_open_dimension() -> None:
    assert agrees(tensor("N", 3), tensor(7, 3))
    assert not agrees(tensor("N", 3), tensor(7, 4))
    assert correct_declaration(tensor("N", 3), tensor(7, 4)) == tensor("N", 4)


def test_a_size_below_zero_is_noticed() -> None:
    assert has_negative(tensor(2, -1))
    assert not has_negative(tensor(2, "N"))


@pytest.mark.parametrize(
    ("array", "kind"), [(np.zeros(2, np.float16), "float16"), (np.array(["a"]), "string")]
)
def test_the_type_of_an_array(array: np.ndarray, kind: str) -> None:
    found = type_of_array(array)
    assert found is not None
    assert dtype_name(found.tensor_type.elem_type) == kind


def test_every_element_type_but_text_and_six_bits_has_its_width() -> None:
    unknown = {dtype_name(n) for n in TensorProto.DataType.values() if element_bits(n) is None}
    # Newer releases of onnx know these; such tensors are refused, not guessed at.
    assert unknown - {"float6e2m3", "float6e3m2"} == {"undefined", "string"}
    assert element_bits(TensorProto.INT4) == 4
    assert element_bits(999) is None


def test_every_integer_type_has_its_range() -> None:
    ranges = {dtype_name(n): limits for n, limits in INTEGERS.items()}
    assert ranges["int4"] == (-8, 7)
    assert ranges["uint64"] == (0, 2**64 - 1)
    assert {n for n in map(dtype_name, TensorProto.DataType.values()) if "int" in n} == {*ranges}


def model(ir_version: int) -> ModelProto:
    """A product with a weight that is too large to be copied for inference."""
    made = parser.parse_model(
        f"""<ir_version: {ir_version}, opset_import: ["" : 17]>
        g (float[N,60] x) => (float[N,60] y) {{ p = MatMul(x, w) y = Relu(p) }}"""
    )
    made.graph.initializer.append(numpy_helper.from_array(np.zeros((60, 60), np.float32), "w"))
    return made


@pytest.mark.parametrize("ir_version", [3, 8])
def test_inference_knows_the_types_of_weights_that_it_does_not_copy(ir_version: int) -> None:
    types = inferred_types(model(ir_version))
    assert types is not None
    assert types["p"] == tensor("N", 60)
    assert element_types(model(ir_version))["p"] == TensorProto.FLOAT


def test_a_model_of_wrong_types_is_refused() -> None:
    wrong = model(8)
    wrong.graph.node[1].input[0] = "nothing"
    assert inferred_types(wrong) is None


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float", np.dtype(np.float32)),
        ("double", np.dtype(np.float64)),
        ("int64", np.dtype(np.int64)),
        ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
        ("string", np.dtype(object)),
    ],
)
def test_numpys_dtype_of_a_tensor_is_that_of_its_elements(
    dtype: str, expected: np.dtype[Any]
) -> None:
    assert numpy_dtype(ValueInfo("x", dtype, (1,))) == expected


@pytest.mark.parametrize("dtype", ["sequence(tensor(float))", "optional", "undefined", ""])
def test_what_is_no_tensor_has_no_dtype_of_numpys(dtype: str) -> None:
    with pytest.raises(ValueError, match=r"'x' is a .*expected a tensor"):
        numpy_dtype(ValueInfo("x", dtype, (1,)))
