"""StableHLO by JAX and IREE, in the environment that ``optvet env make stablehlo`` makes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import optvet
import optvet_stablehlo
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.reduce.converted_source import reduced_or_why_not
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import UsageError

MODULE = """
module {
  func.func public @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %half = stablehlo.constant dense<5.000000e-01> : tensor<3x4xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %y = call @relu(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %n, %z = stablehlo.while(%i = %zero, %a = %y) : tensor<i32>, tensor<3x4xf32>
    cond {
      %c = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i32>
      %scaled = stablehlo.multiply %a, %half : tensor<3x4xf32>
      %sum = stablehlo.add %scaled, %y : tensor<3x4xf32>
      stablehlo.return %next, %sum : tensor<i32>, tensor<3x4xf32>
    }
    RESULT
    return %r : tensor<3x4xf32>
  }
  func.func private @relu(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<3x4xf32>
    %y = stablehlo.maximum %x, %zero : tensor<3x4xf32>
    return %y : tensor<3x4xf32>
  }
}
"""
SMALL = """
module {
  func.func public @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<3x4xf32>
    %z = stablehlo.maximum %x, %zero : tensor<3x4xf32>
    %t = stablehlo.atan2 %z, %z : tensor<3x4xf32>
    %r = stablehlo.tanh %t : tensor<3x4xf32>
    return %r : tensor<3x4xf32>
  }
}
"""
RIGHT = "%r = stablehlo.tanh %z : tensor<3x4xf32>"
# IREE 3.13.0 gives NaN for 0 and 0.
WRONG = """%s = stablehlo.sine %z : tensor<3x4xf32>
    %t = stablehlo.atan2 %z, %s : tensor<3x4xf32>
    %r = stablehlo.tanh %t : tensor<3x4xf32>"""


@pytest.fixture(autouse=True)
def _made() -> None:
    if Pythons({}, environments_root()).python_of("stablehlo") is None:
        pytest.skip("needs: optvet env make stablehlo")
    keep_servers()


def _asked(folder: Path, result: str) -> ConvertRequest:
    return _asked_of(folder, MODULE.replace("RESULT", result))


def _asked_of(folder: Path, module: str) -> ConvertRequest:
    file = folder / "net.mlir"
    file.write_text(module)
    return ConvertRequest(
        model=str(file), via=("iree",), trust=True, random=0, edges=False, timeout=600
    )


def test_a_module_that_is_compiled_right_has_no_finding(tmp_path: Path) -> None:
    result = convert_model(_asked(tmp_path, RIGHT), Plugins())
    assert (result.verdict, result.findings) == ("right", []), result.reason
    assert result.source.runtime == "stablehlo"
    assert [stage.name for stage in result.stages] == ["import", "compile"]


def test_a_text_that_is_no_module_is_bad_input(tmp_path: Path) -> None:
    request = _asked(tmp_path, "%r = stablehlo.nothing %z : tensor<3x4xf32>")
    with pytest.raises(UsageError, match="it is no module of StableHLO"):
        convert_model(request, Plugins())


@pytest.mark.release
def test_a_module_is_reduced_to_the_operator_at_fault(tmp_path: Path) -> None:
    request = _asked_of(tmp_path, SMALL)
    result = convert_model(request, Plugins())
    folder = tmp_path / "part"
    quiet = {"progress": lambda *about: None}
    found = reduced_or_why_not(request, result, Plugins(), folder, **quiet)
    assert (found.part, found.size, found.reproduces) == ("stablehlo.atan2", 1, True), found
    assert found.size_before == 3
    assert "stablehlo.atan2 %arg0, %arg0" in (folder / "part.mlir").read_text()


WRITE = """
import sys
from pathlib import Path

import numpy as np
from optvet.spec.types import Artifact
from optvet.spec.converters import Factory
from optvet_stablehlo import StableHloRuntime

file, folder = map(Path, sys.argv[1:])
runtime, artifact = StableHloRuntime(), Artifact("stablehlo", path=file)
options = runtime.options
feeds = runtime.source_facts(artifact, options).inputs
(expected,) = runtime.load(artifact, options).run(feeds).values()
every = range(len(runtime.operators(artifact, feeds, options)))
runtime.write_operators(artifact, feeds, options, every, folder)
part = Artifact("stablehlo", path=folder / "part.py", handle=Factory("part"))
given = runtime.source_facts(part, options).inputs
(got,) = runtime.load(part, options).run(given).values()
np.testing.assert_array_equal(got, expected)
for inside in (False, True):
    (moved,) = runtime.load_perturbed(artifact, options, 1, inside).run(feeds).values()
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-5)
    assert inside == bool(np.any(moved != expected))
assert not runtime.inside(artifact, feeds, options, None).values[0].constant
"""


def test_all_operators_are_written_as_a_module(tmp_path: Path) -> None:
    """And results of operators are moved; the module's numbers are exact."""
    python = Pythons({}, environments_root()).python_of("stablehlo")
    paths = [Path(m.__file__).parents[1] for m in (optvet, optvet_stablehlo) if m.__file__]
    (tmp_path / "net.mlir").write_text(MODULE.replace("RESULT", WRONG))
    (tmp_path / "write.py").write_text(WRITE)
    (tmp_path / "part").mkdir()
    files = [str(tmp_path / name) for name in ("write.py", "net.mlir", "part")]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [str(python), *files]
    ran = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert ran.returncode == 0, ran.stderr


JAX_SOURCE = """
import numpy as np

example_inputs = (np.linspace(-2, 2, 12).astype("float32").reshape(3, 4),)


def net():
    import jax

    return lambda x, unused=None: jax.nn.softmax(jax.nn.gelu(x) @ np.ones((4, 5), "float32"))
"""


@pytest.mark.long
def test_a_function_of_jax_is_exported_and_compiled(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(JAX_SOURCE)
    request = ConvertRequest(model=f"{tmp_path / 'net.py'}:net", via=("jax_export", "iree"))
    result = convert_model(request, Plugins())
    assert (result.verdict, result.findings) == ("right", []), result.reason
    assert [stage.name for stage in result.stages] == ["export", "import", "compile"]
