"""Requirements of a user on the optimized model; not meeting one need not be a fault.

Written ``[OUTPUT:]METRIC>=NUMBER``, such as ``top1_agreement>=0.99`` or ``boxes:cosine>=0.999``; a
tolerance is written ``[OUTPUT:]NUMBER``. Names of outputs may hold colons, so the last one counts.
A metric may be that of a part of an output, written as numpy does: ``pred[:, 4:]:cosine>=0.999``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING

from optvet.spec.errors import InputError
from optvet.spec.words import show

if TYPE_CHECKING:
    import numpy as np

_NUMBER = r"[-+]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][-+]?\d{1,3})?"
_REQUIREMENT = re.compile(
    r"(?:(?P<output>.+):)?(?P<metric>[^:<>=!\s]+)\s*(?P<relation>>=|<=|==|>|<)\s*"
    rf"(?P<bound>{_NUMBER})",
    re.DOTALL,
)
_TOLERANCE = re.compile(rf"(?:(?P<output>.+):)?\s*(?P<bound>{_NUMBER})", re.DOTALL)
_WRITTEN = re.compile(
    rf"(?:(?P<output>.+): )?rtol=(?P<rtol>{_NUMBER}), atol=(?P<atol>{_NUMBER})", re.DOTALL
)
_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_PART = re.compile(r"(?P<output>.+)\[(?P<index>[-+\d\s.:,]*[:,.][-+\d\s.:,]*)\]", re.DOTALL)
_LONGEST = 1000
Index = tuple["int | slice | EllipsisType", ...]
"""What numpy takes between brackets, one item for each axis."""


def exactly(value: float) -> str:
    """``value`` in the fewest digits that give the same float64.

    >>> exactly(1.0), exactly(0.9999999)
    ('1', '0.9999999')
    """
    return repr(float(value)).removesuffix(".0")


@dataclass(frozen=True)
class Requirement:
    """A bound on a metric over all samples.

    Attributes:
        metric: As the comparator names it.
        relation: ">=", "<=", ">", "<" or "==": ``value relation bound`` must hold.
        bound: In the unit of the metric.
        output: The only output that is compared, or the part of one (``split_part``); None if the
            comparator gets all outputs.
        origin: Where it is stated: an option, or the model's record.
    """

    metric: str
    relation: str
    bound: float
    output: str | None = None
    origin: str = field(default="--require", compare=False)

    def __str__(self) -> str:
        where = "" if self.output is None else f"{self.output}:"
        return f"{where}{self.metric}{self.relation}{exactly(self.bound)}"

    @property
    def tensor(self) -> str | None:
        """Name of the only output that is compared, or of which a part is."""
        return None if self.output is None else split_part(self.output)[0]

    def is_met(self, value: float) -> bool:
        """Whether ``value`` meets the requirement; False for NaN."""
        return _RELATIONS[self.relation](value, self.bound)

    def shortfall(self, value: float) -> float:
        """How far ``value`` is on the wrong side of the bound; negative if on the right side."""
        if math.isnan(value):
            return math.inf
        if self.relation == "==":
            return abs(value - self.bound)
        return self.bound - value if self.relation[0] == ">" else value - self.bound


@dataclass(frozen=True)
class Tolerance:
    """The bound ``|candidate - original| <= atol + rtol * |original|`` on every element.

    Attributes:
        rtol: Relative part.
        atol: Absolute part, in units of the output.
        output: The only output that it covers, or the part of one (``split_part``); None for all
            except those in ``excluded``.
        excluded: Outputs and parts of outputs that have tolerances of their own.
        origin: Where it is stated.
    """

    rtol: float
    atol: float
    output: str | None = None
    excluded: frozenset[str] = frozenset()
    origin: str = field(default="--rtol, --atol", compare=False)

    def __str__(self) -> str:
        where = "" if self.output is None else f"{self.output}: "
        return f"{where}rtol={exactly(self.rtol)}, atol={exactly(self.atol)}"

    @property
    def tensor(self) -> str | None:
        """Name of the only output that is compared, or of which a part is."""
        return None if self.output is None else split_part(self.output)[0]

    def covers(self, output: str) -> bool:
        """Whether the tolerance applies to ``output``, or to a part of it."""
        return output == self.tensor if self.output is not None else output not in self.excluded

    def parts_of(self, output: str) -> list[Index]:
        """Parts of ``output`` that have tolerances of their own."""
        split = map(split_part, sorted(self.excluded))
        return [index for name, index in split if name == output and index is not None]


Required = Requirement | Tolerance


def split_part(output: str) -> tuple[str, Index | None]:
    """The name of an output, and the part of it that is meant; None for the whole.

    ``scores[0]`` is the first item of a sequence, which has a name of its own.

    >>> split_part("pred[:, 4:]"), split_part("scores[0]")
    (('pred', (slice(None, None, None), slice(4, None, None))), ('scores[0]', None))
    """
    match = _PART.fullmatch(output)
    if match is None:
        return output, None
    try:
        return match["output"], tuple(map(_index, match["index"].split(",")))
    except (ValueError, TypeError):  # no index of numpy, such as "[:,]"
        return output, None


def _index(text: str) -> int | slice | EllipsisType:
    text = text.strip()
    if text == "...":
        return ...
    if ":" not in text:
        return int(text)
    return slice(*(int(each) if each.strip() else None for each in text.split(":")))


def select(output: str | None, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The output that a requirement names, or the part of it; all of ``values`` for None.

    Raises:
        InputError: There is no such part.
    """
    if output is None:
        return dict(values)
    name, index = split_part(output)
    if name not in values:
        return {}
    value = values[name]
    if index is not None:
        try:
            value = value[index].reshape(value[index].shape)
        except IndexError:
            value = value[:0]
        if not value.size:
            shape = list(values[name].shape)
            raise InputError(f"output {show(name)} has the shape {shape}, and no part {output}")
    return {name: value}


