from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from optvet.cli import app, commands
from optvet.cli.app import COMMANDS, GROUPS, load_command

HEAVY = ("numpy", "onnx", "pydantic", "scipy")


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


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_the_help_says_of_a_command_what_its_own_help_says(name: str) -> None:
    said = (COMMANDS | GROUPS)[name]
    loaded = load_command(name)
    assert isinstance(loaded, commands.Command | commands.Group)
    assert " ".join((loaded.help or "").split("\n\n")[0].split()) == said
    assert name in typer.main.get_group(app).commands
