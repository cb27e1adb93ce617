"""``optvet vet blocks:PATH``."""

from __future__ import annotations

from pathlib import Path

import onnx
from tests.commands import Run
from tests.models.test_blocks import network


def test_a_vet_of_blocks_says_what_it_does_not_see(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "deep.onnx"
    onnx.save(
        network(range(24)), path, save_as_external_data=True, location="deep.data", size_threshold=0
    )
    ran = run("vet", f"blocks:{path}", "--json", tmp_path / "answer.json")
    assert ran.code == 0, ran.err
    words = " ".join((tmp_path / "answer.json").read_text().split())
    assert "12 of 122 nodes: 2 of 24 equal blocks of 5 nodes" in words
    assert "not seen is what needs more blocks" in words


def test_what_cannot_be_cut_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(network([1]), path)
    ran = run("vet", f"blocks:{path}")
    assert (ran.code, ran.out) == (2, "")
    assert f"vet it whole: optvet vet {path}" in " ".join(ran.err.split())
    assert "no such file" in run("vet", "blocks:nothere.onnx").err
    path.write_bytes(b"no model")
    ran = run("vet", f"blocks:{path}")
    assert ran.code == 2
    assert "is no ONNX model" in " ".join(ran.err.split())
    outside = network(range(5))
    onnx.save(outside, path, save_as_external_data=True, location="data", size_threshold=0)
    (tmp_path / "data").unlink()
    ran = run("vet", f"blocks:{path}")
    assert ran.code == 2
    assert "weights of 'w0'" in " ".join(ran.err.split())
