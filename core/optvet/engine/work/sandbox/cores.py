"""What a process got of the processor's cores: a busy machine makes no task too slow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CoreTimes:
    """What a process got so far, in seconds.

    Attributes:
        used: The time of all threads on cores.
        waited: The time in which a thread was ready to run and had no core, by thread; empty
            where the kernel does not tell.
    """

    used: float = 0.0
    waited: Mapping[str, float] = field(default_factory=dict)

    def waited_since(self, before: CoreTimes, work_s: float) -> float:
        """The longest wait of a thread since ``before``; 0 if ``work_s`` were used since.

        What has used that much was no victim of others, however many threads it has.
        """
        if self.used - before.used >= work_s:
            return 0.0
        waits = (now - before.waited.get(thread, 0.0) for thread, now in self.waited.items())
        return max(waits, default=0.0)


def cores_of(pid: int) -> CoreTimes:
    """What a process got so far; nothing if it has ended, or the kernel does not tell."""
    folder = Path(f"/proc/{pid}")
    waited: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The name of the program comes first, in parentheses, and may have spaces.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for thread in os.listdir(folder / "task"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                schedule = (folder / "task" / thread / "schedstat").read_text()
                waited[thread] = int(schedule.split()[1]) / 1e9
        return CoreTimes(used, waited)
    return CoreTimes()
