"""Sizes and domains under which a model runs, found in a bounded number of inferences."""

from __future__ import annotations

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import InputError, Probe, UsageError, ValueInfo
from optvet_random.graph import ConsumerGraph, domains_of
from optvet_random.values import FINITE, Domain, Regime, array_of, describe


class RandomOptions(BaseModel):
    """How many samples are made, of which values and sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int = Field(default=10, ge=1)
    """Number of samples where the caller sets no limit."""
    regimes: tuple[Regime, ...] = Field(default=FINITE, min_length=1)
    """Distributions of values, cycled in this order."""
    nonfinite: bool = False
    """Ends the cycle with a regime that has NaN and infinities."""
    compared: bool = True
    """Adds samples drawn from constants that the model compares inputs with."""
    dims: dict[str, int] = Field(default_factory=dict)
    """Sizes of chosen symbols; an unnamed dimension is "INPUT.AXIS"."""
    batch_sizes: tuple[int, ...] = Field(default=(1, 2, 3, 5), min_length=1)
    """Tried for leading dimensions."""
    sequence_sizes: tuple[int, ...] = Field(default=(16, 9, 4, 25, 1), min_length=1)
    """Tried for dimensions such as length or number of features."""
    spatial_sizes: tuple[int, ...] = Field(default=(64, 96, 128, 224), min_length=1)
    """Tried for height and width."""
    max_elements: int = Field(default=1 << 19, ge=1)
    """Larger sets of inputs are made only where nothing smaller exists."""
    max_probes: int = Field(default=40, ge=1)
    """Bound on the inferences spent on finding inputs that run."""

    def cycle(self) -> tuple[Regime, ...]:
        """Regimes in the order in which samples take them."""
        extra: tuple[Regime, ...] = ("nonfinite",) if self.nonfinite else ()
        return tuple(dict.fromkeys(self.regimes + extra))


_Role = Literal["batch", "sequence", "spatial", "empty"]
_UNNAMED = frozenset({"", "?", "-1", "*", "None", "none", "unk"})
_TYPICAL_SIZES = (256, 512, 16000, 128, 64, 1024, 784, 32, 224, 100)
# Tried in turn for an input of unknown rank.
_SHAPES: tuple[tuple[int, ...], ...] = (
    (2, 3),
    (4,),
    (2, 3, 4),
    (1, 3, 32, 32),
    (),
    (1,),
    (1, 1, 28, 28),
    (1, 3, 224, 224),
)


@dataclass(frozen=True)
class Config:
    """Sizes by symbol and domains by input under which a model runs (or may run)."""

    sizes: Mapping[str, int]
    domains: Mapping[str, Domain]
    unranked: tuple[int, ...] = ()

    def key(self) -> tuple[object, ...]:
        """Equal for equal configurations."""
        return (tuple(self.sizes.items()), tuple(self.domains.items()), self.unranked)

    def label(self) -> str:
        """Sizes, as they appear in the ids of samples."""
        named = [(re.sub(r"[^\w.+]", "_", s), n) for s, n in self.sizes.items()]
        parts = [f"{s}{'=' if s[-1].isdigit() else ''}{n}" for s, n in named]
        return "-".join(["", *parts[:4]])


def symbol_of(info: ValueInfo, axis: int) -> str | None:
    """Name of an unknown dimension, "INPUT.AXIS" for an unnamed one; None for a known size."""
    dim = (info.shape or ())[axis]
    if isinstance(dim, int) and dim > 0:
        return None
    if isinstance(dim, str) and dim.strip() not in _UNNAMED:
        return dim
    return f"{info.name}.{axis}"


def _role(info: ValueInfo, axis: int) -> _Role:
    """What an unknown dimension most likely is."""
    shape = info.shape or ()
    dim = shape[axis]
    if dim == 0:
        return "empty"
    name = dim.lower() if isinstance(dim, str) else ""
    if re.search(r"batch|^(n|b|bs)$", name):
        return "batch"
    if re.search(r"height|width|^[hw]$", name):
        return "spatial"
    if re.search(r"seq|len|past|time|token", name):
        return "sequence"
    unknown = [a for a in range(len(shape)) if symbol_of(info, a) is not None]
    if unknown == [1] and len(shape) == 3:
        return "batch"  # the state of a recurrent layer: [layers, batch, features]
    unknown = [a for a in unknown if a > 0]
    if axis in unknown and len(shape) == 4 and len(unknown) > 1:
        return "spatial"
    return "sequence" if axis else "batch"


def sizes_from(info: ValueInfo, shape: tuple[int, ...] | None) -> dict[str, int]:
    """Sizes of the unknown dimensions of an input that has ``shape``.

    Raises:
        InputError: The input cannot have this shape.
    """
    if shape is None or info.shape is None:
        return {}
    fits = len(shape) == len(info.shape) and all(
        symbol_of(info, axis) is not None or shape[axis] == dim
        for axis, dim in enumerate(info.shape)
    )
    if not fits:
        raise InputError(
            f"dataset 'random': the recipe of input {info.name!r} has shape {list(shape)}, which "
            f"does not fit {describe(info)}"
        )
    symbols = ((symbol_of(info, axis), size) for axis, size in enumerate(shape))
    return {symbol: size for symbol, size in symbols if symbol is not None and "+" not in symbol}


def roles_of(inputs: Sequence[ValueInfo], pinned: Mapping[str, int]) -> dict[str, _Role]:
    """Free symbols of a model; sums such as "past + 1" follow from their terms."""
    found: dict[str, _Role] = {}
    for info in inputs:
        for axis in range(len(info.shape or ())):
            symbol = symbol_of(info, axis)
            if symbol is not None:
                found.setdefault(symbol, _role(info, axis))
    unknown = set(pinned) - set(found)
    if unknown:
        raise UsageError(
            f"dataset 'random': dims names {sorted(unknown)}, expected unknown dimensions of the "
            f"model ({', '.join(found) or 'it has none'})"
        )
    atoms = {s: r for s, r in found.items() if "+" not in s}
    return {
        s: r
        for s, r in found.items()
        if s not in pinned and (s in atoms or not _terms_known(s, atoms, pinned))
    }


def _terms_known(symbol: str, atoms: Mapping[str, Any], pinned: Mapping[str, int]) -> bool:
    terms = [t.strip() for t in symbol.split("+")]
    return all(t.isdigit() or t in atoms or t in pinned for t in terms)


def shape_of(info: ValueInfo, config: Config) -> tuple[int, ...]:
    """Shape of an input under a configuration."""
    if info.shape is None:
        return config.unranked
    shape = []
    for axis, dim in enumerate(info.shape):
        symbol = symbol_of(info, axis)
        if symbol is None:
            shape.append(int(dim or 0))
        elif symbol in config.sizes:
            shape.append(config.sizes[symbol])
        else:
            terms = (t.strip() for t in symbol.split("+"))
            shape.append(sum(int(t) if t.isdigit() else config.sizes[t] for t in terms))
    return tuple(shape)


def _at_the_ends(config: Config) -> Config:
    """``config`` with integers at both ends of their ranges: if these run, all should."""
    domains = {
        name: Domain("fixed", values=(d.high - 1, d.low)) if d.kind == "range" else d
        for name, d in config.domains.items()
    }
    return Config(config.sizes, domains, config.unranked)


@dataclass
class ConfigurationSearch:
    """Looks for configurations under which the model runs, with a bound on the inferences.

    The bound is what makes trial and error affordable: a configuration is one inference of the
    reference, and all guesses of one step go to ``probe`` in one call. Inputs in ``fixed`` have
    the domain given there.
    """

    inputs: Sequence[ValueInfo]
    graph: ConsumerGraph
    options: RandomOptions
    seed: int
    probe: Probe
    fixed: Mapping[str, Domain] = field(default_factory=dict)
    roles: Mapping[str, _Role] = field(init=False)
    candidates: Mapping[str, list[Domain]] = field(init=False)
    working: list[Config] = field(default_factory=list)
    spent: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.roles = roles_of(self.inputs, self.options.dims)
        self.candidates = {
            i.name: [self.fixed[i.name]] if i.name in self.fixed else domains_of(i, self.graph)
            for i in self.inputs
        }
        self._seen: set[tuple[object, ...]] = set()

    @property
    def primary(self) -> dict[str, Domain]:
        """The most plausible domain of each input."""
        return {name: domains[0] for name, domains in self.candidates.items()}

    def run(self) -> list[Config]:
        """Working configurations, in the order of their plausibility.

        Raises:
            InputError: None works.
        """
        ordinary = self._ordinary()
        self._try(ordinary, 10)
        if not self.working:
            self._try(self._other_sizes(ordinary[0]), 14)
        if not self.working:
            self._try(self._other_domains(ordinary), 10)
        if not self.working:
            sizes = [c.sizes for c in self._other_sizes(ordinary[0])]
            domains = [c.domains for c in self._other_domains(ordinary[:1])]
            both = (Config(s, d, ordinary[0].unranked) for s in sizes[:6] for d in domains)
            self._try(both, self.options.max_probes)
        if not self.working:
            raise InputError(self._refusal())
        first, *others = self.working
        few = len(others) < 2 and bool(self.roles)
        self.working = [first]
        self._try(self._branches(first), 4)
        if few or first not in ordinary:
            self._try(self._neighbours(first), 6)
        return self.working + others

    def _try(self, configs: Iterable[Config], most: int) -> None:
        """Probe the configurations that were not probed yet, in one call."""
        most = min(most, self.options.max_probes - self.spent)
        fresh: list[Config] = []
        for config in configs:
            if len(fresh) < most and config.key() not in self._seen:
                self._seen.add(config.key())
                fresh.append(config)
        if not fresh:
            return
        self.spent += len(fresh)
        hard = (_at_the_ends(c) for c in fresh)
        feeds = [feeds_of(self.inputs, c, "normal", self.seed, i) for i, c in enumerate(hard)]
        for config, error in zip(fresh, self.probe(feeds), strict=True):
            if error is None:
                self.working.append(config)
            else:
                self.errors.append(error)

    def _ordinary(self) -> list[Config]:
        """Sizes by role: first all symbols different, then equal, then ones."""
        steps = [*((k, 1) for k in range(4)), *((k, 0) for k in range(4))]
        sizes = [self._assignment(k, stride) for k, stride in steps]
        if not {"spatial", "empty"} & set(self.roles.values()):
            sizes.append(dict.fromkeys(self.roles, 1))
        unranked = _SHAPES if any(i.shape is None for i in self.inputs) else ((),)
        configs = [
            Config({**self.options.dims, **s}, self.primary, u) for s in sizes for u in unranked
        ]
        counts = [self._elements(c) for c in configs]
        bound = max(self.options.max_elements, min(counts))
        kept = [c for c, n in zip(configs, counts, strict=True) if n <= bound]
        return list({c.key(): c for c in kept}.values())

    def _assignment(self, step: int, stride: int) -> dict[str, int]:
        by_role: dict[_Role, Sequence[int]] = {
            "batch": self.options.batch_sizes,
            "sequence": self.options.sequence_sizes,
            "spatial": self.options.spatial_sizes,
            "empty": (0,),
        }
        ranks: dict[_Role, int] = defaultdict(int)
        found = {}
        for symbol, role in self.roles.items():
            # Batches stay equal within a sample: inputs of different batches seldom fit.
            shift = 0 if role == "batch" else ranks[role] * stride
            ranks[role] += 1
            found[symbol] = by_role[role][(step + shift) % len(by_role[role])]
        return found

    def _elements(self, config: Config) -> int:
        return sum(math.prod(shape_of(i, config)) for i in self.inputs)

    def _special_sizes(self) -> list[int]:
        """Sizes worth trying when ordinary ones fail: named in errors, or by the graph."""
        numbers = [int(n) for e in self.errors[:3] for n in re.findall(r"(?<![\w.])\d{1,6}\b", e)]
        numbers = [n for n in dict.fromkeys(numbers) if n > 7][:3]
        static = [d for i in self.inputs for d in i.shape or () if isinstance(d, int) and d > 1]
        own = [*numbers, *self.graph.sizes[:2], *_TYPICAL_SIZES[:4], *static[:2]]
        return list(dict.fromkeys([*own, *self.graph.sizes[2:5], *_TYPICAL_SIZES[4:]]))

    def _other_sizes(self, base: Config) -> list[Config]:
        """All symbols 1 but one (or all that are no batch), which takes a special size."""
        ones = {**self.options.dims, **dict.fromkeys(self.roles, 1)}
        lone = [s for s, r in self.roles.items() if r != "batch"] or list(self.roles)
        found = [Config(ones, self.primary, base.unranked)]
        for size in self._special_sizes():
            targets = [[s] for s in lone] + ([lone] if len(lone) > 1 else [])
            for target in targets:
                sizes = {**ones, **dict.fromkeys(target, size)}
                config = Config(sizes, self.primary, base.unranked)
                if self._elements(config) <= self.options.max_elements:
                    found.append(config)
        return found

    def _other_domains(self, bases: Sequence[Config]) -> list[Config]:
        """The next domains of one input, and of all inputs at once."""
        found = []
        for rank in range(1, max(len(d) for d in self.candidates.values())):
            chosen = {n: d[min(rank, len(d) - 1)] for n, d in self.candidates.items()}
            variants = [chosen] + [{**self.primary, n: d} for n, d in chosen.items()]
            for base in (bases[0], bases[-1]):
                found += [Config(base.sizes, v, base.unranked) for v in variants]
        return found

    def _branches(self, base: Config) -> Iterator[Config]:
        """``base`` with other values of the inputs that select a branch."""
        other = {
            name: domains[1]
            for name, domains in self.candidates.items()
            if base.domains[name] == domains[0] and domains[0].selects and len(domains) > 1
        }
        for changed in [*({n: d} for n, d in other.items()), other]:
            yield Config(base.sizes, {**base.domains, **changed}, base.unranked)

    def _neighbours(self, base: Config) -> Iterator[Config]:
        """``base`` with a few other sizes, for variety among the samples."""
        groups: dict[int, list[str]] = defaultdict(list)
        for symbol in self.roles:
            groups[base.sizes[symbol]].append(symbol)
        for size, symbols in groups.items():
            # Equal sizes may have to stay equal, so they move together.
            for new in (2, 3) if size == 1 else (size * 2, size + 1, size // 2):
                sizes = {**base.sizes, **dict.fromkeys(symbols, new)}
                config = Config(sizes, base.domains, base.unranked)
                if self._elements(config) <= self.options.max_elements:
                    yield config

    def _refusal(self) -> str:
        inputs = ", ".join(f"{i.name!r} {describe(i)}" for i in self.inputs)
        last = " ".join(self.errors[-1].split()) if self.errors else "none"
        return (
            f"dataset 'random': none of {self.spent} guesses runs for the inputs {inputs}; "
            f"the runtime's last error: {last[-400:]}; supply inputs that run with "
            "--dataset files:PATH.npz"
        )


def feeds_of(
    inputs: Sequence[ValueInfo], config: Config, regime: Regime, seed: int, index: int
) -> dict[str, np.ndarray]:
    """Inputs of sample ``index``; they depend on nothing but the arguments."""
    shapes = {i.name: shape_of(i, config) for i in inputs}
    longest = min((max(s) for s in shapes.values() if len(s) > 1), default=1)
    feeds = {}
    for info in inputs:
        domain = config.domains[info.name]
        if domain.kind == "length":
            domain = Domain("length", low=1, high=longest + 1)
        rng = np.random.default_rng([seed, index, zlib.crc32(info.name.encode())])
        feeds[info.name] = array_of(info, shapes[info.name], domain, regime, rng)
    return feeds
