"""What a module computes on the way: every operator that eager PyTorch executes."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optvet.plugin import SourceInside, SourceOperand, SourceValue
from optvet_torch.alike import alike_in_onnx, inputs_in_onnx
from optvet_torch.programs import as_array
from optvet_torch.undefined import undefined_by_function, undefined_by_operator

_MAX_BYTES = 1 << 30
_VIEWS = 8
"""Views of one memory, the last ones, that are noted anew after a write into it."""
_OPEN_TIES = frozenset({"aten.topk", "aten.sort", "aten.kthvalue", "aten.median", "aten.mode"})
"""Operators whose documentation leaves the order of equal elements open; so does no other."""
_OPEN_ORDER = frozenset({"aten._unique", "aten._unique2", "aten.unique_dim"})
"""Those that leave the order of all elements open unless they are told to sort."""
_SORTED_OPERANDS = {"aten.bucketize": "boundaries", "aten.searchsorted": "sorted_sequence"}
"""Those that leave the result open unless this operand is sorted."""


def recorded(
    module: Any,
    call: Callable[..., Any],
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    *,
    names: Sequence[str],
    moved: Callable[[Any], Any] | None = None,
) -> SourceInside:
    """The values of one call of ``module``; with ``moved``, of one whose results are moved.

    ``names`` are those of the inputs in order.

    Raises:
        MemoryError: The values take more than a gigabyte.
    """
    import torch
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    record = _TorchValues(torch, moved)
    for name, tensor in zip(names, (*arguments, *named.values()), strict=True):
        record.fed(tensor, name)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        record.parameter(tensor, name)

    def dispatch(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not hasattr(function, "_schema"):
            return record.control(mode, function, args, kwargs or {})
        return record.call(function, args, kwargs or {})

    parts = {"__torch_dispatch__": dispatch, "supports_higher_order_operators": True}
    mode: Any = type("Recording", (TorchDispatchMode,), parts)
    hooks = []
    traced = isinstance(module, torch.jit.ScriptModule)
    # What was traced takes no hooks: of which part of it an operator is stays unknown.
    for name, part in () if traced else module.named_modules():
        hooks.append(part.register_forward_pre_hook(lambda *_, name=name: record.enter(name)))
        hooks.append(part.register_forward_hook(lambda *_: record.leave(), always_call=True))
    try:
        profile = _profile(None if moved else record.called)
        with torch.no_grad(), _plain_control_flow(), mode(), profile:
            returned = call(module, *arguments, **named)
    finally:
        for hook in hooks:
            hook.remove()
    leaves = [leaf for leaf in _pytree.tree_leaves(returned) if leaf is not None]
    named_tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return SourceInside(
        tuple(record.in_user_words()),
        tuple(record.place(leaf) for leaf in leaves),
        {name: as_array(value) for name, value in named_tensors.items()},
    )


@contextlib.contextmanager
def _plain_control_flow() -> Iterator[None]:
    """Let ``torch.cond`` and its like be called with the user's functions, uncompiled."""
    from torch._higher_order_ops import utils

    name = "_hop_compile_and_call"
    before = getattr(utils, name, None)
    if before is not None:
        setattr(utils, name, lambda function, args: function(*args))
    try:
        yield
    finally:
        if before is not None:
            setattr(utils, name, before)


@contextlib.contextmanager
def _profile(callback: Callable[[Any, str, Any], None] | None) -> Iterator[None]:
    """Tell ``callback`` of calls of functions that are written in C++; nothing if it is None."""
    before = sys.getprofile()
    if callback is not None:
        sys.setprofile(callback)
    try:
        yield
    finally:
        sys.setprofile(before)


