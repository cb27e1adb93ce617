"""jax2onnx, in the environment that ``optvet env make jax`` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import UsageError
from optvet.spec.records.convert import ConversionResult

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


def small():
    import jax

    return lambda x: jax.numpy.log1p(x) * 2.0


small.example_inputs = (np.linspace(1e-7, 1e-5, 9).astype("float32"),)


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


@pytest.mark.parametrize("function", ["cnn", "attention", "recurrent", "added"])
def test_what_is_converted_right_has_no_finding(source: Path, function: str) -> None:
    result = converted(source, function)
    assert (result.verdict, result.findings) == ("right", []), result.reason
    assert result.source.runtime == "jax"
    assert result.stages[-1].state in ("same", "drift")


def test_cancellation_is_found_at_its_operator(source: Path) -> None:
    (finding,) = (f for f in converted(source, "small").findings if f.severity != "note")
    assert (finding.symptom, finding.culprit) == ("wrong-output", "jax2onnx/convert")
    assert finding.place is not None
    assert finding.place.operator == "jax.log1p"
    assert finding.place.line.startswith(f"{source}:")


def test_a_factory_that_makes_no_function_is_bad_input(source: Path) -> None:
    with pytest.raises(UsageError, match=r"number\(\) returned a int, expected a function"):
        converted(source, "number")
