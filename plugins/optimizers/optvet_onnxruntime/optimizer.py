"""ONNX Runtime's graph optimizer, by transformer and by rewrite rule.

Transformers are read from the runtime's own verbose log; rules, which it does not log, from a table
that is checked against the installed binary. A pass set is applied by disabling all others, at the
highest level that any of its members belongs to. Order is the runtime's own business.
"""

from __future__ import annotations

import copy
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, Pass, Sensitive, Traits
from optvet_onnxruntime.installed_passes import PassRow, list_installed
from optvet_onnxruntime.installed_version import installed_version
from optvet_onnxruntime.pass_names import ALL_PASSES, UNNAMED_IN_LOG
from optvet_onnxruntime.released import RELEASED
from optvet_onnxruntime.sessions import create_session, optimization_level, save_optimized
from optvet_onnxruntime.snippets import run_code, session_code

if TYPE_CHECKING:
    from optvet_onnxruntime.pass_log import Ablations

_LEVELS = {"basic": 1, "extended": 2, "layout": 3, "all": 4}

_ABOUT = {
    "NchwcTransformer": "blocked layouts, which only the CPU provider has kernels for",
    "NhwcTransformer": "channels last, which few providers have kernels for",
}


def _are_switches(config: object) -> bool:
    """Whether session configuration entries only turn something on or off."""
    return isinstance(config, Mapping) and all(
        value in ("0", "1") and not re.search("file|path|folder|dir|lib", str(key))
        for key, value in config.items()
    )


