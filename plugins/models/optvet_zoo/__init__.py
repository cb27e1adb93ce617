"""Models that need no network: ``zoo:NAME``.

Two kinds. Well-known CNNs come from the onnx wheel and get seeded random weights (``light.py``),
in two editions: ``resnet50`` is modern, ``resnet50-ir3`` lists its weights among the graph's
inputs, as such models were published in 2018. Small models that are really trained come with this
package (``recipes/``), so accuracy can be measured with data that scikit-learn ships.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx

from optvet.plugin import InputError, ModelCard, ModelSource, UnknownName, hookimpl, write_file

if TYPE_CHECKING:
    from optvet_zoo import light

_RECIPES = Path(__file__).with_name("recipes")
_MEGABYTE = 1_000_000
_PIECE = 1 << 18


class _Published(NamedTuple):
    """What a card says of one of the networks; ``size_mb`` in 10**6 bytes."""

    size_mb: int
    description: str
    tags: tuple[str, ...] = ()


_NETWORKS = {
    "alexnet": _Published(244, "AlexNet (Caffe's variant, 2012)", ("lrn", "dropout")),
    "densenet121": _Published(33, "DenseNet-121 (2016); ends in logits", ("batchnorm", "concat")),
    "inception_v1": _Published(28, "GoogLeNet (2014)", ("lrn", "concat")),
    "inception_v2": _Published(45, "Inception with batch normalization (2015)", ("batchnorm",)),
    "resnet50": _Published(103, "ResNet-50 (2015)", ("batchnorm", "residual")),
    "shufflenet": _Published(6, "ShuffleNet (2017)", ("batchnorm", "grouped", "transpose")),
    "squeezenet": _Published(5, "SqueezeNet 1.1 (2016)", ("concat",)),
    "vgg19": _Published(575, "VGG-19 (2014)", ("large",)),
    "zfnet512": _Published(349, "ZFNet-512 (2013)", ("lrn", "large")),
}

_TRAINED = {
    "canvas-detector": ModelCard(
        "canvas-detector",
        "object-detection",
        "Boxes and classes of digits on 20x20 canvases, from scikit-learn's digits; opset 12",
        28_000,
        ("trained", "dynamic-batch", "batchnorm", "two-outputs"),
    ),
    "diabetes-mlp": ModelCard(
        "diabetes-mlp",
        "tabular-regression",
        "Two tanh layers on scikit-learn's diabetes data, standardization inside; opset 15",
        2_000,
        ("trained", "dynamic-batch"),
    ),
    "digits-cnn": ModelCard(
        "digits-cnn",
        "image-classification",
        "Conv, BatchNormalization, Relu, MaxPool on scikit-learn's 8x8 digits; opset 13",
        60_000,
        ("trained", "dynamic-batch", "batchnorm"),
    ),
    "digits-mlp": ModelCard(
        "digits-mlp",
        "image-classification",
        "MatMul, Add, Relu and exporter's leftovers on scikit-learn's 8x8 digits; opset 17",
        30_000,
        ("trained", "dynamic-batch"),
    ),
    "letters-lm": ModelCard(
        "letters-lm",
        "text-generation",
        "The next letter of scikit-learn's descriptions of its data, by a convolution; opset 10",
        95_000,
        ("trained", "dynamic-batch"),
    ),
    "wine-logreg": ModelCard(
        "wine-logreg",
        "tabular-classification",
        "Logistic regression with label and probabilities on scikit-learn's wine data; opset 13",
        1_000,
        ("trained", "dynamic-batch", "two-outputs"),
    ),
}


class ZooSource:
    """Models made here: published networks with random weights, small trained ones."""

    name = "zoo"

    def models(self) -> Iterable[ModelCard]:
        """All models, by name."""
        cards = [_card(name, edition) for name in _NETWORKS for edition in ("", "-ir3")]
        return sorted([*cards, *_TRAINED.values()], key=lambda card: card.name)

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """The file of the model ``reference``; networks are made once, below ``cache``.

        Raises:
            UnknownName: There is no such model.
            InputError: The installed onnx lacks the network it is made from.
            InfrastructureError: The cache cannot be written.
        """
        from optvet_zoo import light

        known = {card.name for card in self.models()}
        if reference not in known:
            raise UnknownName("zoo model", reference, known, "(optvet models lists all)")
        if reference in _TRAINED:
            return [_trained_file(reference)]
        path = cache / "zoo" / light.RECIPE / f"{reference}.onnx"
        if not _is_intact(path):
            _store(path, light.serialized(*_sketch_network(reference, path.parent)))
        return [path]


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """The zoo."""
    return [ZooSource()]


def _card(name: str, edition: str) -> ModelCard:
    network = _NETWORKS[name]
    form = "IR 3, weights among the inputs" if edition else "IR 8"
    return ModelCard(
        f"{name}{edition}",
        "image-classification",
        f"{network.description}, random weights; {form}, opset 9",
        network.size_mb * _MEGABYTE,
        ("cnn", "random-weights", *network.tags, *(["weights-as-inputs"] if edition else [])),
    )


def _sketch_network(reference: str, folder: Path) -> tuple[onnx.ModelProto, light.Contents]:
    """A network; its edition of IR 3 with the modern one's weights, if ``folder`` has those."""
    from optvet_zoo import light

    base = reference.removesuffix("-ir3")
    if base == reference:
        return light.sketch(base, "modern")
    model, contents = light.sketch(base, "ir3")
    modern = folder / f"{base}.onnx"
    if _is_intact(modern):
        # The weights are the same, and drawing them takes longer than reading them.
        places = light.places(*light.sketch(base, "modern"))
        for weight in model.graph.initializer:
            if weight.name in contents:
                about = (modern, places[weight.name], math.prod(weight.dims))
                contents[weight.name] = functools.partial(_read, *about)
    return model, contents


def _read(path: Path, offset: int, count: int) -> Iterator[np.ndarray]:
    """The values of a weight in a file, in pieces."""
    with path.open("rb") as file:
        file.seek(offset)
        for start in range(0, count, _PIECE):
            yield np.frombuffer(file.read(4 * min(count - start, _PIECE)), "<f4")


def _trained_file(name: str) -> Path:
    path = _RECIPES / f"{name}.onnx"
    if not path.is_file():
        raise InputError(
            f"zoo model {name!r}: {path.name} is missing from the installed package; "
            "install optvet again"
        )
    return path


def _is_intact(path: Path) -> bool:
    """Whether ``path`` holds what was written there; a full disk or an old crash may have cut it.

    A missing record reads as not intact: the record is written last.
    """
    record = _record_of(path)
    if not (path.is_file() and record.is_file()):
        return False
    size, digest = (*record.read_text(encoding="ascii").split(), "", "")[:2]
    about = path.stat()
    return size == str(about.st_size) and _digest_of(path, size, about.st_mtime_ns) == digest


@functools.lru_cache(maxsize=64)
def _digest_of(path: Path, size: str, mtime_ns: int) -> str:
    """sha256 of a file; one that has not changed since is not read again by this process."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _store(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    digest, size = hashlib.sha256(), 0

    def noted() -> Iterator[bytes | memoryview]:
        nonlocal size
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            yield piece

    # Two processes may make the same model at the same time.
    write_file(path, noted(), private=True)
    write_file(_record_of(path), f"{size} {digest.hexdigest()}\n", private=True)


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
