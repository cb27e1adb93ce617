"""Synthetic models: connected, checked, and run before they are written.

They are a hunt without a target under test (``optvet.engine.hunt.loop``), which keeps its models.
What is its own is how models grow: a round plans which operators its models are to have, those that
were used least first; each model grows in a worker process, piece by piece, and every piece runs
before the next is drawn.
"""
