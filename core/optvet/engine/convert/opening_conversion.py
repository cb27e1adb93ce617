"""Opens a conversion: its workers, and the framework that its source is for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx

from optvet.engine.convert.chain import links_of, sources_of
from optvet.engine.convert.session import Conversion
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.models.opening import is_for_evaluator
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.timing.stopwatch import MEASURES
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.convert import ConvertRequest, parts_of
from optvet.spec.errors import BudgetSpent, OptvetError
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.scratch import temporary_folder


@contextmanager
def open_conversion(
    request: ConvertRequest,
    plugins: Plugins,
    *,
    more: Sequence[str] = (),
    within: Conversion | None = None,
) -> Iterator[Conversion]:
    """A question with its workers, which import ``more`` modules once.

    A question about a part of a source comes up ``within`` that about the whole, which has imported
    all that the part needs.
    """
    pythons = Pythons(request.environments, environments_root())
    plugins = pythons.among(plugins)
    links = links_of(request, plugins)
    sources = sources_of(request, links[0].converter, plugins)
    formats = dict.fromkeys(s.format for link in links for s in link.stages)
    runtimes: list[Runtime] = [source.runtime for source in sources]
    if "onnx" in formats:
        runtimes.append(plugins.reference_runtime())
    converters = [link.converter for link in links]
    # What runs between them may fit several environments: the fewest are started.
    plugins = plugins.nearest_to([*filter(None, map(plugins.home_of, (*converters, *runtimes)))])
    others = map(plugins.runtime, plugins.names("runtime"))
    abroad = (r for r in others if plugins.home_of(r) and r not in runtimes)
    runtimes += [r for r in abroad if r.accepts.intersection(formats)]
    homes = dict.fromkeys(("", *map(plugins.home_of, (*converters, *runtimes))))
    jobs = request.jobs or min(8, os.cpu_count() or 1)
    # A source that is code is trusted with the files and the network that it needs.
    is_code = request.trust or parts_of(request.model)[1]
    writable = None if is_code else ()
    limits = Limits(request.timeout, request.memory, writable=writable)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("optvet-convert-"))
        sandboxes = {}
        for home in homes:
            at_home = [r for r in runtimes if plugins.home_of(r) == home]
            libraries = [n for c in converters if plugins.home_of(c) == home for n in c.preload]
            steps = (f"{__package__}.worker_steps", "numpy.random", *(MEASURES,) * request.measure)
            preload = (*preload_for(None, *at_home), *libraries, *steps, *more)
            interpreter = pythons.interpreter_of(home, plugins) if home else None
            sandboxes[home] = stack.enter_context(
                Sandbox(
                    jobs=jobs,
                    limits=limits,
                    preload=tuple(dict.fromkeys(preload)),
                    interpreter=interpreter,
                    lender=None if within is None else within.sandboxes.get(home),
                )
            )
        left_s = request.budget if within is None else within.sandbox.left_s
        for box in sandboxes.values():
            stack.enter_context(box.budget(left_s))
        boxes = [*sandboxes.values()]
        here = sandboxes.pop("")
        ways = [
            Conversion(
                request, plugins, here, source, tuple(links), Path(folder), [], [], sandboxes
            )
            for source in sources
        ]
        yield _loadable(ways)
        if any(box.budget_spent for box in boxes):
            raise BudgetSpent  # what rests on a step that was stopped is no answer


def _loadable(ways: Sequence[Conversion]) -> Conversion:
    """The first whose source can be loaded; the file does not tell which framework it is for.

    Raises:
        InputError: There is none; with what the last framework says.
    """
    for conversion in ways[:-1]:
        try:
            conversion.facts()
        except OptvetError:
            continue
        if conversion.source.artifact.format != "onnx" or _loads(conversion):
            return conversion
    # Of a model in ONNX that nothing loads, what the runtime says that is made for it.
    last = ways[-1]
    if last.source.artifact.format != "onnx":
        return last
    is_judge = _loads(last) and is_for_evaluator(onnx.load_from_string(last.source.artifact.data))
    return last if is_judge else ways[0]


def _loads(conversion: Conversion) -> bool:
    return conversion.observe(conversion.reference, conversion.source.artifact, ()).load is None
