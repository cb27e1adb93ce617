"""Every optimizer through the same harness: what it does to zoo models, and what that costs.

For each installed optimizer and each model: passes seen, passes that changed the model (by the
optimizer's own word where it gives one, else found by applying each default pass alone), the
verdict of the default pipeline, and the applications, inferences and seconds that vetting it took.

    python benchmarks/optimizers.py --models zoo:squeezenet,zoo:digits-cnn [--markdown FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from machine import describe, environment

from optvet import OptvetError, vet
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.session import open_session
from optvet.engine.work.cache.disk import cache_root
from optvet.spec.request import VetRequest

MODELS = (
    "zoo:wine-logreg,zoo:diabetes-mlp,zoo:digits-mlp,zoo:digits-cnn,zoo:squeezenet,zoo:shufflenet,"
    "zoo:densenet121,zoo:inception_v1,zoo:inception_v2,zoo:resnet50"
)
"""All of the zoo but for the largest, which take minutes each, and the twins of IR version 3."""
HEAD = ("model", "optimizer", "passes", "changed", "verdict", "applications", "inferences", "s")


def changed(plugins: Plugins, name: str, reference: str) -> str:
    """Number of default passes that changed the model."""
    (model,) = resolve_model(reference, plugins, cache_root())
    settings = VetRequest(model="model", optimizer=name, cache=False)
    with open_session(model, settings, plugins) as session:
        runner, passes = session.runner, session.case.passes
        told = runner.trial(
            passes.pipeline, (), "walk"
        ).build.changing_passes or runner.changing_passes(passes.pipeline)
        if told is not None:
            return str(len(set(told)))
        base = runner.trial(passes.base, (), "walk")
        sequences = [passes.complete((p,)) for p in set(passes.pipeline)]
        trials = [runner.trial(sequence, (), "walk") for sequence in sequences]
        return str(sum(not runner.are_equal(trial, base) for trial in trials))


def row(plugins: Plugins, name: str, reference: str, limit: int) -> tuple[str, ...]:
    """One line of the table."""
    optimizer = plugins.optimizer(name)
    seen = f"{len(set(optimizer.pipelines()['default']))} of {len(optimizer.passes())}"
    try:
        result = vet(reference, optimizer=name, limit=limit, cache=False)
    except OptvetError as error:
        return reference, name, seen, "", f"refused: {error}"[:60], "", "", ""
    cost = result.cost
    return (
        reference,
        name,
        seen,
        changed(plugins, name, reference),
        result.verdict,
        str(cost.applications),
        str(cost.inferences),
        f"{cost.wall_s:.1f}",
    )


def main() -> int:
    """Print the table; write it to a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--optimizers", default="", help="all that are installed by default")
    parser.add_argument("--limit", type=int, default=5, help="samples per model")
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    plugins = Plugins()
    names = options.optimizers.split(",") if options.optimizers else plugins.names("optimizer")
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    header = describe(environment())
    print(header, *lines, sep="\n", flush=True)
    for reference in options.models.split(","):
        for name in names:
            lines.append(f"| {' | '.join(row(plugins, name, reference, options.limit))} |")
            print(lines[-1], flush=True)
    if options.markdown:
        text = f"{__doc__.splitlines()[0]}\n\n```text\n{header}\n```\n\n" + "\n".join(lines) + "\n"
        options.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