class _TorchValues:
    """The values so far, and which tensor each of them is."""

    def __init__(self, torch: Any, moved: Callable[[Any], Any] | None) -> None:
        self.torch, self.moved = torch, moved
        self.values: list[SourceValue] = []
        self._places: dict[int, int] = {}
        self._inputs: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        self._kept: list[Any] = []  # ids of tensors are not used again while these live
        self._sharing: dict[int, list[Any]] = {}  # tensors by the memory that they are views of
        self._modules: list[str] = []
        self._bytes = 0
        self._functions: list[tuple[int, str, Any]] = []  # those being called: number, name, caller
        self._calls = 0
        self._of: dict[int, _Function] = {}

    def called(self, frame: Any, event: str, function: Any) -> None:
        """A profiler's event: what the user calls may be made of several operators."""
        if event == "c_call":
            self._calls += 1
            self._functions.append((self._calls, getattr(function, "__name__", ""), frame))
        elif event in ("c_return", "c_exception") and self._functions:
            self._functions.pop()

    def in_user_words(self) -> Iterator[SourceValue]:
        """The values; operators that one function is made of name that too."""
        many = Counter(of.number for of in self._of.values())
        for i, value in enumerate(self.values):
            of = self._of.get(i)
            if of is not None:
                in_python = many[of.number] > 1 or of.in_python
                named = in_python and of.name.strip("_") not in value.operator
                operator = f"{value.operator} (of {of.name})" if named else value.operator
                settings = {**of.settings, **value.settings}
                words = of.undefined or value.undefined
                value = replace(value, operator=operator, settings=settings, undefined=words)
            yield value

    def fed(self, tensor: Any, name: str) -> None:
        """``tensor`` is an input."""
        self._inputs[id(tensor)] = name
        self._keep(tensor)

    def parameter(self, tensor: Any, name: str) -> None:
        """``tensor`` is a parameter, or a buffer."""
        self._parameters.setdefault(id(tensor), name)
        self._keep(tensor)

    def enter(self, name: str) -> None:
        """A part of the module is called."""
        self._modules.append(name)

    def leave(self) -> None:
        """That call ends."""
        self._modules.pop()

    def place(self, tensor: Any) -> int | None:
        """Where a tensor is among the values."""
        return self._places.get(id(tensor))

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Execute an operator, and note what it gives."""
        from torch.utils import _pytree

        of = _function_of(*self._functions[-1]) if self._functions else None
        tensors = [a for a in _pytree.tree_leaves((args, kwargs)) if self._is_tensor(a)]
        reads = tuple(dict.fromkeys(p for a in tensors if (p := self.place(a)) is not None))
        schema = function._schema
        given = {**dict(zip((a.name for a in schema.arguments), args, strict=False)), **kwargs}
        words = undefined_by_operator(_name_of(schema), given)
        result = function(*args, **kwargs)
        aliased = schema.is_mutable or any(r.alias_info is not None for r in schema.returns)
        if self.moved is not None and tensors and not aliased:
            result = _pytree.tree_map(self.moved, result)
        fed = any(id(a) in self._inputs for a in tensors)
        constant = not fed and all(self.values[p].constant for p in reads)
        operands = tuple(self._operands(given))
        usual = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        plain = {o.name: o.constant for o in operands if o.constant is not None}
        settings = {n: v for n, v in plain.items() if n not in usual or not _is_same(usual[n], v)}
        known = (*alike_in_onnx(function, args, kwargs), inputs_in_onnx(function, args, kwargs))
        for leaf in _pytree.tree_leaves(result):
            if self._is_tensor(leaf):
                about = (_name_of(schema), reads, constant, *known, operands, settings, words)
                if of is not None and not aliased:
                    self._of[len(self.values)] = of
                self._note(leaf, *about)
                is_view = aliased and not schema.is_mutable
                self.values[-1] = replace(self.values[-1], is_view=is_view)
        if schema.is_mutable:
            self._note_views(schema, given)
        return result

    def _note_views(self, schema: Any, given: Mapping[str, Any]) -> None:
        """Note anew the tensors that share the memory into which an operator wrote.

        What reads them from here on reads what it wrote, which a converted model may lack although
        it has the tensor from before.
        """
        from torch.utils import _pytree

        writes = (a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
        written = _pytree.tree_leaves([given.get(name) for name in writes])
        for tensor in filter(self._is_tensor, written):
            self._forget_name(tensor)
            sharing = self._sharing.get(_memory_of(tensor), [])
            # The tensor itself, and those that were viewed lately: a loop makes a view each time.
            for view in [*sharing[:1], *sharing[max(1, len(sharing) - _VIEWS) :]]:
                if view is tensor or self._bytes > _MAX_BYTES // 2:
                    continue
                places = (self.place(tensor), self.place(view))
                reads = tuple(dict.fromkeys(p for p in places if p is not None))
                constant = all(self.values[p].constant for p in reads)
                constant &= id(view) not in self._inputs
                self._forget_name(view)
                about: tuple[Any, ...] = (_name_of(schema), reads, constant, "", {}, (), (), {}, "")
                before = self.place(view)
                self._note(view, *about)
                self.values[-1] = replace(self.values[-1], overwrites=before)

    def _forget_name(self, tensor: Any) -> None:
        """``tensor`` is no input or parameter any more, once it was written into."""
        self._inputs.pop(id(tensor), None)
        self._parameters.pop(id(tensor), None)

    def control(self, mode: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Execute an operator that is given functions, and note what it gives.

        What a branch and the body of a loop compute is noted too.
        """
        from torch.utils import _pytree

        name = function.name()
        decides, iterations = None, None
        if name == "cond":
            condition, taken, other, operands = args
            decides = self.place(condition)
            with mode:
                result = (taken if bool(condition) else other)(*operands)
            leaves = [leaf for leaf in _pytree.tree_leaves(result) if self._is_tensor(leaf)]
            reads = tuple(p for a in (condition, *leaves) if (p := self.place(a)) is not None)
        elif name == "while_loop":
            condition, body, state, more = args
            iterations = 0
            with mode:
                while bool(condition(*state, *more)):
                    state = tuple(body(*state, *more))
                    iterations += 1
            result = state
            reads = tuple(p for a in state if (p := self.place(a)) is not None)
        else:
            result = function(*args, **kwargs)
            tensors = [a for a in _pytree.tree_leaves((args, kwargs)) if self._is_tensor(a)]
            reads = tuple(dict.fromkeys(p for a in tensors if (p := self.place(a)) is not None))
        for leaf in _pytree.tree_leaves(result):
            if self._is_tensor(leaf):
                constant = bool(reads) and all(self.values[p].constant for p in reads)
                self._note(leaf, f"torch.{name}", reads, constant, "", {}, (), (), {}, "")
                self.values[-1] = replace(self.values[-1], decides=decides, iterations=iterations)
        return result

    def _keep(self, tensor: Any) -> None:
        self._kept.append(tensor)
        sharing = self._sharing.setdefault(_memory_of(tensor), [])
        if all(each is not tensor for each in sharing):
            sharing.append(tensor)

    def _operands(self, given: Mapping[str, Any]) -> Iterator[SourceOperand]:
        """What each argument is given; of a list of tensors, each by its number."""
        for name, argument in given.items():
            listed = isinstance(argument, (list, tuple)) and any(map(self._is_tensor, argument))
            for i, each in enumerate(argument if listed else [argument]):
                yield self._operand(f"{name}.{i}" if listed else name, each)

    def _operand(self, name: str, value: Any) -> SourceOperand:
        if self._is_tensor(value):
            input_ = self._inputs.get(id(value), "")
            parameter = self._parameters.get(id(value), "")
            return SourceOperand(name, self.place(value), input_, parameter)
        plain = isinstance(value, (bool, int, float, str, list, tuple))
        return SourceOperand(name, constant=value if plain else None)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def _note(self, tensor: Any, operator: str, *about: Any) -> None:
        reads, constant, alike, attributes, inputs, operands, settings, undefined = about
        value = as_array(tensor).copy()
        self._bytes += value.nbytes
        if self._bytes > _MAX_BYTES:
            raise MemoryError("the values inside the source take more than a gigabyte")
        self._places[id(tensor)] = len(self.values)
        self._keep(tensor)
        module = self._modules[-1] if self._modules else ""
        line = "" if self.moved else _user_line()
        given = {o.name: o for o in operands}
        stable = "stable" in given and given["stable"].constant is True
        unsorted = "sorted" in given and given["sorted"].constant is False
        self.values.append(
            SourceValue(
                operator=operator,
                open_ties=operator in _OPEN_TIES and not stable,
                open_order=operator in _OPEN_ORDER and unsorted,
                sorted_operand="" if "sorter" in given else _SORTED_OPERANDS.get(operator, ""),
                value=value,
                reads=reads,
                constant=constant,
                module=module,
                line=line,
                alike=alike,
                attributes=attributes,
                inputs=inputs,
                operands=operands,
                settings=settings,
                undefined=undefined,
            )
        )


