"""Where TensorFlow and what belongs to it is: an environment of its own."""

from __future__ import annotations

import platform

from optvet.plugin import PythonEnvironment

_TENSORFLOW = "tensorflow-cpu" if platform.machine() == "x86_64" else "tensorflow"
ENVIRONMENT = PythonEnvironment(
    "tf",
    (f"{_TENSORFLOW}==2.21.0", "tf2onnx==1.17.0", "ai-edge-litert==2.3.0", "onnx==1.23.2"),
    ("tensorflow", "keras", "tf2onnx", "ai_edge_litert"),
)
EXTRA = "it by: optvet env make tf"
PRELOAD = ("optvet_tensorflow.start", "keras", "ai_edge_litert.interpreter")
