"""Continuing a text with a language model: greedily, by the k-th choice, or by beam search.

What is chosen depends on nothing but the scores: of equal ones the lowest token wins. Each step
keeps the best of what it chose from, so that a comparison can tell how sure the choice was.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

POOL = 16
"""Alternatives of each step that are kept."""
State = TypeVar("State")


class Steps(Protocol[State]):
    """A language model, token by token; states are never changed in place."""

    def start(self) -> tuple[np.ndarray, State]:
        """Scores of the first new token, and the state after the prompt."""
        ...

    def extend(self, state: State, token: int) -> tuple[np.ndarray, State]:
        """Scores of what follows ``token``, and the state after it."""
        ...


@dataclass(frozen=True)
class Rules:
    """When a text ends.

    Attributes:
        most: Tokens at most; 1 or more.
        least: Tokens before which no token of ``ends`` may come.
        ends: Tokens that end the text, and are no part of it.
        stops: Whether new tokens end the text, which keeps them.
    """

    most: int
    least: int = 0
    ends: frozenset[int] = frozenset()
    stops: Callable[[Sequence[int]], bool] = lambda tokens: False

    def is_over(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` are a whole text."""
        return bool(tokens) and (tokens[-1] in self.ends or self.stops(tokens))


@dataclass
class Trace:
    """A text and how it came about.

    Attributes:
        tokens: The new tokens, without one that ends the text.
        kept: Per step, what was chosen: a token, or for beams names of hypotheses.
        pool: Per step, the best of what was chosen from, by the same names, with their scores.
        scale: Per step, by how much a score of the pool moves if all scores of the model move by
            one: the number of tokens, for sums of logarithms.
    """

    tokens: list[int] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)
    pool: list[dict[int, float]] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)

    def note(self, kept: Sequence[int], pool: Mapping[int, float], scale: float) -> None:
        """Remember one step."""
        self.kept.append(list(kept))
        self.pool.append(dict(pool))
        self.scale.append(scale)


def cleaned(scores: np.ndarray, length: int, rules: Rules) -> np.ndarray:
    """Scores [tokens] as float64; NaN is never best, nor an end that comes too early."""
    wide = scores.astype(np.float64)
    wide = np.where(np.isnan(wide), -np.inf, wide)
    if length < rules.least:
        wide[[t for t in rules.ends if t < len(wide)]] = -np.inf
    return wide


def best(scores: np.ndarray, count: int) -> np.ndarray:
    """Numbers of the ``count`` best scores, the best first and of equal ones the lowest."""
    count = min(count, len(scores))
    # Not by sorting all: a vocabulary has 100,000 tokens.
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > least)
    level = np.flatnonzero(scores == least)[: count - len(above)]
    found = np.concatenate([above, level])
    return found[np.lexsort((found, -scores[found]))]


def nth_choice(model: Steps[State], rules: Rules, choice: int = 1) -> Trace:
    """The text of which each token is the ``choice``-th most probable one; greedy for 1."""
    trace = Trace()
    tokens: list[int] = []
    scores, state = model.start()
    while True:
        clean = cleaned(scores, len(tokens), rules)
        order = best(clean, max(POOL, choice))
        token = int(order[min(choice, len(order)) - 1])
        trace.note([token], {int(t): float(clean[t]) for t in order}, 1.0)
        tokens.append(token)
        if len(tokens) >= rules.most or rules.is_over(tokens):
            break
        scores, state = model.extend(state, token)
    trace.tokens = _without_end(tokens, rules)
    return trace


@dataclass(frozen=True)
class _Hypothesis(Generic[State]):
    """A beam: its tokens, the sum of their log-probabilities, and the state before the last."""

    tokens: tuple[int, ...]
    log_probability: float
    state: State | None
    over: bool