def parse_requirement(text: str, origin: str = "--require") -> Requirement:
    """The requirement that ``text`` states.

    >>> str(parse_requirement("boxes:0:cosine >= 0.999"))
    'boxes:0:cosine>=0.999'

    Raises:
        ValueError: ``text`` is not a requirement.
    """
    match = _REQUIREMENT.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(
            f"{show(text)} is no requirement; write it as METRIC>=NUMBER, OUTPUT:METRIC>=NUMBER or "
            "OUTPUT[:, 4:]:METRIC>=NUMBER, with one of >=, <=, >, <, =="
        )
    return Requirement(
        match["metric"], match["relation"], float(match["bound"]), match["output"], origin
    )


def read_requirement(text: str) -> Required:
    """The requirement or tolerance that ``str`` wrote as ``text``.

    >>> read_requirement("y: rtol=0.001, atol=0").rtol
    0.001

    Raises:
        ValueError: ``text`` is neither.
    """
    match = _WRITTEN.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return parse_requirement(text)
    return Tolerance(float(match["rtol"]), float(match["atol"]), match["output"])


def _is_part(part: str, output: str) -> bool:
    return part != output and split_part(part)[0] == output


def parse_tolerance(text: str) -> tuple[str | None, float]:
    """The output, if one is named, and the number of ``[OUTPUT:]NUMBER``.

    Raises:
        ValueError: ``text`` has another form, or the number is negative.
    """
    match = _TOLERANCE.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    value = float(match["bound"]) if match else math.nan
    if match is None or not 0 <= value < math.inf:
        raise ValueError(
            f"{show(text)} is no tolerance; write it as NUMBER, OUTPUT:NUMBER or "
            "OUTPUT[:, 4:]:NUMBER, such as 1e-3"
        )
    return match["output"], value


def tolerances_of(
    rtol: Iterable[str], atol: Iterable[str], origin: str = "--rtol, --atol"
) -> tuple[Tolerance, ...]:
    """Tolerances for each named output, and one for all others.

    If ``rtol`` or ``atol`` is not given for an output, the value for all outputs is used, else 0.
    """
    relative, absolute = (dict(map(parse_tolerance, texts)) for texts in (rtol, atol))
    outputs = {**relative, **absolute}
    named = frozenset(n for n in outputs if n is not None)
    return tuple(
        Tolerance(
            relative.get(name, relative.get(None, 0.0)),
            absolute.get(name, absolute.get(None, 0.0)),
            name,
            named if name is None else frozenset(n for n in named if _is_part(n, name)),
            origin,
        )
        for name in outputs
    )
