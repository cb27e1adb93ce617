"""Which passes are to blame for a property: one loop for all of them.

::

    the empty pipeline shows it ── yes ─→ import and export are to blame
             └ no ─→ search the passes ─→ a minimal sequence that shows it
"""

from __future__ import annotations

from optvet.engine.vet.find import localize
from optvet.engine.vet.find.localize import Answer, Test
from optvet.engine.vet.properties import Property
from optvet.engine.work.trials.trial_results import Purpose, Trial, hangs
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.request import Strategy

SHORT_WAITS_S = 20.0
"""Total time for hanging trials in the search for a hang; at least the time limit."""


def blame(
    runner: TrialRunner, pipeline: tuple[str, ...], wanted: Property, strategy: Strategy
) -> tuple[str, ...]:
    """The minimal pass sequence that shows ``wanted``; empty for import and export alone.

    Args:
        runner: Makes the trials.
        pipeline: A pipeline that shows it.
        wanted: The property to search for.
        strategy: Strategy of the search; "auto" chooses by the optimizer's traits, and with "none"
            all optional passes of the pipeline are the answer.
    """
    # Import and export come first: a search over passes would blame one of them for what every
    # pipeline shows.
    base = runner.trial(runner.case.passes.base, wanted.samples, "control")
    if wanted.find_in_base(base) is not None:
        return ()
    return search(runner, pipeline, wanted, strategy)


def search(
    runner: TrialRunner, pipeline: tuple[str, ...], wanted: Property, strategy: Strategy
) -> tuple[str, ...]:
    """A minimal sequence of passes from ``pipeline`` that shows ``wanted``.

    The pipeline shows it, and the empty one does not.
    """
    trials = _TrialMemo(runner, wanted)
    found = _search(runner, trials, pipeline, wanted, strategy)
    # Count only passes that could have been blamed. The log is read, never made for this number: a
    # search that did not need it must not pay for it.
    if strategy != "none":
        optional = set(pipeline) - runner.case.passes.required
        if runner.knows_changing_passes(pipeline):
            optional &= set(runner.changing_passes(pipeline) or optional)
        runner.ledger.searched(wanted.symptom, trials.asked, len(optional), len(found))
    return found


def _search(
    runner: TrialRunner,
    trials: _TrialMemo,
    pipeline: tuple[str, ...],
    wanted: Property,
    strategy: Strategy,
) -> tuple[str, ...]:
    traits, required = runner.case.optimizer.traits, runner.case.passes.required
    # Passes that the optimizer cannot leave out are never blamed: no trial exists without them.
    if strategy == "none":
        return tuple(name for name in pipeline if name not in required)
    alone = trials.test(wanted, "localize")
    # Strategy "each" tries every pass alone in any case.
    guesses = strategy in ("auto", "each")
    # A guess costs one trial, and is believed only if the pass alone fails. Most faults have one
    # culprit, so a right guess saves the whole search.
    for name in wanted.likely(runner.trial(pipeline, (), "walk")) if guesses else ():
        if name not in required and alone(runner.case.passes.complete((name,))) == "fails":
            return (name,)
    # Prefixes mean something only if passes are applied one after another in the given order.
    # Otherwise subsets are searched.
    walks = strategy == "walk" or (strategy != "subset" and traits.ordered and traits.composable)
    if not walks:
        # From here only the fault of the whole pipeline counts: a subset with another fault has
        # another culprit.
        test = trials.test(wanted.as_observed_in(pipeline), "localize")
        suspects = _suspects(runner, pipeline, test)
        return localize.minimal_set(suspects, test, required=required)
    reported = runner.trial(pipeline, (), "walk").build.changing_passes
    # The symptom is enough to find a prefix: later passes change values and outputs. What is
    # minimized then is the very fault that this prefix shows.
    coarse = trials.test(wanted, "walk")
    length = localize.first_bad_prefix(pipeline, coarse, required=required, suspects=reported)
    prefix = localize.with_required_passes(pipeline, length, required)
    fine = trials.test(wanted.as_observed_in(prefix), "localize")
    return localize.minimal_sequence(prefix, fine, required=required)


class _TrialMemo:
    """Trials of one search, each made once; trials that hang share a time limit."""

    def __init__(self, runner: TrialRunner, wanted: Property) -> None:
        self._lab, self._samples = runner, wanted.samples
        self._known: dict[tuple[str, ...], Trial] = {}
        # What may be spent on trials that hang, beside the first and its confirmation.
        self._left_s = max(runner.sandbox.limits.timeout_s, SHORT_WAITS_S)

    @property
    def asked(self) -> int:
        """How many different sequences of passes were tried."""
        return len(self._known)

    def test(self, wanted: Property, purpose: Purpose) -> Test:
        """Whether passes show ``wanted``; an untried sequence is unresolved."""

        def answer(passes: tuple[str, ...]) -> Answer:
            trial = self._of(passes, purpose)
            return "unresolved" if trial is None else wanted.answer(trial)

        return answer

    def _of(self, passes: tuple[str, ...], purpose: Purpose) -> Trial | None:
        if passes not in self._known:
            # Without this limit, a search for a hang would wait for the time limit in each of its
            # trials.
            if self._left_s <= 0:
                return None
            trial = self._known[passes] = self._lab.trial(passes, self._samples, purpose)
            if hangs(trial):
                limit = self._lab.case.checks.timeout_s
                self._left_s -= limit or self._lab.sandbox.limits.timeout_s
        return self._known[passes]


def _suspects(runner: TrialRunner, pipeline: tuple[str, ...], test: Test) -> tuple[str, ...]:
    """The passes that the optimizer reports as changing the model, if they show the property.

    The report is a hint, not evidence: if these passes do not show the property, the whole pipeline
    is searched.
    """
    changing_passes = runner.changing_passes(pipeline)
    if changing_passes is None:
        return pipeline
    few = tuple(n for n in pipeline if n in changing_passes or n in runner.case.passes.required)
    return few if len(few) < len(pipeline) and test(few) == "fails" else pipeline


def search_timeout(limit_s: float, empty_s: float) -> float:
    """Time limit of trials in the search for a hang: far more than the empty pipeline took.

    The confirmation uses the full limit, so that a slow pass is not reported as hanging.
    """
    return min(limit_s, max(2.0, 20 * empty_s))
