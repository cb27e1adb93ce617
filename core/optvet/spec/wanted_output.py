"""Which output a comparator reads: the one that the user names, or those that fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from optvet.spec.errors import InputError


def readable_outputs(
    comparator: str,
    outputs: Mapping[str, np.ndarray],
    wanted: str,
    fits: Callable[[str, np.ndarray], bool],
    kind: str,
    *,
    of: str = "",
) -> list[str]:
    """Names of the outputs that a comparator can read, in order; at least one.

    Args:
        comparator: Its name.
        outputs: The reference's, on one sample.
        wanted: The only one that may be read, as the option ``output`` says; empty for any.
        fits: Whether an output of this name and value can be read.
        kind: What a readable output holds, as in "with pixels"; for the message.
        of: What else is expected of it, as in "of rank 2 to 4".

    Raises:
        InputError: The wanted output cannot be read, or none can.
    """
    fitting = [name for name, value in outputs.items() if fits(name, value)]
    if wanted in fitting:
        return [wanted]
    if wanted or not fitting:
        words = " ".join(part for part in (repr(wanted or kind), of) if part)
        raise InputError(
            f"comparator {comparator!r}: no output {words} among "
            f"{', '.join(map(repr, outputs))}; choose one with the option 'output'"
        )
    return fitting