class OrtOptimizerOptions(BaseModel):
    """How the optimizer is driven."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["online", "offline"] = "online"
    """online: the session optimizes as it loads. offline: the optimized model is saved, and run
    with optimization off."""
    prepacking: bool = True
    """Online: let kernels lay their weights out anew, as a session does by default. Some compute
    something else then: MatMulNBits rounds its inputs to 8 bits."""
    config: Annotated[
        dict[str, str],
        Sensitive(
            "may name files that ONNX Runtime reads and writes", unless=lambda c: _are_switches(c)
        ),
    ] = {}
    """Session configuration entries, such as {"session.disable_quant_qdq": "1"}."""


class OrtOptimizer:
    """The graph optimizer inside the ``onnxruntime`` package."""

    name = "onnxruntime"
    preload: Sequence[str] = ("onnxruntime",)
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    released = RELEASED
    options: OrtOptimizerOptions = OrtOptimizerOptions()
    # Rules wait for each other's work, so a pass alone says little; sets are what can be searched.
    traits = Traits(
        ordered=False,
        composable=False,
        single=False,
        max_model_bytes=2**31 - 1,
        optimizes_on_load=True,
        dialect=True,
        produces="onnx-session",
    )
    # Travels with the plugin, so that no worker searches the binary again: 0.15 s each time.
    _known: tuple[PassRow, ...] | None = None

    def configured(self, options: OrtOptimizerOptions) -> OrtOptimizer:
        """Offline, it makes a model that is optimized already."""
        ours = copy.copy(self)
        ours.options = options
        if options.mode == "offline":
            ours.traits = replace(
                self.traits,
                optimizes_on_load=False,
                produces="onnx",
                runtime_options=(),
                shipped_options=(("optimization", "disable_all"),),
            )
        else:
            session = (("prepacking", options.prepacking),)
            ours.traits = replace(self.traits, runtime_options=session)
        return ours

    def version(self) -> str:
        """Version of the installed package."""
        return installed_version()

    def passes(self) -> Sequence[Pass]:
        """Rules and transformers of the installed binary, level by level."""
        return [
            Pass(name, kind=f"level {level} {what}", description=_ABOUT.get(name, ""))
            for name, level, what in self._table()
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """What each optimization level turns on; "default" is what a session does by default."""
        levels = {
            name: tuple(n for n, level, _ in self._table() if level <= top)
            for name, top in _LEVELS.items()
        }
        return {"disable_all": (), **levels, "default": levels["all"]}

    def apply(
        self, source: Artifact, passes: Sequence[str], options: OrtOptimizerOptions
    ) -> Artifact:
        """The model with instructions for its session, or a saved model; only ``passes`` are on."""
        settings = self._settings(passes, options)
        if options.mode == "online":
            name = json.dumps(settings, sort_keys=True)
            return Artifact("onnx-session", source.data, handle=settings, fingerprint=name)
        return self.saved(source, passes, options)

    # A session of a message; one whose weights are outside maps them.
    memory_factor = 3.0

    def apply_file(
        self, source: Artifact, passes: Sequence[str], options: OrtOptimizerOptions, folder: Path
    ) -> Artifact:
        """Instructions for a session of the file, or a model that is saved beside its weights."""
        settings = self._settings(passes, options)
        if options.mode == "online":
            name = json.dumps(settings, sort_keys=True)
            return Artifact("onnx-session", handle=settings, fingerprint=name, path=source.path)
        target = folder / "optimized.onnx"
        create_session(str(source.path), settings, save=target, weights="weights.bin")
        return Artifact("onnx", path=target)

    def saved(
        self, source: Artifact, passes: Sequence[str], options: OrtOptimizerOptions
    ) -> Artifact:
        """The optimized model that the runtime writes when it is asked to."""
        return Artifact("onnx", save_optimized(source.data, self._settings(passes, options)))

    def saved_snippet(self, passes: Sequence[str], options: OrtOptimizerOptions) -> str:
        """A session that saves the model."""
        return self.snippet(passes, options.model_copy(update={"mode": "offline"}))

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OrtOptimizerOptions
    ) -> Sequence[str] | None:
        """Passes that the runtime's log says changed the model.

        It names rule sets, not rules: of a small model those are found with which alone their set
        changes it. If there is none, those are taken without which the model becomes another one.
        If these are none too, or the model is large, the set stands for its rules.
        """
        from optvet_onnxruntime.pass_log import changed_in_log, optimization_log

        log = optimization_log(
            source.data, self._settings(passes, options), self._others(passes, options)
        )
        names = changed_in_log(log)
        return None if names is None else [name for name in passes if name in names]

    def snippet(self, passes: Sequence[str], options: OrtOptimizerOptions) -> str:
        """A session that has only ``passes`` on; offline, the model that it saves."""
        settings = self._settings(passes, options)
        entries = dict(settings["config"])
        if not options.prepacking or options.mode == "offline":
            entries = {"session.disable_prepacking": "1", **entries}
        save = options.mode == "offline"
        # Names of other releases, and of higher levels, would only raise questions.
        on = {name for name, level, _ in self._table() if level <= settings["level"]}
        names = [name for name in settings["disabled"] if name in on]
        disabled = textwrap.fill(repr(names), 92, subsequent_indent=" " * 4)
        return "\n".join(
            (
                "import tempfile\n" if save else "# Passes that are not named here are on.",
                "import onnxruntime as ort\n",
                f"disabled = {disabled}",
                "options = ort.SessionOptions()",
                f"options.graph_optimization_level = ort.GraphOptimizationLevel."
                f"{optimization_level(settings['level']).name}",
                "# For judging alone, to compare bits: leave it out of a deployment.",
                "options.intra_op_num_threads = 1",
                *(f"options.add_session_config_entry({k!r}, {v!r})" for k, v in entries.items()),
                *(["file = tempfile.NamedTemporaryFile(suffix='.onnx')"] if save else []),
                *(["options.optimized_model_filepath = file.name"] if save else []),
                "data, cpu = model.SerializeToString(), ['CPUExecutionProvider']",
                "session = ort.InferenceSession(data, options, cpu, disabled_optimizers=disabled)",
                "return file.read()" if save else "return session",
            )
        )

    def simple_snippets(self, passes: Sequence[str], options: OrtOptimizerOptions) -> Sequence[str]:
        """A session by default, then one at the level of ``passes``."""
        settings = self._settings(passes, options)
        levels = (None, optimization_level(settings["level"]).name)
        return [session_code(options.mode, level, settings["config"]) for level in levels]

    def run_snippets(self, passes: Sequence[str], options: OrtOptimizerOptions) -> Sequence[str]:
        """Sessions with all optimizations off, and by default or at the level of ``passes``."""
        if options.mode == "offline":
            return []
        settings = self._settings(passes, options)
        off = "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL"
        by_default = ["if not optimized:", f"    {off}"]
        at_level = [
            "levels = ort.GraphOptimizationLevel",
            f"level = levels.{optimization_level(settings['level']).name} if optimized else "
            "levels.ORT_DISABLE_ALL",
            "options.graph_optimization_level = level",
        ]
        return [run_code(lines, settings["config"]) for lines in (by_default, at_level)]

    def _table(self) -> tuple[PassRow, ...]:
        if self._known is None:
            self._known = list_installed()
        return self._known

    def _settings(self, passes: Sequence[str], options: OrtOptimizerOptions) -> dict[str, Any]:
        level, disabled = _level_and_disabled(self._table(), tuple(passes))
        return {"level": level, "disabled": list(disabled), "config": dict(options.config)}

    def _others(self, passes: Sequence[str], options: OrtOptimizerOptions) -> Ablations:
        """The settings without each pass of which the log says little, and with it alone."""
        from optvet_onnxruntime.pass_log import Ablations

        settings = self._settings(passes, options)
        names_asked = [
            name for names in UNNAMED_IN_LOG.values() for name in names if name in passes
        ]
        # Of one level: what a level does to each model is no pass's doing.
        disabled = frozenset(settings["disabled"])
        return Ablations(
            {n: {**settings, "disabled": sorted(disabled | {n})} for n in names_asked},
            {**settings, "disabled": sorted(disabled.union(passes))},
        )


@lru_cache(maxsize=1024)
def _level_and_disabled(
    known: tuple[PassRow, ...], passes: tuple[str, ...]
) -> tuple[int, tuple[str, ...]]:
    """The lowest level that has all passes, and the names of all other passes."""
    unknown = sorted(set(passes) - {name for name, _, _ in known})
    if unknown:
        # ONNX Runtime ignores a name that it does not know, without a word.
        raise ValueError(f"onnxruntime has no graph optimizer called {unknown[0]!r}")
    levels = [level for name, level, _ in known if name in passes]
    others = ALL_PASSES.union(n for n, _, _ in known) - set(passes)
    return max(levels, default=0), tuple(sorted(others))
