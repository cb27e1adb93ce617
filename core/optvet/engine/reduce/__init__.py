"""Reducing a model to the smallest one for which a condition still holds.

``reduce_model`` knows nothing of optimizers: it is given a condition, and a way to run the model
that tells the values of all its tensors.
"""
