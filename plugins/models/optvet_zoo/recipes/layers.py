"""Differentiable layers of a small network, in plain numpy, float64."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class TrainableLayer(Protocol):
    """A differentiable step; ``parameters`` and ``gradients`` run in parallel."""

    parameters: list[Array]
    gradients: list[Array]

    def forward(self, x: Array, *, training: bool) -> Array:
        """Its output for the batch ``x``."""
        ...

    def backward(self, gradient: Array) -> Array:
        """Gradient of the loss with respect to ``x``, given that of the output."""
        ...


class FixedLayer:
    """A layer without parameters, made of two functions."""

    def __init__(self) -> None:
        self.parameters: list[Array] = []
        self.gradients: list[Array] = []


class Dense(FixedLayer):
    """x @ W + b."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        weight = rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
        self.parameters = [weight, np.zeros(outputs)]
        self.gradients = [np.zeros_like(weight), np.zeros(outputs)]

    def forward(self, x: Array, *, training: bool) -> Array:
        """[n, inputs] to [n, outputs]."""
        self.x = x
        return x @ self.parameters[0] + self.parameters[1]

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        self.gradients = [self.x.T @ gradient, gradient.sum(axis=0)]
        return gradient @ self.parameters[0].T


class Conv3x3(FixedLayer):
    """Convolution with kernels of 3 x 3, padding 1, no bias (a batch normalization follows)."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        weight = rng.standard_normal((outputs, inputs, 3, 3)) * np.sqrt(2 / (9 * inputs))
        self.parameters, self.gradients = [weight], [np.zeros_like(weight)]

    def forward(self, x: Array, *, training: bool) -> Array:
        """[n, inputs, h, w] to [n, outputs, h, w]."""
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        self.windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        result: Array = np.einsum(
            "nchwij,ocij->nohw", self.windows, self.parameters[0], optimize=True
        )
        return result

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        self.gradients = [np.einsum("nchwij,nohw->ocij", self.windows, gradient, optimize=True)]
        padded = np.pad(gradient, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        flipped = self.parameters[0][:, :, ::-1, ::-1]
        result: Array = np.einsum("nohwij,ocij->nchw", windows, flipped, optimize=True)
        return result


class BatchNorm(FixedLayer):
    """Batch normalization over all axes but the channels (Ioffe and Szegedy 2015, Alg. 1)."""

    epsilon = 1e-5

    def __init__(self, channels: int) -> None:
        self.parameters = [np.ones(channels), np.zeros(channels)]
        self.gradients = [np.zeros(channels), np.zeros(channels)]
        self.mean, self.variance = np.zeros(channels), np.ones(channels)

    def forward(self, x: Array, *, training: bool) -> Array:
        """[n, channels, h, w], normalized by the batch in training and by the averages after."""
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
            self.mean = 0.9 * self.mean + 0.1 * mean
            self.variance = 0.9 * self.variance + 0.1 * variance
        self.inverse = 1 / np.sqrt(_channels(variance) + self.epsilon)
        self.normal = (x - _channels(mean)) * self.inverse
        return self.normal * _channels(self.parameters[0]) + _channels(self.parameters[1])

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        axes = (0, 2, 3)
        self.gradients = [(gradient * self.normal).sum(axis=axes), gradient.sum(axis=axes)]
        inner = gradient * _channels(self.parameters[0])
        centred = inner - inner.mean(axis=axes, keepdims=True)
        parallel = (inner * self.normal).mean(axis=axes, keepdims=True)
        result: Array = (centred - self.normal * parallel) * self.inverse
        return result


def _channels(values: Array) -> Array:
    return values.reshape(1, -1, 1, 1)


class Relu(FixedLayer):
    """max(x, 0)."""

    def forward(self, x: Array, *, training: bool) -> Array:
        """Any shape."""
        self.mask = x > 0
        return x * self.mask

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        return gradient * self.mask


class Tanh(FixedLayer):
    """tanh(x)."""

    def forward(self, x: Array, *, training: bool) -> Array:
        """Any shape."""
        self.y = np.tanh(x)
        return self.y

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        result: Array = gradient * (1 - self.y**2)
        return result


class MaxPool2(FixedLayer):
    """Maxima of windows of 2 x 2."""

    def forward(self, x: Array, *, training: bool) -> Array:
        """[n, c, h, w] to [n, c, h/2, w/2]."""
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 2, 2, w // 2, 2)
        top = blocks.max(axis=(3, 5), keepdims=True)
        self.mask = blocks == top
        return np.asarray(top.reshape(n, c, h // 2, w // 2))

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        n, c, h, w = gradient.shape
        spread = self.mask * gradient[:, :, :, None, :, None]
        result: Array = spread.reshape(n, c, 2 * h, 2 * w)
        return result


class Dropout(FixedLayer):
    """Drops a share of the features in training, and scales the others up."""

    def __init__(self, rng: np.random.Generator, share: float) -> None:
        super().__init__()
        self.rng, self.share = rng, share

    def forward(self, x: Array, *, training: bool) -> Array:
        """Any shape."""
        keep = self.rng.random(x.shape) >= self.share if training else np.full(x.shape, True)
        self.factor = keep / (1 - self.share if training else 1)
        return x * self.factor

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        return gradient * self.factor


class Flatten(FixedLayer):
    """[n, c, h, w] to [n, c*h*w]."""

    def forward(self, x: Array, *, training: bool) -> Array:
        """Row-major, as ONNX's Flatten."""
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        return gradient.reshape(self.shape)


class Cells(FixedLayer):
    """[n, c, h, w] to [n * h * w, c]: every place of the map is a row."""

    def forward(self, x: Array, *, training: bool) -> Array:
        """Rows in the order of n, h, w."""
        self.shape = x.shape
        return x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1])

    def backward(self, gradient: Array) -> Array:
        """See ``TrainableLayer``."""
        n, c, h, w = self.shape
        return gradient.reshape(n, h, w, c).transpose(0, 3, 1, 2)
