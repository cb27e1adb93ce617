"""The judge: from what was expected and what came, to a verdict.

``vet``, ``convert``, ``hunt``, ``reduce``, ``replay`` and ``repair`` decide here, and nowhere else,
what is wrong. Nothing in this package runs a model: callers bring outputs, failures and noise.
"""
