"""The protocols of comparators: the required part, and the optional ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.types import Comparison, Model, Sample, Suggestion, Summary

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]
"""Runs one model on feeds: inputs and outputs by their names in the original, in its order."""


@runtime_checkable
class Comparator(Protocol[OptionsT]):
    """Measures what a difference means for the model's task. It does not change the verdict.

    It is called only if the shapes of all outputs agree, unless it is ``ragged``.

    Attributes:
        name: Unique among comparators.
        options: Its options with their defaults.
    """

    name: str
    options: OptionsT

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """How well it understands the model, from 0 (not at all) to 1.

        1 means that it is made for the declared task; a guess from the shapes and values of
        ``outputs`` (the reference's, on one sample) is below 0.9.
        """
        ...

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: OptionsT,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Compare one sample's outputs.

        Args:
            model: The original model.
            sample: The inputs, with a label if there is one.
            reference: Outputs of the original, by name.
            candidate: Outputs of the optimized model, by the same names.
            options: The comparator's options.
            noise: Absolute uncertainty of the reference per output; two scores that are closer
                than this count as equal.

        Raises:
            InputError: The outputs are not what the comparator understands.
        """
        ...

    def summarise(self, comparisons: Sequence[Comparison], options: OptionsT) -> Summary:
        """The result over all samples; ``comparisons`` is not empty."""
        ...


class ComparatorExtras:
    """Optional members of a comparator."""

    ragged: bool = False
    """Whether it is also called where the outputs differ in shape, such as detections and texts."""

    suggestions: Sequence[Suggestion] = ()
    """The kinds of a catalogue's ``suggested_comparator`` that select it.

    ``Suggestion("gaze", ("limit",))`` takes ``{"kind": "gaze", "limit": 3}``, and ``limit`` becomes
    its option.
    """

    def metrics(self, options: Any) -> Sequence[str]:
        """Names of its metrics, those that say most first; ``*`` in one stands for any text.

        ``--require`` refuses unknown ones before any trial, and ``optvet plugins show`` lists them.
        A requirement on a metric of another comparator is measured by that comparator. Answers show
        metrics in this order.
        """
        raise NotImplementedError

    def calibrated(
        self, model: Model, references: Iterable[Mapping[str, np.ndarray]], options: Any
    ) -> Any:
        """``options`` with what the user left open set for all samples, such as a range.

        Called once, before the first comparison. A scale that is inferred from each sample may
        differ between samples, and so may the metrics.

        Args:
            model: The original model.
            references: Its outputs on every sample, to be iterated once. Outputs of optimized
                models are not included, since wrong values would change the scale.
            options: What the user set.
        """
        return options


@runtime_checkable
class Decodes(Protocol[OptionsT_contra]):
    """Optional part of a comparator: answers that need several runs, such as generated text.

    ``compare`` then gets the results of ``decode`` in place of outputs; ``noise`` is still that of
    the outputs of one run on the sample.
    """

    def decode(
        self, model: Model, sample: Sample, run: Run, options: OptionsT_contra
    ) -> Mapping[str, np.ndarray]:
        """The answer of one model to one sample; a pure function of its arguments.

        Called in a worker process, once for the original and once for the optimized model, within
        the time and memory limits of one task. Strings are arrays of dtype object.

        Args:
            model: The original model, also if ``run`` runs the optimized one.
            sample: The inputs, without a label: the answer must not depend on one.
            run: Runs the model; may be called any number of times, with inputs of any shape that
                the model takes. Its exceptions need not be caught: they count as failures of the
                sample.
            options: The comparator's options.

        Raises:
            InputError: The model is not what the comparator understands.
        """
        ...

    def decoder(self, model: Model, options: OptionsT_contra) -> str:
        """What ``decode`` depends on besides its arguments: its version, files that it reads.

        Answers are cached under this text.
        """
        ...
