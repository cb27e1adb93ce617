"""jax2onnx, in the environment that ``optvet env make jax`` makes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import optvet
import optvet_jax
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.reduce.converted_source import reduced_or_why_not
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import UsageError
from optvet.spec.records.convert import ConversionResult
from optvet_jax.undefined import undefined_by_jax, undefined_by_numpy

SOURCE = """
import numpy as np

rng = np.random.default_rng(0)
W = rng.normal(size=(3, 3, 2, 4)).astype("float32")
V = rng.normal(size=(4, 5)).astype("float32")
example_inputs = (rng.normal(size=(2, 8, 8, 2)).astype("float32"),)


def cnn():
    import jax

    def net(x):
        numbers = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, W, (1, 1), "SAME", dimension_numbers=numbers)
        return jax.nn.softmax(jax.nn.relu(y).mean((1, 2)) @ V)

    return net


def attention():
    import jax

    def net(x):
        q, k, v = jax.numpy.split(x @ V[:, :3], 3, -1)
        return jax.nn.softmax(q @ k.swapaxes(-1, -2) / 2.0) @ v

    return net


attention.example_inputs = (rng.normal(size=(2, 6, 4)).astype("float32"),)


def recurrent():
    import jax
    from jax import numpy as jnp

    def net(x):
        def step(h, a):
            h = jnp.tanh(a @ V[:, :4] + h)
            return h, h

        return jax.lax.scan(step, jnp.zeros((2, 4)), x.swapaxes(0, 1))[0]

    return net


recurrent.example_inputs = attention.example_inputs


def added():
    return lambda x, i: x.at[i].add(1.0)


added.example_inputs = (np.arange(4, dtype="float32"), np.array([0, 0, 2], "int32"))


def all_of_them():
    functions = cnn(), attention(), recurrent(), added()
    return lambda a, b, c, i: [f(*x) for f, x in zip(functions, ((a,), (b,), (b,), (c, i)))]


all_of_them.example_inputs = (*example_inputs, *attention.example_inputs, *added.example_inputs)


def small():
    import jax

    return lambda x: jax.numpy.log1p(x) * 2.0


small.example_inputs = (np.linspace(1e-7, 1e-5, 9).astype("float32"),)


def factored():
    import jax

    return lambda x: (jax.lax.linalg.cholesky(x), jax.numpy.log1p(x * 1e-7))


factored.example_inputs = (np.array([[1.0, 2.0], [2.0, 1.0]], "float32"),)
factored.more_inputs = [(np.array([[4.0, 1.0], [1.0, 3.0]], "float32"),)]


def number():
    return 7
"""


@pytest.fixture(autouse=True)
def _made() -> None:
    if Pythons({}, environments_root()).python_of("jax") is None:
        pytest.skip("needs: optvet env make jax")
    keep_servers()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "jax_sources.py"
    file.write_text(SOURCE)
    return file


def converted(source: Path, function: str) -> ConversionResult:
    request = ConvertRequest(model=f"{source}:{function}", via=("jax2onnx",))
    return convert_model(request, Plugins())


@pytest.mark.release
def test_what_is_converted_right_has_no_finding(source: Path) -> None:
    result = converted(source, "all_of_them")
    assert (result.verdict, result.findings) == ("right", []), result.reason
    assert result.source.runtime == "jax"
    assert result.stages[-1].state in ("same", "drift")


def test_cancellation_is_found_at_its_operator(source: Path) -> None:
    (finding,) = (f for f in converted(source, "small").findings if f.severity != "note")
    assert (finding.symptom, finding.culprit) == ("wrong-output", "jax2onnx/convert")
    assert finding.place is not None
    assert finding.place.operator == "jax.log1p"
    assert finding.place.line.startswith(f"{source}:")


@pytest.mark.release
def test_a_matrix_without_a_factorization_is_no_witness_and_hides_no_fault(source: Path) -> None:
    result = converted(source, "factored")
    (finding,) = (f for f in result.findings if f.severity != "note")
    assert finding.place is not None
    assert finding.place.operator == "jax.log1p"
    assert finding.witness is not None
    left = {each.sample: each.reason for each in result.skipped}
    assert "jax.cholesky: a matrix that is not positive definite" in left["example"]
    assert finding.witness.sample not in left


@pytest.mark.parametrize(
    ("primitive", "parameters", "operand", "is_open"),
    [
        ("cholesky", {}, [[4, 9], [1, 3]], False),  # the upper triangle is not read
        ("cholesky", {}, [[4, 1], [9, 3]], True),
        ("cholesky", {}, [[1, 1], [1, 1]], True),
        ("cholesky", {}, [[np.nan, 0], [0, 1]], True),
        ("qr", {}, [[1, 1], [1, 2]], False),
        ("qr", {}, [[1, 1], [1, 1]], True),
        ("qr", {}, [[1, 1, 5], [1, 2, 5]], False),
        ("svd", {}, [[1, 1], [1, 1]], False),
        ("approx_top_k", {"aggregate_to_topk": True, "recall_target": 0.95}, [1, 2], True),
        ("approx_top_k", {"aggregate_to_topk": True, "recall_target": 1.0}, [1, 2], False),
        ("approx_top_k", {"aggregate_to_topk": False, "recall_target": 1.0}, [1, 2], True),
    ],
)
def test_what_jax_leaves_open_is_known(
    primitive: str, parameters: dict[str, object], operand: object, is_open: bool
) -> None:
    operands = [np.asarray(operand, np.float32)]
    assert bool(undefined_by_jax(primitive, parameters, operands)) is is_open


@pytest.mark.parametrize(
    ("function", "operands", "is_open"),
    [
        ("searchsorted", [[1, 2, 2], [2]], False),
        ("searchsorted", [[2, 1], [2]], True),
        ("digitize", [[2], [2, 1]], False),
        ("digitize", [[2], [2, 1, 3]], True),
        ("polyadd", [[1, 2], [3]], False),
        ("polyadd", [[1, 2], [[3, 4]]], True),
        ("polyval", [[1, 2], [[3, 4]]], False),
        ("polyval", [[[1, 2]], [3, 4]], True),
        ("sort", [[2, 1]], False),
    ],
)
def test_what_functions_like_those_of_numpy_leave_open_is_known(
    function: str, operands: list[object], is_open: bool
) -> None:
    assert bool(undefined_by_numpy(function, [np.asarray(o) for o in operands])) is is_open


def test_a_factory_that_makes_no_function_is_bad_input(source: Path) -> None:
    with pytest.raises(UsageError, match=r"number\(\) returned a int, expected a function"):
        converted(source, "number")


REDUCED = """
import numpy as np

