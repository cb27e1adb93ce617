"""A place to be attacked in, and what must be true of it afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("OPTVET_ASSAULT") == "long"
"""Whether all is tried, and not the sample that every run of the tests takes."""


def some(everything: Sequence[str], number: int) -> list[str]:
    """All of it in the long form, else ``number`` of them, always the same."""
    return list(everything) if LONG else sorted(random.Random(9).sample(everything, number))


MARK = "OPTVET_ASSAULT_MARK"
OWN_FAULT = "bug in optvet"
SLACK_S = 60.0
"""What starting processes may take on a machine that does other work too."""


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).normal(size=shape).ravel()
    return "{" + ", ".join(f"{v:.4f}" for v in values) + "}"


NET = f"""
<ir_version: 8, opset_import: ["" : 17]>
net (float[4,8] x) => (float[4,3] y, float[4,5] hidden)
<float[8,5] w = {numbers(8, 5)}, float[5,3] v = {numbers(5, 3, seed=1)}>
{{
    h = MatMul(x, w)
    hidden = Relu(h)
    y = MatMul(hidden, v)
}}
"""


@dataclass(frozen=True)
class Ran:
    """What came of one command."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        """All that it wrote to the screen."""
        return self.out + self.err


class Place:
    """A folder that holds all that a command may touch: models, cache, temporary files.

    Every process that descends from one started here carries a mark in its environment.
    """

    def __init__(self, root: Path, sacrifice: str = "") -> None:
        self.root = root
        self.mark = uuid.uuid4().hex
        self.work, self.tmp, self.cache = root / "work", root / "tmp", root / "cache"
        self.data = root / "data"
        for folder in (self.work, self.tmp):
            folder.mkdir(parents=True)
            if sacrifice:
                (folder / sacrifice).touch()
        self.model = root / "model.onnx"
        onnx.save(onnx.parser.parse_model(NET), self.model)
        info = root / "packages" / "evil-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[optvet]\nevil = tests.assault.evil\n")

    @property
    def environment(self) -> dict[str, str]:
        """What commands see."""
        kept = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        path = os.pathsep.join([str(self.root / "packages"), str(ROOT), *filter(None, sys.path)])
        own = {"TMPDIR": str(self.tmp), "OPTVET_CACHE": str(self.cache), "HOME": str(self.root)}
        own["XDG_DATA_HOME"] = str(self.data)
        return kept | own | {"PYTHONPATH": path, "COLUMNS": "100", MARK: self.mark}

    def start(self, *words: object, **settings: Any) -> subprocess.Popen[str]:
        """Start one command as a process of its own; the screen goes to pipes."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-m", "optvet_start", *map(str, words)],
            text=True,
            errors="replace",
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            # Whoever runs the tests in the background of a shell has it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **(pipes | settings),
        )

    def run(self, *words: object, timeout_s: float) -> Ran:
        """Run one command as a process of its own; TimeoutExpired if it hangs."""
        started = time.monotonic()
        with self.start(*words) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                self.end_orphans()
                raise
        return Ran(process.returncode, out, err, time.monotonic() - started)

    def run_together(
        self, *commands: Sequence[object], timeout_s: float, keep_servers: bool = True
    ) -> list[Ran]:
        """Run commands one after the other in one process; see the driver for ``keep_servers``."""
        answers = self.root / f"answers-{uuid.uuid4().hex}.json"
        try:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "tests.assault.driver", str(answers)),
                    *["--keep-servers"] * keep_servers,
                ],
                input=json.dumps([[str(w) for w in words] for words in commands]),
                text=True,
                errors="replace",
                cwd=self.work,
                env=self.environment,
                capture_output=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            self.end_orphans()
            told = answers.read_text() if answers.exists() else "nothing"
            raise AssertionError(f"a command hangs; told before: {told}") from error
        assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr}"
        return [Ran(**a) for a in json.loads(answers.read_text())]

    def living(self) -> dict[int, str]:
        """Processes that carry the mark, with their command lines."""
        mark = f"{MARK}={self.mark}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = words.decode(errors="replace")[:200]
            except OSError:
                continue
        return found

    def orphans(self, patience_s: float = 5.0) -> dict[int, str]:
        """Processes that are still there after ``patience_s``; they are ended."""
        deadline = time.monotonic() + patience_s
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.end_orphans()
        return left

    def end_orphans(self) -> None:
        """Kill every process that carries the mark."""
        for _ in range(3):
            for pid in self.living():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def litter(self) -> list[str]:
        """Temporary files that nobody needs any more; what the evil passes leave is theirs."""
        ours = [p for p in self.tmp.rglob("*") if not p.name.startswith((".assault", "evil-"))]
        halves = [p for p in self.cache.rglob("*") if ".tmp" in p.name or p.name.startswith(".")]
        return sorted(str(p) for p in [*ours, *halves])


def answer(path: Path) -> dict[str, Any]:
    """A vet's answer as --json wrote it, without what it cost and how the cache fared."""
    told: dict[str, Any] = json.loads(path.read_text())
    told.pop("cost", None)
    told["controls"] = [c for c in told["controls"] if c["name"] != "cache"]
    return told
