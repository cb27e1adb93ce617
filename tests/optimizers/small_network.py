"""A small network that optimizers have something to do with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).uniform(0.1, 1, size=shape).ravel()
    return "{" + ", ".join(f"{v:.3f}" for v in values) + "}"


NET = f"""
<ir_version: 8, opset_import: ["" : 13]>
net (float[1,2,5,5] x) => (float[1,3,3,3] y)
<float[3,2,3,3] w = {numbers(3, 2, 3, 3)}, float[3] s = {numbers(3)}, float[3] b = {{-3, 0, 2}},
 float[3] m = {numbers(3, seed=1)}, float[3] v = {numbers(3, seed=2)}>
{{
    c = Conv(x, w)
    n = BatchNormalization(c, s, b, m, v)
    a = Transpose<perm = [0, 2, 3, 1]>(n)
    r = Relu(a)
    t = Transpose<perm = [0, 2, 3, 1]>(r)
    u = Transpose<perm = [0, 2, 3, 1]>(t)
    y = Identity(u)
}}
"""
"""A convolution with batch normalization, transposes that can be one, and an identity."""


def as_artifact(text: str) -> Artifact:
    return Artifact("onnx", onnx.parser.parse_model(text).SerializeToString())


def operators(artifact: Artifact) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load_from_string(artifact.data).graph.node)


BEFORE = Counter(n.op_type for n in onnx.parser.parse_model(NET).graph.node)


def vet(root: Path, text: str, optimizer: Any) -> VetResult:
    path = root / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    plugins = Plugins().register("optimizer", optimizer)
    settings = VetRequest(
        model="model", optimizer=optimizer.name, limit=2, jobs=1, cache_dir=root / "cache"
    )
    return vet_model(open_model(path, str(path), root / "cache"), settings, plugins)
