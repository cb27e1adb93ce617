"""Random inputs for any model: values by regime, sizes and ranges from the graph and by trial.

An input of a model means something: an index must stay below the rows of its table, a mask is ones
followed by zeros, two inputs share a batch. What it means is read off the nodes that consume it
(``graph``), which gives a few plausible domains for each input and a few sizes for each unknown
dimension. Guesses are then tried out in a bounded number of inferences (``search``), and all
samples are made from the configurations that ran (``values``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
from pydantic import BaseModel

from optvet import Model, Probe, Sample, UsageError, ValueInfo, hookimpl
from optvet_random.graph import Graph
from optvet_random.search import Config, RandomOptions, Search, feeds_of, roles_of
from optvet_random.values import FLOATS, Domain, numpy_dtype

__all__ = ["RandomDataset", "RandomOptions", "optvet_datasets"]


def _is_plain(info: ValueInfo) -> bool:
    """A float tensor of known size: any values will do, so nothing is worth a trial."""
    known = info.shape is not None and all(isinstance(d, int) and d > 0 for d in info.shape)
    return known and info.dtype in FLOATS


class RandomDataset:
    """Makes inputs for any model whose inputs are tensors."""

    name = "random"
    options: BaseModel = RandomOptions()

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: BaseModel,
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
        chosen = RandomOptions.model_validate(options.model_dump())
        for info in model.inputs:
            numpy_dtype(info)
        configs = self._configs(model, chosen, seed, probe)
        return self._make(model.inputs, configs, chosen, seed, limit)

    def _configs(
        self, model: Model, options: RandomOptions, seed: int, probe: Probe
    ) -> list[Config]:
        plain = all(_is_plain(i) for i in model.inputs)
        if plain and not any(len(i.shape or ()) < 2 for i in model.inputs):
            roles_of(model.inputs, options.dims)
            return [Config({}, {i.name: Domain("float") for i in model.inputs})]
        # Weights are not needed: only their shapes, and the values of small constants.
        graph = Graph.of(onnx.load(str(model.blob), load_external_data=False))
        search = Search(model.inputs, graph, options, seed, probe)
        if plain:
            return [Config({}, search.primary)]
        return search.run()

    def _make(
        self,
        inputs: Sequence[ValueInfo],
        configs: Sequence[Config],
        options: RandomOptions,
        seed: int,
        limit: int | None,
    ) -> Iterator[Sample]:
        cycle = options.cycle()
        count = options.samples if limit is None else limit
        # A model without inputs has but one sample.
        for index in range(count if inputs else min(count, 1)):
            regime = cycle[index % len(cycle)]
            # The second round shifts, lest every regime meet one and the same size for ever.
            config = configs[(index + index // len(cycle)) % len(configs)]
            yield Sample(
                id=f"random-{index}-{regime}{config.label()}",
                feeds=feeds_of(inputs, config, regime, seed, index),
                origin=f"random, seed {seed}",
            )


@hookimpl
def optvet_datasets() -> Iterable[RandomDataset]:
    """The dataset "random"."""
    return [RandomDataset()]
