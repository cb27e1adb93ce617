"""The types that protocols of plugins are generic in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    # ``Optimizer`` alone is ``Optimizer[Any]``. Type checkers know defaults; Python 3.11 does not.
    from typing_extensions import TypeVar

    OptionsT = TypeVar("OptionsT", bound=BaseModel, default=Any)
    OptionsT_contra = TypeVar("OptionsT_contra", bound=BaseModel, default=Any, contravariant=True)
else:
    from typing import TypeVar

    OptionsT = TypeVar("OptionsT", bound=BaseModel)
    OptionsT_contra = TypeVar("OptionsT_contra", bound=BaseModel, contravariant=True)
