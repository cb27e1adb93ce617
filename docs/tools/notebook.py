# ruff: noqa: INP001 -- a script, in no package
"""The notebook of the site: runs it, and makes a page of it.

    python docs/tools/notebook.py

runs the cells of ``docs/notebook.ipynb`` in order and keeps what the last expression of each shows.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "notebook.ipynb"


def run(cells: list[dict[str, Any]]) -> None:
    """Run the code of ``cells`` in order, in the current folder, and set their outputs."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate((c for c in cells if c["cell_type"] == "code"), 1):
        cell["execution_count"] = number
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(FILE), "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(FILE), "eval"), names)
        cell["outputs"] = [] if value is None else [_output(value, number)]


def _output(value: Any, number: int) -> dict[str, Any]:
    data = {"text/plain": [repr(value)]}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = [value._repr_html_()]
    return {
        "output_type": "execute_result",
        "execution_count": number,
        "metadata": {},
        "data": data,
    }


def markdown() -> str:
    """The notebook as a page."""
    parts = []
    for cell in json.loads(FILE.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output["data"]
            if "text/html" in data:
                parts.append(f'<div class="output">{"".join(data["text/html"])}</div>')
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(parts)


def main() -> None:
    """Run the notebook in an empty folder and write it back."""
    notebook = json.loads(FILE.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(notebook["cells"])
    FILE.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
