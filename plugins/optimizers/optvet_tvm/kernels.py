"""Machine code of kernels, kept: most passes over a graph leave most of its kernels as they are.

LLVM takes longer to compile kernels than all passes of TVM take together. Kernels are told apart as
LLVM is given them, behind all passes over their loops, so that none gets the code of another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Compiler = Callable[[Any, Any], Any]
"""Makes machine code of a module of lowered kernels, for a target."""
_KEPT = 64
_COMPILER = "target.build.llvm"
_NO_CODE = "op_pattern"
"""An attribute by which operators are fused, long before."""
_kept: OrderedDict[tuple[int, object], tuple[Any, Any]] = OrderedDict()
"""The last kernels with the modules of their machine code, by hash and setting."""


@contextmanager
def compiled_once(setting: object) -> Iterator[None]:
    """Within, equal kernels are compiled once, where TVM compiles one at a time.

    Args:
        setting: What else the machine code depends on, apart from the target.
    """

    def build(anew: Compiler, lowered: Any, target: Any) -> Any:
        if len(lowered.functions) > 1:
            return anew(lowered, target)
        return _code_of(anew, lowered, target, setting)

    with _in_place_of_compiler(build):
        yield


def build_executable(module: Any, target: Any, setting: object) -> Any:
    """What ``relax.build`` makes of a module; equal kernels are compiled once.

    Each is compiled alone, so that one that cannot be loaded does not spoil executables without it.

    Args:
        module: With all passes over the graph done.
        target: Of LLVM.
        setting: What else the machine code depends on.
    """
    from tvm import relax

    further: list[Any] = []

    def build(anew: Compiler, lowered: Any, target: Any) -> Any:
        if _belong_together(lowered):
            return anew(lowered, target)
        first, *others = [
            _code_of(anew, single, target, setting) for single in _one_by_one(lowered)
        ]
        further.extend(others)
        return first

    with _in_place_of_compiler(build):
        executable = relax.build(module, target, relax_pipeline=None)
    for code in further:
        executable.mod.import_module(code)
    _drop_empty_source(executable.mod)
    return executable


@contextmanager
def _in_place_of_compiler(build: Callable[[Compiler, Any, Any], Any]) -> Iterator[None]:
    """Within, TVM calls ``build`` with its compiler, a module and a target."""
    import tvm

    anew = tvm.get_global_func(_COMPILER)
    tvm.register_global_func(
        _COMPILER, lambda module, target: build(anew, module, target), override=True
    )
    try:
        yield
    finally:
        tvm.register_global_func(_COMPILER, anew, override=True)


def _code_of(anew: Compiler, module: Any, target: Any, setting: object) -> Any:
    """The machine code of a module of one kernel."""
    import tvm_ffi

    (kernel,) = module.functions.values()
    kernel = kernel.without_attr(_NO_CODE)
    # What was lowered reads variables that it does not define.
    key = tvm_ffi.structural_hash(kernel, map_free_vars=True), (setting, str(target))
    known, code = _kept.get(key, (None, None))
    if known is None or not tvm_ffi.structural_equal(known, kernel, map_free_vars=True):
        code = anew(module, target)
        _kept[key] = kernel, code
    _kept.move_to_end(key)
    while len(_kept) > _KEPT:
        _kept.popitem(last=False)
    return code


def _one_by_one(module: Any) -> Iterator[Any]:
    """Modules of one function each."""
    import tvm

    for variable, function in module.functions.items():
        yield tvm.IRModule({variable: function}, attrs=module.attrs)


def _belong_together(module: Any) -> bool:
    """Whether functions cannot be compiled one by one.

    One may call another one of the module, by variable or by name; two of one name are an error.
    """
    import tvm
    import tvm_ffi

    symbols = [str(f.attrs["global_symbol"]) for f in module.functions.values()]
    names = {*symbols, *(v.name_hint for v in module.functions)}
    if len(set(symbols)) < max(len(symbols), 1):
        return True
    found: list[Any] = []
    called = (
        (tvm.ir.GlobalVar, found.append),
        (tvm.ir.StringImm, lambda text: found.append(text) if text.value in names else None),
    )
    for function in module.functions.values():
        tvm_ffi.structural_walk(function.body, called)
    return bool(found)


def _drop_empty_source(module: Any) -> None:
    """Without the empty source in C that stands for no kernels, for which a compiler is started."""
    if [(m.kind, m.inspect_source()) for m in module.imports if m.kind == "c"] == [("c", ";")]:
        module.clear_imports()
