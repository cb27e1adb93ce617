"""``optvet record``: a kit that runs a model where optvet does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optvet.cli.errors import CLEAN
from optvet.cli.options import CacheDir, Debug, Trust, cache_folder
from optvet.cli.output import check_folder
from optvet.cli.render import count, text
from optvet.cli.terminal import Terminal
from optvet.spec.request import VetRequest


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="An ONNX file, or `zoo:NAME`.", show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="New folder for the kit.", show_default=False),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME[:PATH]", help="Where inputs come from.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 1,
    values: Annotated[
        str,
        typer.Option(
            metavar="N|all|NAME,…",
            help="Inner values to record: so many, evenly spread, or all, or these. Each is an "
            "output, which may keep the device from fusing nodes; 0 records outputs alone.",
        ),
    ] = "16",
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="RECORDING.npz",
            help="Take the inputs of this recording, and the values that say which node of its "
            "first difference is wrong.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="With `--after`: that of `optvet compare`."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    trust: Trust = False,
    cache_dir: CacheDir = None,
    debug: Debug = False,
) -> None:
    """Write a kit that runs a model where optvet does not, to judge it here.

    The kit has the model, inputs, and clients for Python, node and browsers.
    """
    from optvet.engine.discovery import Plugins
    from optvet.engine.recording.kit import write_kit

    terminal = context.ensure_object(Terminal)
    check_folder("--out", out)
    plugins = Plugins()
    request = VetRequest(
        model=model,
        dataset=(dataset or plugins.default("dataset"),),
        limit=limit,
        seed=seed,
        cache_dir=cache_folder(cache_dir),
        trust=trust,
    )
    with terminal.progress() as progress:
        kit = write_kit(
            request,
            out,
            plugins,
            values=values,
            after=after,
            tolerance=tolerance,
            progress=progress,
        )
    recorded = f"{count(kit.samples, 'sample')}, {count(len(kit.values), 'inner value')}"
    terminal.show(text(f"{kit.folder}: {recorded} of {count(kit.nodes, 'node')}"), soft_wrap=True)
    terminal.show(
        text("on the device: python record.py, or node record.mjs, or index.html in a browser"),
        text(f"then here: optvet compare {model} recording.npz --layers", "dim"),
    )
    raise typer.Exit(CLEAN)
