"""Reducing a model to the smallest one for which a condition still holds.

``reduce_model`` is independent of optimizers: its arguments are a condition, and a function that
runs a model and returns the values of all its tensors.
"""
