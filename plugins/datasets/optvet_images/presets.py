"""Preprocessing of families of models, by name, and the family that a model's name suggests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optvet.plugin import InputError, Model

_IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_SIGNED = {"scale": 1 / 127.5, "mean": (1.0,)}
UNIT_RANGE = {"range": (0.0, 1.0)}
_RAW = {"range": (0.0, 255.0)}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # torchvision, and the models of the ONNX zoo that were trained with it or with MXNet.
    "imagenet": {"channels": "RGB", "resize": "crop", **_IMAGENET},
    # TensorFlow's slim: inception and mobilenet, -1..1.
    "inception": {"channels": "RGB", "resize": "crop", **_SIGNED},
    # Caffe, and Keras' "caffe" mode.
    "caffe": {"channels": "BGR", "resize": "crop", "mean": (103.939, 116.779, 123.68)},
    "signed": {"channels": "RGB", "resize": "stretch", **_SIGNED},
    "unit": {"channels": "RGB", "resize": "stretch", **UNIT_RANGE},
    "raw": {"channels": "RGB", "resize": "stretch", **_RAW},
    # Ultralytics: YOLOv5 and later.
    "yolo": {"channels": "RGB", "resize": "letterbox", "pad": 114.0, **UNIT_RANGE},
    # The zoo's YOLOv3 and v4.
    "yolov3": {"channels": "RGB", "resize": "letterbox", "pad": 128.0, **UNIT_RANGE},
    "yolox": {"channels": "BGR", "resize": "letterbox", "pad": 114.0, "anchor": "corner", **_RAW},
    "ultraface": {"channels": "RGB", "resize": "stretch", "mean": (127.0,), "std": (128.0,)},
    "ssd-mobilenet": {"channels": "RGB", "resize": "stretch", **_RAW},
    "ssd": {"channels": "RGB", "resize": "stretch", **_IMAGENET},
    "retinanet": {"channels": "RGB", "resize": "stretch", **_IMAGENET},
    # The zoo's Faster and Mask R-CNN: shorter side 800, sides multiples of 32.
    "rcnn": {
        "channels": "BGR",
        "resize": "shorter",
        "multiple": 32,
        "mean": (102.9801, 115.9465, 122.7717),
    },
    "mnist": {"channels": "GRAY", "resize": "stretch", **UNIT_RANGE},
    "emotion": {"channels": "GRAY", "resize": "stretch", **_RAW},
    "super-resolution": {"channels": "Y", "resize": "stretch", **UNIT_RANGE},
}
"""Preprocessing of families of models, by name."""

_NAMED = (
    (r"yolox", "yolox"),
    (r"yolo[-_]?v?[34](?!\d)", "yolov3"),
    (r"yolo[-_]?(v?(5|6|7|8|9|1\d)|nas)", "yolo"),
    (r"ultra[-_]?face", "ultraface"),
    (r"ssd[-_]?mobilenet", "ssd-mobilenet"),
    (r"(^|[-_])ssd", "ssd"),
    (r"retinanet", "retinanet"),
    (r"(faster|mask)[-_]?rcnn", "rcnn"),
    (r"mnist", "mnist"),
    (r"emotion|ferplus", "emotion"),
    (r"super[-_]?res|espcn", "super-resolution"),
    (r"fcn|deeplab.*resnet", "ssd"),
    (r"caffenet|bvlc|rcnn[-_]ilsvrc|zfnet|alexnet", "caffe"),
    (r"resnet|vgg|densenet|shufflenet|squeezenet|googlenet|regnet|convnext|mnasnet", "imagenet"),
    (r"mobilenet|efficientnet|inception", "imagenet"),
)
"""What a file's name suggests where nobody says anything; the first that fits."""


def preset_of(name: str) -> Mapping[str, Any]:
    """The preset called ``name``; InputError if there is none."""
    if name not in PRESETS:
        raise InputError(
            f"dataset 'images': there is no preset {name!r}; choose one of {', '.join(PRESETS)}"
        )
    return PRESETS[name]


def named_preset(model: Model) -> str | None:
    """The preset that the model's file name suggests, if any."""
    stem = Path(model.source.rpartition(":")[2]).stem.lower()
    return next((preset for pattern, preset in _NAMED if re.search(pattern, stem)), None)
