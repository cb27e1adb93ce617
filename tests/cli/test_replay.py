from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.commands import FAULTY

import optvet.cli
from optvet.engine.discovery import Plugins

Run = Callable[..., Any]
LARGER_FAULTY = """<ir_version: 8, opset_import: ["" : 17]>
larger (float[3,2] a, float[3,4] b) => (float[2,4] y) {
    c = Abs(b)  t = Transpose(a)  z = Gemm(t, c)  y = Relu(z) }"""
HAS_GEMM = "import sys; sys.exit(b'Gemm' not in open(sys.argv[1], 'rb').read())"


def test_a_bundle_is_written_and_replayed(run: Run, faulty: Path, tmp_path: Path) -> None:
    ran = run("vet", faulty, "--reduce", "--out", tmp_path / "out")
    assert ran.code == 1
    (bundle,) = (tmp_path / "out").iterdir()
    assert "before" in ran.out
    ran = run("replay", bundle)
    assert (ran.code, ran.out.splitlines()[0]) == (1, f"STILL THERE  {bundle.name}")
    ran = run("replay", bundle, "--json", "-")
    assert (ran.code, json.loads(ran.out)["outcome"]) == (1, "still there")


PAYLOAD = "from pathlib import Path\nPath({!r}).touch()\ndef f(): return None\n"


def set_in(bundle: Path, **values: Any) -> None:
    file = bundle / "finding.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is made once, to be copied."""
    folder = tmp_path_factory.mktemp("original")
    onnx.save(onnx.parser.parse_model(FAULTY), folder / "faulty.onnx")
    words = ["--out", "out", "-q", "--cache-dir", "cache"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert optvet.cli.main(["vet", "faulty.onnx", *words]) == 1
    (bundle,) = (folder / "out").iterdir()
    return bundle


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "out" / original.name))


@pytest.mark.long
def test_a_bundle_cannot_name_code_or_files_unless_it_is_trusted(run: Run, bundle: Path) -> None:
    seen, out = bundle / "seen", bundle / "written.bin"
    (bundle / "payload.py").write_text(PAYLOAD.format(str(seen)))
    extra = {"extra_passes": [f"x={bundle}/payload.py:f"]}
    config = {"config": {"session.optimized_model_external_initializers_file_name": str(out)}}
    cases: list[tuple[str, dict[str, Any]]] = [("onnxruntime", config)]
    if "tvm" in Plugins().names("optimizer"):
        cases.append(("tvm", extra))
    for optimizer, options in cases:
        set_in(bundle, optimizer=optimizer, optimizer_options=options)
        ran = run("replay", bundle)
        assert ran.code == 2
        assert f"finding.json: key 'optimizer_options.{next(iter(options))}'" in ran.err
        assert "--trust" in ran.err
        assert (seen.exists(), out.exists()) == (False, False)
    ran = run("replay", bundle, "--trust")
    assert "say --trust" not in ran.err


def test_no_file_of_a_bundle_is_executed(
    spawn: Callable[..., Any], bundle: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    for name in ("repro", "payload", "numpy", "onnx", "onnxruntime", "onnxoptimizer", "conftest"):
        (bundle / f"{name}.py").write_text(PAYLOAD.format(str(seen)))
    command = [str(Path(sys.executable).parent / "optvet"), "replay", "."]
    ran = subprocess.run(command, cwd=bundle, capture_output=True, text=True, check=False)
    assert (ran.returncode, seen.exists()) == (1, False), ran.stderr


def test_a_fixed_model_is_fixed(run: Run, bundle: Path) -> None:
    model = onnx.load(bundle / "model.onnx")
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("perm", [1, 0]))
    onnx.save(model, bundle / "model.onnx")
    assert run("replay", bundle).code == 0


@pytest.mark.long
def test_one_finding_in_two_models_is_told_once(
    run: Run, write: Callable[[str, str], Path], faulty: Path, clean: Path, tmp_path: Path
) -> None:
    out, folder = tmp_path / "out", write("models/c.onnx", LARGER_FAULTY).parent
    shutil.copy(clean, folder / "a.onnx")
    shutil.copy(faulty, folder / "b.onnx")
    ran = run("vet", folder, "--reduce", "--out", out, "--json", tmp_path / "all.json")
    assert ran.code == 1
    (bundle,) = out.iterdir()
    sound, *faults = json.loads((tmp_path / "all.json").read_text())["results"]
    assert sound["findings"] == []
    assert [f["bundle"] for r in faults for f in r["findings"]] == [bundle.name] * 2
    (fingerprint,) = {f["fingerprint"] for r in faults for f in r["findings"]}
    assert bundle.name.endswith(fingerprint[:8])
    assert len([line for line in ran.out.splitlines() if line.startswith(fingerprint[:8])]) == 1


