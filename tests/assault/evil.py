"""An optimizer whose passes are evil, among innocent ones; written as a third party would."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict
from tests.assault import evil_deaths as _deaths  # noqa: F401
from tests.assault import evil_results as _results  # noqa: F401
from tests.assault import evil_states as _states  # noqa: F401
from tests.assault.harness import LONG
from tests.assault.kinds import KINDS, Kind, Returns, destroyed

# Imported for what they register.
from optvet.plugin import Artifact, Pass, Traits, hookimpl

__all__ = ["KINDS", "PLAIN_FAULT", "Evil", "Kind", "provoke"]

INNOCENT = ("keep_a", "keep_b", "keep_c", "slow")
PLAIN_FAULT = "relu_to_tanh"
"""A pass that is wrong and does nothing evil."""


class NoOptions(BaseModel):
    """Nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass
class Evil:
    """Applies evil passes, of which it has those in ``evils``."""

    name: str = "evil"
    evils: tuple[str, ...] = tuple(KINDS)
    preload: Sequence[str] = ("onnx", "tests.assault.evil")
    options: BaseModel = field(default_factory=NoOptions)
    traits: Traits = field(default_factory=lambda: Traits(repeatable=True))

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass(name) for name in (*INNOCENT, PLAIN_FAULT, *self.evils)]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": INNOCENT[:3]}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = source.data
        for name in passes:
            if name == "slow":
                time.sleep(0.1)
            elif name == PLAIN_FAULT:
                model = destroyed(model)
            elif name in KINDS:
                result = KINDS[name].rewrite(model)
                if isinstance(result, Returns):
                    return result.value  # type: ignore[return-value]  # that is the point
                assert isinstance(result, bytes)
                model = result
        return Artifact("onnx", model)


def provoke(name: str, data: bytes) -> str:
    """Do what one evil pass does, in a worker without anything around it.

    What it hands back stays there: the caller of a task unpickles its result, and so must trust it.
    """
    return type(KINDS[name].rewrite(data)).__name__


def telling(kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    """At most two passes with equal true answers; in the long form all."""
    alike: dict[frozenset[str], list[str]] = {}
    for name, kind in kinds.items():
        alike.setdefault(kind.answers, []).append(name)
    return tuple(name for names in alike.values() for name in names[: None if LONG else 2])


@hookimpl
def optvet_optimizers() -> Sequence[Evil]:
    findings = {name: kind for name, kind in KINDS.items() if "refused" not in kind.answers}
    quick = telling({name: kind for name, kind in findings.items() if not kind.waits})
    slow = tuple(name for name, kind in findings.items() if kind.waits)
    return [Evil(), Evil("evil_quick", quick), Evil("evil_slow", slow)]
