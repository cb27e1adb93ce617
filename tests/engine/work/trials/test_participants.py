"""Who takes part follows from what an optimizer declares."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.participants import choose_runtime, reference_for
from optvet.spec.errors import InputError, PluginError, UsageError
from optvet.spec.request import VetRequest
from optvet.spec.types import Traits
from optvet.testing import Planted
from optvet_onnxruntime.runtime import OrtRuntime
from optvet_openvino.optimizer import OpenVinoOptimizer
from optvet_openvino.runtime import OpenVinoRuntime
from optvet_tvm.optimizer import TvmOptimizer
from optvet_tvm.runtime import TvmRuntime

NET = '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }'


def only_acme() -> OrtRuntime:
    """A runtime that runs a format of its own, and no ONNX."""
    runtime = OrtRuntime()
    runtime.name, runtime.accepts = "acme", frozenset({"acme"})
    return runtime


@pytest.mark.parametrize(
    ("optimizer", "runtime"),
    [(TvmOptimizer(), TvmRuntime()), (OpenVinoOptimizer(), OpenVinoRuntime())],
    ids=["tvm", "openvino"],
)
def test_the_original_of_what_is_lowered_runs_on_the_reference_runtime(
    optimizer: TvmOptimizer | OpenVinoOptimizer, runtime: TvmRuntime | OpenVinoRuntime
) -> None:
    # Although both runtimes run ONNX too: by the same import, whose faults would go unseen.
    assert "onnx" in runtime.accepts
    reference = reference_for(Plugins(), optimizer, RuntimeConfig(runtime, runtime.options))
    assert reference.runtime.name == Plugins().reference_runtime().name == "onnxruntime"


def test_the_original_of_what_stays_a_model_runs_where_the_optimized_one_runs() -> None:
    judge = RuntimeConfig(TvmRuntime(), TvmRuntime.options)
    assert reference_for(Plugins(), Planted(), judge) is judge


def test_a_runtime_that_does_not_run_what_is_produced_is_refused() -> None:
    with pytest.raises(UsageError, match=r"runs onnx, onnx-session; .* produces tvm-executable"):
        choose_runtime(Plugins(), TvmOptimizer(), "onnxruntime")


def test_a_reference_that_no_runtime_can_run_is_the_plugin_s_mistake() -> None:
    plugins = Plugins().register("runtime", only_acme())
    optimizer = Planted(traits=Traits(produces="acme"))
    with pytest.raises(PluginError, match="'acme', which runs acme, does not run onnx; say ref"):
        choose_runtime(plugins, optimizer, None)
    lowers = Planted(traits=Traits(produces="acme", reference="empty pipeline"))
    assert choose_runtime(plugins, lowers, None).name == "acme"


def test_an_optimizer_of_another_format_is_not_given_onnx(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    plugins = Plugins().register("optimizer", Planted(traits=Traits(consumes="acme")))
    request = VetRequest(model=str(path), optimizer="planted", jobs=1, cache_dir=tmp_path)
    with pytest.raises(InputError, match="is of format onnx; optimizer 'planted' takes acme"):
        vet_model(open_model(path, str(path), tmp_path), request, plugins)
