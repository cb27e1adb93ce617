"""Texts: what a language model writes, and which answer to a question a model points at.

A language model is run token by token (greedily, by the second or third choice, or by beam search)
and both texts are compared, by BLEU and word for word, as are those of a model whose outputs are
strings. A model that scores where an answer
starts and ends is compared by the answers, as SQuAD does it. A text that parts from the
reference's where that was undecided is sensitivity of the model, not a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Run,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
)
from optvet_text import answers
from optvet_text.options import TextOptions
from optvet_text.task import WRITES, answers_questions, writes_text

VERSION = 1
"""Raised when the same model, sample and options are decoded otherwise."""


class TextComparator:
    """BLEU and exact match of texts; F1 and exact match of answers."""

    name = "text"
    suggestions = (
        Suggestion("text"),
        Suggestion("token_logits", tasks=WRITES),
        Suggestion("token", tasks=WRITES),
    )
    wants = ("sacrebleu", "tokenizers")
    ragged = True
    options: TextOptions = TextOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.97 for a declared task; 0.85 for a key-value cache, or scores of starts and ends."""
        from optvet_text.decode_text import string_outputs
        from optvet_text.feeding import caches, ids_input, scores_output

        if writes_text(model.task) and string_outputs(outputs):
            return 0.97
        if ids_input(model) is None:
            return 0.0
        spans, scores = answers.span_outputs(model), scores_output(model, "")
        if answers_questions(model.task):
            return 0.97 if spans else 0.0
        if writes_text(model.task):
            return 0.97 if scores else 0.0
        if model.task is not None:
            return 0.0
        if spans and spans[0] != spans[1]:
            return 0.85
        return 0.85 if scores and caches(model) else 0.0

    def decoder(self, model: Model, options: TextOptions) -> str:
        """The version, and the vocabulary's digest."""
        from optvet_text.vocabulary import digest_of, vocabulary_file

        path = vocabulary_file(model, options.vocabulary)
        return f"{VERSION} {digest_of(path)}"

    def decode(
        self, model: Model, sample: Sample, run: Run, options: TextOptions
    ) -> dict[str, np.ndarray]:
        """What the model writes.

        An answer per row where starts and ends are scored; the strings where outputs are strings;
        else the continuation of the first row.
        """
        from optvet_text.compare_answers import find_answers
        from optvet_text.decode_text import continue_prompt, read_strings
        from optvet_text.feeding import ids_input
        from optvet_text.vocabulary import vocabulary_file, vocabulary_of

        if ids_input(model) is None or any(o.dtype == "string" for o in model.outputs):
            return read_strings(run(sample.feeds), options)
        vocabulary = vocabulary_of(vocabulary_file(model, options.vocabulary))
        spans = answers.span_outputs(model)
        if spans and (answers_questions(model.task) or not writes_text(model.task)):
            return find_answers(model, sample, run, options, vocabulary, spans)
        return continue_prompt(model, sample, run, options, vocabulary)

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: TextOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """What ``decode`` made of both models; labels are texts."""
        from optvet_text.compare_answers import compare_answers
        from optvet_text.compare_texts import compare_texts

        for side in (reference, candidate):
            if "text" not in side:
                raise InputError(
                    "comparator 'text': what is compared must be decoded first; "
                    f"expected what its method decode returns, not {', '.join(map(repr, side))}"
                )
        if "starts" in reference and "starts" in candidate:
            return compare_answers(sample, reference, candidate, noise)
        return compare_texts(sample, reference, candidate, noise)

    def metrics(self, options: TextOptions) -> Sequence[str]:
        """Every metric of a summary."""
        from optvet_text.compare_answers import ANSWER_METRICS
        from optvet_text.compare_texts import TEXT_METRICS

        return (*TEXT_METRICS, *ANSWER_METRICS)

    def summarise(self, comparisons: Sequence[Comparison], options: TextOptions) -> Summary:
        """BLEU of all texts together; means over texts or answers for the rest."""
        from optvet_text.compare_answers import summarise_answers
        from optvet_text.compare_texts import summarise_texts

        if any("answers" in c.metrics for c in comparisons):
            return summarise_answers([c for c in comparisons if "answers" in c.metrics])
        return summarise_texts(comparisons)


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "text"."""
    return [TextComparator()]
