from onnx import ModelProto, parser

from optvet.graph.cost import longest_reduction, macs, total_nodes


def model_of(text: str, ir_version: int = 8) -> ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : 17]> {text}')


def test_macs_counts_convolutions_and_products() -> None:
    model = model_of("""
        g (float[1,2,5,5] x, float[4,2,3,3] w, float[9,7] v) => (float[1,4,7] y)
        {
            c = Conv (x, w)
            s = Constant <value_ints = [1, 4, 9]> ()
            r = Reshape (c, s)
            y = MatMul (r, v)
        }
    """)
    assert macs(model) == 4 * 9 * 2 * 9 + 4 * 7 * 9


def test_macs_of_unknown_shapes_are_unknown_until_given() -> None:
    model = model_of("g (float[n,3] x, float[3,5] w) => (float[n,5] y) { y = Gemm (x, w) }")
    assert macs(model) is None
    assert macs(model, {"x": (2, 3)}) == 2 * 3 * 5
    assert macs(model) is None  # the model itself has learned nothing


def test_macs_of_a_model_that_lists_its_weights_among_the_inputs() -> None:
    text = """g (float[2,3] x, float[3,2] w) => (float[2,2] y)
        <float[3,2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul (x, w) }"""
    assert macs(model_of(text, ir_version=3)) == 2 * 3 * 2


def test_the_longest_sum_is_that_of_the_widest_weight() -> None:
    wide = "w = {" + ", ".join(["1"] * 600) + "}"
    text = f"g (float[2,300] x) => (float[2,2] y) <float[300,2] {wide}> {{ y = MatMul (x, w) }}"
    assert longest_reduction(model_of(text)) == 300
    assert longest_reduction(model_of("g (float[2] x) => (float[2] y) { y = Exp(x) }")) == 64


def test_nodes_inside_of_branches_and_functions_count() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (bool c, float[2] x) => (float[2] y) {
            a = own.twice (x)
            y = If (c) <
                then_branch = t () => (float[2] t1) { t1 = Exp(a) },
                else_branch = e () => (float[2] e2) { e1 = Neg(a) e2 = Neg(e1) }
            >
        }
        <domain: "own", opset_import: ["" : 17]>
        twice (x) => (y) { y = Add(x, x) }
    """)
    assert total_nodes(model) == 2 + 3 + 1
