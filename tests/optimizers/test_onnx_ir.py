import onnx
import pytest
from tests.needs import needs
from tests.optimizers.small_network import BEFORE, NET, as_artifact, operators

from optvet.spec.errors import UnknownName
from optvet_onnx_ir import OnnxIr

needs("onnx_ir", reason="needs onnx-ir; install optvet[onnxscript]")

IR = OnnxIr()


def test_passes_are_those_of_the_installed_library() -> None:
    import onnx_ir.passes.common as passes

    names = {f"{p.name}Pass" for p in IR.passes()} | {"CheckerPass"}
    assert names == {name for name in passes.__all__ if name.endswith("Pass")}


def test_a_pass_does_its_own_work_and_says_so() -> None:
    artifact = IR.apply(as_artifact(NET), ["IdentityElimination", "TopologicalSort"], IR.options)
    assert BEFORE - operators(artifact) == {"Identity": 1}
    assert artifact.changing_passes == ("IdentityElimination",)


def test_no_passes_leave_every_node() -> None:
    assert operators(IR.apply(as_artifact(NET), (), IR.options)) == BEFORE


def test_a_pass_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'IdentityElimination'"):
        IR.apply(as_artifact(NET), ["IdentityEliminatio"], IR.options)


def test_passes_that_change_the_interface_are_not_in_the_default_pipeline() -> None:
    default = set(IR.pipelines()["default"])
    assert not {"AddInitializersToInputs", "ClearMetadataAndDocString"} & default
    model = IR.apply(as_artifact(NET), ["AddInitializersToInputs"], IR.options)
    assert len(onnx.load_from_string(model.data).graph.input) > 1
