"""Training by gradient descent: losses, the optimizer Adam, and measures of a trained network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from optvet_zoo.recipes.layers import Array, TrainableLayer


def classification_gradient(logits: Array, labels: Array) -> Array:
    """Gradient of the mean cross entropy of soft-max, with respect to the logits."""
    scores = softmax(logits)
    scores[np.arange(len(labels)), labels] -= 1
    return scores / len(labels)


def regression_gradient(predictions: Array, targets: Array) -> Array:
    """Gradient of half the mean squared error."""
    return (predictions - targets[:, None]) / len(targets)


def detection_gradient(found: Array, targets: Array) -> Array:
    """Gradient of the cross entropy of all cells, and of squared offsets where a digit is.

    ``found`` is [cells, 13]: scores of "nothing" and ten digits, and where the centre is from that
    of the cell, in sides of a cell. ``targets`` is [n, cells of one image, 3]: class, and offsets.
    """
    flat = targets.reshape(-1, 3)
    classes = flat[:, 0].astype(int)
    result = np.zeros_like(found)
    result[:, :11] = classification_gradient(found[:, :11], classes) * len(found) / len(targets)
    there = (classes > 0)[:, None]
    result[:, 11:] = there * (found[:, 11:] - flat[:, 1:]) / len(targets)
    return result


def softmax(logits: Array) -> Array:
    """Soft-max over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Array = powers / powers.sum(axis=-1, keepdims=True)
    return result


def train(
    layers: Sequence[TrainableLayer],
    inputs: Array,
    targets: Array,
    gradient_of: Callable[[Array, Array], Array],
    rng: np.random.Generator,
    *,
    epochs: int,
    rate: float = 2e-3,
    decay: float = 1e-4,
) -> None:
    """Adam (Kingma and Ba 2015, Alg. 1) with decoupled weight decay, on batches of 64."""
    moments = [[(np.zeros_like(p), np.zeros_like(p)) for p in x.parameters] for x in layers]
    step = 0
    for epoch in range(epochs):
        order = rng.permutation(len(inputs))
        slowed = rate * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        for start in range(0, len(order), 64):
            batch = order[start : start + 64]
            step += 1
            x = inputs[batch].astype(np.float64)
            for layer in layers:
                x = layer.forward(x, training=True)
            gradient = gradient_of(x, targets[batch])
            for layer in reversed(layers):
                gradient = layer.backward(gradient)
            for layer, layer_moments in zip(layers, moments, strict=True):
                for p, g, (m, v) in zip(
                    layer.parameters, layer.gradients, layer_moments, strict=True
                ):
                    m += 0.1 * (g - m)
                    v += 0.001 * (g * g - v)
                    unbiased = np.sqrt(v / (1 - 0.999**step)) + 1e-8
                    p -= slowed * (m / (1 - 0.9**step) / unbiased + decay * p)


def predict(layers: Sequence[TrainableLayer], inputs: Array) -> Array:
    """Output of the trained layers; float64."""
    x = inputs.astype(np.float64)
    for layer in layers:
        x = layer.forward(x, training=False)
    return x


def accuracy(logits: Array, labels: Array) -> float:
    """Share of rows whose largest entry is at their label."""
    return float(np.mean(logits.argmax(axis=1) == labels))


def f1(scores: Array, targets: Array) -> float:
    """F1 of the classes of cells, "nothing" left out; ``targets`` as of ``detection_gradient``."""
    wanted = targets[..., 0].ravel()
    guessed = scores.reshape(len(wanted), -1).argmax(axis=1)
    right = float(np.sum((guessed == wanted) & (wanted > 0)))
    return 2 * right / float(np.sum(wanted > 0) + np.sum(guessed > 0))


def r_squared(predictions: Array, targets: Array) -> float:
    """Share of the variance of the targets that is explained."""
    residual = np.square(targets - predictions).sum()
    return float(1 - residual / np.square(targets - targets.mean()).sum())
