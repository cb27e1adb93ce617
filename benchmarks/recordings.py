"""How many recordings it takes until `optvet compare` names the node that a device gets wrong.

    python benchmarks/recordings.py [--models FOLDER] [--only MODEL,…] [--nodes N]
        [--clients NAME,…] [--node-modules FOLDER] [--web FOLDER]

A device is planted: in each kit that ``optvet record`` writes, a weight of one node is changed, and
a client runs the kit: ``record.py``, ``record.mjs`` in node (with onnxruntime-node in the folder of
``--node-modules``), and ``index.html`` in Chromium (with the folder ``dist`` of onnxruntime-web).
Commands are those that a user types. A node that the kit's own run does not show, since nothing
that it moves leaves the model's noise, is drawn anew.

Exit status 1 unless the node is named in at most three recordings each time.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import machine
import onnx
from onnx import ModelProto, numpy_helper

SHARED = Path(__file__).parents[2] / "shared"
MODELS = "resnet8-cifar10,yolox-nano,tiny-bert-sentiment,squeezenet-fp16,ultraface-rfb-320"
FACTOR = 1.25
MOST = 3
_DAMAGED = {"Conv", "MatMul", "Gemm"}


def optvet(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command as typed."""
    command = [str(Path(sys.executable).with_name("optvet")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def damageable(model: ModelProto) -> list[str]:
    """Outputs of nodes that have a weight which no other node reads."""
    weights = {t.name for t in model.graph.initializer}
    read = [n for node in model.graph.node for n in node.input]
    return [
        node.output[0]
        for node in model.graph.node
        if node.op_type in _DAMAGED and any(n in weights and read.count(n) == 1 for n in node.input)
    ]


def damage(kit: Path, output: str) -> None:
    """Let the node that gives ``output`` be wrong."""
    model = onnx.load(kit / "model.onnx")
    node = next(n for n in model.graph.node if output in n.output)
    tensors = {t.name: t for t in model.graph.initializer}
    weight = next(tensors[n] for n in node.input if n in tensors)
    array = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array((array * FACTOR).astype(array.dtype), weight.name))
    onnx.save(model, kit / "model.onnx")


def in_python(kit: Path, options: argparse.Namespace) -> None:
    """Run the client for Python."""
    command = [sys.executable, "record.py"]
    subprocess.run(command, cwd=kit, check=True, capture_output=True)


def in_node(kit: Path, options: argparse.Namespace) -> None:
    """Run the client for node."""
    (kit / "node_modules").symlink_to(options.node_modules.resolve())
    subprocess.run(["node", "record.mjs"], cwd=kit, check=True, capture_output=True)


class _Handler(SimpleHTTPRequestHandler):
    """Serves a kit, and takes the recording that the page would let its user save."""

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        Path(self.directory, "recording.npz").write_bytes(data)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


_SENDS = "link.click();"


def in_chromium(kit: Path, options: argparse.Namespace) -> None:
    """Run the page; in place of a download it sends what it recorded."""
    (kit / "ort").symlink_to(options.web.resolve())
    page = kit / "index.html"
    text = page.read_text()
    assert _SENDS in text, "the page saves its recording in another way"
    sends = 'await fetch("/recording", { method: "POST", body: done.archive });'
    page.write_text(text.replace(_SENDS, sends))
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(kit)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as profile:
            url = f"http://127.0.0.1:{server.server_port}/index.html?provider=wasm"
            flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
            flags += ["--virtual-time-budget=60000", "--dump-dom"]
            command = [shutil.which("chromium") or "chromium", *flags, url]
            subprocess.run(command, check=True, capture_output=True, timeout=180)
    finally:
        server.shutdown()


CLIENTS = {"python": in_python, "node": in_node, "chromium": in_chromium}


def round_trips(
    model: Path, output: str, client: str, options: argparse.Namespace, folder: Path
) -> tuple[int, str]:
    """Recordings until one node was named, and its output; 0 if none shows a difference."""
    kit, more = folder / "kit-1", ["--dataset", "random"]
    for number in range(1, MOST + 2):
        made = optvet("record", model, "--out", kit, *more)
        if made.returncode:
            return number, made.stderr.strip()
        damage(kit, output)
        try:
            CLIENTS[client](kit, options)
        except subprocess.CalledProcessError as error:  # such as a crash of its runtime
            return number, f"the client ended: {error.returncode}"
        recording = kit / "recording.npz"
        assert zipfile.is_zipfile(recording), f"{client} recorded nothing"
        told = folder / "told.json"
        # Kernels of float16 round differently from one library to the next.
        asked = ("--tolerance", "0.02") if "fp16" in model.name else ()
        answer = optvet("compare", model, recording, "--json", told, *asked)
        if answer.returncode == 0:
            return (0, "nothing differs") if number == 1 else (number, "gone again")
        if answer.returncode != 1:
            return number, answer.stderr.strip()
        found = json.loads(told.read_text())
        if found["recording"]["failure"]:
            return number, found["recording"]["failure"]
        if len(found["before"]) == 1:
            return number, found["diverges_at"]
        kit, more = folder / f"kit-{number + 1}", ["--after", str(recording), *asked]
    return MOST + 1, "several nodes are left"


def rows(options: argparse.Namespace) -> Iterator[bool]:
    """Print a line for each node; whether it was named in time."""
    clients = [c for c in options.clients.split(",") if c]
    for name in options.only.split(","):
        model, random = options.models / f"{name}.onnx", Random(options.seed)
        proto = onnx.load(model)
        possible = damageable(proto)
        for output in random.sample(possible, min(options.nodes, len(possible))):
            for client in clients:
                with tempfile.TemporaryDirectory() as made:
                    trips, told = round_trips(model, output, client, options, Path(made))
                if not trips:
                    print(f"–    {name}, {output}: {told}", flush=True)
                    continue
                good = told == output and trips <= MOST
                words = f"named in {trips}" if good else f"{trips}: {told[:80]}"
                size = len(proto.graph.node)
                line = f"{name}, {output} of {size} nodes, {client}: {words}"
                print(f"{'ok  ' if good else 'MISS'} {line}", flush=True)
                yield good


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all; 1 if a node was not named in time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shared = Path(os.environ.get("OPTVET_TEST_DATA", SHARED)) / "models"
    parser.add_argument("--models", type=Path, default=shared)
    parser.add_argument("--only", default=MODELS)
    parser.add_argument("--nodes", type=int, default=2, help="damaged nodes of each model")
    parser.add_argument("--clients", default="python", help=f"of {', '.join(CLIENTS)}")
    parser.add_argument("--node-modules", type=Path, help="has onnxruntime-node")
    parser.add_argument("--web", type=Path, help="the folder dist of onnxruntime-web")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(machine.describe(machine.environment()), flush=True)
    right = list(rows(options))
    print(f"named in at most {MOST} recordings: {sum(right)} of {len(right)}")
    return int(not right or not all(right))


if __name__ == "__main__":
    sys.exit(main())
