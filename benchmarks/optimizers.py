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
from optvet.engine.cache import cache_root
from optvet.engine.discovery import Plugins
from optvet.engine.sandbox import Sandbox
from optvet.engine.trial import Subject, ask_touched
from optvet.engine.vet import resolve_model
from optvet.spec.protocols import TellsTouched

MODELS = "zoo:squeezenet,zoo:shufflenet,zoo:digits-cnn"
HEAD = ("optimizer", "model", "passes", "changed", "verdict", "applications", "inferences", "s")


def changed(plugins: Plugins, name: str, reference: str) -> str:
    """Number of default passes that changed the model."""
    optimizer = plugins.optimizer(name)
    pipeline = tuple(optimizer.pipelines()["default"])
    if isinstance(optimizer, TellsTouched):
        (model,) = resolve_model(reference, plugins, cache_root())
        subject = Subject(model.blob, model.digest, optimizer, optimizer.options, pipeline)
        with Sandbox(jobs=1, preload=optimizer.preload) as sandbox:
            told = sandbox.call(ask_touched, subject).value
        return "?" if told is None else str(len(set(told)))
    result = vet(reference, optimizer=name, strategy="each", limit=1, pairs=False)
    records = [p for p in result.passes or [] if p.name in pipeline]
    return str(sum(p.effect != "none" for p in records))


def row(plugins: Plugins, name: str, reference: str, limit: int) -> tuple[str, ...]:
    """One line of the table."""
    optimizer = plugins.optimizer(name)
    seen = f"{len(set(optimizer.pipelines()['default']))} of {len(optimizer.passes())}"
    try:
        result = vet(reference, optimizer=name, limit=limit, use_cache=False)
    except OptvetError as error:
        return name, reference, seen, "", f"refused: {error}"[:60], "", "", ""
    cost = result.cost
    return (
        name,
        reference,
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
    for name in names:
        for reference in options.models.split(","):
            lines.append(f"| {' | '.join(row(plugins, name, reference, options.limit))} |")
            print(lines[-1], flush=True)
    if options.markdown:
        text = f"{__doc__.splitlines()[0]}\n\n```text\n{header}\n```\n\n" + "\n".join(lines) + "\n"
        options.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
