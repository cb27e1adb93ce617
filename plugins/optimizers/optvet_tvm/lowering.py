"""Lowering of a module to an executable without any optimization."""

from __future__ import annotations

import os
from typing import Any

from optvet_tvm.passes import REQUIRED_LOWERING, make_pass


def build_unoptimized(module: Any) -> Any:
    """An executable of the virtual machine, built by the passes that none can be built without."""
    import tvm
    from tvm import relax

    target = tvm.target.Target("llvm")
    with target, tvm.transform.PassContext(opt_level=3):
        for name in REQUIRED_LOWERING:
            module = make_pass(name)(module)
        return relax.build(module, target, relax_pipeline=None)


def use_threads(count: int) -> None:
    """Let kernels use ``count`` threads; 0 for as many as there are processors."""
    import tvm

    tvm.get_global_func("runtime.config_threadpool")(1, count or os.cpu_count() or 1)
