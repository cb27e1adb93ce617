"""What the plugins of TVM and PyTorch tell ``optvet doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optvet.engine.environment.checks import check_imports, check_shadows
from optvet.engine.environment.doctor import merge
from optvet.plugin import Installation, Ran, Unimportable
from optvet_torch.onnx2torch import TorchRuntime
from optvet_tvm.runtime import TvmRuntime


def installation(
    folder: Path,
    versions: Mapping[str, str],
    unimportable: Mapping[str, Unimportable] | None = None,
) -> Installation:
    def run(function: Any, *arguments: Any) -> Ran:
        return Ran(error="not asked")

    return Installation(versions, (), (), unimportable or {}, folder, run)


def test_a_release_of_tvm_that_crashes_is_broken_and_has_a_cure(tmp_path: Path) -> None:
    def told(version: str) -> list[tuple[str, str]]:
        found = TvmRuntime().diagnose(installation(tmp_path, {"apache-tvm-ffi": version}))
        return [(c.status, c.cure) for c in found]

    assert told("0.1.15.post2") == [("broken", "pip install apache-tvm-ffi==0.1.14.post0")]
    assert told("0.1.14.post0") == []


def test_a_folder_named_torch_is_told_once_with_what_it_does_to_tvm(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    general = check_shadows(tmp_path, ["torch", "tvm"])
    (check,) = merge(general, list(TvmRuntime().diagnose(installation(tmp_path, {}))))
    assert check.status == "warning"
    assert check.message.startswith(f"{general[0].message}; TVM cannot be imported there")


def test_a_torchvision_that_does_not_fit_is_a_warning(tmp_path: Path) -> None:
    versions = {"torchvision": "1", "onnx2torch": "2", "torch": "2.13.0+cpu"}
    no_nms = "RuntimeError: operator torchvision::nms does not exist"
    failed = {
        "torchvision": Unimportable(no_nms, ("torchvision", "torch")),
        "onnx2torch": Unimportable(no_nms, ("onnx2torch", "torchvision", "torch")),
        "torch": Unimportable("ImportError: no libcudart", ("torch",)),
    }
    general = check_imports(failed, versions, {"torch", "onnx2torch"}, 3, "pip")
    own = list(TorchRuntime().diagnose(installation(tmp_path, versions, failed)))
    status = {c.about: (c.status, c.cure) for c in merge(general, own) if c.about}
    fitting = (
        "pip uninstall -y torchvision; pip install torch==2.13.0+cpu torchvision "
        "--index-url https://download.pytorch.org/whl/cpu"
    )
    assert status == {
        ("torchvision",): ("warning", fitting),
        ("onnx2torch",): ("warning", fitting),
        ("torch",): ("broken", "pip install --force-reinstall torch"),
    }


def test_a_default_build_of_torch_gets_the_default_torchvision(tmp_path: Path) -> None:
    failed = {"torchvision": Unimportable("RuntimeError: operator torchvision::nms is missing")}
    versions = {"torchvision": "1", "torch": "2.13.0"}
    (check,) = TorchRuntime().diagnose(installation(tmp_path, versions, failed))
    assert check.cure == "pip uninstall -y torchvision; pip install torch==2.13.0 torchvision"