def _memory_of(tensor: Any) -> int:
    """Which memory a tensor is a view of."""
    try:
        place = int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no memory of its own
        place = 0
    return place or -id(tensor)


def _name_of(schema: Any) -> str:
    return str(schema.name).replace("::", ".")


@dataclass(frozen=True)
class _Function:
    """What the user calls: one of C++ by number, or of ``torch.nn.functional`` with settings."""

    number: int
    name: str
    in_python: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    undefined: str = ""


def _function_of(number: int, name: str, caller: Any) -> _Function:
    code = caller.f_code
    function = caller.f_globals.get(code.co_name)
    if code.co_filename.endswith("/torch/functional.py"):
        words = undefined_by_function(code.co_name, caller.f_locals)
        return _Function(number, name, undefined=words)
    if not code.co_filename.endswith("/torch/nn/functional.py") or function is None:
        return _Function(number, name)
    usual = inspect.signature(function).parameters
    plain = {n: v for n, v in caller.f_locals.items() if isinstance(v, (bool, int, float, str))}
    changed = {n: v for n, v in plain.items() if n in usual and not _is_same(usual[n].default, v)}
    words = undefined_by_function(code.co_name, caller.f_locals)
    return _Function(number, code.co_name, True, changed, words)


def _is_same(one: object, other: object) -> bool:
    listed = [list(v) if isinstance(v, (list, tuple)) else v for v in (one, other)]
    # A list that is a default is told as one number in a schema.
    return listed[0] == listed[1] or (isinstance(listed[1], list) and listed[1] == [])


def _user_line() -> str:
    """File and line of the innermost frame that is neither PyTorch's nor optvet's."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        library = "/torch/" in file or "optvet" in file or file.startswith("<")
        if not library and "/lib/python" not in file:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
    return ""
