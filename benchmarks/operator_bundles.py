"""Writes the gravest faults of exported operators as bundles, and runs the script of each.

    python benchmarks/operator_bundles.py DIR --torch SOURCES --keras SOURCES [--only NAME …]
        [--torch-python PYTHON] [--keras-python PYTHON]

SOURCES are folders that ``torch_operators.py`` and ``keras_layers.py`` wrote. Each fault is
converted and reduced into DIR/NAME by ``optvet convert --reduce``; then its ``reproduce.py`` is run
by a Python that has the framework and its converter, but need not have optvet. Columns: the fault,
its exporter, symptom and culprit, and what the script exited with: 1 while the fault is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import optvet
from optvet.engine.work.sandbox import keep_servers

GRAVEST = (
    ("torch", "any", "torch_script"),
    ("torch", "nn_functional_avg_pool2d", "torch_dynamo"),
    ("torch", "nn_functional_softplus", "torch_script"),
    ("torch", "atan2", "torch_dynamo"),
    ("torch", "cdist", "torch_script"),
    ("torch", "masked_var", "torch_dynamo"),
    ("torch", "nn_functional_cosine_embedding_loss", "torch_dynamo"),
    ("torch", "nn_functional_batch_norm", "torch_dynamo"),
    ("torch", "nn_functional_logsigmoid", "torch_script"),
    ("keras", "layer_Normalization", "keras_export"),
    ("keras", "layer_RandomBrightness", "keras_export"),
    ("keras", "layer_Activation", "keras_export"),
)
"""Framework, file and exporter: wrong without a word first, then what no runtime loads."""
_LIMIT_S = 600


def main() -> int:
    """Write and replay them; 1 if a script does not show its fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for framework in ("torch", "keras"):
        parser.add_argument(f"--{framework}", type=Path)
        parser.add_argument(f"--{framework}-python", default=sys.executable)
    parser.add_argument("--only", nargs="*", default=[])
    options = vars(parser.parse_args())
    keep_servers()
    missed = 0
    for framework, name, via in GRAVEST:
        if options[framework] is None or (options["only"] and name not in options["only"]):
            continue
        source = options[framework] / f"{name}.py:sample_0"
        folder = options["folder"] / f"{name}-{via}".replace(",", "-")
        code, words = _replay(source, via, folder, options[f"{framework}_python"])
        missed += code != 1
        print(f"{name:42} {via:13} {words:42} {code}", flush=True)
    return int(missed > 0)


def _replay(source: Path, via: str, folder: Path, python: str) -> tuple[int | None, str]:
    """The exit code of the script of a reduced fault, None without one, and the fault in words."""
    result = optvet.convert(
        str(source),
        via=via.split(","),
        random=1,
        sizes=False,
        cross_check=["onnx_reference"],
        trust=True,
        reduce=folder,
    )
    faults = [f for f in result.findings if f.severity == "fault"]
    words = f"{faults[0].symptom}: {faults[0].culprit}" if faults else result.verdict
    script = folder.absolute() / "reproduce.py"
    if not script.exists():
        return None, words
    done = subprocess.run(
        [python, str(script)], cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S
    )
    (folder / "reproduced.txt").write_text(done.stdout + done.stderr)
    return done.returncode, words


if __name__ == "__main__":
    sys.exit(main())
