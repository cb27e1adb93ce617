"""What a bug report needs to say of the environment: versions, machine, foreign plugins."""

from __future__ import annotations

import platform
from collections.abc import Iterable

import onnx

from optvet import __version__
from optvet.engine.environment.machine import environment
from optvet.engine.plugin_entries import Loaded
from optvet.spec.records.listing import ForeignPlugin, VersionReport


def version_report(plugins: Iterable[Loaded]) -> VersionReport:
    """The versions of optvet, Python, onnx, optimizers and runtimes, and plugins of others."""
    found = list(plugins)
    return VersionReport(
        schema="optvet.version/1",
        optvet=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=platform.platform(),
        onnx=onnx.__version__,
        machine={k: v for k, v in environment().items() if k not in ("python", "platform")},
        optimizers={p.name: p.version for p in found if p.family == "optimizer"},
        runtimes={p.name: p.version for p in found if p.family == "runtime"},
        plugins=[
            ForeignPlugin(family=p.family, name=p.name, origin=p.origin, problem=p.problem)
            for p in found
            if not p.built_in
        ],
    )
