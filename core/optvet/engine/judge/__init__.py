"""The judge compares expected and actual results, and gives a verdict.

``vet``, ``convert``, ``hunt``, ``reduce``, ``replay`` and ``repair`` all decide here what is wrong.
Nothing in this package runs a model: callers bring outputs, failures and noise.
"""