def test_a_file_is_no_folder_for_bundles(run: Run, faulty: Path, tmp_path: Path) -> None:
    ran = run("vet", faulty, "--out", faulty)
    assert (ran.code, "would overwrite the command's model; give another path" in ran.err) == (
        2,
        True,
    )


def test_what_is_no_bundle_is_refused(run: Run, tmp_path: Path) -> None:
    ran = run("replay", tmp_path)
    assert ran.code == 2
    assert "no bundle" in ran.err


def test_a_sound_model_has_no_bundles(run: Run, clean: Path, tmp_path: Path) -> None:
    assert run("vet", clean, "--reduce", "--out", tmp_path / "out").code == 0
    assert not (tmp_path / "out").exists()


def test_a_command_must_name_the_model_and_exist(run: Run, faulty: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    ran = run("reduce", faulty, "--check", "true", "--out", out)
    assert (ran.code, "{model}" in ran.err) == (2, True)
    ran = run("reduce", faulty, "--check", "no-such-program {model}", "--out", out)
    assert (ran.code, "cannot be run" in ran.err) == (2, True)
    ran = run("reduce", faulty, "--check", "false {model}", "--out", out)
    assert (ran.code, "nothing to reduce" in ran.err) == (2, True)


INTERRUPTS = (
    "import os, sys; n = open(sys.argv[1], 'rb').read().count(b'Relu'); "
    "n < 20 and os.kill(os.getppid(), int(sys.argv[2]))"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interrupted_reduction_keeps_the_smallest_model_so_far(
    spawn: Callable[..., Any],
    write: Callable[[str, str], Path],
    tmp_path: Path,
    sent: signal.Signals,
    code: int,
) -> None:
    body = "  ".join(f"v{i + 1} = Relu(v{i})" for i in range(40))
    head = '<ir_version: 8, opset_import: ["" : 17]> chain (float[1] v0) => (float[1] v40)'
    model, out = write("chain.onnx", f"{head} {{ {body} }}"), tmp_path / "small.onnx"
    check = shlex.join([sys.executable, "-c", INTERRUPTS, "{model}", str(sent.value)])
    process = spawn("reduce", model, "--check", check, "--out", out)
    printed, complained = process.communicate(timeout=120)
    assert process.returncode == code
    assert f"interrupted; {out} is the smallest model so far" in " ".join(complained.split())
    assert "stopped early" in printed
    assert len(onnx.load(out).graph.node) in range(1, 40)


def test_a_model_is_reduced_by_a_command_in_parallel_to_the_same(
    run: Run, faulty: Path, tmp_path: Path
) -> None:
    check = shlex.join([sys.executable, "-c", HAS_GEMM, "{model}"])
    for jobs in (1, 3):
        out = tmp_path / f"{jobs}.onnx"
        ran = run("reduce", faulty, "--check", check, "--out", out, "--jobs", jobs)
        assert (ran.code, [n.op_type for n in onnx.load(out).graph.node]) == (0, ["Gemm"])
        assert "2 nodes → 1" in ran.out
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "3.onnx").read_bytes()


@pytest.mark.long
def test_many_bundles_and_folders_of_bundles_are_replayed_with_a_table(
    run: Run, bundle: Path, tmp_path: Path
) -> None:
    more = tmp_path / "more" / "deep"
    shutil.copytree(bundle, more / "second")
    shutil.copytree(bundle, more / "broken")
    (more / "broken" / "model.onnx").unlink()
    ran = run("replay", bundle, tmp_path / "more", "--json", tmp_path / "all.json")
    assert ran.code == 2
    assert "3 bundles: 2 still there, 1 error" in ran.out
    results = json.loads((tmp_path / "all.json").read_text())["results"]
    assert [r["schema"] for r in results] == [
        "optvet.replay/2",
        "optvet.error/1",
        "optvet.replay/2",
    ]
    assert "model.onnx is missing" in json.dumps(results[1])
    shutil.rmtree(more / "broken")
    assert run("replay", bundle, tmp_path / "more").code == 1
    assert run("replay", tmp_path / "more").out.startswith("STILL THERE")


@pytest.mark.release
def test_a_shape_that_says_more_stays_there_until_it_does_not(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxslim", reason="infers shapes")
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[A] y) { y = Abs(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "open.onnx")
    words = ("--optimizer", "onnxslim", "--pipeline", "shape_inference", "--out", tmp_path / "out")
    ran = run("vet", tmp_path / "open.onnx", *words, "--fail-on", "metadata-change", "-q")
    assert ran.code == 1, ran.out
    (bundle,) = (tmp_path / "out").iterdir()
    assert run("replay", bundle).code == 1
    script = [sys.executable, str(bundle / "repro.py")]
    said = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (said.returncode, "stronger shapes" in said.stdout) == (1, True), said.stderr
    model = onnx.load(bundle / "model.onnx")
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, bundle / "model.onnx")
    assert run("replay", bundle).code == 0
    assert subprocess.run(script, capture_output=True, check=False).returncode == 0
