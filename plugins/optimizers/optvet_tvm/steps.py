"""What passes make of a model, step by step: pipelines that are tried on it share most steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Step:
    """A module, and what passes make of it.

    Attributes:
        module: Of Relax.
        digest: Of its content as it was at first.
        after: By the name of a pass, the step behind it: the same one if the module is equal.
    """

    module: Any
    digest: int
    after: dict[str, Step] = field(default_factory=dict)

    @classmethod
    def of(cls, module: Any) -> Step:
        """A step that no pass was applied to."""
        import tvm_ffi

        return cls(module, tvm_ffi.structural_hash(module))

    def apply(self, name: str, make_pass: Callable[[str], Any]) -> Step:
        """The step behind a pass, which is applied to a module once."""
        if name not in self.after:
            step = Step.of(make_pass(name)(self.module))
            # Most passes hand out a new object even where they changed nothing, and some the same
            # one although they changed it.
            self.after[name] = self if step.digest == self.digest else step
        return self.after[name]

    def is_intact(self) -> bool:
        """Whether neither a pass nor a run has changed the module in place, weights included."""
        import tvm_ffi

        return bool(tvm_ffi.structural_hash(self.module) == self.digest)


def are_intact(steps: Sequence[Step]) -> bool:
    """Whether all are."""
    return all(step.is_intact() for step in {id(step): step for step in steps}.values())


def with_own_weights(module: Any) -> Any:
    """The module with a copy of its weights, for a run may overwrite those of its executable."""
    import tvm
    import tvm_ffi

    def copy(constant: Any) -> Any:
        value = constant.value
        if not isinstance(value, tvm.runtime.Tensor):
            return constant
        return tvm.ir.GenericConst(value.copyto(tvm.cpu()), constant.ty, constant.span)

    return tvm_ffi.structural_map(module, (tvm.ir.GenericConst, copy))
