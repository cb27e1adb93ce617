"""Tries the passes that change a model in other orders: which orders are wrong, and how many?

A pipeline is one order of its passes. Users write others, and no pass says which must go before
which. All orders are tried where they are few, else a sample drawn without preference, so that what
was not tried is bounded too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from optvet.engine.vet.find.blame import search
from optvet.engine.vet.find.confirm import report_fault
from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.properties import Fault
from optvet.engine.vet.session import VetSession
from optvet.spec.records import OrdersRecord

Order = tuple[str, ...]
CONFIDENCE = 0.95
_MOST_CULPRITS = 8
"""Culprits that are searched and confirmed; further failing orders are counted."""


def try_orders(session: VetSession, detected: Detected, names: Sequence[str]) -> OrdersRecord:
    """Try orders of the passes ``names``, each of which is right alone, and report faults.

    A failing order that contains a known culprit, in its order, is counted and not searched.
    """
    examiner, samples, ledger = detected.examiner, detected.samples, session.ledger
    table, wanted = session.case.passes, session.request.orders or 0
    found = draw_orders(names, wanted, session.request.seed)
    trials = session.runner.trials([table.complete(o) for o in found], samples, "each")
    tried: list[Order] = []
    failing: list[Order] = []
    culprits: list[Order] = []
    for order, trial in zip(found, trials, strict=True):
        seen = examiner.examine(trial, samples).observation
        if seen is not None and ledger.ends_search(seen):
            break
        tried.append(order)
        if seen is None or ledger.is_unexplained(seen):
            continue
        failing.append(order)
        # Counted in any case. To search it would find a known culprit again, or cost too much.
        if len(culprits) >= _MOST_CULPRITS or any(contains(order, c) for c in culprits):
            continue
        fault = Fault(examiner, seen)
        culprit = search(session.runner, order, fault, session.request.strategy)
        culprits.append(culprit)
        # The whole pipeline, or a pair of passes, may have shown the same culprit before.
        if not any(f.culprit == list(culprit) for f in ledger.findings):
            report_fault(session, fault, culprit)
    return _record(names, tried, failing, culprits)


def _record(
    names: Sequence[str], tried: list[Order], failing: list[Order], culprits: list[Order]
) -> OrdersRecord:
    total = math.factorial(len(names))
    return OrdersRecord(
        passes=list(names),
        tried=len(tried),
        total=total,
        failing=len(failing),
        share=bound_of(len(failing), len(tried), total),
        shortest=list(sorted(culprits, key=len)[0] if culprits else ()),
        pairs=len({pair for order in tried for pair in itertools.combinations(order, 2)}),
        all_pairs=len(names) * (len(names) - 1),
    )


def orders_words(found: OrdersRecord) -> str:
    """How many orders were tried and failed, and what that says of the others."""
    number = len(found.passes)
    words = f"{found.tried:,} of {found.total:,} orders of {number} passes tried"
    words += f", {found.failing:,} wrong" if found.failing else ", all right"
    if found.shortest:
        words += f", the shortest {' then '.join(found.shortest)}"
    if found.tried == found.total:
        return words
    share = f"with 95 % confidence at most {found.share:.2g} of all orders are wrong"
    return f"{words}; {share}; {found.pairs} of {found.all_pairs} ordered pairs occurred"


def draw_orders(names: Sequence[str], most: int, seed: int) -> list[Order]:
    """All orders of ``names`` if these are at most ``most``, else as many, drawn and distinct."""
    # All of them make the share exact; a sample of the same size would only bound it.
    if math.factorial(len(names)) <= most:
        return list(itertools.permutations(names))
    return list(itertools.islice(dict.fromkeys(_drawn(names, seed, most)), most))


def _drawn(names: Sequence[str], seed: int, most: int) -> Iterator[Order]:
    draw = np.random.default_rng(seed)
    # Few are drawn twice, as there are more orders than are wanted.
    for _ in range(50 * most):
        yield tuple(names[i] for i in draw.permutation(len(names)))


def contains(order: Sequence[str], culprit: Sequence[str]) -> bool:
    """Whether the passes of ``culprit`` stand in ``order`` one behind the other, in its order.

    >>> contains("abcd", "ac"), contains("abcd", "ca")
    (True, False)
    """
    rest = iter(order)
    return all(name in rest for name in culprit)


def bound_of(failing: int, tried: int, total: int) -> float:
    """The largest share of all orders that may be wrong, at a confidence of 95 %.

    It is exact where all were tried; else Clopper and Pearson's bound for a sample, which draws
    without replacement only make smaller.

    >>> round(bound_of(0, 100, 10**6), 4)  # about 3 in 100
    0.0295
    >>> bound_of(2, 8, 8)
    0.25
    """
    if tried == total:
        return failing / total
    if failing == tried:
        return 1.0
    from scipy import stats  # Here, since importing it takes a second.

    return float(stats.beta.ppf(CONFIDENCE, failing + 1, tried - failing))
