"""Samples of the rows that were drawn from constants: of sizes that run, and at little cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from optvet.plugin import Probe, Sample, ValueInfo
from optvet_random.columns import InputColumns
from optvet_random.compared import MOST_ROWS, DrawnRows
from optvet_random.search import Config, feeds_of, shape_of, symbol_of
from optvet_random.values import Domain

MOST_SAMPLES = 8
WORK = 3e7
"""Rows of all samples times the numbers that each is computed with: well below a second."""
_FILLED = ("float", "text", "choice")
"""Kinds of domains whose values need not be as the domain draws them."""


@dataclass(frozen=True)
class DrawnSamples:
    """``count`` samples of the rows, under one configuration."""

    rows: DrawnRows = field(default_factory=DrawnRows)
    inputs: Sequence[ValueInfo] = ()
    config: Config = field(default_factory=lambda: Config({}, {}))
    seed: int = 0
    count: int = 0

    @classmethod
    def of(
        cls, rows: DrawnRows, inputs: Sequence[ValueInfo], base: Config, seed: int, probe: Probe
    ) -> DrawnSamples:
        """As many samples as have all rows, within limits; none where none runs."""
        if not any(rows.know(c) for c in _filled(rows, base)):
            return cls()
        most = max(1, int(WORK / max(1, rows.numbers)))
        for chosen in (_many_rows(base, inputs, rows, min(most, MOST_ROWS)), base):
            if chosen is None:
                continue
            size = max(1, _row_count(rows, chosen))
            count = min(-(-min(len(rows.rows), most) // size), MOST_SAMPLES)
            found = cls(rows, inputs, chosen, seed, count)
            if chosen is base and all(d.kind == "float" for d in base.domains.values()):
                return found
            if probe([found.sample(0, 0).feeds]) == [None]:
                return found
        return cls()

    def sample(self, number: int, index: int) -> Sample:
        """The sample of this ``number``, which is the ``index``-th of the dataset."""
        feeds = feeds_of(self.inputs, self.config, "normal", self.seed, index)
        for each in _filled(self.rows, self.config):
            name, domain = each.info.name, self.config.domains[each.info.name]
            first = number * (feeds[name].size // each.count)
            filled = self.rows.fill(feeds[name], each.info, first)
            if (bounds := _bounds(domain)) is not None:
                filled = np.clip(filled, *bounds)
            feeds[name] = filled.astype(feeds[name].dtype)
        return Sample(
            id=f"random-{index}-compared{self.config.label()}",
            feeds=feeds,
            origin=f"random, seed {self.seed}",
        )


def _filled(rows: DrawnRows, config: Config) -> list[InputColumns]:
    """The inputs that take values of the rows."""
    domains = config.domains
    suit = [c for c in rows.inputs if c.count and _is_free(domains[c.info.name])]
    # A lone number that takes a branch is a mode, and few other numbers are one.
    modes = [c for c in suit if math.prod(shape_of(c.info, config)) == 1]
    return [c for c in suit if c not in modes or not domains[c.info.name].selects]


def _is_free(domain: Domain) -> bool:
    """Whether other values than a domain draws are allowed too, within its bounds."""
    return domain.kind in _FILLED or _bounds(domain) is not None


def _bounds(domain: Domain) -> tuple[int, int] | None:
    """The smallest and the largest whole number that are allowed; None where no range is known."""
    recipe = domain.recipe
    if domain.kind == "range":
        return domain.low, max(domain.high - 1, domain.low)
    if recipe is None or recipe.kind != "randint":
        return None
    if isinstance(recipe.first, tuple) or isinstance(recipe.second, tuple):
        return None
    return int(recipe.first), int(recipe.second) - 1


def _row_count(rows: DrawnRows, config: Config) -> int:
    """Rows of one sample: of the input that has the fewest."""
    counts = [math.prod(shape_of(c.info, config)) // c.count for c in rows.inputs if c.count]
    return min(counts, default=1)


def _many_rows(
    base: Config, inputs: Sequence[ValueInfo], rows: DrawnRows, most: int
) -> Config | None:
    """``base`` with a first axis that has all rows, if it has a size of its own choice."""
    symbols = {symbol_of(i, 0) for i in inputs if i.shape}
    if None in symbols or not symbols <= base.sizes.keys():
        return None
    ones: Mapping[str, int] = {**base.sizes, **{str(s): 1 for s in symbols}}
    each = max(1, _row_count(rows, replace(base, sizes=ones)))
    size = min(len(rows.rows), most) // each
    if size <= max(base.sizes[str(s)] for s in symbols):
        return None
    return replace(base, sizes={**base.sizes, **{str(s): size for s in symbols}})
