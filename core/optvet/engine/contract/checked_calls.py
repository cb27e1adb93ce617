"""Checks of a returned value, and errors that name the plugin and its method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from optvet.spec.errors import ContractError, OptvetError

_T = TypeVar("_T")


def kind_of(value: Any) -> str:
    """The type of ``value`` in words, for messages."""
    return "None" if value is None else type(value).__qualname__


def mismatch(what: str, value: Any, expected: type | tuple[type, ...], words: str) -> str | None:
    """What is wrong with ``value``, returned by ``what``; None if it has an expected type."""
    if isinstance(value, expected):
        return None
    return f"{what} gave {kind_of(value)}, expected {words}"


def blame(family: str, plugin: Any, words: str, origin: str | None = None) -> ContractError:
    """An error that says that ``plugin`` broke its contract, and how."""
    name = getattr(plugin, "name", type(plugin).__qualname__)
    return ContractError(f"{family} {name!r} ({origin or type(plugin).__module__}): {words}")


def ask(
    family: str,
    plugin: Any,
    method: str,
    call: Callable[[], _T],
    expected: type | tuple[type, ...],
    words: str,
    origin: str | None = None,
) -> _T:
    """The result of ``call``, a call of ``method`` of ``plugin``, if it has an expected type.

    Raises:
        ContractError: It has another type, or the method raised an unexpected exception.
        OptvetError: The method raised it on purpose.
    """
    try:
        value = call()
    except OptvetError:
        raise
    except Exception as error:
        raised = f"{method}() raised {type(error).__name__}: {error}"
        raise blame(family, plugin, raised, origin) from error
    wrong = mismatch(f"{method}()", value, expected, words)
    if wrong is not None:
        raise blame(family, plugin, wrong, origin)
    return value


def list_items(
    family: str,
    plugin: Any,
    method: str,
    call: Callable[[], Any],
    item: type[_T],
    origin: str | None = None,
) -> list[_T]:
    """The items of ``call``, a call of ``method`` of ``plugin``, if all are of type ``item``.

    Raises:
        ContractError: An item has another type, or the method raised an unexpected exception.
    """

    def gather() -> Any:
        items = call()
        return list(items) if isinstance(items, Iterable) else items

    expected = f"an iterable of {item.__name__}"
    items: list[Any] = ask(family, plugin, method, gather, list, expected, origin)
    for each in items:
        wrong = mismatch(f"{method}()", each, item, item.__name__)
        if wrong is not None:
            raise blame(family, plugin, wrong, origin)
    return items


def plain_text(text: str) -> str:
    """``text`` without the subclass that a plugin may have given it."""
    return str.__str__(text)
