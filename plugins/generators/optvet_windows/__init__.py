"""Windows: a few connected nodes cut out of models of the user's, or of an optimizer's tests."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from optvet.plugin import Fragment, Pattern, Pool, PoolRequest, UsageError, files_in, hookimpl
from optvet_windows.cut import read_model, windows_of
from optvet_windows.upstream import Upstream


class Windows:
    """``windows:FOLDER`` or ``windows:MODEL.onnx``: what fusions look for in real models."""

    name = "windows"
    needs_argument = True

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """Windows of one to six nodes; of equal sequences of operators one per model.

        Raises:
            UsageError: There is no model, or none that runs on inputs that are drawn for it.
        """
        if not request.argument:
            raise UsageError("pool 'windows' needs models: say --pool windows:FOLDER")
        place = Path(request.argument).expanduser()
        files = files_in(place, lambda f: f.suffix == ".onnx") if place.is_dir() else [place]
        if not files or not files[0].is_file():
            raise UsageError(f"pool 'windows': {place} has no .onnx file; give a model or a folder")
        models = [(file.name, partial(read_model, file)) for file in files]
        reasons, count = [], 0
        for window in windows_of(models, request):
            if isinstance(window, str):
                reasons.append(window)
            elif count < request.limit:
                count += 1
                yield window
            else:
                return
        if reasons and not count:
            raise UsageError(f"pool 'windows': no model of {place} can be used; {reasons[0]}")


@hookimpl
def optvet_generators() -> Iterable[Pool]:
    """The pools."""
    return [Windows(), Upstream()]
