"""A condition given as a command, whose exit code says whether a model is interesting."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, TypeProto

from optvet.engine.reduce.reduction_order import Budget, Reduction, ReductionCandidate, reduce_model
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inner_values import infer, inferred_types_of
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.errors import UsageError
from optvet.spec.scratch import temporary_folder

PLACE = "{model}"


def parse_command(text: str) -> list[str]:
    """The words of a command, which is run without a shell.

    >>> parse_command("python check.py '{model}'")
    ['python', 'check.py', '{model}']
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--check {text!r}: {error}; close the quotation") from error
    if not any(PLACE in word for word in words):
        raise UsageError(
            f"--check {text!r}: expected {PLACE} where the model's path is to stand, such as "
            f"'python check.py {PLACE}'"
        )
    return words


@dataclass(frozen=True)
class CheckCommand:
    """A command that exits 0 for interesting models; not with another code, a signal or a timeout.

    Attributes:
        words: The command and its arguments; ``{model}`` stands for the path of a model.
        folder: Folder for the files of candidates.
        timeout_s: Wall-clock limit of one run.
        jobs: Number of parallel runs.
    """

    words: Sequence[str]
    folder: Path
    timeout_s: float = 60.0
    jobs: int = 1

    def __call__(self, candidates: Sequence[ReductionCandidate]) -> Iterator[bool]:
        """Answers in order; when the caller stops reading, the remaining runs are ended."""
        following = iter(enumerate(candidates))
        running: list[_Run] = []
        try:
            while True:
                while len(running) < max(1, self.jobs):
                    index, candidate = next(following, (0, None))
                    if candidate is None:
                        break
                    running.append(self._start(index, candidate.model))
                if not running:
                    return
                yield running[0].answer(self.timeout_s)
                running.pop(0).end()
        finally:
            for run in running:
                run.end()

    def _start(self, index: int, model: ModelProto) -> _Run:
        path = self.folder / f"candidate-{index}.onnx"
        path.write_bytes(model.SerializeToString())
        words = [word.replace(PLACE, str(path)) for word in self.words]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Its own session, so that Ctrl-C reaches the reducer only.
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"--check: {words[0]!r} cannot be run ({error.strerror}); give a program on the "
                "path, or its full path"
            ) from error
        return _Run(process, path, time.monotonic())


@dataclass(frozen=True)
class _Run:
    process: subprocess.Popen[bytes]
    path: Path
    began: float

    def answer(self, timeout_s: float) -> bool:
        left = self.began + timeout_s - time.monotonic()
        try:
            return self.process.wait(max(0.0, left)) == 0
        except subprocess.TimeoutExpired:
            return False

    def end(self) -> None:
        # The whole session, since children of the command may outlive it.
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.path.unlink(missing_ok=True)


def reduce_by_command(
    model: ModelProto,
    words: Sequence[str],
    *,
    timeout_s: float = 60.0,
    jobs: int = 1,
    budget: Budget | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Reduction:
    """The smallest model found for which the command exits 0; see ``reduce_model``.

    Raises:
        UsageError: The command cannot be run, or does not exit 0 for the whole model.
    """
    preload = ("onnx", infer.__module__)
    with (
        temporary_folder("optvet-reduce-") as folder,
        Sandbox(jobs=1, preload=preload) as sandbox,
    ):
        known = sandbox.call(infer, model.SerializeToString()).value or {}
        types = {name: TypeProto.FromString(data) for name, data in known.items()}
        command = CheckCommand(words, Path(folder), timeout_s, jobs)

        def infer_types(candidate: ModelProto, strict: bool) -> Mapping[str, TypeProto] | None:
            return sandbox.call(inferred_types_of, candidate, strict).value

        def interesting(candidates: Sequence[ReductionCandidate]) -> Iterable[bool]:
            return command(candidates)

        return reduce_model(
            model,
            None,
            interesting,
            types=types,
            infer=infer_types,
            width=max(1, jobs),
            budget=budget,
            progress=progress,
        )
