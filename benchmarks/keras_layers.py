"""Sources of all layers of Keras, and a campaign that converts them.

    TF/bin/python benchmarks/keras_layers.py DIR [--samples N] [--draw N] [--only NAME …]
    optvet campaign run DIR/campaign.toml --trust
    optvet campaign tables DIR/campaign.store --study converters

TF is the environment of ``optvet env make tf``: ``optvet env list`` shows its Python. Each class
of ``keras.layers`` becomes a file with a model of that layer alone, in small settings; with
``--samples`` as further models, each with one other setting. Arguments are found by the names of
parameters, shapes by trying. Layers that cannot be built so are counted by reason.
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras  # reads the variables above

_REQUIRED = {
    "activation": "'gelu'",
    "axes": "1",
    "cell": "layers.GRUCell(3)",
    "cells": "[layers.LSTMCell(3), layers.LSTMCell(2)]",
    "dims": "(2, 1)",
    "equation": "'abc,cd->abd'",
    "factor": "0.3",
    "filters": "3",
    "head_dim": "3",
    "height": "5",
    "height_factor": "0.3",
    "input_dim": "7",
    "kernel_size": "2",
    "key_dim": "3",
    "layers": "[layers.Rescaling(0.5), layers.CenterCrop(5, 6)]",
    "n": "3",
    "num_bins": "4",
    "num_heads": "2",
    "num_key_value_heads": "2",
    "num_query_heads": "4",
    "output_dim": "3",
    "output_size": "2",
    "pool_size": "2",
    "rate": "0.2",
    "scale": "0.5",
    "stddev": "0.2",
    "target_shape": "(2, -1)",
    "units": "3",
    "width": "6",
    "width_factor": "0.3",
}
"""What parameters without a default are given, by name."""
_OF_LAYER = {
    "Bidirectional": "layers.LSTM(3, return_sequences=True)",
    "CategoryEncoding": "num_tokens=7",
    "Discretization": "bin_boundaries=[-1.0, 0.0, 0.5]",
    "EinsumDense": "equation='abc,cd->abd', output_shape=(None, 3)",
    "GroupNormalization": "groups=2",
    "HashedCrossing": "num_bins=4",
    "IntegerLookup": "vocabulary=[3, 1, 5]",
    "MelSpectrogram": "fft_length=16, sequence_stride=8, num_mel_bins=4, sampling_rate=100",
    "Normalization": "mean=[0.1, 0.2, 0.3, 0.4], variance=[0.5, 1.0, 1.5, 2.0]",
    "STFTSpectrogram": "frame_length=16, frame_step=8, fft_length=16",
    "SpectralNormalization": "layers.Dense(3)",
    "StringLookup": "vocabulary=['a', 'b', 'c']",
    "TextVectorization": "vocabulary=['a', 'b', 'c']",
    "TimeDistributed": "layers.Dense(3)",
}
"""Arguments of layers that need more than that."""
_SETTINGS = {
    "activation": ("'elu'", "'hard_sigmoid'", "'softmax'"),
    "antialias": ("True",),
    "axis": ("1", "-2"),
    "border_mode": ("'reflect'",),
    "crop_to_aspect_ratio": ("True",),
    "depth_multiplier": ("2",),
    "dilation_rate": ("2",),
    "fill_mode": ("'nearest'",),
    "go_backwards": ("True",),
    "groups": ("2",),
    "interpolation": ("'bilinear'", "'bicubic'", "'lanczos3'", "'lanczos5'", "'nearest'"),
    "keepdims": ("True",),
    "mask_zero": ("True",),
    "max_value": ("0.5",),
    "merge_mode": ("'sum'", "'ave'", "None"),
    "negative_slope": ("0.1",),
    "normalize": ("True",),
    "output_mode": ("'one_hot'", "'multi_hot'", "'count'", "'tf_idf'"),
    "output_padding": ("1",),
    "pad_to_aspect_ratio": ("True",),
    "padding": ("'same'", "'causal'"),
    "pool_size": ("3",),
    "reset_after": ("False",),
    "return_sequences": ("True",),
    "return_state": ("True",),
    "score_mode": ("'concat'",),
    "sparse": ("True",),
    "split": ("'character'",),
    "strides": ("2",),
    "threshold": ("0.3",),
    "unroll": ("True",),
    "use_scale": ("True",),
    "zero_output_for_mask": ("True",),
}
"""Other settings, by the name of the parameter: one at a time."""
_FLOATS, _IMAGES = "rng.normal(size={0}).astype('float32')", "rng.uniform(0, 255, {0}).astype('f')"
_WHOLE = "rng.integers(0, 6, {0}).astype('int32')"
_TEXTS = "np.array([['a', 'c', 'd'], ['b', 'b', 'e']])"
_PARTS = {
    "Embedding": (_WHOLE,),
    "ReversibleEmbedding": (_WHOLE,),
    "CategoryEncoding": (_WHOLE,),
    "IntegerLookup": (_WHOLE,),
    "Hashing": (_WHOLE,),
    "HashedCrossing": (_WHOLE, _WHOLE),
    "StringLookup": (_TEXTS,),
    "TextVectorization": (
        _TEXTS.replace("'a', 'c', 'd'", "'a c d'").replace("'b', 'b', 'e'", "'b'"),
    ),
    "GroupQueryAttention": (_FLOATS, _FLOATS),
    "MultiHeadAttention": (_FLOATS, _FLOATS),
    "AdditiveAttention": (_FLOATS, _FLOATS),
    "Attention": (_FLOATS, _FLOATS),
}
"""Inputs of layers that take others than one tensor of floats; merging layers take two."""
_APART = frozenset({"MultiHeadAttention", "GroupQueryAttention"})
"""Layers whose inputs are arguments of their own, not one list."""
_SHAPES = (
    (2, 4),
    (2, 6, 4),
    (2, 7, 7, 4),
    (2, 5, 5, 5, 2),
    (2, 3, 5, 4, 2),
    (2, 3, 4, 4, 4, 2),
    (2, 40),
    (2, 40, 1),
)
_IMAGE = (2, 8, 7, 3)
_FOREIGN = frozenset({"FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper"})
_ABSTRACT = frozenset({"InputLayer", "Lambda", "Layer", "Wrapper"})
_CELLS = ("Cell", "Cells")
_HEAD = '"""{name} of Keras."""\n\nimport numpy as np\n'
_SAMPLE = """

