"""Lines of passes' own code that no model has reached: near misses of what they look for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from contextlib import contextmanager
from types import CodeType

from optvet.engine.hunt.rewrites import complaint_about
from optvet.engine.hunt.suspicions import Complaint
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.work.trials.code_of_passes import files_of_passes, tracing
from optvet.spec.extras import given
from optvet.spec.optimizer_protocols import OptimizerExtras

_EACH = 4
"""One model in so many is watched: that makes all Python code slower by half."""


class ReachedCode:
    """Notes lines that no model has reached before; nothing if the passes are not in Python.

    ``complaint`` is about a plugin that does not say where its code is.
    """

    def __init__(self, tested: TestedOptimizer, known: Set[str] | None) -> None:
        """``known`` are lines that were reached, as ``take`` gives them; None to note none."""
        self._known, self._new = {*(known or ())}, set[str]()
        self._files: dict[str, str] = {}
        self._noted: dict[str, set[int]] = defaultdict(set)
        self.complaint: Complaint | None = None
        optimizer, names = tested.optimizer, dict.fromkeys((*tested.each, *tested.whole))
        if known is not None and given(optimizer, OptimizerExtras.code_of):
            try:
                self._files = files_of_passes(optimizer, names, tested.options)
            except Exception as error:  # the hunt goes on without, and tells it
                self.complaint = complaint_about(tested, "code_of", error)

    @contextmanager
    def watching(self, number: int) -> Iterator[None]:
        """Note the lines that run meanwhile, if the model of this number is one of those."""
        if not self._files or number % _EACH:
            yield
            return
        with tracing(self._files, self._note):
            yield

    def _note(self, code: CodeType, line: int) -> None:
        noted = self._noted[code.co_filename]
        if line in noted:  # most have run thousands of times
            return
        noted.add(line)
        place = f"{self._files[code.co_filename]}:{line}"
        if place not in self._known:
            self._new.add(place)

    def has_new(self) -> bool:
        """Whether a line was reached that no model had reached before."""
        return bool(self._new)

    def take(self) -> tuple[str, ...]:
        """The new lines, which are known from now on, by module and number."""
        taken, self._new = tuple(sorted(self._new)), set()
        self._known.update(taken)
        return taken
