"""ONNX Runtime's graph optimizer, by transformer and by rewrite rule.

Transformers are read from the runtime's own verbose log; rules, which it does not log, from a table
that is checked against the installed binary. A pass set is applied by disabling all others, at the
highest level that any of its members belongs to. Order is the runtime's own business.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import re
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from onnx import TensorProto, helper
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, Pass, Sensitive, Traits

_LEVELS = {"basic": 1, "extended": 2, "layout": 3, "all": 4}
_DONE = re.compile(r"GraphTransformer (\S+) modified: ([01]) with status")
_BEGUN = re.compile(r"Applying graph transformer (\S+) on step \d+\.")
_LEVEL = re.compile(r"Applying \d+ graph transformer\(s\) for level (\d+)")

# Rules run inside two rule sets; the names are those that ``disabled_optimizers`` understands.
# Names of all releases: what a release does not have is left out by looking into its binary.
_RULES_1 = (
    "EliminateIdentity EliminateSlice UnsqueezeElimination EliminateDropout ExpandElimination "
    "CastElimination CastChainElimination PreShapeNodeElimination NoopElimination DivMulFusion "
    "FuseReluClip GemmSumFusion GemmTransposeFusion NotWhereFusion ConvAddFusion ConvMulFusion "
    "ConvBNFusion Pad_Fusion MatMul_BatchNormalization_Fusion LabelEncoderFusion"
).split()
_RULES_2 = ("ClipQuantRewrite", "ReluQuantRewrite")
_RULE_SETS = {"Level1_RuleBasedTransformer": _RULES_1, "Level2_RuleBasedTransformer": _RULES_2}
# This one's log says of every model that it was changed.
_ALWAYS = "FuseFp16InitializerToFp32NodeTransformer"
_ASKED = {**_RULE_SETS, _ALWAYS: (_ALWAYS,)}
"""What the log says little about: who may have changed the model, by the name in the log."""
_TOLD = re.compile(r"^optvet: (?:without (\w+)|(\w+) alone): the model is another$", re.MULTILINE)
_COMPARED = "optvet: compared"
_SMALL_BYTES = 1 << 20
"""Of models up to this size it is found out which rules of a set changed them."""

# For releases whose log does not name transformers (before 1.17), and for those that are only
# logged when they run: the pipeline by level.
_TRANSFORMERS: dict[int, list[str]] = {
    1: (
        "DoubleQDQPairsRemover ConstantSharing CommonSubexpressionElimination ConstantFolding "
        "MatMulAddFusion ReshapeFusion FreeDimensionOverrideTransformer "
        "SliceConcatToSpaceToDepthFusion GeluFusionL1 LayerNormFusionL1 QDQPropagationTransformer "
        "WeightBiasQuantization EnsureUniqueDQForNodeUnit WhereDummyDq TransposeOptimizer"
    ).split(),
    2: (
        "TransposeOptimizer_CPUExecutionProvider QDQS8ToU8Transformer QDQSelectorActionTransformer "
        "GemmActivationFusion MatMulIntegerToFloatFusion DynamicQuantizeMatMulFusion "
        "ConvActivationFusion GeluFusionL2 LayerNormFusionL2 GeluFusion LayerNormFusion "
        "SimplifiedLayerNormFusion AttentionFusion EmbedLayerNormFusion GatherSliceToSplitFusion "
        "GatherToSplitFusion GatherToSliceFusion MatmulTransposeFusion BiasGeluFusion "
        "GroupQueryAttentionFusion SkipLayerNormFusion BiasSkipLayerNormFusion FastGeluFusion "
        "QuickGeluFusion BiasSoftmaxFusion BiasDropoutFusion MatMulScaleFusion "
        "MatMulActivationFusion MatMulNBitsFusion GroupQueryAttentionPreNormFusion "
        "QDQFinalCleanupTransformer"
    ).split(),
    3: ["NchwcTransformer", "NhwcTransformer", "ConvAddActivationFusion"],
    4: ["FuseFp16InitializerToFp32NodeTransformer"],
}

_ABOUT = {
    "NchwcTransformer": "blocked layouts, which only the CPU provider has kernels for",
    "NhwcTransformer": "channels last, which few providers have kernels for",
}

_ALL_NAMES = {n for names in _TRANSFORMERS.values() for n in names} | {*_RULES_1, *_RULES_2}
# These run whatever is asked for; naming them changes nothing.
_MANDATORY = {"RemoveDuplicateCastTransformer", "CastFloat16Transformer", "MemcpyTransformer"}

_Row = tuple[str, int, str]
"""Name and level of a pass, and "rule" or "transformer"."""


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
    prepacking: bool = False
    """Let kernels lay their weights out anew (changes the order of sums)."""
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
    _known: tuple[_Row, ...] | None = None

    def configured(self, options: OrtOptimizerOptions) -> OrtOptimizer:
        """Offline, it makes a model that is optimized already."""
        ours = copy.copy(self)
        ours.options = options
        if options.mode == "offline":
            ours.traits = replace(self.traits, optimizes_on_load=False, produces="onnx")
        return ours

    def version(self) -> str:
        """Version of the installed package."""
        import onnxruntime

        return str(onnxruntime.__version__)

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
        _create(str(source.path), settings, save=target, weights="weights.bin")
        return Artifact("onnx", path=target)

    def saved(
        self, source: Artifact, passes: Sequence[str], options: OrtOptimizerOptions
    ) -> Artifact:
        """The optimized model that the runtime writes when it is asked to."""
        return Artifact("onnx", _save(source.data, self._settings(passes, options)))

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OrtOptimizerOptions
    ) -> Sequence[str] | None:
        """Passes that the runtime's log says changed the model.

        It names rule sets, not rules: of a small model those are found with which alone their set
        changes it. If there is none, those are taken without which the model becomes another one.
        If these are none too, or the model is large, the set stands for its rules.
        """
        log = _log_of(source.data, self._settings(passes, options), self._others(passes, options))
        begun, done = _BEGUN.findall(log), _DONE.findall(log)
        if not done and not begun:
            return None
        hits = [name for name, modified in done if modified == "1"]
        ended = [name for name, _ in done]
        if begun and ended.count(begun[-1]) < begun.count(begun[-1]):
            hits.append(begun[-1])  # it threw, or died, in this one
        telling, compared = {a or b for a, b in _TOLD.findall(log)}, _COMPARED in log
        names: set[str] = set()
        for hit in hits:
            known = telling.intersection(_ASKED.get(hit, (hit,)))
            # Of two rules that do the same, leaving out one changes nothing.
            unknown = hit not in _ASKED or not compared or hit in _RULE_SETS
            names |= known or (set(_ASKED.get(hit, (hit,))) if unknown else set())
        return [name for name in passes if name in names]

    def snippet(self, passes: Sequence[str], options: OrtOptimizerOptions) -> str:
        """A session that has only ``passes`` on; offline, the model that it saves."""
        settings = self._settings(passes, options)
        entries = dict(settings["config"])
        if not options.prepacking:
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
                f"{_level(settings['level']).name}",
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
        levels = (None, _level(settings["level"]).name)
        return [_session_code(options.mode, level, settings["config"]) for level in levels]

    def run_snippets(self, passes: Sequence[str], options: OrtOptimizerOptions) -> Sequence[str]:
        """Sessions with all optimizations off, and by default or at the level of ``passes``."""
        if options.mode == "offline":
            return []
        settings = self._settings(passes, options)
        off = "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL"
        by_default = ["if not optimized:", f"    {off}"]
        at_level = [
            "levels = ort.GraphOptimizationLevel",
            f"level = levels.{_level(settings['level']).name} if optimized else "
            "levels.ORT_DISABLE_ALL",
            "options.graph_optimization_level = level",
        ]
        return [_run_code(lines, settings["config"]) for lines in (by_default, at_level)]

    def _table(self) -> tuple[_Row, ...]:
        if self._known is None:
            self._known = _list_installed()
        return self._known

    def _settings(self, passes: Sequence[str], options: OrtOptimizerOptions) -> dict[str, Any]:
        known = self._table()
        unknown = sorted(set(passes) - {name for name, _, _ in known})
        if unknown:
            # ONNX Runtime ignores a name that it does not know, without a word.
            raise ValueError(f"onnxruntime has no graph optimizer called {unknown[0]!r}")
        levels = [level for name, level, _ in known if name in passes]
        return {
            "level": max(levels, default=0),
            "disabled": sorted(_ALL_NAMES.union(n for n, _, _ in known) - set(passes)),
            "config": dict(options.config),
        }

    def _others(self, passes: Sequence[str], options: OrtOptimizerOptions) -> _Others:
        """The settings without each pass of which the log says little, and with it alone."""
        settings = self._settings(passes, options)
        names_asked = [name for names in _ASKED.values() for name in names if name in passes]
        # Of one level: what a level does to each model is no pass's doing.
        disabled = frozenset(settings["disabled"])
        return _Others(
            {n: {**settings, "disabled": sorted(disabled | {n})} for n in names_asked},
            {**settings, "disabled": sorted(disabled.union(passes))},
        )


@dataclass(frozen=True)
class _Others:
    """Settings without each pass in question, and with all passes off."""

    without: Mapping[str, Mapping[str, Any]]
    off: Mapping[str, Any]


def _run_code(lines: Sequence[str], config: Mapping[str, str]) -> str:
    """Code that runs a session; ``lines`` choose its level."""
    return "\n".join(
        (
            "import onnxruntime as ort\n",
            "options = ort.SessionOptions()",
            *lines,
            *(f"options.add_session_config_entry({k!r}, {v!r})" for k, v in config.items()),
            "session = ort.InferenceSession(model.SerializeToString(), options)",
            "return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))",
        )
    )


def _session_code(mode: str, level: str | None, config: Mapping[str, str]) -> str:
    """Code that opens a session at a level or by default; offline, it reads the saved model."""
    if mode == "online" and level is None and not config:
        return "import onnxruntime as ort\n\nreturn ort.InferenceSession(model.SerializeToString())"
    lines = ["import onnxruntime as ort\n", "options = ort.SessionOptions()"]
    if level is not None:
        chosen = f"ort.GraphOptimizationLevel.{level}"
        lines.append(f"options.graph_optimization_level = {chosen}")
    lines += [f"options.add_session_config_entry({k!r}, {v!r})" for k, v in config.items()]
    if mode == "online":
        lines.append("return ort.InferenceSession(model.SerializeToString(), options)")
    else:
        lines = [
            "import tempfile\n",
            "import onnx",
            *lines,
            "file = tempfile.NamedTemporaryFile(suffix='.onnx')",
            "options.optimized_model_filepath = file.name",
            "ort.InferenceSession(model.SerializeToString(), options)",
            "return onnx.load(file.name)",
        ]
    return "\n".join(lines)


def _save(model: bytes, settings: Mapping[str, Any]) -> bytes:
    if hasattr(os, "memfd_create"):
        # A file in memory takes a third of the time, which hunts need for every model.
        with open(os.memfd_create("optvet"), "rb") as memory:
            _create(model, settings, save=Path(f"/proc/self/fd/{memory.fileno()}"))
            return memory.read()
    with tempfile.TemporaryDirectory(prefix="optvet-") as folder:
        path = Path(folder) / "optimized.onnx"
        _create(model, settings, save=path)
        return path.read_bytes()


def _create(
    model: bytes | str,
    settings: Mapping[str, Any],
    save: Path | None = None,
    weights: str | None = None,
) -> None:
    import onnxruntime as ort

    session = ort.SessionOptions()
    session.graph_optimization_level = _level(settings["level"])
    session.intra_op_num_threads = 1  # nothing is run, and a thread costs more than a small model
    session.log_severity_level = 0 if save is None else 2
    for key, value in settings["config"].items():
        session.add_session_config_entry(key, value)
    if save is not None:
        session.optimized_model_filepath = str(save)
    if weights is not None:
        key = "session.optimized_model_external_initializers_file_name"
        session.add_session_config_entry(key, weights)
    cpu = ["CPUExecutionProvider"]
    ort.InferenceSession(model, session, cpu, disabled_optimizers=settings["disabled"])


def _level(number: int) -> Any:
    import onnxruntime as ort

    names = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT", "ENABLE_ALL")
    levels = ort.GraphOptimizationLevel
    # Releases before 1.23 have no level of its own for layout: there it belongs to "all".
    return getattr(levels, f"ORT_{names[number]}", levels.ORT_ENABLE_ALL)


def _log_of(model: bytes, settings: Mapping[str, Any], others: _Others | None = None) -> str:
    """The verbose log of one optimization, made in a fork: it survives what kills the fork.

    Behind it comes a line for each pass in ``others`` that is seen to matter.
    """
    import onnxruntime  # noqa: F401  # loaded before the fork, which then only runs it

    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.dup2(log.fileno(), 2)
                with contextlib.suppress(Exception):  # what is refused was changed before
                    _create(model, settings)
                if others and len(model) <= _SMALL_BYTES:
                    _compare(model, settings, others, log.fileno())
            os._exit(0)
        os.waitpid(child, 0)
        log.seek(0)
        return log.read().decode("utf-8", "replace")


def _compare(model: bytes, settings: Mapping[str, Any], others: _Others, log: int) -> None:
    """Write a line for each pass that is seen to change the model, of those that it may be.

    First for each with which alone its set does; where there is none, for each without which the
    model is another.
    """
    changed = [name for name in _find_changed(log, 0) if name in _ASKED]
    for name in changed:
        compared = [n for n in _ASKED[name] if n in others.without]
        words: list[str] = []
        if len(compared) > 1:
            change = functools.partial(_is_changed_by, model, others.off, name, log)
            words = [f"{n} alone" for n in _each(compared, change)]
        if not words:
            whole = _save_or_none(model, settings)
            left = {n: _save_or_none(model, others.without[n]) for n in compared}
            words = [f"without {n}" for n in compared if left[n] != whole]
        for telling in words:
            os.write(log, f"\noptvet: {telling}: the model is another\n".encode())
    os.write(log, f"\n{_COMPARED}\n".encode())


def _save_or_none(model: bytes, settings: Mapping[str, Any]) -> bytes | None:
    """The optimized model; None where the runtime refuses it."""
    try:
        return _save(model, settings)
    except Exception:  # each kind of refusal has a class of its own
        return None


def _each(
    names: Sequence[str], change: Callable[[Sequence[str]], bool], *, known: bool = False
) -> Sequence[str]:
    """The names that change the model alone: few, so halves are tried first.

    ``known`` says that all together probably do.
    """
    if (not known or len(names) == 1) and not change(names):
        return []
    if len(names) == 1:
        return names
    half = len(names) // 2
    first = _each(names[:half], change)
    return [*first, *_each(names[half:], change, known=not first)]


def _find_changed(log: int, start: int) -> list[str]:
    """Transformers of which the log says, from ``start`` on, that they changed the model."""
    text = os.pread(log, os.fstat(log).st_size - start, start).decode("utf-8", "replace")
    return [name for name, modified in _DONE.findall(text) if modified == "1"]


def _is_changed_by(
    model: bytes, off: Mapping[str, Any], name: str, log: int, rules: Sequence[str]
) -> bool:
    """Whether the set of this name changes the model where only these rules are on."""
    start = os.fstat(log).st_size
    disabled = [n for n in off["disabled"] if n not in rules]
    # Later levels would only take time.
    with contextlib.suppress(Exception):
        _create(model, {**off, "level": int(name[len("Level")]), "disabled": disabled})
    found = name in _find_changed(log, start)
    os.ftruncate(log, start)
    os.lseek(log, start, os.SEEK_SET)
    return found


@functools.lru_cache(maxsize=1)
def _list_installed() -> tuple[_Row, ...]:
    """A row for every pass of the installed binary."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            "tiny",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        ),
        ir_version=7,
        opset_imports=[helper.make_opsetid("", 13)],
    )
    found: dict[str, _Row] = {}
    level = 0
    everything = {"level": 4, "disabled": [], "config": {}}
    for line in _log_of(model.SerializeToString(), everything).splitlines():
        if begins := _LEVEL.search(line):
            level = int(begins[1])
        elif (done := _DONE.search(line)) and level:
            _add(found, done[1], level)
    logged = bool(found)
    if not logged:
        # Before 1.17 the log names nothing: the table, as far as the binary knows its names.
        for number, names in _TRANSFORMERS.items():
            for name in (f"Level{number}_RuleBasedTransformer", *names):
                _add(found, name, number)
    binary = _binary()
    return tuple(
        p for p in found.values() if (logged and p[2] != "rule") or p[0].encode() in binary
    )


def _add(found: dict[str, _Row], name: str, level: int) -> None:
    if name in _RULE_SETS:
        for rule in _RULE_SETS[name]:
            found.setdefault(rule, (rule, level, "rule"))
    elif name not in _MANDATORY and "_RuleBasedTransformer" not in name:
        found.setdefault(name, (name, level, "transformer"))


def _binary() -> bytes:
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    return b"".join(p.read_bytes() for p in folder.glob("onnxruntime_pybind11_state*.so"))