rng = np.random.default_rng(0)
W = rng.normal(size=(6, 8)).astype("float32")
V = rng.normal(size=(4, 8)).astype("float32")
example_inputs = (rng.normal(size=(3, 4)).astype("float32"), np.array([2, -1, 5], "int32"))


def labelled():
    import jax

    def net(x, label):
        # jax2onnx 0.17.1 counts labels below 0 from the end.
        return jax.nn.relu(x) @ V + jax.nn.one_hot(label, 6) @ W

    return net
"""


@pytest.mark.release
def test_a_function_is_reduced_to_the_call_at_fault(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(REDUCED)
    model = f"{tmp_path / 'net.py'}:labelled"
    request = ConvertRequest(
        model=model, via=("jax2onnx",), edges=False, sizes=False, random=0, timeout=600
    )
    result = convert_model(request, Plugins())
    folder = tmp_path / "part"
    quiet = {"progress": lambda *about: None}
    found = reduced_or_why_not(request, result, Plugins(), folder, **quiet)
    assert (found.part, found.size, found.reproduces) == ("jax.nn.one_hot", 1, True), found
    assert found.size_before == 5
    assert "jax.nn.one_hot(x0, 6)" in (folder / "part.py").read_text()


WRITE = """
import runpy
import sys
from pathlib import Path

import numpy as np
from optvet.spec.converters import Factory
from optvet.spec.types import Artifact
from optvet_jax import JaxRuntime

source, folder = sys.argv[1:]
runtime, artifact = JaxRuntime(), Artifact("jax", path=Path(source), handle=Factory("all_of_them"))
feeds = runtime.source_facts(artifact, runtime.options).inputs
expected = runtime.load(artifact, runtime.options).run(feeds)
operators = runtime.operators(artifact, feeds, runtime.options)
every = range(len(operators))
runtime.write_operators(artifact, feeds, runtime.options, every, Path(folder))
part = Artifact("jax", path=Path(folder, "part.py"), handle=Factory("part"))
given = runtime.source_facts(part, runtime.options).inputs
got = runtime.load(part, runtime.options).run(given)
assert list(got) == list(expected)
for name in got:
    np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, atol=1e-6)
print(*(each.name for each in operators))
"""


@pytest.mark.long
def test_all_operators_are_written_as_a_function(source: Path, tmp_path: Path) -> None:
    python = Pythons({}, environments_root()).python_of("jax")
    paths = [Path(optvet.__file__).parents[1], Path(optvet_jax.__file__).parents[1]]
    (tmp_path / "write.py").write_text(WRITE)
    (tmp_path / "part").mkdir()
    command = [str(python), str(tmp_path / "write.py"), str(source), str(tmp_path / "part")]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    ran = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert ran.returncode == 0, ran.stderr
    written = ran.stdout.split()
    assert {"jax.nn.relu", "jax.numpy.split", "jax.scan", "jax.scatter-add"} <= {*written}
    assert written.index("jax.lax.conv_general_dilated") < written.index("jax.nn.relu")
