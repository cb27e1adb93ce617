"""A runtime as what is vetted: an optimizer without passes, whose import and kernels are at fault.

``--optimizer runtime:NAME`` compares the runtime NAME with another one, which plays the reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Artifact, Pass, Traits

PREFIX = "runtime:"
_KERNELS = "kernels"


_LACK = re.compile(
    r"not[ _]?implemented|not supported|unsupported|only supports?\b|"
    r"(does|do) not support\b|(does|do)n't support\b|no conversion rule|"
    r"no corresponding \w+ type|provider type for .{1,200} is not set|"
    r"support for (this|domain \S+) is (limited|till)",
    re.I | re.S,
)


def lacks_kernel(error_type: str, message: str) -> bool:
    """Whether an error says that a program lacks an operator or a type, which is no fault."""
    return _LACK.search(f"{error_type}: {message}") is not None


class RuntimeTargetOptions(BaseModel, frozen=True, extra="forbid"):
    """None: options of the runtime are given with ``--runtime-option``."""


class RuntimeTarget:
    """The optimizer that hands every model to ``runtime`` as it is.

    Attributes:
        runtime: The runtime under test.
        judge: Another runtime, whose outputs are the reference.
    """

    options = RuntimeTargetOptions()
    traits = Traits(reference="empty pipeline", dialect=True)

    def __init__(self, runtime: Runtime, judge: Runtime) -> None:
        self.runtime, self.judge = runtime, judge
        self.name = PREFIX + runtime.name
        self.preload: Sequence[str] = (*runtime.preload, *judge.preload)

    def version(self) -> str:
        """That of the runtime."""
        return self.runtime.version()

    def passes(self) -> Sequence[Pass]:
        """One that does nothing: a fault is one of the import and the kernels."""
        return (Pass(_KERNELS),)

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """The only one."""
        return {"default": (_KERNELS,)}

    def apply(
        self, source: Artifact, passes: Sequence[str], options: RuntimeTargetOptions
    ) -> Artifact:
        """The model itself."""
        return source

    def snippet(self, passes: Sequence[str], options: RuntimeTargetOptions) -> str:
        """The model itself."""
        return "return model"
