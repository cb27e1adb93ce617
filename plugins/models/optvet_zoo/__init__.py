"""Models that need no network: ``zoo:NAME``.

Two kinds. Well-known CNNs come from the onnx wheel and get seeded random weights (``light.py``),
in two editions: ``resnet50`` is modern, ``resnet50-ir3`` lists its weights among the graph's
inputs, as such models were published in 2018. Small models that are really trained come with this
package (``recipes/``), so accuracy can be measured with data that scikit-learn ships.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx

from optvet import (
    InputError,
    ModelCard,
    ModelSource,
    UnknownName,
    hookimpl,
    write_file,
)
from optvet_zoo import light

_RECIPES = Path(__file__).with_name("recipes")
_MEGABYTE = 1_000_000


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
        known = {card.name for card in self.models()}
        if reference not in known:
            raise UnknownName("zoo model", reference, known, "(optvet models lists all)")
        if reference in _TRAINED:
            return [_trained_file(reference)]
        path = cache / "zoo" / light.RECIPE / f"{reference}.onnx"
        if not _is_intact(path):
            _store(path, _made(reference, path.parent).SerializeToString(deterministic=True))
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


def _made(reference: str, folder: Path) -> onnx.ModelProto:
    """A network; its edition of IR 3 from the modern one, if ``folder`` has that already."""
    base = reference.removesuffix("-ir3")
    if base == reference:
        return light.make(base, "modern")
    modern = folder / f"{base}.onnx"
    if not _is_intact(modern):
        return light.make(base, "ir3")
    # The weights are the same, and drawing them takes longer than reading them.
    model = onnx.load(modern)
    model.ir_version = light.published(base).ir_version
    light.list_weights_as_inputs(model.graph)
    return model


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


def _store(path: Path, data: bytes) -> None:
    record = f"{len(data)} {hashlib.sha256(data).hexdigest()}\n"
    # Two processes may make the same model at the same time.
    write_file(path, data, private=True)
    write_file(_record_of(path), record, private=True)


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
