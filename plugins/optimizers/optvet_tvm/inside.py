"""What an executable of TVM computes on the way to its outputs.

The module, as the passes left it before the virtual machine's own lowering, is built once more with
all its values as outputs. That is another executable: what the lowering does to memory is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from optvet.plugin import Feeds, Inner

LOWERED_BY = (
    "RemovePurityChecking CallTIRRewrite LowerAllocTensor LowerRuntimeBuiltin ComputePrimValue "
    "VMShapeLower AttachGlobalSymbol"
).split()
"""The passes that an executable cannot be built without, behind ``ToNonDataflow``."""
_PREFIX = "relax."
"""Names of Relax's own are told from those of ONNX by it."""


def values_of(handle: Mapping[str, Any], feeds: Feeds) -> Sequence[Inner]:
    """The tensors of one run, in the order of computation.

    Args:
        handle: Of an artifact: ``module``, ``target``, and the names of ``inputs`` and ``outputs``.
        feeds: Inputs by name.
    """
    import tvm
    from tvm import relax

    target = tvm.target.Target(handle["target"])
    with target, tvm.transform.PassContext(opt_level=3):
        module = relax.transform.ToNonDataflow()(handle["module"])
        bound = [b for block in module["main"].body.blocks for b in block.bindings]
        outputs = _outputs(module["main"].body.body, bound)
        values_by_var = {hash(b.var): b.value for b in bound}
        in_place = [v for v in values_by_var.values() if _operator(v) == "relax.call_tir_inplace"]
        overwritten = {hash(v) for value in in_place for v in _read(value)}
        shown = [b for b in bound if _is_tensor(b.var) and hash(b.var) not in overwritten]
        module = _expose(module, [b.var for b in shown])
        for name in LOWERED_BY:
            module = getattr(relax.transform, name)()(module)
        executable = relax.build(module, target, relax_pipeline=None)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    arrays = [np.require(feeds[name], requirements="C") for name in handle["inputs"]]
    values = list(main(*[tvm.runtime.tensor(a) for a in arrays]))
    names = {hash(p): n for p, n in zip(module["main"].params, handle["inputs"], strict=False)}
    names |= {hash(b.var): _PREFIX + b.var.name for b in shown}
    names |= dict(reversed(list(zip(outputs, handle["outputs"], strict=False))))
    places = {key: i for i, key in reversed(list(enumerate(outputs)))}
    return [
        Inner(
            (names[hash(b.var)],),
            _function(_maker(b.value, values_by_var)),
            tuple(
                names[hash(v)] for v in _read(_maker(b.value, values_by_var)) if hash(v) in names
            ),
            np.array(value.numpy()),
            places.get(hash(b.var)),
        )
        for b, value in zip(shown, values, strict=True)
    ]


def _is_tensor(var: Any) -> bool:
    from tvm import relax

    return isinstance(var.ty, relax.TensorType)


def _outputs(result: Any, bound: Sequence[Any]) -> list[int]:
    """Keys of the variables that the function returns."""
    values_by_var = {hash(b.var): b.value for b in bound}
    value = values_by_var.get(hash(result))
    several = hasattr(value, "fields")
    return [hash(v) for v in (value.fields if several and value is not None else [result])]


def _expose(module: Any, shown: Sequence[Any]) -> Any:
    """The module with a main function that returns these variables."""
    from tvm import relax

    main, values = module["main"], relax.Tuple(list(shown))
    body = relax.SeqExpr(main.body.blocks, values)
    module = module.clone()
    module["main"] = relax.Function(main.params, body, values.ty, main.is_pure, main.attrs)
    return module


def _operator(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", ""))


def _function(value: Any) -> str:
    """What computes a value: the kernel that is called, else an operator of Relax."""
    operator = _operator(value)
    if operator.startswith("relax.call_"):
        return str(getattr(value.args[0], "name_hint", operator))
    return operator or type(value).__name__


def _maker(value: Any, values_by_var: Mapping[int, Any]) -> Any:
    """The call behind an item of its result, else the value itself."""
    return values_by_var.get(hash(getattr(value, "tuple_value", None)), value)


def _read(value: Any) -> Iterator[Any]:
    """Variables that a bound value reads."""
    todo = list(getattr(value, "args", ())) or [value]
    while todo:
        each = todo.pop(0)
        if hasattr(each, "fields"):
            todo += list(each.fields)
        elif hasattr(each, "name") and hasattr(each, "ty") and not hasattr(each, "op"):
            yield each
