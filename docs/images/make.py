# ruff: noqa: INP001 -- a script, in no package
"""Makes the pictures of docs/gallery.md and docs/tutorial.md: screens of real runs.

Run it again whenever a screen changes: python docs/images/make.py [NAME…]

Each picture is a command on the models of a page, as a terminal of 80 columns shows it; what the
page does in Python is done first.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 80
PICTURES = {
    "vet": ("tutorial.md", "optvet vet detector.onnx"),
    "layers": (
        "how-to/half-precision.md",
        "optvet compare norm.onnx half.onnx --dataset files:inputs.npz --runtime onnx_reference"
        " --layers",
    ),
    "convert": ("how-to/export.md", "optvet convert segment.py:model --via torch_script"),
    "levels": ("how-to/enable-all.md", "optvet vet norm.onnx --optimizer onnxruntime"),
    "each": ("", "optvet vet zoo:digits-cnn --strategy each"),
    "bench": ("", "optvet bench zoo:digits-cnn --optimizer onnxruntime --pipeline each"),
}
DOCS = Path(__file__).resolve().parents[1]


def main() -> None:
    """Draw the pictures that are named, or all."""
    for name in sys.argv[1:] or PICTURES:
        page, command = PICTURES[name]
        with tempfile.TemporaryDirectory() as folder:
            if page:
                prepare(DOCS / page, Path(folder))
            draw(command, on_terminal(command, folder), DOCS / "images" / f"{name}.svg")


def prepare(page: Path, folder: Path) -> None:
    """Run the Python of a page in ``folder``; what begins with a file's name becomes that file."""
    for code in re.findall(
        r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        if named := re.match(r'"""(\w+\.py)"""', code):
            (folder / named[1]).write_text(code, "utf-8")
        else:
            subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def on_terminal(command: str, folder: str) -> str:
    """What a terminal gets from a command, without its progress."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    said = bytearray()
    try:
        while data := os.read(ours, 1 << 16):
            said += data
    except OSError:  # how a terminal says that its other side is closed
        os.close(ours)
    process.wait()
    return said.decode("utf-8").replace("\r\n", "\n")


def draw(command: str, said: str, file: Path) -> None:
    """Write a screen as SVG."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=COLUMNS,
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text(f"$ {command}"))
    console.print(Text.from_ansi(said))
    console.save_svg(str(file), title="optvet", unique_id="optvet")


if __name__ == "__main__":
    main()
