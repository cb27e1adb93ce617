"""Machine code of kernels, kept: most passes over a graph leave its kernels as they are.

LLVM takes longer to compile kernels than all passes of TVM take together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

_KEPT = 8
_kept: OrderedDict[tuple[int, object, str], tuple[Any, Any]] = OrderedDict()
"""The last modules of kernels with their machine code, by hash, setting and pipeline."""


@contextmanager
def compiled_once(setting: object) -> Iterator[None]:
    """Within, equal modules of kernels are compiled once.

    Args:
        setting: What else the machine code depends on, apart from the target.
    """
    import tvm

    compile_anew = tvm.tirx.build

    def build(module: Any, target: Any = None, pipeline: Any = "default") -> Any:
        import tvm_ffi

        key = (tvm_ffi.structural_hash(module), (setting, str(target)), str(pipeline))
        known, code = _kept.get(key, (None, None))
        if known is None or not tvm_ffi.structural_equal(known, module):
            code = compile_anew(module, target=target, pipeline=pipeline)
            _kept[key] = module, code
        _kept.move_to_end(key)
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
        return code

    with patch.object(tvm.tirx, "build", build):
        yield