def sample_{number}():
    import keras
    from keras import layers

    inputs = [keras.Input(v.shape[1:], dtype={kinds}) for v in sample_{number}.example_inputs]
    model = keras.Model(inputs, {layer}({given}))
    rng = np.random.default_rng(1)
    # Beginning with zeros and ones, biases, scales and moving averages would hide their faults.
    drawn = (rng.uniform(0.2, 1, w.shape).astype(w.dtype) for w in model.get_weights())
    model.set_weights([d if d.dtype.kind == "f" else w for d, w in zip(drawn, model.get_weights())])
    return model


rng = np.random.default_rng(0)
sample_{number}.example_inputs = ({values},)
"""
_CAMPAIGN = """\
# By benchmarks/keras_layers.py of Keras {version}: {sources} sources of {layers} layers.
name = "keras-layers"
models = [
{models}
]
via = [{via}]

[convert]
random = 1
cross_check = ["onnx_reference"]
"""


class Unwritable(ValueError):
    """A layer that cannot be a source of a few lines; the message says why."""


def main() -> None:
    """Write sources and campaign, and print what was left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument(
        "--draw",
        type=int,
        help="Convert so many sources, those in usual settings first, drawn with seed 0.",
    )
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--via", nargs="*", default=["keras_export", "tf2onnx", "tflite"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    left_out: Counter[str] = Counter()
    models: list[str] = []
    names = _names()
    wanted = options.only or names
    written = 0
    for name in wanted:
        file = options.folder / f"layer_{name}.py"
        try:
            texts = list(_samples(name, options.samples, file))
        except Unwritable as reason:
            file.unlink(missing_ok=True)
            left_out[f"{name}: {reason}"] += 1
            continue
        file.write_text(_HEAD.format(name=name) + "".join(texts))
        models += [f"{file.name}:sample_{number}" for number in range(len(texts))]
        written += 1
    random.Random(0).shuffle(models)
    models = sorted(models, key=lambda m: not m.endswith(":sample_0"))[: options.draw]
    (options.folder / "campaign.toml").write_text(
        _CAMPAIGN.format(
            models="\n".join(f'    "{m}",' for m in models),
            via=", ".join(f'"{chain}"' for chain in options.via),
            version=keras.__version__,
            sources=len(models),
            layers=written,
        )
    )
    print(f"{len(names)} layers; {written} of {len(wanted)} written, {len(models)} sources")
    for words, count in left_out.most_common():
        print(f"{count:4} left out: {words}")


