"""Every command that ``--help`` lists does what it is for, once, on something tiny."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from tests.commands import CLEAN, FAULTY, Run, few_diagnosed, quick_timing

import optvet.cli

__all__ = ["few_diagnosed", "quick_timing"]

ROOT = Path(__file__).parents[2]
FILE = 'name = "small"\nmodels = ["models/"]\noptimizers = ["onnxoptimizer"]\n'
HUNT = ("--optimizer", "onnxoptimizer", "--pass", "fuse_transpose_into_gemm")
TINY = ("--pool", "windows:models/clean.onnx", "--operators", "Relu,Identity", "--nodes", "2-3")


class Use(NamedTuple):
    """Arguments of a command, a word that it then says, and its exit codes."""

    arguments: tuple[str, ...]
    says: str
    codes: tuple[int, ...] = (0,)


COMMANDS = {
    "vet": Use(("models/faulty.onnx", "--limit", "1", "--out", "bundles"), "FAULTY", (1,)),
    "replay": Use(("bundles/*",), "STILL THERE", (1,)),
    "reduce": Use(
        ("models/clean.onnx", "--check", "true {model}", "--out", "less.onnx"), "2 nodes → 1"
    ),
    "convert": Use(("models/clean.onnx", "--via", "onnx_version", "--random", "1"), "onnx_version"),
    "repair": Use(
        ("models/clean.onnx", "--converted", "models/clean.onnx", "--random", "1"), "RIGHT"
    ),
    "record": Use(("models/clean.onnx", "--out", "kit"), "python record.py"),
    "precision": Use(("models/clean.onnx", "--limit", "1"), "KEEP NOTHING"),
    "compare": Use(("models/clean.onnx", "models/clean.onnx"), "no value differs"),
    # A busy machine leaves the ratio undecided.
    "bench": Use(("models/clean.onnx", "--repeats", "3", "--limit", "1"), "Structure", (0, 4)),
    "doctor": Use((), "libraries"),
    "explain": Use(("round trip",), "import and export: Reading a model"),
    "schema": Use(("vet",), "$defs"),
    "campaign init": Use(("new.toml",), "wrote new.toml"),
    "campaign run": Use(("small.toml", "--jobs", "1"), "1 finding", (1,)),
    "campaign resume": Use(("small.store",), "1 finding", (1,)),
    "campaign status": Use(("small.store",), "complete"),
    "campaign show": Use(("small.store",), "1 finding", (1,)),
    "campaign diff": Use(("small.store", "small.store"), "2 shared jobs"),
    "campaign export": Use(("small.store", "--out", "small.csv"), "small.csv"),
    "campaign repair": Use(("small.store",), "nothing was lost"),
    "campaign gc": Use(("small.store", "--size", "1M"), "removed"),
    "campaign tables": Use(("small.store", "--study", "ditox"), "same outputs"),
    "campaign rate": Use(("small.store",), "fingerprint,model,culprit"),
    "report": Use(("small.store", "--study", "converters"), "Findings: 1"),
    "hunt": Use(
        (*HUNT, "--pool", "windows:models/faulty.onnx", "--budget", "3", "--out", "hunted"),
        "1 finding",
        (1,),
    ),
    "hunt report": Use(("hunted",), "1 faults"),
    "hunt file": Use(("hunted",), "1 issue of 1 cause"),
    "plugins": Use((), "onnxoptimizer"),
    "plugins show": Use(("onnxoptimizer",), "fixed_point"),
    "plugins new": Use(("dataset", "tiny"), "tiny/pyproject.toml"),
    "models": Use((), "zoo:alexnet"),
    "models list": Use(("--source", "zoo"), "zoo:alexnet"),
    "models show": Use(("models/clean.onnx",), "2 nodes"),
    "models pull": Use(("zoo:wine-logreg", "--to", "pulled.onnx"), "wine-logreg.onnx"),
    "models generate": Use(("--count", "1", "--out", "generated", *TINY), "Relu"),
    "cache info": Use((), "all results"),
    "cache clear": Use((), "removed"),
    "env list": Use((), "environment"),
    # What installs or removes packages is asked for something that is not there.
    "advise": Use(("models/faulty.onnx",), "fuse_transpose_into_gemm", (1,)),
    "known list": Use((), "known faults"),
    "known show": Use(("onnxslim-dropout-mask",), "dead_node_elimination"),
    "known add": Use(("models", "--out", "."), "models", (2,)),
    "known check": Use((str(ROOT / "known"),), "nothing is wrong"),
    "known page": Use(("--out", "known.md"), "known faults"),
    "bisect": Use(("models/clean.onnx", "--index", "models"), "has no wheel of it", (2,)),
    "env clear": Use(("no-such-package",), "unknown release", (2,)),
    "env make": Use(("no-such-environment",), "unknown environment", (2,)),
}
"""Uses of each command, in an order in which each finds what it needs."""


def every_command() -> Iterator[str]:
    """Names of all commands and of those below them."""
    module: Any = sys.modules[optvet.cli.__name__ + ".app"]
    for name in typer.main.get_group(module.app).commands:
        yield from _below(name, module.load_command(name))


def _below(name: str, command: Any) -> Iterator[str]:
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield name
    for each, inner in below.items():
        yield from _below(f"{name} {each}", inner)


@pytest.mark.long
@pytest.mark.usefixtures("few_diagnosed", "quick_timing")
def test_every_command_does_something(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write("models/clean.onnx", CLEAN)
    write("models/faulty.onnx", FAULTY)
    (tmp_path / "small.toml").write_text(FILE)
    run("--version")
    assert set(COMMANDS) == set(every_command())
    wrong = []
    for name, use in COMMANDS.items():
        given = [
            found
            for a in use.arguments
            for found in (map(str, sorted(tmp_path.glob(a))) if "*" in a else [a])
        ]
        ran = run(*name.split(), *given)
        said = ran.out + ran.err
        if ran.code not in use.codes or use.says not in said or "Traceback" in said:
            wrong.append(
                f"{name}: exit code {ran.code}, not {use.codes}, or not {use.says!r}: {said[-200:]}"
            )
    assert not wrong, "\n".join(wrong)
