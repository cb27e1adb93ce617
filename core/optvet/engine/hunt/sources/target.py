"""What a hunt in a converter tests: the converter, and the runtime that makes sources for it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.options import parse_options
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.converters import Converter, MakesSources, TellsSource
from optvet.spec.errors import UsageError
from optvet.spec.hunt import CONVERTER, HuntRequest


def is_converter(request: HuntRequest) -> bool:
    """Whether the hunt is in a converter."""
    return request.optimizer.startswith(CONVERTER)


@dataclass(frozen=True)
class TestedConverter:
    """The converter under test.

    Attributes:
        converter: The converter.
        options: Its options.
        maker: Makes sources, and runs them.
        format: Of these sources.
        target: Runs what the converter makes.
        maker_home: The environment of its own that ``maker`` is used in; empty for optvet's.
        converter_home: That of the converter.
        target_home: That of ``target``.
    """

    converter: Converter
    options: BaseModel
    maker: RuntimeConfig
    format: str
    target: RuntimeConfig
    maker_home: str = ""
    converter_home: str = ""
    target_home: str = ""

    @property
    def name(self) -> str:
        """As it is typed."""
        return CONVERTER + self.converter.name


def resolve_converter(request: HuntRequest, plugins: Plugins) -> TestedConverter:
    """Resolve the converter of a hunt, its options and its runtimes.

    Raises:
        UsageError: A name or an option is wrong, or nothing makes sources for the converter.
    """
    for given, option in ((request.passes, "--pass"), (request.pools, "--pool")):
        if given:
            raise UsageError(
                f"{option}: a converter has no passes, and its sources come from no pool; leave "
                f"out {option}"
            )
    if request.runtime_options:
        raise UsageError(
            "--runtime-option: what a converter makes runs under the runtime's own options; leave "
            "it out"
        )
    if request.as_shipped:
        raise UsageError("--as-shipped: what a converter makes is not run so; leave it out")
    if request.known:
        raise UsageError("--known: findings of converters have no baselines; leave it out")
    everywhere = Pythons({}, environments_root()).among(plugins)
    converter = everywhere.converter(request.optimizer.removeprefix(CONVERTER))
    home = everywhere.home_of(converter)
    # What makes and runs sources may fit several environments: the fewest are started.
    plugins = everywhere.nearest_to([home] if home else [])
    options = parse_options(
        f"converter {converter.name!r}", converter.options, request.optimizer_options
    )
    makers = _makers(plugins)
    found = next((m for m in makers if m[1] in converter.consumes), None)
    if found is None:
        takes = ", ".join(sorted(converter.consumes))
        known = ", ".join(sorted({format for _, format in makers})) or "nothing"
        more = "; hunt in an importer of ONNX as runtime:NAME" * ("onnx" in converter.consumes)
        raise UsageError(
            f"{request.optimizer}: it takes {takes}, and sources are made for {known}{more}"
        )
    maker, format = found
    target = plugins.reference_runtime(converter.produces)
    return TestedConverter(
        converter,
        options,
        maker,
        format,
        RuntimeConfig(target, target.options),
        plugins.home_of(maker.runtime),
        home,
        plugins.home_of(target),
    )


def _makers(plugins: Plugins) -> list[tuple[RuntimeConfig, str]]:
    """Runtimes that make sources, with the format of these."""
    runtimes = map(plugins.runtime, plugins.names("runtime"))
    return [
        (RuntimeConfig(runtime, runtime.options), runtime.source_formats[".py"])
        for runtime in runtimes
        if isinstance(runtime, MakesSources) and isinstance(runtime, TellsSource)
    ]