def _names() -> list[str]:
    """The names of all layers, one for each class: its own where it is exported by that."""
    found: dict[type, str] = {}
    for name, value in sorted(vars(keras.layers).items()):
        if inspect.isclass(value) and issubclass(value, keras.layers.Layer):
            found[value] = name if name == value.__name__ else found.get(value, name)
    return sorted(found.values())


def _samples(name: str, most: int, file: Path) -> Iterator[str]:
    """The texts of up to ``most`` models of a layer, the first one in its usual settings.

    Each is tried in ``file``.

    Raises:
        Unwritable: There is none.
    """
    if name in _FOREIGN or name in _ABSTRACT:
        raise Unwritable("of another framework" if name in _FOREIGN else "no layer of its own")
    plain = _arguments(name)
    inputs, reason = None, "no shape fits"
    for shape in _shapes(name):
        inputs = [kind.format(shape) for kind in _kinds(name)]
        text = _text(name, 0, plain, inputs)
        if not (reason := _why_not(file, text, 0)):
            break
    else:
        raise Unwritable(reason)
    yield text
    number = 1
    for setting in _settings(name):
        if number >= most:
            return
        text = _text(name, number, f"{plain}, {setting}".removeprefix(", "), inputs)
        if not _why_not(file, text, number):
            yield text
            number += 1


def _kinds(name: str) -> Sequence[str]:
    if _module(name).startswith("merging"):
        return (_FLOATS, _FLOATS)
    image = "image_preprocessing" in _module(name) or name == "Pipeline"
    return _PARTS.get(name, (_IMAGES if image else _FLOATS,))


def _shapes(name: str) -> Sequence[tuple[int, ...]]:
    """Shapes to try, those first that the layer's name tells."""
    if "image_preprocessing" in _module(name) or name in ("Pipeline", "RandomCrop"):
        return (_IMAGE,)
    sizes = re.search(r"(\d)D", name)
    more = 2 + (name.startswith("ConvLSTM"))
    first = [s for s in _SHAPES if sizes and len(s) == int(sizes[1]) + more]
    recurrent = _module(name).startswith(("rnn", "attention"))
    first += [s for s in _SHAPES if recurrent and len(s) == 3]
    return (*first, *_SHAPES)


def _module(name: str) -> str:
    path: str = getattr(keras.layers, name).__module__
    return path.removeprefix("keras.src.layers.")


def _arguments(name: str) -> str:
    """The text of a layer's arguments.

    Raises:
        Unwritable: The table has none for a parameter.
    """
    if name in _OF_LAYER:
        return _OF_LAYER[name]
    parameters = list(inspect.signature(getattr(keras.layers, name).__init__).parameters.values())
    needed = [
        p for p in parameters[1:] if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD
    ]
    if unknown := [p.name for p in needed if p.name not in _REQUIRED]:
        raise Unwritable(f"no value for {', '.join(unknown)}")
    return ", ".join(f"{p.name}={_REQUIRED[p.name]}" for p in needed)


def _settings(name: str) -> Iterator[str]:
    """One other setting at a time, as text; what the layer requires has its setting already."""
    given = _arguments(name)
    for parameter in inspect.signature(getattr(keras.layers, name).__init__).parameters.values():
        usual = parameter.default
        for text in _SETTINGS.get(parameter.name, ()):
            if f"{parameter.name}=" not in given and text != repr(usual):
                yield f"{parameter.name}={text}"


def _text(name: str, number: int, arguments: str, inputs: Sequence[str]) -> str:
    layer = f"layers.{name}({arguments})"
    whole = "'string'" if any("np.array" in i for i in inputs) else "v.dtype.name"
    given = "inputs[0]" if len(inputs) == 1 else "*inputs" if name in _APART else "inputs"
    return _SAMPLE.format(
        number=number,
        kinds=whole,
        layer=f"layers.RNN({layer})" if name.endswith(_CELLS) else layer,
        given=given,
        values=", ".join(inputs),
    )


def _why_not(file: Path, text: str, number: int) -> str:
    """Why a source is no model that gives tensors for its example; empty if it is."""
    file.write_text(_HEAD.format(name=file.stem) + text)
    keras.utils.set_random_seed(0)
    try:
        make: Any = runpy.run_path(str(file))[f"sample_{number}"]
        model = make()
        fed = [keras.ops.convert_to_tensor(v) for v in make.example_inputs]
        model(fed[0] if len(fed) == 1 else fed, training=False)
    except Exception as error:  # whatever a layer raises leaves out that model alone
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    return ""


if __name__ == "__main__":
    main()
