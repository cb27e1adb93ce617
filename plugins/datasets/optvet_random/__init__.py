"""Random inputs for any model: values by regime, sizes and ranges from the graph and by trial.

An input of a model means something: an index must stay below the rows of its table, a mask is ones
followed by zeros, two inputs share a batch. What it means is read off the nodes that consume it
(``graph``), which gives a few plausible domains for each input and a few sizes for each unknown
dimension. Guesses are then tried out in a bounded number of inferences (``search``), and all
samples are made from the configurations that ran (``values``). What somebody declared of an input
(``ModelConfig.inputs``) is no guess: the first samples follow it, and indices and words always do.
Further samples are drawn from the constants that the model compares inputs with (``compared``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from optvet.plugin import (
    InputError,
    Model,
    Probe,
    Sample,
    UsageError,
    ValueInfo,
    hookimpl,
    load_model,
)
from optvet_random.compared import DrawnRows, drawn_rows
from optvet_random.drawn import DrawnSamples
from optvet_random.graph import ConsumerGraph
from optvet_random.search import (
    Config,
    ConfigurationSearch,
    RandomOptions,
    feeds_of,
    roles_of,
    sizes_from,
)
from optvet_random.values import FLOATS, DeclaredValues, Domain, recipe_from, tensor_dtype

__all__ = ["RandomDataset", "RandomOptions", "optvet_datasets"]

_SMALL_BYTES = 64 << 20
RECIPE_SAMPLES = 3
"""Samples that follow what was declared of the inputs, before the regimes take their turns."""


def _is_plain(info: ValueInfo) -> bool:
    """A float tensor of known size: any values will do, so nothing is worth a trial."""
    known = info.shape is not None and all(isinstance(d, int) and d > 0 for d in info.shape)
    return known and info.dtype in FLOATS


class RandomDataset:
    """Makes inputs for any model whose inputs are tensors."""

    name = "random"
    preference = 100
    options: RandomOptions = RandomOptions()

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: RandomOptions,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterator[Sample]:
        """Samples that cycle through the regimes and the sizes that run; see ``Dataset``."""
        if argument:
            raise UsageError(
                f"dataset 'random': argument {argument!r} was given, expected none; "
                "say --dataset random"
            )
        for info in model.inputs:
            tensor_dtype(info)
        recipes = _recipes(model)
        declared = _declared(model, recipes, options)
        configs: list[Config] = []
        if limit is None or declared is None or limit > RECIPE_SAMPLES:
            try:
                configs = self._configs(model, options, seed, probe, recipes)
            except InputError:
                # Guesses do not run, but what was declared is known.
                if declared is None:
                    raise
        drawn = DrawnSamples()
        if configs and options.compared and (limit is None or limit > options.samples):
            drawn = DrawnSamples.of(_drawn_rows(model, seed), model.inputs, configs[0], seed, probe)
        return self._make(model.inputs, declared, configs, drawn, options, seed, limit)

    def provenance(
        self, model: Model, argument: str | None, options: RandomOptions
    ) -> Mapping[str, str]:
        """The constants that samples were drawn from."""
        told = _drawn_rows(model, 0).told if options.compared else ()
        return {"compared": "; ".join(told)} if told else {}

    def _configs(
        self,
        model: Model,
        options: RandomOptions,
        seed: int,
        probe: Probe,
        recipes: Mapping[str, DeclaredValues],
    ) -> list[Config]:
        # Floats may take any value once the recipe had its turn; indices and words may not.
        fixed = {
            i.name: recipes[i.name].domain()
            for i in model.inputs
            if i.name in recipes and i.dtype not in FLOATS
        }
        plain = all(_is_plain(i) for i in model.inputs)
        if plain and not any(len(i.shape or ()) < 2 for i in model.inputs):
            roles_of(model.inputs, options.dims)
            return [Config({}, {i.name: Domain("float") for i in model.inputs})]
        graph = _graph_of(model)
        search = ConfigurationSearch(model.inputs, graph, options, seed, probe, fixed)
        if plain:
            return [Config({}, search.primary)]
        return search.run()

    def _make(
        self,
        inputs: Sequence[ValueInfo],
        declared: Config | None,
        configs: Sequence[Config],
        drawn: DrawnSamples,
        options: RandomOptions,
        seed: int,
        limit: int | None,
    ) -> Iterator[Sample]:
        cycle = options.cycle()
        count = options.samples + drawn.count if limit is None else limit
        # A model without inputs has but one sample.
        count = count if inputs else min(count, 1)
        first = 0 if declared is None else RECIPE_SAMPLES if configs else count
        for index in range(count):
            if declared is not None and index < first:
                name, regime, config = "recipe", cycle[0], declared
            elif 0 <= index - options.samples < drawn.count:
                yield drawn.sample(index - options.samples, index)
                continue
            else:
                turn = index - first - (drawn.count if index >= options.samples else 0)
                # The second round shifts, lest every regime meet one and the same size for ever.
                config = configs[(turn + turn // len(cycle)) % len(configs)]
                name = regime = cycle[turn % len(cycle)]
            yield Sample(
                id=f"random-{index}-{name}{config.label()}",
                feeds=feeds_of(inputs, config, regime, seed, index),
                origin=f"random, seed {seed}",
            )


@functools.lru_cache(maxsize=4)
def _graph(file: Path, digest: str, weights: bool) -> ConsumerGraph:
    """The graph of a file; ``digest`` tells another file of this name."""
    return ConsumerGraph.of(load_model(file, weights=weights))


def _graph_of(model: Model) -> ConsumerGraph:
    # Of external weights the shapes are enough, but for a small model, whose points may be there.
    return _graph(model.blob, model.digest, model.size_bytes <= _SMALL_BYTES)


@functools.lru_cache(maxsize=4)
def _rows(
    file: Path, digest: str, weights: bool, inputs: tuple[ValueInfo, ...], seed: int
) -> DrawnRows:
    return drawn_rows(_graph(file, digest, weights), inputs, seed)


def _drawn_rows(model: Model, seed: int) -> DrawnRows:
    small = model.size_bytes <= _SMALL_BYTES
    return _rows(model.blob, model.digest, small, tuple(model.inputs), seed)


def _recipes(model: Model) -> dict[str, DeclaredValues]:
    """Declared recipes, by input: under its name, or under its element type."""
    recipes = model.config.inputs
    found = {}
    for info in model.inputs:
        for key in (info.name, info.dtype, tensor_dtype(info).name):
            if key in recipes:
                found[info.name] = recipe_from(info.name, recipes[key])
                break
    return found


def _declared(
    model: Model, recipes: Mapping[str, DeclaredValues], options: RandomOptions
) -> Config | None:
    """Sizes and values as declared; None unless every input is declared in full."""
    sizes: dict[str, int] = {}
    for info in model.inputs:
        recipe = recipes.get(info.name)
        if recipe is None and not _is_plain(info):
            return None
        if recipe is None:
            continue
        if info.shape is None:
            return None
        for symbol, size in sizes_from(info, recipe.shape).items():
            if sizes.setdefault(symbol, size) != size:
                raise InputError(
                    f"dataset 'random': the recipes make dimension {symbol!r} {sizes[symbol]} and, "
                    f"for input {info.name!r}, {size}; {model.config.origin} must agree with itself"
                )
    sizes |= options.dims
    if not recipes or set(roles_of(model.inputs, options.dims)) - set(sizes):
        return None
    domains = {
        i.name: Domain("recipe", recipe=recipes[i.name]) if i.name in recipes else Domain("float")
        for i in model.inputs
    }
    return Config(sizes, domains)


@hookimpl
def optvet_datasets() -> Iterable[RandomDataset]:
    """The dataset "random"."""
    return [RandomDataset()]
