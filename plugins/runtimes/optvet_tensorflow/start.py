"""Imports TensorFlow as workers need it: quietly, on the CPU, with kernels that round alike."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("tensorflow") is not None:
    # TensorFlow reads them when it is imported. oneDNN's kernels sum in an order of their own,
    # which depends on the machine. Without TensorFlow, other libraries would lose their GPUs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")

    import tensorflow as tf

    # A worker is one of several.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
