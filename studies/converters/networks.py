"""Networks of PyTorch and Keras as sources: convolutions, recurrence, attention."""

import numpy as np

rng = np.random.default_rng(0)
image = rng.normal(size=(2, 12, 12, 3)).astype(np.float32)
sequence = rng.normal(size=(2, 7, 8)).astype(np.float32)


# --- PyTorch -------------------------------------------------------------------------------------


def torch_cnn():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def tensors(*arrays):
    import torch

    return tuple(map(torch.from_numpy, arrays))


torch_cnn.example_inputs = lambda: tensors(np.ascontiguousarray(image.transpose(0, 3, 1, 2)))


def torch_recurrent():
    import torch

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 6, batch_first=True, bidirectional=True)
            self.head = torch.nn.Linear(12, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    return Recurrent()


def torch_attention():
    import torch

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(8)
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())

        def forward(self, x):
            y = self.norm(x)
            return self.head(x + self.attention(y, y, y, need_weights=False)[0])

    return Attention()


torch_recurrent.example_inputs = torch_attention.example_inputs = lambda: tensors(sequence)


# --- Keras ---------------------------------------------------------------------------------------


def keras_cnn():
    import keras
    from keras import layers as k

    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            k.Conv2D(8, 3, strides=2, padding="same"),
            k.BatchNormalization(),
            k.ReLU(),
            k.MaxPooling2D(2),
            k.DepthwiseConv2D(3, padding="same", activation="hard_silu"),
            k.GlobalAveragePooling2D(),
            k.Dense(4),
        ]
    )


keras_cnn.example_inputs = (image,)


def keras_recurrent():
    import keras
    from keras import layers as k

    return keras.Sequential([keras.Input((7, 8)), k.Bidirectional(k.LSTM(6)), k.Dense(3)])


def keras_attention():
    import keras
    from keras import layers as k

    x = keras.Input((7, 8))
    y = k.LayerNormalization()(x)
    y = k.Add()([x, k.MultiHeadAttention(2, 4)(y, y)])
    return keras.Model(x, k.Dense(16, activation="gelu")(y))


keras_recurrent.example_inputs = keras_attention.example_inputs = (sequence,)
