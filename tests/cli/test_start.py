from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from optvet.cli import app, commands
from optvet.cli.app import COMMANDS, GROUPS, load_command

HEAVY = ("numpy", "onnx", "pydantic", "scipy")
INTERRUPTED = """
import sys, optvet.cli, optvet_start
def run():
    try:
        exec("raise KeyboardInterrupt")  # as in the import of a dataclass
    except KeyboardInterrupt:
        return 130
optvet.cli.main = run
sys.exit(optvet_start.main())
"""


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_needs_no_model_loads_no_library(option: str) -> None:
    code = (
        "import sys; from optvet_start import main; sys.argv = ['optvet', sys.argv[1]]; main(); "
        f"print('loaded:', [n for n in {HEAVY} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, option], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.endswith("loaded: []\n"), done.stdout + done.stderr


def test_an_interrupt_that_was_heeded_does_not_change_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, timeout=60)
    assert done.returncode == 130


def test_a_broken_installation_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ValueError('broken')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "optvet_start", "cache", "info"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert done.stderr == (
        "error: optvet cannot be imported: ValueError('broken'); install it again\n"
    )


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_the_help_says_of_a_command_what_its_own_help_says(name: str) -> None:
    said = (COMMANDS | GROUPS)[name]
    loaded = load_command(name)
    assert isinstance(loaded, commands.Command | commands.Group)
    assert " ".join((loaded.help or "").split("\n\n")[0].split()) == said
    assert name in typer.main.get_group(app).commands


@pytest.mark.long
def test_a_short_vet_looks_for_garbage_not_once(tmp_path: Path) -> None:
    words = ["vet", "zoo:digits-mlp", "--limit", "1", "--quiet", "--cache-dir", str(tmp_path)]
    code = (
        "import gc, sys; gc.collect(); from optvet_start import main; sys.argv[1:] = "
        f"{words}; count = lambda: sum(s['collections'] for s in gc.get_stats()); "
        "before = count(); status = main(); "
        "print('collections:', count() - before, 'frozen:', gc.get_freeze_count() > 9999, status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("collections: 0 frozen: True 0\n"), done.stdout + done.stderr


def test_a_vet_does_not_import_the_runtime_into_its_own_process(tmp_path: Path) -> None:
    """Its native code is for workers, and takes a tenth of what a short command takes."""
    words = ["vet", "zoo:digits-mlp", "--limit", "1", "--cache-dir", str(tmp_path), "--quiet"]
    code = (
        f"import sys; from optvet_start import main; sys.argv[1:] = {words}; status = main(); "
        "print('onnxruntime' in sys.modules, status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("False 0\n"), done.stdout + done.stderr