def beam_search(
    model: Steps[State], rules: Rules, beams: int, length_penalty: float = 1.0
) -> Trace:
    """The best text that beam search finds.

    At each step, every hypothesis that is not over is continued by every token; the ``beams`` best
    of these, and of those that are over, are kept. It ends when all are over, or at the longest
    that is allowed. The score of n tokens (an end counts) is log p / n ** length_penalty.

    Source: Sutskever, Vinyals, Le 2014, "Sequence to sequence learning with neural networks",
    section 3.2; the length penalty as in Wu et al. 2016, "Google's neural machine translation
    system", section 7, with n in place of (5 + n) / 6.
    """

    def score(h: _Hypothesis[State]) -> float:
        return h.log_probability / math.pow(max(len(h.tokens), 1), length_penalty)

    def ranked(hypotheses: Sequence[_Hypothesis[State]]) -> list[_Hypothesis[State]]:
        return sorted(hypotheses, key=lambda h: (-score(h), h.tokens))

    trace = Trace()
    scores, state = model.start()
    live = _continued(_Hypothesis((), 0.0, None, False), scores, state, rules, beams)
    for length in range(1, rules.most + 1):
        pool = ranked(live)
        kept = pool[:beams]
        shown = pool[: beams + POOL]
        scale = max(math.pow(len(h.tokens), 1 - length_penalty) for h in shown)
        trace.note([_name(h) for h in kept], {_name(h): score(h) for h in shown}, scale)
        if length == rules.most or all(h.over for h in kept):
            break
        live = []
        for h in kept:
            if h.over:
                live.append(h)
                continue
            assert h.state is not None
            scores, state = model.extend(h.state, h.tokens[-1])
            live += _continued(h, scores, state, rules, beams)
    trace.note([_name(kept[0])], {_name(h): score(h) for h in kept}, trace.scale[-1])
    trace.tokens = _without_end(kept[0].tokens, rules)
    return trace


def _continued(
    h: _Hypothesis[State], scores: np.ndarray, state: State, rules: Rules, beams: int
) -> list[_Hypothesis[State]]:
    """The continuations of ``h`` that may be among the best."""
    clean = log_softmax(cleaned(scores, len(h.tokens), rules))
    found = []
    for token in best(clean, beams + POOL):
        tokens = (*h.tokens, int(token))
        total = h.log_probability + float(clean[token])
        found.append(_Hypothesis(tokens, total, state, rules.is_over(tokens)))
    return found


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities that float64 scores [tokens] mean; -inf stays."""
    top = float(scores.max())
    if top == -math.inf:
        return np.full(len(scores), -math.log(len(scores)))
    if top == math.inf:
        scores = np.where(scores == math.inf, 0.0, -math.inf)
        top = 0.0
    shifted = scores - top
    return np.asarray(shifted - math.log(float(np.exp(shifted).sum())))


def _name(h: _Hypothesis[State]) -> int:
    """A number below 2⁶³ that stands for the tokens of a hypothesis."""
    data = repr(h.tokens).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def _without_end(tokens: Sequence[int], rules: Rules) -> list[int]:
    return list(tokens[:-1] if tokens and tokens[-1] in rules.ends else tokens)


@dataclass(frozen=True)
class TraceDivergence:
    """Where two traces part: at which step, and how far apart the reference saw the two.

    ``margin`` and ``noise`` are differences of scores; within the noise there was no choice.
    """

    step: int
    margin: float
    noise: float

    @property
    def firm(self) -> bool:
        """Whether the reference was sure."""
        return not self.margin <= self.noise


def divergence(reference: Trace, candidate: Trace, noise: float) -> TraceDivergence | None:
    """The first step at which both chose otherwise; until there they saw the same tokens.

    ``noise`` is the absolute uncertainty of the reference's scores. What the candidate chose and
    the reference's pool lacks was worse than the worst that the pool has: that bounds the margin.
    """
    for step, (a, b) in enumerate(zip(reference.kept, candidate.kept, strict=False)):
        lost, won = set(a) - set(b), set(b) - set(a)
        if not lost and not won:
            continue
        pool, floor = reference.pool[step], min(reference.pool[step].values())
        gaps = [abs(pool[x] - pool.get(y, floor)) for x in lost for y in won]
        margin = max(gaps, default=math.inf)
        return TraceDivergence(step, margin, noise * reference.scale[step])
    if len(reference.kept) != len(candidate.kept):
        return TraceDivergence(min(len(reference.kept), len(candidate.kept)), math.inf, noise)
    return None
