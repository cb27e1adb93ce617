"""Python code that opens or runs a session, for scripts of bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def run_code(lines: Sequence[str], config: Mapping[str, str]) -> str:
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


def session_code(mode: str, level: str | None, config: Mapping[str, str]) -> str:
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
