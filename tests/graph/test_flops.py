from onnx import ModelProto, parser

from optvet.graph.flops import flops_of


def model_of(text: str, ir_version: int = 8) -> ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : 17]> {text}')


def test_convolutions_and_products_count_two_for_each_multiplication() -> None:
    model = model_of("""
        g (float[1,2,5,5] x, float[4,2,3,3] w, float[9,7] v) => (float[1,4,7] y)
        {
            c = Conv (x, w)
            s = Constant <value_ints = [1, 4, 9]> ()
            r = Reshape (c, s)
            y = MatMul (r, v)
        }
    """)
    assert flops_of(model) == (2 * (4 * 9 * 2 * 9 + 4 * 7 * 9), {})


def test_operators_of_unknown_shape_are_named_until_a_shape_is_given() -> None:
    model = model_of("g (float[n,3] x, float[3,5] w) => (float[n,5] y) { y = Gemm (x, w) }")
    assert flops_of(model) == (0, {"Gemm": 1})
    assert flops_of(model, {"x": (2, 3)}) == (2 * 2 * 3 * 5, {})
    assert flops_of(model) == (0, {"Gemm": 1})  # the model itself has learned nothing


def test_a_model_that_lists_its_weights_among_the_inputs_is_counted() -> None:
    text = """g (float[2,3] x, float[3,2] w) => (float[2,2] y)
        <float[3,2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul (x, w) }"""
    assert flops_of(model_of(text, ir_version=3)) == (2 * 2 * 3 * 2, {})


def test_elements_reductions_and_moves_of_data_have_their_own_costs() -> None:
    model = model_of("""
        g (float[2,3,4,4] x) => (float[2,3] y)
        {
            a = Relu (x)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
            m = GlobalAveragePool (p)
            f = Flatten (m)
            y = Softmax (f)
        }
    """)
    relu, pool, mean, softmax = 96, 24 * 4, 24, 5 * 6
    assert flops_of(model) == (relu + pool + mean + softmax, {})


def test_operators_without_a_rule_are_named_and_the_rest_is_counted() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (bool c, float[2] x) => (float[2] y) {
            a = own.secret (x)
            y = If (c) <
                then_branch = t () => (float[2] t1) { t1 = Exp(x) },
                else_branch = e () => (float[2] e2) { e1 = Neg(x) e2 = Neg(a) }
            >
        }
    """)
    count, unknown = flops_of(model)
    assert count == 2 + 2 + 2
    assert unknown == {"own::secret": 1, "If": 1}


def test_a_node_without_its_inputs_is_unknown() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Conv(x) }"
    assert flops_of(model_of(text)) == (0, {"Conv": 1})


def test_a_quantized_convolution_reads_its_weight_where_it_stands() -> None:
    model = model_of("""
        g (uint8[1,2,5,5] x, float s, uint8 z, uint8[4,2,3,3] w) => (uint8[1,4,3,3] y)
        { y = QLinearConv (x, s, z, w, s, z, s, z) }
    """)
    assert flops_of(model) == (2 * 36 * 18, {})
